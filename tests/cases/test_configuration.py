"""Settings that contradict each other, names of strategies, and what is restored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

from lightning_accum import GradientAccumulation
from lightning_accum.errors import ConfigError
from tests.harness import FLOAT32, Record, Scalar, Spy, fit, make_loader, make_trainer, singles, train


@pytest.fixture
def process_group() -> Iterator[None]:
    """Ends the process group that a DDP strategy on one process leaves behind."""
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


# --- contradictions


def test_two_callbacks_are_an_error_that_says_what_to_do() -> None:
    # Lightning itself refuses two of one kind that have a state, before any of them is asked
    with pytest.raises((ConfigError, RuntimeError), match="GradientAccumulation") as error:
        train(Scalar(), singles(4), GradientAccumulation(2), last=[GradientAccumulation(4)])
    assert "one" in str(error.value).lower()


def test_lightnings_own_scheduler_beside_ours_is_an_error() -> None:
    other = L.pytorch.callbacks.GradientAccumulationScheduler({0: 2})
    with pytest.raises(ConfigError, match="GradientAccumulationScheduler"):
        train(Scalar(), singles(4), GradientAccumulation(2), last=[other])


@pytest.mark.parametrize("schedule", [4, {0: 1, 1: 4}])
def test_factor_of_the_trainer_that_contradicts_is_an_error_that_names_both(schedule: Any) -> None:
    with pytest.raises(ConfigError, match="accumulate_grad_batches") as error:
        train(Scalar(), singles(4), schedule, accumulate_grad_batches=2)
    assert "2" in str(error.value) and "4" in str(error.value)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"unit": "batches"}, "unit"),
        ({"epoch_end": "stop"}, "epoch_end"),
        ({"divisor": "none"}, "divisor"),
        ({"weight": "words"}, "weight"),
        ({"weight": 3}, "weight"),
    ],
)
def test_setting_that_does_not_exist_is_an_error_that_names_it(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        GradientAccumulation(2, **settings)


def test_manual_optimization_is_an_error_rather_than_ignored() -> None:
    class Manual(Scalar):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

    with pytest.raises(ConfigError, match="automatic"):
        train(Manual(), singles(4), 2)


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("schedule", [4, {0: 1, 1: 4}, "0 steps: 1, 3 steps: 2"])
def test_static_graph_with_accumulation_is_an_error_at_setup(schedule: Any) -> None:
    with pytest.raises(ConfigError, match="static_graph"):
        train(Scalar(), singles(4), schedule, strategy=DDPStrategy(static_graph=True, process_group_backend="gloo"))


@pytest.mark.usefixtures("process_group")
def test_static_graph_without_accumulation_is_no_error() -> None:
    strategy = DDPStrategy(static_graph=True, process_group_backend="gloo")
    record = train(Scalar(), singles(2), 1, strategy=strategy, use_distributed_sampler=False)
    assert record.gradients == pytest.approx([1.0, 2.0])


def test_lbfgs_with_accumulation_is_refused_or_right() -> None:
    """A closure that is evaluated many times sees one micro-batch only: never wrong in silence."""

    def configure(module: Scalar) -> Any:
        return torch.optim.LBFGS(module.parameters(), lr=0.1)

    with pytest.raises(ConfigError, match="LBFGS|closure"):
        train(Scalar(configure=configure), singles(4), 2)


# --- strategies by name


@pytest.mark.parametrize("strategy", ["auto", "auto_accum", "single_device_accum"])
def test_strategy_by_name_gives_the_same_steps(strategy: str) -> None:
    record = train(Scalar(), singles(10), 4, strategy=strategy)
    assert record.gradients == pytest.approx([2.5, 6.5, 9.5], rel=FLOAT32)


@pytest.mark.parametrize("strategy", ["auto_accum", "single_device_accum"])
def test_strategy_by_name_alone_is_right_without_the_callback(strategy: str) -> None:
    record = train(Scalar(), singles(10), strategy=strategy, accumulate_grad_batches=4)
    assert record.gradients == pytest.approx([2.5, 6.5, 9.5], rel=FLOAT32)


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("strategy", ["ddp_accum", "ddp"])
def test_ddp_strategy_on_one_process_gives_the_same_steps(strategy: str) -> None:
    record = train(Scalar(), singles(10), 4, strategy=strategy, use_distributed_sampler=False)
    assert record.gradients == pytest.approx([2.5, 6.5, 9.5], rel=FLOAT32)


def test_strategies_are_registered() -> None:
    from lightning.pytorch.strategies import StrategyRegistry

    assert {"auto_accum", "single_device_accum", "ddp_accum"} <= set(StrategyRegistry)


def test_strategy_given_as_an_object_stays_the_same_object() -> None:
    strategy = SingleDeviceStrategy(device=torch.device("cpu"))
    record = train(Scalar(), singles(10), 4, strategy=strategy)
    assert record.trainer.strategy is strategy
    assert record.gradients == pytest.approx([2.5, 6.5, 9.5], rel=FLOAT32)


# --- nothing is left behind


def assert_restored(trainer: L.Trainer, factor: int = 1) -> None:
    assert type(trainer) is L.Trainer
    assert trainer.accumulate_grad_batches == factor
    assert type(trainer.accumulate_grad_batches) is int
    assert type(trainer.strategy) is SingleDeviceStrategy
    assert "accumulator" not in vars(trainer.strategy) or trainer.strategy.accumulator is None


@pytest.mark.parametrize("schedule", [4, {0: 4, 1: 2}])
def test_factor_and_classes_are_restored_after_training(schedule: Any) -> None:
    assert_restored(train(Scalar(), singles(10), schedule).trainer)


def test_factor_of_the_trainer_is_restored_after_training() -> None:
    record = train(Scalar(), singles(10), GradientAccumulation(), accumulate_grad_batches=4)
    assert_restored(record.trainer, factor=4)


class Fails(Scalar):
    """Raises at one micro-batch of its first epoch."""

    fails = True

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.fails and batch_idx == 5:
            raise RuntimeError("mine")
        return super().training_step(batch, batch_idx)


def test_factor_and_classes_are_restored_after_an_exception() -> None:
    record = Record()
    trainer = make_trainer([Spy(record), GradientAccumulation(4)])
    with pytest.raises(RuntimeError, match="mine"):
        fit(trainer, Fails(), singles(10), record)
    assert record.gradients == pytest.approx([2.5])  # no flush of a window that broke
    assert_restored(trainer)


def test_factor_and_classes_are_restored_after_an_exception_in_setup() -> None:
    class Breaks(Scalar):
        def configure_optimizers(self) -> Any:
            raise RuntimeError("mine")

    record = Record()
    trainer = make_trainer([Spy(record), GradientAccumulation(4)])
    with pytest.raises(RuntimeError, match="mine"):
        fit(trainer, Breaks(), singles(10), record)
    assert_restored(trainer)


def test_order_of_the_callbacks_is_restored_after_training() -> None:
    record, accumulation = Record(), GradientAccumulation(4)
    spy = Spy(record)
    trainer = make_trainer([spy, accumulation])
    before = list(trainer.callbacks)
    fit(trainer, Scalar(), singles(10), record)
    assert trainer.callbacks == before


def test_training_by_the_same_trainer_after_an_exception_is_right() -> None:
    record = Record()
    trainer = make_trainer([Spy(record), GradientAccumulation(4)], max_epochs=2)
    module = Fails()
    with pytest.raises(RuntimeError, match="mine"):
        fit(trainer, module, singles(10), record)
    module.fails = False
    again = Record()
    trainer.callbacks[0].record = again
    trainer.callbacks[[isinstance(c, Spy) for c in trainer.callbacks].index(True)].record = again
    fit(trainer, module, singles(10), again)
    assert again.gradients[-3:] == pytest.approx([2.5, 6.5, 9.5], rel=FLOAT32)


@pytest.mark.parametrize("schedule", [4, {0: 4}, {0: 2, 1: 4}])
def test_second_training_by_the_same_trainer_is_right(schedule: Any) -> None:
    record = Record()
    trainer = make_trainer([Spy(record), GradientAccumulation(schedule)])
    fit(trainer, Scalar(), singles(10), record)
    record.gradients.clear()
    trainer.fit_loop.max_epochs = 2
    fit(trainer, Scalar(), singles(10), record)
    assert record.gradients == pytest.approx([2.5, 6.5, 9.5], rel=FLOAT32)
    assert_restored(trainer)


def test_second_training_with_lightnings_own_scheduler_fails() -> None:
    record = Record()
    trainer = make_trainer([Spy(record), L.pytorch.callbacks.GradientAccumulationScheduler({0: 4})])
    fit(trainer, Scalar(), singles(10), record)
    trainer.fit_loop.max_epochs = 2
    with pytest.raises(ValueError):
        fit(trainer, Scalar(), singles(10), record)


def test_callback_in_a_second_trainer_starts_anew() -> None:
    accumulation = GradientAccumulation("0 steps: 1, 2 steps: 4")
    for _ in range(2):
        record = train(Scalar(), singles(6), accumulation)
        assert record.gradients == pytest.approx([1, 2, 4.5], rel=FLOAT32)
        assert accumulation.state.num_optimizer_steps == 3


def test_validation_and_prediction_are_left_alone() -> None:
    class Predicts(Scalar):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            pass

        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return batch * 2

    trainer = make_trainer([GradientAccumulation(4)])
    trainer.validate(Predicts(), make_loader(singles(2)), verbose=False)
    assert [out.item() for out in trainer.predict(Predicts(), make_loader(singles(2)))] == [2, 4]
    assert_restored(trainer)
