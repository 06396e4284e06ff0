"""What users do beside training plainly: steps left out, closures called twice, batches changed, foreign states."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision

from lightning_accum import ConfigError, FromBatch, GradientAccumulation
from tests.harness import FLOAT32, Scalar, make_loader, make_trainer, singles, train


def test_step_that_the_users_hook_leaves_out_ends_its_window_and_is_told() -> None:
    class SkipsBadSteps(Scalar):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch, batch_idx) * (float("nan") if batch_idx == 1 else 1.0)

        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any) -> None:
            closure()
            if torch.isfinite(self.w.grad):
                optimizer.step()

    accumulation = GradientAccumulation(2)
    record = train(SkipsBadSteps(), singles(8), accumulation)
    assert record.gradients == pytest.approx([3.5, 5.5, 7.5], rel=FLOAT32)
    assert accumulation.state.num_unstepped_windows == 1
    assert record.warned("SkipsBadSteps.optimizer_step ended a window without")


def test_closure_called_twice_by_the_user_counts_the_micro_batch_once() -> None:
    class Twice(Scalar):
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any) -> None:
            closure()
            optimizer.zero_grad()
            closure()
            optimizer.step()

    assert train(Twice(), singles(2), GradientAccumulation(1)).gradients == pytest.approx([1.0, 2.0], rel=FLOAT32)
    with pytest.raises(ConfigError, match="second evaluation in a window of 2"):
        train(Twice(), singles(2), GradientAccumulation(2))


@pytest.mark.parametrize("weights", [[1, 4096], [1, 262144], [262144, 1]])
def test_half_precision_stays_in_range_whatever_the_first_weight_is(weights: list[int]) -> None:
    class Uneven(Scalar):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return {"loss": super().training_step(batch, batch_idx), "num_items": weights[batch_idx % 2]}

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    plugins = [MixedPrecision("16-mixed", "cpu", scaler=scaler)]
    record = train(Uneven(), [torch.ones(1), torch.full((1,), 3.0)] * 6, GradientAccumulation(2), plugins=plugins)
    expected = (weights[0] + 3 * weights[1]) / sum(weights)
    assert record.gradients == pytest.approx([expected] * 6, rel=2e-3)  # float16 keeps 11 bits


def test_batch_that_training_step_shortens_weighs_what_the_loader_gave() -> None:
    class Shortens(Scalar):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            numbers = batch.pop("x")
            return self.w * numbers.mean()

    batches = [{"x": torch.tensor([1.0, 2.0, 3.0])}, {"x": torch.tensor([5.0])}]
    assert train(Shortens(), batches, GradientAccumulation(2)).gradients == pytest.approx([2.75], rel=FLOAT32)


def test_factor_set_after_our_hook_does_not_break_the_window() -> None:
    class Assigns(L.Callback):
        def on_train_batch_start(self, trainer: Any, *others: Any) -> None:
            trainer.accumulate_grad_batches = 2

    record = train(Scalar(), singles(8), GradientAccumulation(4), last=[Assigns()])
    assert record.gradients == pytest.approx([2.5, 6.5], rel=FLOAT32)
    assert record.warned("overrules")


def test_parameter_that_only_the_optimizer_knows_is_rescaled_too() -> None:
    class Hides(Scalar):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = [torch.nn.Parameter(torch.ones(()))]
            self.seen: list[float] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return (self.w + self.hidden[0]) * batch.mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([self.w, *self.hidden], lr=0.0)

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            self.seen.append(self.hidden[0].grad.item())

    module = Hides()
    record = train(module, [torch.tensor([1.0]), torch.tensor([2.0, 3.0, 4.0])], GradientAccumulation(2))
    assert record.gradients == module.seen == pytest.approx([2.5], rel=FLOAT32)


def test_items_that_training_step_returns_cannot_close_a_window() -> None:
    class Returns(Scalar):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return {"loss": super().training_step(batch, batch_idx), "num_items": 10}

    with pytest.raises(ConfigError, match="one source of the weight"):
        train(Returns(), singles(8), GradientAccumulation(40, unit="items"))


def test_schedule_in_samples_of_batches_that_cannot_be_counted_is_an_error() -> None:
    class Holds(Scalar):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.w * batch["value"]

    batches = [{"value": torch.tensor(1.0)}] * 4
    accumulation = GradientAccumulation("0 samples: 1, 2 samples: 4", weight="equal")
    with pytest.raises(ConfigError, match="share their first dimension"):
        train(Holds(), batches, accumulation)


def test_loss_that_the_user_adds_to_in_place_does_not_change_what_is_logged() -> None:
    class Sums(L.Callback):
        total: Any = None

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *others: Any) -> None:
            if self.total is None:
                self.total = outputs["loss"]
            else:
                self.total += outputs["loss"]

    record = train(Scalar(), singles(4), GradientAccumulation(4), last=[Sums()])
    assert record.trainer.callback_metrics["accumulation/loss"] == pytest.approx(2.5, rel=FLOAT32)


def test_checkpoint_that_is_only_tested_leaves_the_training_alone(tmp_path: Any) -> None:
    class Tests(Scalar):
        def test_step(self, batch: Any, batch_idx: int) -> None: ...

    saved = make_trainer([GradientAccumulation(2)], max_epochs=1)
    saved.fit(Tests(), make_loader(singles(8)))
    saved.save_checkpoint(tmp_path / "a.ckpt")
    accumulation, module = GradientAccumulation(2), Tests()
    trainer = make_trainer([accumulation], max_epochs=1)
    trainer.test(module, make_loader(singles(2)), ckpt_path=tmp_path / "a.ckpt", weights_only=False)
    trainer.fit(module, make_loader(singles(4)))
    assert accumulation.state.num_optimizer_steps == trainer.global_step == 2


def test_checkpoint_of_lightning_alone_goes_on_with_its_steps_and_micro_batches(tmp_path: Any) -> None:
    plain = make_trainer([], max_epochs=1)
    plain.fit(Scalar(), make_loader(singles(4)))
    plain.save_checkpoint(tmp_path / "plain.ckpt")
    seen: list[tuple[int, int]] = []

    def schedule(progress: Any) -> int:
        seen.append((progress.num_optimizer_steps, progress.num_micro_steps))
        return 2

    trainer = make_trainer([GradientAccumulation(schedule)], max_epochs=2)
    with pytest.warns(UserWarning, match="GradientAccumulation did not see"):
        trainer.fit(Scalar(), make_loader(singles(4)), ckpt_path=tmp_path / "plain.ckpt", weights_only=False)
    assert seen == [(4, 4), (5, 6)]


def test_callback_moved_to_another_trainer_begins_anew() -> None:
    accumulation = GradientAccumulation(1)
    first, second = make_trainer([accumulation], max_epochs=1), make_trainer([accumulation], max_epochs=1)
    first.fit(Scalar(), make_loader(singles(8)))
    second.fit(Scalar(), make_loader(singles(3)))
    assert (accumulation.state.num_optimizer_steps, accumulation.state.num_micro_steps) == (3, 3)


@pytest.mark.parametrize("is_frozen_first", [True, False])
def test_parameter_frozen_or_unfrozen_inside_a_window_of_terms_gets_what_it_may(is_frozen_first: bool) -> None:
    class Switches(Scalar):
        def __init__(self) -> None:
            super().__init__()
            self.v = torch.nn.Parameter(torch.ones(()), requires_grad=not is_frozen_first)
            self.seen: list[float] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.v.requires_grad_(is_frozen_first == (batch_idx == 1))
            items = {"a": 1, "b": 1}
            return {"loss": {"a": self.w * batch.mean(), "b": self.v * self.w * batch.mean()}, "num_items": items}

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            self.seen.append(self.v.grad.item())

    module = Switches()
    train(module, singles(2), GradientAccumulation(2))
    assert module.seen == pytest.approx([1.0 if is_frozen_first else 0.5], rel=FLOAT32)


def test_loss_term_without_a_gradient_adds_nothing() -> None:
    class Terms(Scalar):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            terms = {"a": torch.zeros(()), "b": self.w * batch.mean()}
            return {"loss": terms, "num_items": {"a": 1, "b": 1}}

    assert train(Terms(), singles(4), GradientAccumulation(4)).gradients == pytest.approx([2.5], rel=FLOAT32)


def test_weight_of_one_argument_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="FromBatch"):
        GradientAccumulation(2, weight=lambda batch: 1)


def test_steps_of_a_training_without_batches_are_none() -> None:
    class Asks(Scalar):
        def configure_optimizers(self) -> Any:
            assert self.trainer.estimated_stepping_batches == 0
            return super().configure_optimizers()

    train(Asks(), singles(4), GradientAccumulation(2), limit_train_batches=0)


def test_strategy_chosen_by_name_restores_its_state(tmp_path: Any) -> None:
    options = {"strategy": "single_device_accum", "devices": 1, "accumulate_grad_batches": 2}
    saved = make_trainer([], max_epochs=1, **options)
    saved.fit(Scalar(), make_loader(singles(4)))
    saved.save_checkpoint(tmp_path / "a.ckpt")
    trainer = make_trainer([], max_epochs=2, **options)
    trainer.fit(Scalar(), make_loader(singles(4)), ckpt_path=tmp_path / "a.ckpt", weights_only=False)
    (accumulation,) = (one for one in trainer.callbacks if isinstance(one, GradientAccumulation))
    assert (accumulation.state.num_micro_steps, accumulation.state.num_samples) == (8, 8)


def test_loader_of_another_lightning_is_named_by_its_module() -> None:
    class Other(L.pytorch.strategies.Strategy): ...

    from lightning_accum.strategy import adopt_strategy

    Other.__abstractmethods__ = frozenset()
    with pytest.raises(ConfigError, match=r"of lightning\.pytorch, but got '.*\.Other'"):
        adopt_strategy(Other(), None)


def test_items_of_a_batch_that_the_user_skips_are_not_those_of_the_next() -> None:
    class Skips(Scalar):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
            return -1 if batch_idx == 2 else None

    batches = [torch.tensor([1.0]), torch.tensor([2.0]), torch.full((4,), 9.0)]
    record = train(Skips(), batches, GradientAccumulation(2, unit="items", weight=FromBatch(len)), max_epochs=2)
    assert record.gradients == pytest.approx([1.5, 1.5], rel=FLOAT32)
