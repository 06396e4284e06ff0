"""Schedules in training: where windows end, in which unit, and how a schedule is written."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch

from lightning_accum import (
    GradientAccumulation,
    PerEpoch,
    Progress,
    Sequence,
    Stages,
)
from tests.harness import FLOAT32, Record, Scalar, make_loader, numbers, singles, train

# --- where windows end


@pytest.mark.parametrize(
    ("schedule", "num_batches", "expected"),
    [
        ("0 steps: 1, 4 steps: 3", 12, [1, 2, 3, 4, 6, 9, 11.5]),
        (Stages("0 steps: 1, 4 steps: 3"), 12, [1, 2, 3, 4, 6, 9, 11.5]),
        (lambda progress: 1 if progress.num_optimizer_steps < 4 else 3, 12, [1, 2, 3, 4, 6, 9, 11.5]),
        ("0 steps: 4, 2 steps: 3", 14, [2.5, 6.5, 10, 13]),
        (lambda progress: min(2**progress.num_optimizer_steps, 8), 20, [1, 2.5, 5.5, 11.5, 18]),
    ],
)
@pytest.mark.parametrize("with_length", [True, False])
def test_schedule_that_changes_inside_an_epoch_steps_where_it_says(
    schedule: Any, num_batches: int, expected: list[float], with_length: bool
) -> None:
    record = train(Scalar(), make_loader(singles(num_batches), with_length), schedule)
    assert record.gradients == pytest.approx(expected, rel=FLOAT32)
    assert record.global_step == record.num_updates == record.num_scheduler_steps == len(expected)


def test_doubling_schedule_makes_windows_of_1_2_4_8_and_the_rest() -> None:
    record = train(Scalar(), singles(20), lambda progress: min(2**progress.num_optimizer_steps, 8))
    assert record.batch_of_step == [0, 2, 6, 14, 19]


def test_factor_set_by_hand_with_lightning_alone_applies_a_stale_gradient() -> None:
    class Naive(L.Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            trainer.accumulate_grad_batches = 1 if trainer.global_step < 4 else 3

    record = train(Scalar(), singles(12), callbacks=[Naive()])
    assert record.gradients[4] == pytest.approx(4 + 5 / 3 + 6 / 3, rel=FLOAT32)


def test_schedule_per_epoch_is_obeyed_from_epoch_0() -> None:
    record = train(Scalar(), singles(4), {0: 2, 1: 4, 3: 1}, max_epochs=4)
    assert record.gradients == pytest.approx([1.5, 3.5, 2.5, 2.5, 1, 2, 3, 4], rel=FLOAT32)


def test_schedule_is_asked_once_a_window_with_what_came_before_it() -> None:
    asked: list[Progress] = []

    def schedule(progress: Progress) -> int:
        asked.append(progress)
        return min(2**progress.num_optimizer_steps, 4)

    # 8 batches of 2, 2, ..., 1 samples: windows of 1, 2, 4 and the last one; then two of four in the second epoch
    train(Scalar(), numbers(2, 2, 2, 2, 2, 2, 2, 1), schedule, max_epochs=2)
    assert [p.num_optimizer_steps for p in asked] == [0, 1, 2, 3, 4, 5]
    assert [p.num_micro_steps for p in asked] == [0, 1, 3, 7, 8, 12]
    assert [p.num_samples for p in asked] == [0, 2, 6, 14, 15, 23]
    assert [p.num_items for p in asked] == [0, 2, 6, 14, 15, 23]
    assert [p.epoch for p in asked] == [0, 0, 0, 0, 1, 1]
    assert [p.fraction for p in asked] == pytest.approx([0, 1 / 16, 3 / 16, 7 / 16, 8 / 16, 12 / 16])


def test_schedule_that_asks_for_part_of_a_micro_batch_is_an_error() -> None:
    with pytest.raises(ValueError, match="whole number"):
        train(Scalar(), singles(4), lambda progress: 2.5)


# --- units


@pytest.mark.parametrize("with_length", [True, False])
@pytest.mark.parametrize("unit", ["samples", "items"])
def test_unit_samples_closes_with_the_batch_that_reaches_the_target(unit: Any, with_length: bool) -> None:
    # 6 samples a window from batches of 2, 2, 3, 1, 5, 1, 2: 2+2+3, 1+5, 1+2
    loader = make_loader(numbers(2, 2, 3, 1, 5, 1, 2), with_length)
    record = train(Scalar(), loader, GradientAccumulation(6, unit=unit))
    assert record.gradients == pytest.approx([4.0, 10.5, 15.0], rel=FLOAT32)
    assert record.batch_of_step == [2, 4, 6]


def test_unit_items_closes_with_the_batch_that_reaches_the_target() -> None:
    def step(module: Scalar, batch: Any, batch_idx: int) -> torch.Tensor:
        valid = batch["labels"] != -100
        return (module.w * batch["values"] * valid).sum() / valid.sum()

    counts = [3, 1, 0, 4, 2, 2, 1]
    batches = []
    for value, count in enumerate(counts, start=1):
        labels = torch.full((1, 5), -100)
        labels[0, :count] = 1
        batches.append({"values": torch.full((1, 5), float(value)), "labels": labels})
    from lightning_accum.counting import Tokens

    accumulation = GradientAccumulation(4, unit="items", weight=Tokens(shift=False))
    record = train(Scalar(step=step), batches, accumulation)
    # windows 3+1, 0+4, 2+2, 1 items; values 1..7
    assert record.gradients == pytest.approx([5 / 4, 4.0, 5.5, 7.0], rel=FLOAT32)


def test_effective_batch_that_the_loader_does_not_divide_is_told_once_with_both_numbers() -> None:
    record = train(Scalar(), numbers(*[4] * 6), GradientAccumulation(10, unit="samples"))
    assert record.gradients == pytest.approx([6.5, 18.5], rel=FLOAT32)
    told = record.warned("10", "12")
    assert len(told) == 1


def test_effective_batch_that_the_loader_divides_is_not_warned_of() -> None:
    record = train(Scalar(), numbers(*[4] * 6), GradientAccumulation(8, unit="samples"))
    assert record.gradients == pytest.approx([4.5, 12.5, 20.5], rel=FLOAT32)
    assert not record.warned("samples")


# --- how a schedule is written


SAME_SCHEDULE: list[Any] = [
    {0: 1, 1: 4},
    "0:1,1:4",
    " 0 : 1 , 1 : 4 ",
    [[0, 1], [1, 4]],
    [(0, 1), (1, 4)],
    PerEpoch({0: 1, 1: 4}),
    "0 epochs: 1, 1 epoch: 4",
    Stages("0 epochs: 1, 1 epochs: 4"),
    Sequence([(1, "1 epoch")], last=4),
]


@pytest.mark.parametrize("schedule", SAME_SCHEDULE, ids=repr)
def test_schedule_is_exactly_what_was_written_however_it_was_written(schedule: Any) -> None:
    record = train(Scalar(), singles(4), schedule, max_epochs=3)
    assert record.gradients == pytest.approx([1, 2, 3, 4, 2.5, 2.5], rel=FLOAT32)


def test_schedules_dict_of_the_caller_is_not_changed() -> None:
    mine = {1: 4, 0: 1}
    record = train(Scalar(), singles(4), mine, max_epochs=2)
    assert list(mine.items()) == [(1, 4), (0, 1)]
    assert record.gradients == pytest.approx([1, 2, 3, 4, 2.5], rel=FLOAT32)


def test_schedules_dict_changed_afterwards_changes_nothing() -> None:
    mine = {0: 1, 1: 4}
    accumulation = GradientAccumulation(mine)
    mine[0] = 2
    assert train(Scalar(), singles(4), accumulation).gradients == pytest.approx([1, 2, 3, 4], rel=FLOAT32)


@pytest.mark.parametrize(
    "schedule", ["", "often", "0:1,1", [[0, 1, 2]], 0, -1, {0: 0}, {-1: 2}, "5: 2 steps", object()]
)
def test_schedule_that_cannot_be_is_an_error_that_says_expected(schedule: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        GradientAccumulation(schedule)


def test_record_of_a_ramp_shows_the_factor_to_every_reader() -> None:
    record: Record = train(Scalar(), singles(7), lambda progress: min(2**progress.num_optimizer_steps, 4))
    assert record.gradients == pytest.approx([1, 2.5, 5.5], rel=FLOAT32)
