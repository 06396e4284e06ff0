"""The windows that a schedule will make, counted and summed up in stages. Pure: nothing is trained."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

from lightning_accum.errors import expected
from lightning_accum.schedules import Schedule, as_schedule
from lightning_accum.simulation import WindowRecord, simulate_windows
from lightning_accum.window import EpochEnd, Unit, WindowRules


@dataclass(frozen=True)
class PreviewWindow:
    """One window of the training to come.

    Attributes:
        record: what it will hold.
        planned_factor: the micro-batches that reach the target; it holds fewer where an epoch or training ends.
    """

    record: WindowRecord
    planned_factor: int

    @property
    def is_short(self) -> bool:
        """Whether it holds less than was asked for."""
        return self.record.num_micro_batches < self.planned_factor


@dataclass(frozen=True)
class Preview:
    """A schedule played through a training that has not begun.

    Attributes:
        schedule: whose values they are.
        batches_per_epoch: micro-batches an epoch on each rank.
        num_epochs: epochs of training.
        batch_size: samples in a micro-batch on one rank.
        world_size: number of ranks.
        unit: what the schedule's values count.
        epoch_end: what becomes of a short window at the end of an epoch.
        windows: all of them, in order, dropped ones too.
    """

    schedule: Schedule
    batches_per_epoch: int
    num_epochs: int
    batch_size: int
    world_size: int
    unit: Unit
    epoch_end: EpochEnd
    windows: tuple[PreviewWindow, ...]

    @property
    def records(self) -> list[WindowRecord]:
        """The windows that end in an optimizer step."""
        return [window.record for window in self.windows if window.record.stepped]

    @property
    def num_optimizer_steps(self) -> int:
        """Optimizer steps in all."""
        return len(self.records)

    @property
    def num_samples(self) -> int:
        """Samples over all ranks that an optimizer step used."""
        return sum(record.effective_batch_size for record in self.records)

    @property
    def samples_per_micro_batch(self) -> int:
        """Samples of one micro-batch over all ranks: what turns a factor into an effective batch size."""
        return self.batch_size * self.world_size

    def count_samples(self, num_optimizer_steps: int) -> int:
        """Return the samples that the first ``num_optimizer_steps`` steps use: a sum over the ramp, not a product.

        Example:
            >>> ramp = make_preview("0 steps: 1, 2 steps: 4", batches_per_epoch=10, num_epochs=1)
            >>> [ramp.count_samples(num_steps) for num_steps in range(5)]
            [0, 1, 2, 6, 10]
        """
        return sum(record.effective_batch_size for record in self.records[:num_optimizer_steps])

    def count_optimizer_steps(self, num_samples: float) -> int:
        """Return the optimizer steps that are complete after ``num_samples`` samples.

        Example:
            >>> ramp = make_preview("0 steps: 1, 2 steps: 4", batches_per_epoch=10, num_epochs=1)
            >>> [ramp.count_optimizer_steps(num_samples) for num_samples in (0, 2, 5, 6)]
            [0, 2, 2, 3]
        """
        return bisect_right(list(accumulate(record.effective_batch_size for record in self.records)), num_samples)


@dataclass(frozen=True)
class PreviewStage:
    """A run of windows of one planned factor, or of a few that were merged to be shown in one row.

    Attributes:
        first_optimizer_step: optimizer steps made before it.
        first_epoch: epoch in which it begins.
        first_factor: planned factor of its first window.
        last_factor: planned factor of its last window; the same unless stages were merged.
        num_optimizer_steps: windows that end in an optimizer step.
        num_short: how many of these hold less than was planned.
        num_dropped: windows thrown away.
        num_samples: samples over all ranks that its steps use.
    """

    first_optimizer_step: int
    first_epoch: int
    first_factor: int
    last_factor: int
    num_optimizer_steps: int
    num_short: int
    num_dropped: int
    num_samples: int

    def merge(self, later: PreviewStage) -> PreviewStage:
        """Return this stage and the one after it as one."""
        return PreviewStage(
            self.first_optimizer_step,
            self.first_epoch,
            self.first_factor,
            later.last_factor,
            self.num_optimizer_steps + later.num_optimizer_steps,
            self.num_short + later.num_short,
            self.num_dropped + later.num_dropped,
            self.num_samples + later.num_samples,
        )


def make_preview(
    schedule: Any,
    *,
    batches_per_epoch: int,
    num_epochs: int,
    batch_size: int = 1,
    world_size: int = 1,
    unit: Unit = "micro_batches",
    epoch_end: EpochEnd = "flush",
    max_steps: int | None = None,
) -> Preview:
    """Return the windows that a training under ``schedule`` would have.

    Args:
        schedule: anything that :func:`~lightning_accum.schedules.as_schedule` reads.
        batches_per_epoch: micro-batches an epoch on each rank.
        num_epochs: epochs of training.
        batch_size: samples in a micro-batch on one rank.
        world_size: number of ranks.
        unit: what a value of the schedule counts; an item is taken to be a sample.
        epoch_end: what becomes of a short window at the end of an epoch.
        max_steps: optimizer steps after which training ends.

    Raises:
        ConfigError: for a schedule that depends on more than the progress of training, a size below 1, or a training
            that makes no optimizer step.

    Example:
        >>> preview = make_preview({0: 1, 2: 4}, batches_per_epoch=10, num_epochs=4, batch_size=2)
        >>> preview.num_optimizer_steps, preview.num_samples
        (26, 80)
    """
    schedule = as_schedule(schedule)
    records = simulate_windows(
        schedule,
        batches_per_epoch=batches_per_epoch,
        num_epochs=num_epochs,
        batch_size=batch_size,
        world_size=world_size,
        unit=unit,
        epoch_end=epoch_end,
        max_steps=max_steps,
    )
    if not any(record.stepped for record in records):
        do = f"An epoch of {batches_per_epoch} batches ends before the first window is full: choose another epoch_end."
        raise expected(
            "at least one optimizer step", 0, where=f"a preview of {schedule}, epoch_end={epoch_end!r}", do=do
        )
    rules = WindowRules(schedule, unit, epoch_end)
    windows = tuple(
        PreviewWindow(record, rules.factor_for(record.target, batch_size * world_size)) for record in records
    )
    return Preview(schedule, batches_per_epoch, num_epochs, batch_size, world_size, unit, epoch_end, windows)


def make_stages(preview: Preview, max_stages: int | None = None) -> list[PreviewStage]:
    """Return the runs of windows of equal planned factor.

    Args:
        preview: the windows.
        max_stages: merge neighbours between the first and the last until there are at most so many (3 or more); None
            keeps each.

    Example:
        >>> preview = make_preview("linear(1, 4, over=30 steps)", batches_per_epoch=100, num_epochs=1)
        >>> [(stage.first_factor, stage.num_optimizer_steps) for stage in make_stages(preview)]
        [(1, 10), (2, 10), (3, 10), (4, 10)]
    """
    stages = list(_find_stages(preview))
    if max_stages is None or len(stages) <= max_stages:
        return stages
    first, *inner, last = stages
    size = math.ceil(len(inner) / (max_stages - 2))
    return [first, *(_merge_all(inner[start : start + size]) for start in range(0, len(inner), size)), last]


def _find_stages(preview: Preview) -> Iterator[PreviewStage]:
    num_steps = 0
    for factor, run in groupby(preview.windows, key=lambda window: window.planned_factor):
        windows = list(run)
        stepped = [window for window in windows if window.record.stepped]
        yield PreviewStage(
            first_optimizer_step=num_steps,
            first_epoch=windows[0].record.epoch,
            first_factor=factor,
            last_factor=factor,
            num_optimizer_steps=len(stepped),
            num_short=sum(window.is_short for window in stepped),
            num_dropped=len(windows) - len(stepped),
            num_samples=sum(window.record.effective_batch_size for window in stepped),
        )
        num_steps += len(stepped)


def _merge_all(stages: list[PreviewStage]) -> PreviewStage:
    merged, *rest = stages
    for stage in rest:
        merged = merged.merge(stage)
    return merged
