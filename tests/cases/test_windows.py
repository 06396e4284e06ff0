"""Which micro-batches form a window, and what its gradient is divided by: values by hand."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch

from lightning_accum import GradientAccumulation
from tests.cases.checks import assert_gradients
from tests.harness import FLOAT32, Scalar, make_loader, numbers, singles, train

# --- the short last window


def test_short_last_window_divides_by_what_it_holds() -> None:
    record = train(Scalar(), singles(10), 4)
    assert_gradients(record, 2.5, 6.5, 9.5)
    assert record.batch_of_step == [3, 7, 9]
    assert record.num_after_backward == 10


def test_short_last_window_of_lightning_alone_divides_by_the_factor() -> None:
    record = train(Scalar(), singles(10), accumulate_grad_batches=4)
    assert record.gradients == pytest.approx([2.5, 6.5, 4.75])


def test_factor_of_the_trainer_is_taken_where_no_schedule_is_given() -> None:
    record = train(Scalar(), singles(10), GradientAccumulation(), accumulate_grad_batches=4)
    assert_gradients(record, 2.5, 6.5, 9.5)


def test_no_schedule_and_no_factor_steps_at_every_batch() -> None:
    assert_gradients(train(Scalar(), singles(3), GradientAccumulation()), 1, 2, 3)


def test_short_last_window_of_four_out_of_256_is_the_mean_of_four() -> None:
    assert_gradients(train(Scalar(), singles(260), 256), 128.5, 258.5)


@pytest.mark.parametrize("with_length", [True, False])
def test_short_last_window_of_each_epoch_is_flushed(with_length: bool) -> None:
    loader = make_loader(singles(10), with_length)
    record = train(Scalar(), loader, 4, max_epochs=2)
    assert_gradients(record, 2.5, 6.5, 9.5, 2.5, 6.5, 9.5)
    assert record.epoch_of_step == [0, 0, 0, 1, 1, 1]


def test_short_last_window_updates_the_weight_once_with_its_own_mean() -> None:
    record = train(Scalar(lr=0.1), singles(10), 4)
    assert torch.stack(record.parameters).flatten().tolist() == pytest.approx([0.75, 0.1, -0.85], rel=FLOAT32)


@pytest.mark.parametrize("with_length", [True, False])
def test_short_last_window_under_planned_divisor_divides_by_the_factor(with_length: bool) -> None:
    loader = make_loader(singles(10), with_length)
    record = train(Scalar(), loader, GradientAccumulation(4, divisor="planned"))
    assert_gradients(record, 2.5, 6.5, 4.75)


def test_full_windows_do_not_depend_on_the_divisor() -> None:
    record = train(Scalar(), numbers(4, 1, 2, 2), GradientAccumulation(2, divisor="planned"))
    assert_gradients(record, 3.0, 7.5)


# --- the short last batch


@pytest.mark.parametrize(("factor", "expected"), [(3, [5.5]), (2, [4.5, 9.5])])
def test_short_last_batch_weighs_what_it_holds(factor: int, expected: list[float]) -> None:
    assert_gradients(train(Scalar(), numbers(4, 4, 2), factor), *expected)


@pytest.mark.parametrize(("factor", "expected"), [(3, [6.1667]), (2, [4.5, 4.75])])
def test_short_last_batch_of_lightning_alone_weighs_like_a_full_one(factor: int, expected: list[float]) -> None:
    record = train(Scalar(), numbers(4, 4, 2), accumulate_grad_batches=factor)
    assert record.gradients == pytest.approx(expected, rel=1e-4)


def test_equal_weight_makes_a_mean_of_means() -> None:
    record = train(Scalar(), numbers(4, 4, 2), GradientAccumulation(3, weight="equal"))
    assert_gradients(record, 37 / 6)


# --- the end of an epoch


def test_epoch_end_flush_steps_at_each_end() -> None:
    record = train(Scalar(), singles(3), 8, max_epochs=2)
    assert_gradients(record, 2.0, 2.0)
    assert record.epoch_of_step == [0, 1]


@pytest.mark.parametrize("with_length", [True, False])
def test_epoch_end_carry_goes_on_in_the_next_epoch_and_steps_at_the_end_of_training(with_length: bool) -> None:
    loader = make_loader(singles(3), with_length)
    record = train(Scalar(), loader, GradientAccumulation(8, epoch_end="carry"), max_epochs=2)
    assert_gradients(record, 2.0)
    assert record.epoch_of_step[0] in (1, 2)  # Lightning counts the epoch up before training ends


@pytest.mark.parametrize("with_length", [True, False])
def test_epoch_end_carry_closes_windows_wherever_they_are_full(with_length: bool) -> None:
    loader = make_loader(singles(3), with_length)
    record = train(Scalar(), loader, GradientAccumulation(4, epoch_end="carry"), max_epochs=3)
    assert_gradients(record, (1 + 2 + 3 + 1) / 4, (2 + 3 + 1 + 2) / 4, 3.0)
    assert record.batch_of_step[:2] == [0, 1]


@pytest.mark.parametrize("with_length", [True, False])
def test_epoch_end_drop_makes_no_step_and_says_so(with_length: bool) -> None:
    loader = make_loader(singles(3), with_length)
    record = train(Scalar(lr=0.1), loader, GradientAccumulation(8, epoch_end="drop"), max_epochs=2)
    assert_gradients(record)
    assert record.module.w.item() == 1.0
    assert record.warned("drop")


def test_epoch_end_drop_leaves_nothing_for_the_next_window() -> None:
    record = train(Scalar(), singles(6), GradientAccumulation(4, epoch_end="drop"), max_epochs=2)
    assert_gradients(record, 2.5, 2.5)


def test_epoch_end_drop_is_silent_where_nothing_is_dropped() -> None:
    record = train(Scalar(), singles(8), GradientAccumulation(4, epoch_end="drop"))
    assert_gradients(record, 2.5, 6.5)
    assert not record.warned("drop")


def test_overfit_batches_steps_with_the_one_batch_of_each_epoch() -> None:
    loader = torch.utils.data.DataLoader(torch.arange(1.0, 11.0), batch_size=1)
    record = train(Scalar(), loader, 4, max_epochs=3, overfit_batches=1)
    assert_gradients(record, 1.0, 1.0, 1.0)


@pytest.mark.parametrize("with_length", [True, False])
def test_limit_train_batches_ends_the_last_window(with_length: bool) -> None:
    loader = make_loader(singles(10), with_length)
    assert_gradients(train(Scalar(), loader, 4, limit_train_batches=6, max_epochs=2), 2.5, 5.5, 2.5, 5.5)


# --- what happens inside a window does not disturb it


@pytest.mark.parametrize("every", [1, 2, 3])
def test_validation_inside_a_window_keeps_its_gradients(every: int) -> None:
    class Validates(Scalar):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            assert not torch.is_grad_enabled()

    record = train(Validates(), singles(10), 4, val=singles(1), val_check_interval=every)
    assert_gradients(record, 2.5, 6.5, 9.5)


def test_two_backwards_a_batch_do_not_move_the_boundary() -> None:
    class Halves(Scalar):
        def backward(self, loss: torch.Tensor) -> None:
            (loss / 2).backward(retain_graph=True)
            (loss / 2).backward()

    record = train(Halves(), singles(10), 4)
    assert_gradients(record, 2.5, 6.5, 9.5)
    assert record.batch_of_step == [3, 7, 9]


def test_gradients_cleared_by_the_user_inside_a_window_are_told() -> None:
    class Clears(L.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 1:
                trainer.optimizers[0].zero_grad()

    try:
        told = train(Scalar(), singles(8), 4, last=[Clears()]).warnings
    except (RuntimeError, ValueError) as error:
        told = [str(error)]
    assert any("zero_grad" in text or "cleared" in text for text in told)


def test_factor_assigned_by_the_user_inside_a_window_does_not_break_it_and_is_told() -> None:
    class Assigns(L.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 1:
                trainer.accumulate_grad_batches = 3

    record = train(Scalar(), singles(10), 4, last=[Assigns()])
    assert record.gradients[0] == pytest.approx(2.5)
    assert record.warned("accumulate_grad_batches")


def test_factor_is_right_for_every_reader_at_every_batch() -> None:
    class Reads(L.Callback):
        def __init__(self) -> None:
            self.opens: list[bool] = []
            self.closes: list[bool] = []

        def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            self.opens.append(True)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.closes.append((batch_idx + 1) % trainer.accumulate_grad_batches == 0)

    reads = Reads()
    train(Scalar(), singles(10), GradientAccumulation("0 steps: 1, 1 step: 3, 2 steps: 4"), last=[reads])
    assert reads.closes == [True, False, False, True, False, False, False, True, False, True]
    assert len(reads.opens) == 4
