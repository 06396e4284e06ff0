"""Schedules in training: where windows end, how many steps there will be, and how a schedule is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning as L
import pytest
import torch

from lightning_accum import (
    CosineRamp,
    ExponentialRamp,
    GradientAccumulation,
    LinearRamp,
    PerEpoch,
    Progress,
    Sequence,
    Stages,
)
from lightning_accum.window import simulate_windows
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
def test_unit_samples_closes_with_the_batch_that_reaches_the_target(with_length: bool) -> None:
    # 6 samples a window from batches of 2, 2, 3, 1, 5, 1, 2: 2+2+3, 1+5, 1+2
    loader = make_loader(numbers(2, 2, 3, 1, 5, 1, 2), with_length)
    record = train(Scalar(), loader, GradientAccumulation(6, unit="samples"))
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


# --- how many steps there will be


class Asks(Scalar):
    """Asks for the number of steps where a learning-rate schedule is built, and builds a one-cycle from it."""

    num_estimated: Any = None

    def configure_optimizers(self) -> Any:
        self.num_estimated = self.trainer.estimated_stepping_batches
        optimizer = torch.optim.SGD(self.parameters(), lr=0.0)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=self.num_estimated)
        return [optimizer], [{"scheduler": cycle, "interval": "step"}]


ONE_CYCLE_END = 4e-6
"""OneCycleLR's last rate for max_lr=1: 1 / 25 / 1e4."""


@pytest.mark.parametrize(
    ("schedule", "num_epochs", "num_steps"),
    [({0: 4}, 2, 6), ({0: 1, 2: 4}, 4, 26), (4, 2, 6), ("0:1,2:4", 4, 26), ("0 steps: 1, 4 steps: 3", 1, 6)],
)
def test_steps_are_known_before_training_and_a_one_cycle_ends_at_its_end(
    schedule: Any, num_epochs: int, num_steps: int
) -> None:
    record = train(Asks(), singles(10), schedule, max_epochs=num_epochs)
    assert record.module.num_estimated == record.num_updates == num_steps
    assert record.lrs[-1] == pytest.approx(ONE_CYCLE_END, rel=1e-6)
    assert max(record.lrs) == pytest.approx(1.0, abs=0.1)


def test_steps_by_lightning_alone_are_overestimated_and_a_one_cycle_ends_early() -> None:
    scheduler = L.pytorch.callbacks.GradientAccumulationScheduler({0: 4})
    record = train(Asks(), singles(10), callbacks=[scheduler], max_epochs=2)
    assert (record.module.num_estimated, record.num_updates) == (20, 6)
    assert record.lrs[-1] > 0.1


@pytest.mark.parametrize(
    ("accumulation", "options"),
    [
        (GradientAccumulation(4, epoch_end="carry"), {"max_epochs": 3}),
        (GradientAccumulation(4, epoch_end="drop"), {"max_epochs": 3}),
        (GradientAccumulation(8, epoch_end="carry"), {"max_epochs": 2}),
        (GradientAccumulation(4), {"max_epochs": 3, "max_steps": 5}),
        (GradientAccumulation(4), {"max_epochs": -1, "max_steps": 5}),
        (GradientAccumulation(4), {"max_epochs": 3, "limit_train_batches": 5}),
        (GradientAccumulation(4), {"max_epochs": 3, "limit_train_batches": 0.5}),
        (GradientAccumulation(4), {"max_epochs": 3, "overfit_batches": 3}),
        (GradientAccumulation(6, unit="samples"), {"max_epochs": 3}),
        (GradientAccumulation(6, unit="samples", epoch_end="carry"), {"max_epochs": 3}),
        (GradientAccumulation(LinearRamp(1, 6, over="5 steps")), {"max_epochs": 3}),
        (GradientAccumulation(LinearRamp(2, 12, over="30 samples"), unit="samples"), {"max_epochs": 3}),
        (GradientAccumulation(CosineRamp(1, 6, over="50%")), {"max_epochs": 3}),
        (GradientAccumulation(ExponentialRamp(1, 8, over="12 micro_steps")), {"max_epochs": 3}),
        (GradientAccumulation(lambda progress: 1 + progress.num_optimizer_steps % 3), {"max_epochs": 3}),
    ],
)
def test_steps_known_before_training_are_those_that_training_makes(accumulation: Any, options: Any) -> None:
    loader = torch.utils.data.DataLoader(torch.arange(1.0, 20.0), batch_size=2)  # ten batches, the last of one sample
    record = train(Asks(), loader, accumulation, **options)
    assert record.module.num_estimated == record.num_updates == record.global_step > 0


