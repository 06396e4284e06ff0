"""Accumulation among the other things that a training holds: hooks, unusual parameters, loaders, callbacks."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.tuner import Tuner
from lightning.pytorch.utilities import CombinedLoader
from torch import nn

from lightning_accum import GradientAccumulation
from tests.harness import (
    FLOAT32,
    FLOAT64,
    Record,
    Scalar,
    Spied,
    Spy,
    make_loader,
    make_trainer,
    numbers,
    singles,
    train,
)

SIXES = numbers(4, 4, 2)
"""The numbers 1 to 10 in batches of 4, 4 and 2: their mean is 5.5, the mean of the batches' means 6.17."""


# --- the user's own hooks


def test_optimizer_step_overridden_by_the_user_is_called_once_a_window() -> None:
    calls: list[int] = []

    class Warms(Scalar):
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
            calls.append(batch_idx)
            optimizer.step(closure=optimizer_closure)
            for group in optimizer.param_groups:
                group["lr"] = 0.1

    record = train(Warms(scheduler=False), SIXES + numbers(2, start=11), 2)
    assert record.gradients == pytest.approx([4.5, (9 + 10 + 11 + 12) / 4], rel=FLOAT32)
    assert calls == [1, 3]
    assert record.module.w.item() == pytest.approx(1 - 1.05, abs=FLOAT32)


def test_optimizer_zero_grad_that_keeps_tensors_still_separates_windows() -> None:
    class Keeps(Scalar):
        def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
            optimizer.zero_grad(set_to_none=False)

    record = train(Keeps(), singles(10), 4)
    assert record.gradients == pytest.approx([2.5, 6.5, 9.5], rel=FLOAT32)
    assert not record.warned("cleared") and not record.warned("zero")


def test_training_step_that_takes_the_batch_alone_is_weighed() -> None:
    class Alone(Spied):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(()))

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            return self.w * batch.mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    assert train(Alone(), SIXES, 3).gradients == pytest.approx([5.5], rel=FLOAT32)


