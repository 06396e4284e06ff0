"""What a micro-batch weighs: values by hand, and against one large batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lightning_accum import GradientAccumulation
from lightning_accum.counting import FromBatch, Pixels, Tokens
from tests.harness import FLOAT32, FLOAT64, Record, Scalar, flat_gradient, numbers, singles, train
from tests.jobs import JOBS, JobModule, Net
from tests.large_batch import join, large_loss


def train_job(
    name: str, batches: list[Any], accumulation: Any, configure: Any = None, **options: Any
) -> tuple[Record, Net]:
    """Train the net of the named job without moving its parameters; return the record and a fresh copy of the net."""
    configure = configure or (lambda net: torch.optim.SGD(net.parameters(), lr=0.0))
    job = JOBS[name]
    return train(JobModule(job, job.net(), configure), batches, accumulation, **options), job.net()


def large_gradient(name: str, net: Net, batches: list[Any]) -> torch.Tensor:
    """The gradient of one backward over everything in ``batches``."""
    large_loss(JOBS[name], net, batches).backward()
    return flat_gradient(net)


def make_batches(name: str, *sizes: int, empty: tuple[int, ...] = (), seed: int = 0) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [JOBS[name].make(generator, size, index in empty) for index, size in enumerate(sizes)]


# --- by hand


def test_five_items_of_one_and_one_of_thirteen_have_a_mean_of_three() -> None:
    record = train(Scalar(), [torch.ones(5), torch.tensor([13.0])], 2)
    assert record.gradients == pytest.approx([3.0], rel=FLOAT32)


def test_five_items_of_one_and_one_of_thirteen_by_lightning_alone_have_a_mean_of_seven() -> None:
    record = train(Scalar(), [torch.ones(5), torch.tensor([13.0])], accumulate_grad_batches=2)
    assert record.gradients == pytest.approx([7.0], rel=FLOAT32)


WAYS: dict[str, Any] = {
    "callable": lambda batch, outputs: batch["items"],
    "callable_of_numbers": lambda batch, outputs: batch["items"].item(),
    "from_batch": FromBatch(lambda batch: batch["items"]),
    "returned": "returned",
    "callable_of_outputs": lambda batch, outputs: outputs["boxes"],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scale", [1.0, 0.25, 1e-6, 1e6])
def test_weight_is_any_scalar_however_it_is_told(way: str, scale: float) -> None:
    def step(module: Scalar, batch: Any, batch_idx: int) -> Any:
        return {"loss": module.w * batch["value"], "num_items" if way == "returned" else "boxes": batch["items"]}

    pairs = [(1.0, 5.0), (13.0, 1.0), (2.0, 0.5), (7.0, 2.5)]
    batches = [{"value": torch.tensor(v), "items": torch.tensor(w * scale)} for v, w in pairs]
    record = train(Scalar(step=step), batches, GradientAccumulation(2, weight=WAYS[way]))
    assert record.gradients == pytest.approx([18 / 6, (1.0 + 17.5) / 3], rel=FLOAT32)


def test_samples_of_a_nested_batch_are_counted() -> None:
    def step(module: Scalar, batch: Any, batch_idx: int) -> torch.Tensor:
        return module.w * batch["deep"][0].mean()

    batches = [{"deep": (values, ["name"] * len(values)), "scale": torch.tensor(2.0)} for values in numbers(4, 4, 2)]
    assert train(Scalar(step=step), batches, 3).gradients == pytest.approx([5.5], rel=FLOAT32)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_weight_that_cannot_be_is_an_error(bad: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        train(Scalar(), singles(4), GradientAccumulation(2, weight=lambda batch, outputs: bad))


def test_weight_returned_by_nobody_is_an_error_that_names_num_items() -> None:
    with pytest.raises(ValueError, match="num_items"):
        train(Scalar(), singles(4), GradientAccumulation(2, weight="returned"))


def test_two_sources_of_a_weight_that_contradict_are_an_error() -> None:
    def step(module: Scalar, batch: Any, batch_idx: int) -> Any:
        return {"loss": module.w * batch.mean(), "num_items": 3}

    with pytest.raises(ValueError, match="num_items"):
        train(Scalar(step=step), singles(4), GradientAccumulation(2, weight="tokens"))


def test_count_returned_beside_the_loss_is_the_weight_without_asking_for_it() -> None:
    def step(module: Scalar, batch: Any, batch_idx: int) -> Any:
        return {"loss": module.w * batch[0], "num_items": batch[1]}

    record = train(Scalar(step=step), [(1.0, 5), (13.0, 1)], 2)
    assert record.gradients == pytest.approx([3.0], rel=FLOAT32)


def test_class_weights_are_the_denominator_by_hand() -> None:
    """Logits w * (1, 0): a loss of class 0 has the gradient p - 1, one of class 1 the gradient p; p = sigmoid(1)."""
    weights = torch.tensor([1.0, 3.0])

    def step(module: Scalar, labels: torch.Tensor, batch_idx: int) -> torch.Tensor:
        logits = torch.stack([module.w, module.w * 0]).expand(len(labels), 2)
        return F.cross_entropy(logits, labels, weight=weights)

    batches = [torch.tensor([0, 0]), torch.tensor([1, 0, 1])]
    accumulation = GradientAccumulation(2, weight=lambda labels, outputs: weights[labels].sum())
    record = train(Scalar(step=step), batches, accumulation)
    p = torch.sigmoid(torch.tensor(1.0)).item()
    assert record.gradients == pytest.approx([(3 * (p - 1) + 2 * 3 * p) / 9], rel=FLOAT32)


def test_two_loss_terms_divide_each_by_its_own_items_by_hand() -> None:
    def step(module: Scalar, batch: Any, batch_idx: int) -> Any:
        (a, num_a), (b, num_b) = batch
        return {"loss": {"a": module.w * a, "b": module.w * b}, "num_items": {"a": num_a, "b": num_b}}

    batches = [((1.0, 5), (10.0, 1)), ((13.0, 1), (20.0, 4))]
    record = train(Scalar(step=step), batches, GradientAccumulation(2, weight="returned"))
    assert record.gradients == pytest.approx([(5 + 13) / 6 + (10 + 80) / 5], rel=FLOAT32)


# --- against one large batch


@pytest.mark.parametrize("name", [name for name in JOBS if name != "equal"])
@pytest.mark.parametrize("sizes", [(3, 1, 2), (1, 1, 1, 1, 5), (2,)])
def test_weighted_window_equals_one_large_batch(name: str, sizes: tuple[int, ...]) -> None:
    batches = make_batches(name, *sizes)
    record, net = train_job(name, batches, GradientAccumulation(len(sizes), weight=JOBS[name].weight))
    expected = large_gradient(name, net, batches)
    assert expected.norm() > 0
    torch.testing.assert_close(record.gradients[0], expected, rtol=FLOAT64, atol=FLOAT64 * expected.norm().item())


@pytest.mark.parametrize("name", ["samples", "tokens", "tags", "pixels", "callable"])
def test_mean_of_means_is_another_gradient(name: str) -> None:
    """The red side: with these batches a mean of means is nowhere near, so the test above can fail."""
    batches = make_batches(name, 3, 1, 2)
    record, net = train_job(name, batches, GradientAccumulation(3, weight="equal"))
    expected = large_gradient(name, net, batches)
    assert (record.gradients[0] - expected).norm() > 0.01 * expected.norm()


def test_labels_under_another_key_and_index_are_counted() -> None:
    def step(module: JobModule, batch: Any, batch_idx: int) -> torch.Tensor:
        logits = module.net(batch["x"]).flatten(0, 1)
        return F.cross_entropy(logits, batch["tags"].flatten(), ignore_index=-1)

    class Tagger(JobModule):
        training_step = step

    batches = [{"x": b["x"], "tags": b["labels"].clamp(min=-1)} for b in make_batches("tags", 3, 1, 2)]
    weight = Tokens(labels="tags", ignore_index=-1, shift=False)
    module = Tagger(JOBS["tags"], Net(), lambda net: torch.optim.SGD(net.parameters(), lr=0.0))
    record = train(module, batches, GradientAccumulation(3, weight=weight))
    net = Net()
    step(JobModule(JOBS["tags"], net, None), join(batches), 0).backward()
    torch.testing.assert_close(record.gradients[0], flat_gradient(net), rtol=FLOAT64, atol=FLOAT64)


def test_mask_under_a_key_is_counted() -> None:
    batches = make_batches("pixels", 3, 1, 2)

    class Segmenter(JobModule):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return self.job.loss(self.net, (batch["image"], batch["truth"]))

    keyed = [{"image": image, "truth": mask} for image, mask in batches]
    module = Segmenter(JOBS["pixels"], Net(), lambda net: torch.optim.SGD(net.parameters(), lr=0.0))
    record = train(module, keyed, GradientAccumulation(3, weight=Pixels(mask="truth")))
    expected = large_gradient("pixels", Net(), batches)
    torch.testing.assert_close(record.gradients[0], expected, rtol=FLOAT64, atol=FLOAT64)


# --- nothing valid

EMPTY_JOBS = [name for name, job in JOBS.items() if job.can_be_empty]


@pytest.mark.parametrize("name", EMPTY_JOBS)
@pytest.mark.parametrize("empty", [(1,), (0,), (0, 1), (3,), (1, 2, 3)])
def test_micro_batch_without_valid_items_contributes_nothing_and_no_nan(name: str, empty: tuple[int, ...]) -> None:
    batches = make_batches(name, 2, 1, 3, 2, empty=empty)
    record, net = train_job(name, batches, GradientAccumulation(4, weight=JOBS[name].weight))
    assert len(record.gradients) == 1
    assert record.gradients[0].isfinite().all()
    expected = large_gradient(name, net, [batch for index, batch in enumerate(batches) if index not in empty])
    torch.testing.assert_close(record.gradients[0], expected, rtol=FLOAT64, atol=FLOAT64 * expected.norm().item())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_micro_batch_of_weight_zero_with_any_loss_contributes_nothing(bad: float) -> None:
    """By hand: the gradient itself is not finite, so multiplying it by zero would not help."""

    def step(module: Scalar, batch: Any, batch_idx: int) -> Any:
        value, items = batch
        return {"loss": module.w * value, "num_items": items}

    batches = [(3.0, 1), (bad, 0), (5.0, 1), (7.0, 0)]
    record = train(Scalar(step=step), batches, GradientAccumulation(4, weight="returned"))
    assert record.gradients == pytest.approx([4.0], rel=FLOAT32)


def test_loss_of_nothing_divided_by_nothing_leaves_no_nan() -> None:
    def step(module: Scalar, batch: Any, batch_idx: int) -> Any:
        values, valid = batch
        return {"loss": (module.w * values * valid).sum() / valid.sum(), "num_items": valid.sum()}

    values = torch.tensor([1.0, 2.0, 3.0])
    masks = [torch.tensor([1.0, 1.0, 0.0]), torch.zeros(3), torch.tensor([0.0, 0.0, 1.0])]
    record = train(Scalar(step=step), [(values, m) for m in masks], GradientAccumulation(3, weight="returned"))
    assert record.gradients == pytest.approx([2.0], rel=FLOAT32)


def _adamw(net: Net) -> Any:
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


@pytest.mark.parametrize("name", EMPTY_JOBS)
def test_window_without_valid_items_changes_nothing_at_all(name: str) -> None:
    """Windows of two: full, empty, empty, full. Weight decay and moments would move on any optimizer call."""
    seen: list[tuple[torch.Tensor, list[torch.Tensor]]] = []

    class Watched(JobModule):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            state = self.trainer.optimizers[0].state
            tensors = [v.clone() for p in self.parameters() for v in state[p].values() if isinstance(v, torch.Tensor)]
            seen.append((torch.cat([p.detach().flatten() for p in self.parameters()]), tensors))

    batches = make_batches(name, 2, 1, 2, 2, 1, 2, 3, 1, empty=(2, 3, 4, 5))
    accumulation = GradientAccumulation(2, weight=JOBS[name].weight)
    record = train(Watched(JOBS[name], JOBS[name].net(), _adamw), batches, accumulation)
    after_first, after_empty = seen[1], seen[5]
    assert torch.equal(after_first[0], after_empty[0])
    assert len(after_first[1]) > 0
    assert all(torch.equal(a, b) for a, b in zip(after_first[1], after_empty[1], strict=True))
    assert not torch.equal(seen[7][0], after_empty[0])
    assert seen[7][0].isfinite().all()
    assert record.global_step == record.num_updates == record.num_scheduler_steps == 2
    assert accumulation.state.num_empty_windows == 2
    assert accumulation.state.num_optimizer_steps == 2


def test_windows_without_valid_items_are_told_once_with_their_number() -> None:
    batches = make_batches("tokens", 2, 1, 2, 2, 1, 2, 3, 1, empty=(2, 3, 4, 5))
    record, _ = train_job("tokens", batches, GradientAccumulation(2, weight="tokens"))
    told = record.warned("window", "item")
    assert len(told) == 1


def test_training_without_any_valid_item_makes_no_step() -> None:
    batches = make_batches("pixels", 2, 1, 2, empty=(0, 1, 2))
    record, net = train_job("pixels", batches, GradientAccumulation(2, weight="pixels"), _adamw)
    assert record.global_step == record.num_updates == record.num_scheduler_steps == 0
    assert all(torch.equal(a, b) for a, b in zip(record.module.net.parameters(), net.parameters(), strict=True))


def test_first_window_empty_still_lets_the_second_be_right() -> None:
    """The reference weight of a training is not known before its first valid item."""
    batches = make_batches("tokens", 2, 1, 3, 2, empty=(0, 1))
    record, net = train_job("tokens", batches, GradientAccumulation(2, weight="tokens"))
    expected = large_gradient("tokens", net, batches[2:])
    torch.testing.assert_close(record.gradients[0], expected, rtol=FLOAT64, atol=FLOAT64)


# --- a loss that is divided already


def test_loss_divided_by_the_trainers_factor_is_told() -> None:
    class Divides(Scalar):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            return self.w * batch.mean() / self.trainer.accumulate_grad_batches

    told = _messages(lambda: train(Divides(), singles(8), 4))
    assert any("accumulate_grad_batches" in text and "divid" in text for text in told)


def test_loss_that_is_not_divided_is_not_told_so() -> None:
    assert not any("divid" in text for text in _messages(lambda: train(Scalar(), singles(8), 4)))


def _messages(run: Callable[[], Record]) -> list[str]:
    """What the user is told: warnings, or the text of an error."""
    try:
        return run().warnings
    except (RuntimeError, ValueError) as error:
        return [str(error)]