def test_asking_for_the_steps_consumes_nothing_of_a_stateful_loader() -> None:
    class OnceThrough:
        """Every ``iter`` goes on where the last one stopped, as a stream from a disk does."""

        def __init__(self) -> None:
            self.rest = iter(singles(8))

        def __len__(self) -> int:
            return 8

        def __iter__(self) -> Iterator[Any]:
            return self

        def __next__(self) -> Any:
            return next(self.rest)

    record = train(Asks(), OnceThrough(), 4)
    assert record.module.num_estimated == 2
    assert record.gradients == pytest.approx([2.5, 6.5], rel=FLOAT32)


def test_asking_for_the_steps_of_a_loader_without_length_asks_for_max_steps() -> None:
    with pytest.raises(ValueError, match="max_steps"):
        train(Asks(), make_loader(singles(10), with_length=False), 4)


def test_asking_for_the_steps_of_a_loader_without_length_gives_max_steps() -> None:
    record = train(Asks(), make_loader(singles(10), with_length=False), 4, max_steps=2)
    assert record.module.num_estimated == record.num_updates == 2


# --- sums over a ramp


def test_samples_at_a_step_are_the_sum_over_the_ramp() -> None:
    def ramp(progress: Progress) -> int:
        return min(2**progress.num_optimizer_steps, 8)

    accumulation = GradientAccumulation(ramp)
    train(Scalar(), numbers(*[2] * 15), accumulation)
    assert accumulation.state.num_optimizer_steps == 4
    assert accumulation.state.num_samples == 2 * (1 + 2 + 4 + 8)
    simulated = simulate_windows(ramp, batches_per_epoch=15, num_epochs=1, batch_size=2)
    assert [window.num_samples_before for window in simulated] == [0, 2, 6, 14]
    assert [window.effective_batch_size for window in simulated] == [2, 4, 8, 16]


def test_step_at_a_number_of_samples_is_the_sum_over_the_ramp() -> None:
    # 2 samples a window until 6 were seen, then 4: 3 windows of one batch, then windows of two
    record = train(Scalar(), numbers(*[2] * 9), GradientAccumulation("0 samples: 2, 6 samples: 4", unit="samples"))
    assert record.batch_of_step == [0, 1, 2, 4, 6, 8]


@pytest.mark.parametrize("epoch_end", ["flush", "carry", "drop"])
@pytest.mark.parametrize(
    "schedule",
    [
        3,
        {0: 2, 1: 5},
        "0 steps: 1, 3 steps: 4",
        LinearRamp(1, 6, over="20 samples"),
        LinearRamp(1, 6, over="2 epochs"),
        CosineRamp(1, 6, over="12 micro_steps"),
        lambda progress: 1 + progress.num_optimizer_steps % 4,
        lambda progress: 1 + progress.num_samples % 4,
    ],
)
def test_simulated_windows_are_those_of_the_training(schedule: Any, epoch_end: Any) -> None:
    record = train(
        Scalar(), numbers(*[2] * 7), GradientAccumulation(schedule, epoch_end=epoch_end), max_epochs=3
    )
    simulated = simulate_windows(schedule, batches_per_epoch=7, num_epochs=3, batch_size=2, epoch_end=epoch_end)
    stepped = [window for window in simulated if window.stepped]
    assert record.num_updates == len(stepped) > 0
    closing = [(window.first_batch + window.num_micro_batches - 1) % 7 for window in stepped]
    assert record.batch_of_step == closing


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


@pytest.mark.parametrize("schedule", ["", "often", "0:1,1", [[0, 1, 2]], 0, -1, {0: 0}, {-1: 2}, "5: 2 steps", object()])
def test_schedule_that_cannot_be_is_an_error_that_says_expected(schedule: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        GradientAccumulation(schedule)


def test_record_of_a_ramp_shows_the_factor_to_every_reader() -> None:
    record: Record = train(Scalar(), singles(7), lambda progress: min(2**progress.num_optimizer_steps, 4))
    assert record.gradients == pytest.approx([1, 2.5, 5.5], rel=FLOAT32)
