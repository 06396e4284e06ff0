"""No gradient is lost in silence, however a window, an epoch or a training ends."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest

from lightning_accum import GradientAccumulation
from tests.cases.checks import assert_gradients
from tests.harness import FLOAT32, Scalar, make_loader, singles, train


class StopAfter(L.Callback):
    """Asks the Trainer to stop after a batch, as early stopping, a time limit and a signal do."""

    def __init__(self, batch_idx: int) -> None:
        self.batch_idx = batch_idx

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.batch_idx:
            trainer.should_stop = True


class LyingLoader:
    """Says that it has ``told`` batches and yields those that it has."""

    def __init__(self, batches: list[Any], told: int) -> None:
        self.batches, self.told = batches, told

    def __len__(self) -> int:
        return self.told

    def __iter__(self) -> Any:
        return iter(self.batches)


@pytest.mark.parametrize("with_length", [True, False])
@pytest.mark.parametrize("epoch_end", ["flush", "carry"])
def test_stop_inside_a_window_steps_with_what_it_holds(epoch_end: str, with_length: bool) -> None:
    loader = make_loader(singles(10), with_length)
    record = train(Scalar(), loader, GradientAccumulation(4, epoch_end=epoch_end), last=[StopAfter(5)])
    assert_gradients(record, 2.5, 5.5)


def test_stop_inside_a_window_of_lightning_alone_loses_it() -> None:
    record = train(Scalar(), singles(10), callbacks=[StopAfter(5)], accumulate_grad_batches=4)
    assert record.gradients == pytest.approx([2.5])


def test_stop_at_the_end_of_a_window_adds_no_step() -> None:
    assert_gradients(train(Scalar(), singles(10), 4, last=[StopAfter(7)]), 2.5, 6.5)


def test_stop_inside_a_window_under_drop_loses_it_and_says_so() -> None:
    record = train(Scalar(), singles(10), GradientAccumulation(4, epoch_end="drop"), last=[StopAfter(5)])
    assert_gradients(record, 2.5)
    assert record.warned("drop")


def test_stop_inside_a_window_updates_the_weight_with_its_mean() -> None:
    record = train(Scalar(lr=0.1), singles(10), 4, last=[StopAfter(5)])
    assert record.module.w.item() == pytest.approx(1 - 0.25 - 0.55, rel=FLOAT32)


def test_stop_inside_a_window_clips_the_last_step_too() -> None:
    record = train(Scalar(), singles(10), 4, last=[StopAfter(5)], gradient_clip_val=3.0)
    assert record.clipped == pytest.approx([2.5, 3.0], rel=FLOAT32)


@pytest.mark.parametrize(
    ("epoch_end", "expected"),
    [("flush", [2.5, 5.5, 2.5, 5.5]), ("carry", [2.5, (5 + 6 + 1 + 2) / 4, 4.5]), ("drop", [2.5, 2.5])],
)
def test_rest_of_an_epoch_skipped_by_the_user_loses_nothing_in_silence(epoch_end: Any, expected: list[float]) -> None:
    class Skips(Scalar):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
            return -1 if batch_idx == 6 else None

    accumulation = GradientAccumulation(4, epoch_end=epoch_end)
    assert_gradients(train(Skips(), singles(10), accumulation, max_epochs=2), *expected)


def test_max_steps_inside_an_epoch_makes_exactly_these_steps() -> None:
    assert_gradients(train(Scalar(), singles(10), 4, max_steps=2, max_epochs=-1), 2.5, 6.5)


def test_max_steps_over_several_epochs_makes_exactly_these_steps() -> None:
    record = train(Scalar(), singles(3), GradientAccumulation(2), max_steps=3, max_epochs=-1)
    assert_gradients(record, 1.5, 3.0, 1.5)


@pytest.mark.parametrize("epoch_end", ["flush", "carry"])
def test_loader_that_yields_fewer_batches_than_it_says_loses_none(epoch_end: str) -> None:
    expected = {"flush": [2.5, 5.5, 2.5, 5.5], "carry": [2.5, (5 + 6 + 1 + 2) / 4, 4.5]}[epoch_end]
    accumulation = GradientAccumulation(4, epoch_end=epoch_end)
    record = train(Scalar(), LyingLoader(singles(6), told=10), accumulation, max_epochs=2)
    assert_gradients(record, *expected)


@pytest.mark.parametrize(
    ("nothing_at", "expected"),
    [
        ((3,), [2.0, 6.5]),
        ((0,), [3.0, 6.5]),
        ((1,), [8 / 3, 6.5]),
        ((4,), [2.5, 7.0]),
        ((7,), [2.5, 6.0]),
        ((4, 5, 6, 7), [2.5]),
        ((0, 1, 2, 3), [6.5]),
    ],
)
def test_loader_that_yields_nothing_counts_in_the_window_and_weighs_nothing(
    nothing_at: tuple[int, ...], expected: list[float]
) -> None:
    batches: list[Any] = singles(8)
    for batch_idx in nothing_at:
        batches[batch_idx] = None
    assert_gradients(train(Scalar(), batches, 4), *expected)


def test_loader_that_yields_nothing_at_the_end_still_flushes() -> None:
    batches: list[Any] = [*singles(9), None]
    assert_gradients(train(Scalar(), batches, 4, max_epochs=2), 2.5, 6.5, 9.0, 2.5, 6.5, 9.0)