def test_loss_with_one_element_in_a_dimension_is_weighed() -> None:
    def step(module: Scalar, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return (module.w * batch.mean()).reshape(1)

    assert train(Scalar(step=step), SIXES, 3).gradients == pytest.approx([5.5], rel=FLOAT32)


def test_stop_asked_for_in_a_validation_inside_a_window_loses_nothing() -> None:
    class Stops(Scalar):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            pass

        def on_validation_end(self) -> None:
            self.trainer.should_stop = self.trainer.fit_loop.epoch_loop.batch_idx >= 5

    record = train(Stops(), singles(10), 4, val=singles(1), val_check_interval=3)
    assert record.gradients == pytest.approx([2.5, 5.5], rel=FLOAT32)


def test_fast_dev_run_steps_with_the_batches_it_sees() -> None:
    assert train(Scalar(), singles(10), 4, fast_dev_run=3).gradients == pytest.approx([2.0], rel=FLOAT32)


def test_keyboard_interrupt_restores_and_does_not_step() -> None:
    class Interrupts(Scalar):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 5:
                raise KeyboardInterrupt
            return super().training_step(batch, batch_idx)

    record = Record()
    trainer = make_trainer([Spy(record), GradientAccumulation(4)])
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        trainer.fit(Interrupts(), make_loader(singles(10)))
    assert record.gradients == pytest.approx([2.5])
    assert type(trainer.accumulate_grad_batches) is int
    assert trainer.accumulate_grad_batches == 1


def test_checkpoint_in_a_second_training_is_resumed_at_a_windows_end(tmp_path: Any) -> None:
    """Saved at the end of an epoch, where no window is open: nothing to lose, and the schedule goes on."""
    accumulation = GradientAccumulation("0 steps: 1, 3 steps: 4")
    path = tmp_path / "saved.ckpt"
    first = train(Scalar(lr=0.1), singles(7), accumulation)
    first.trainer.save_checkpoint(path)
    assert first.gradients == pytest.approx([1, 2, 3, 5.5], rel=FLOAT32)

    record = Record()
    trainer = make_trainer([Spy(record), GradientAccumulation("0 steps: 1, 3 steps: 4")], max_epochs=2)
    trainer.fit(Scalar(lr=0.1), make_loader(singles(7)), ckpt_path=path, weights_only=True)
    assert record.gradients == pytest.approx([2.5, 6.0], rel=FLOAT32)
    assert trainer.global_step == 6


# --- parameters


class Mixed(Spied):
    """A sparse embedding, a frozen layer, a tied weight and a parameter that nothing uses."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(7, 4, sparse=sparse, dtype=torch.float64)
        self.frozen = nn.Linear(4, 4, dtype=torch.float64).requires_grad_(False)
        self.first = nn.Linear(4, 4, dtype=torch.float64)
        self.tied = nn.Linear(4, 4, dtype=torch.float64)
        self.tied.weight = self.first.weight
        self.unused = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def training_step(self, batch: torch.Tensor, batch_idx: int = 0) -> torch.Tensor:
        return self.tied(torch.tanh(self.first(self.frozen(self.embedding(batch))))).square().sum(-1).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """No flat gradient here: some are sparse."""


@pytest.mark.parametrize("sparse", [False, True])
def test_sparse_frozen_tied_and_unused_parameters_equal_the_large_batch(sparse: bool) -> None:
    batches = [torch.tensor([1, 2, 3]), torch.tensor([1]), torch.tensor([6, 6])]
    module, large = Mixed(sparse), Mixed(sparse)

    trainer = make_trainer([GradientAccumulation(3)])
    trainer.fit(module, make_loader(batches))
    optimizer = large.configure_optimizers()
    large.training_step(torch.cat(batches)).backward()
    optimizer.step()
    assert not torch.equal(large.embedding.weight, Mixed(sparse).embedding.weight)
    for (name, mine), theirs in zip(module.named_parameters(), large.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=FLOAT64, atol=1e-15, msg=lambda text, name=name: name + text)


# --- loaders


def test_combined_loaders_of_one_size_are_counted() -> None:
    def step(module: Scalar, batch: Any, batch_idx: int) -> torch.Tensor:
        return module.w * (batch["a"] + batch["b"]).mean()

    loader = CombinedLoader({"a": make_loader(SIXES), "b": make_loader(SIXES)}, "min_size")
    assert train(Scalar(step=step), loader, 3).gradients == pytest.approx([11.0], rel=FLOAT32)


def test_batch_whose_samples_cannot_be_counted_is_an_error_that_says_what_to_do() -> None:
    def step(module: Scalar, batch: Any, batch_idx: int) -> torch.Tensor:
        return module.w * batch["a"].mean()

    batches = [{"a": torch.ones(3), "b": torch.ones(5)}]
    with pytest.raises(ValueError, match="weight"):
        train(Scalar(step=step), batches, 2)


def test_loader_replaced_every_epoch_by_a_shorter_one_flushes_each() -> None:
    class Shrinks(Scalar):
        def train_dataloader(self) -> Any:
            return make_loader(singles(6 - 2 * self.trainer.current_epoch))

    record = Record()
    trainer = make_trainer([Spy(record), GradientAccumulation(4)], max_epochs=3, reload_dataloaders_every_n_epochs=1)
    trainer.fit(Shrinks())
    assert record.gradients == pytest.approx([2.5, 5.5, 2.5, 1.5], rel=FLOAT32)


def test_shuffled_loader_of_real_samples_weighs_its_short_last_batch() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(1.0, 8.0))
    loader = torch.utils.data.DataLoader(data, batch_size=3, shuffle=True)

    def step(module: Scalar, batch: Any, batch_idx: int) -> torch.Tensor:
        return module.w * batch[0].mean()

    record = train(Scalar(step=step), loader, 3, max_epochs=2)
    assert record.gradients == pytest.approx([4.0, 4.0], rel=FLOAT32)


# --- other callbacks


def test_learning_rate_finder_tries_one_rate_a_window_and_leaves_the_trainer_as_it_was() -> None:
    trainer = make_trainer([GradientAccumulation(4)])
    module = Scalar(lr=0.1, scheduler=False)
    options: dict[str, Any] = {"num_training": 10, "early_stop_threshold": None}
    finder = Tuner(trainer).lr_find(module, make_loader(singles(100)), **options)
    assert len(finder.results["lr"]) == 10
    assert type(trainer) is L.Trainer
    assert trainer.accumulate_grad_batches == 1
    record = Record()
    trainer.callbacks.append(Spy(record))
    trainer.fit(module, make_loader(singles(10)))
    assert record.gradients == pytest.approx([2.5, 6.5, 9.5], rel=FLOAT32)


def test_callback_can_be_pickled_and_copied() -> None:
    """As launchers that start processes by spawning, and tuners that keep a copy, do."""
    accumulation = GradientAccumulation("0:1,4:8", unit="samples", weight="tokens", epoch_end="carry")
    for again in (pickle.loads(pickle.dumps(accumulation)), copy.deepcopy(accumulation)):
        assert again.rules == accumulation.rules
        assert again.weight == accumulation.weight
        assert again.state == accumulation.state


def test_weight_averaging_updates_once_a_step() -> None:
    callback = getattr(L.pytorch.callbacks, "WeightAveraging", None)
    if callback is None:
        pytest.skip("this Lightning has no WeightAveraging")
    steps: list[Any] = []

    class Counts(callback):  # type: ignore[misc, valid-type]
        def should_update(self, step_idx: Any = None, epoch_idx: Any = None) -> bool:
            if step_idx is not None:
                steps.append(step_idx)
            return step_idx is not None

    train(Scalar(), singles(10), 4, last=[Counts()])
    assert len(set(steps)) == len(steps) == 3


def test_learning_rate_monitor_has_one_point_a_step() -> None:
    monitor = L.pytorch.callbacks.LearningRateMonitor(logging_interval="step")
    record = train(Scalar(lr=0.1), singles(10), 4, last=[monitor], log=True)
    steps = {step for step, _ in record.points("lr-SGD")}
    assert len(steps) == 3


def test_factor_that_nobody_assigned_is_not_told() -> None:
    record = train(Scalar(), singles(10), GradientAccumulation({0: 1, 1: 4}), max_epochs=2)
    assert not record.warned("accumulate_grad_batches")
