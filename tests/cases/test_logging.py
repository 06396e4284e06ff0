"""What is shown: one point a step with the window's mean loss, and the user's own loss everywhere else."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch

from lightning_accum import GradientAccumulation
from tests.harness import FLOAT32, Scalar, numbers, singles, train


def values(record: Any, name: str) -> list[float]:
    return [value for _, value in record.points(f"accumulation/{name}")]


def test_logged_loss_is_the_windows_mean_with_one_point_a_step() -> None:
    record = train(Scalar(), singles(12), 4, log=True)
    assert values(record, "loss") == pytest.approx([2.5, 6.5, 10.5], rel=FLOAT32)
    steps = [step for step, _ in record.points("accumulation/loss")]
    assert steps == sorted(set(steps))


def test_logged_loss_by_lightning_alone_is_that_of_the_last_micro_batch() -> None:
    def step(module: Scalar, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = module.w * batch.mean()
        module.log("loss", loss)
        return loss

    record = train(Scalar(step=step), singles(12), log=True, accumulate_grad_batches=4)
    points = dict(record.points("loss"))  # Lightning repeats a step's point at each micro-batch: the last one stands
    assert list(points.values()) == pytest.approx([4, 8, 12])


def test_logged_values_of_a_short_window_are_its_own() -> None:
    record = train(Scalar(), numbers(2, 2, 2, 2, 2, 1), 4, log=True)
    assert values(record, "loss") == pytest.approx([4.5, 10.0], rel=FLOAT32)
    assert values(record, "factor") == [4, 2]
    assert values(record, "effective_batch_size") == [8, 3]
    assert values(record, "num_items") == [8, 3]


def test_logged_loss_weighs_each_micro_batch() -> None:
    record = train(Scalar(), [torch.ones(5), torch.tensor([13.0])], 2, log=True)
    assert values(record, "loss") == pytest.approx([3.0], rel=FLOAT32)


def test_logged_items_are_the_weight() -> None:
    def step(module: Scalar, batch: Any, batch_idx: int) -> Any:
        return {"loss": module.w * batch[0], "num_items": batch[1]}

    batches = [(1.0, 5.0), (13.0, 0.5), (float("nan"), 0.0), (3.0, 2.5)]
    accumulation = GradientAccumulation(2, weight="returned")
    record = train(Scalar(step=step), batches, accumulation, log=True)
    assert values(record, "num_items") == pytest.approx([5.5, 2.5])
    assert values(record, "loss") == pytest.approx([(5 + 6.5) / 5.5, 3.0], rel=FLOAT32)
    assert accumulation.state.num_items == pytest.approx(8.0)


def test_logged_loss_of_two_terms_is_the_sum_of_their_means() -> None:
    def step(module: Scalar, batch: Any, batch_idx: int) -> Any:
        (a, num_a), (b, num_b) = batch
        return {"loss": {"a": module.w * a, "b": module.w * b}, "num_items": {"a": num_a, "b": num_b}}

    batches = [((1.0, 5), (10.0, 1)), ((13.0, 1), (20.0, 4))]
    record = train(Scalar(step=step), batches, GradientAccumulation(2, weight="returned"), log=True)
    assert values(record, "loss") == pytest.approx([3.0 + 18.0], rel=FLOAT32)


def test_window_flushed_after_a_stop_is_logged_too() -> None:
    class Stops(L.Callback):
        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            trainer.should_stop = args[-1] == 5

    record = train(Scalar(), singles(10), 4, last=[Stops()], log=True)
    assert values(record, "loss") == pytest.approx([2.5, 5.5], rel=FLOAT32)
    steps = [step for step, _ in record.points("accumulation/loss")]
    assert steps == sorted(set(steps))


def test_window_without_items_logs_no_loss() -> None:
    def step(module: Scalar, batch: torch.Tensor, batch_idx: int) -> Any:
        return {"loss": module.w * float("nan"), "num_items": 0} if batch_idx in (2, 3) else module.w * batch.mean()

    record = train(Scalar(step=step), singles(6), 2, log=True)
    assert values(record, "loss") == pytest.approx([1.5, 5.5], rel=FLOAT32)


def test_nothing_is_logged_on_request() -> None:
    record = train(Scalar(), singles(8), GradientAccumulation(4, log=False), log=True)
    assert not any(name.startswith("accumulation") for _, metrics in record.logged for name in metrics)


def test_names_begin_with_the_prefix() -> None:
    record = train(Scalar(), singles(8), GradientAccumulation(4, log_prefix="window"), log=True)
    assert len(record.points("window/loss")) == 2


def test_progress_bar_shows_the_windows_mean_loss() -> None:
    record = train(Scalar(), singles(12), 4)
    assert record.trainer.progress_bar_metrics["accumulation/loss"] == pytest.approx(10.5, rel=FLOAT32)


def test_users_own_log_inside_training_step_is_left_alone() -> None:
    def step(module: Scalar, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = module.w * batch.mean()
        module.log("mine", loss, on_step=False, on_epoch=True, batch_size=1)
        return loss

    record = train(Scalar(step=step), singles(10), 4, log=True)
    assert [value for _, value in record.points("mine")] == pytest.approx([5.5], rel=FLOAT32)


# --- what other callbacks see


@pytest.mark.parametrize("place", ["callbacks", "last"])
def test_loss_in_callback_outputs_is_the_users_own(place: str) -> None:
    seen: list[Any] = []

    class Sees(L.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append(outputs["loss"].item())

    train(Scalar(), numbers(4, 4, 2), 3, **{place: [Sees()]})
    assert seen == pytest.approx([2.5, 6.5, 9.5], rel=FLOAT32)


def test_loss_in_callback_outputs_of_lightning_alone_is_divided() -> None:
    assert train(Scalar(), singles(4), accumulate_grad_batches=4).losses == pytest.approx([0.25, 0.5, 0.75, 1.0])


def test_outputs_keep_what_the_user_returned_beside_the_loss() -> None:
    seen: list[Any] = []

    class Sees(Scalar):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append(dict(outputs))

    def step(module: Scalar, batch: torch.Tensor, batch_idx: int) -> Any:
        return {"loss": module.w * batch.mean(), "num_items": 1, "logits": batch * 2}

    train(Sees(step=step), singles(4), GradientAccumulation(2, weight="returned"))
    assert [out["loss"].item() for out in seen] == pytest.approx([1, 2, 3, 4], rel=FLOAT32)
    assert [out["logits"].item() for out in seen] == [2, 4, 6, 8]
    assert [out["num_items"] for out in seen] == [1, 1, 1, 1]


def test_outputs_of_several_terms_are_the_users_own() -> None:
    seen: list[Any] = []

    class Sees(Scalar):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append(outputs["loss"])

    def step(module: Scalar, batch: torch.Tensor, batch_idx: int) -> Any:
        return {"loss": {"a": module.w * batch.mean(), "b": module.w * 10}, "num_items": {"a": 1, "b": 2}}

    train(Sees(step=step), singles(2), GradientAccumulation(2, weight="returned"))
    totals = [sum(loss.values()).item() if isinstance(loss, dict) else loss.item() for loss in seen]
    assert totals == pytest.approx([11.0, 12.0], rel=FLOAT32)
