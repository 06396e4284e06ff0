"""Every window that a training will have, without training: the rules of `window.py`, met by imagined micro-batches.

Pure: knows neither Lightning nor torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lightning_accum.errors import check_counts, expected
from lightning_accum.progress import Progress
from lightning_accum.window import Ahead, EpochEnd, Unit, WindowRules, fraction_of_training


@dataclass(frozen=True)
class WindowRecord:
    """One window of a simulated training.

    Attributes:
        index: its number among all windows, dropped ones included.
        epoch: the epoch it opened in.
        first_batch: index in that epoch of its first micro-batch.
        num_micro_batches: micro-batches it held on each rank.
        factor: micro-batches it was expected to hold when it opened.
        target: what the schedule asked for, in its unit.
        effective_batch_size: samples it held over all ranks.
        stepped: whether an optimizer step followed; ``False`` only for a dropped window.
        num_samples_before: samples over all ranks before it.
        num_micro_steps_before: micro-batches per rank before it.
    """

    index: int
    epoch: int
    first_batch: int
    num_micro_batches: int
    factor: int
    target: float
    effective_batch_size: int
    stepped: bool
    num_samples_before: int
    num_micro_steps_before: int


def simulate_windows(
    schedule: Any,
    *,
    batches_per_epoch: int,
    num_epochs: int,
    batch_size: int = 1,
    last_batch_size: int | None = None,
    world_size: int = 1,
    unit: Unit = "micro_batches",
    epoch_end: EpochEnd = "flush",
    max_steps: int | None = None,
) -> list[WindowRecord]:
    """Return every window that a training would have, without training.

    Args:
        schedule: anything :func:`~lightning_accum.schedules.as_schedule` takes; it must depend on its progress only.
        batches_per_epoch: micro-batches an epoch on each rank.
        num_epochs: epochs of training.
        batch_size: samples in a micro-batch on one rank.
        last_batch_size: samples in an epoch's last micro-batch, if it is shorter.
        world_size: number of ranks.
        unit: what the schedule's values count. An item is taken to be a sample here.
        epoch_end: as in :class:`WindowRules`.
        max_steps: optimizer steps after which training ends.

    Raises:
        ConfigError: for sizes below 1, or a schedule that cannot be read in advance.

    Example:
        >>> windows = simulate_windows({0: 1, 2: 4}, batches_per_epoch=10, num_epochs=4)
        >>> len(windows), [window.num_micro_batches for window in windows[-3:]]
        (26, [4, 4, 2])
        >>> ramp = simulate_windows(
        ...     lambda progress: min(2 ** progress.num_optimizer_steps, 8), batches_per_epoch=20, num_epochs=1
        ... )
        >>> [window.num_micro_batches for window in ramp]
        [1, 2, 4, 8, 5]
    """
    sizes = {"batches_per_epoch": batches_per_epoch, "num_epochs": num_epochs, "batch_size": batch_size}
    check_counts(sizes | {"world_size": world_size})
    rules = WindowRules(schedule, unit, epoch_end)
    if not rules.schedule.is_predictable:
        do = "One that looks at more can only be run."
        what = "a schedule that depends on the progress of training alone"
        raise expected(what, str(rules.schedule), "a simulation", do)
    run = _ImaginedRun(batches_per_epoch, num_epochs, batch_size, last_batch_size or batch_size, world_size)
    records: list[WindowRecord] = []
    num_steps = 0
    for record in run.windows(rules, max_steps):
        records.append(record)
        num_steps += record.stepped
        if max_steps is not None and num_steps >= max_steps:
            break
    return records


@dataclass(frozen=True)
class _ImaginedRun:
    """The micro-batches of a training that nobody runs: equal sizes, but for the last of each epoch."""

    batches_per_epoch: int
    num_epochs: int
    batch_size: int
    last_batch_size: int
    world_size: int

    def windows(self, rules: WindowRules, max_steps: int | None) -> Iterator[WindowRecord]:
        total = self.batches_per_epoch * self.num_epochs
        num_steps = done = index = 0
        while done < total:
            record = self._window(rules, index, done, num_steps, max_steps)
            yield record
            num_steps += record.stepped
            done += record.num_micro_batches
            index += 1

    def _window(self, rules: WindowRules, index: int, done: int, num_steps: int, max_steps: int | None) -> WindowRecord:
        epoch, first = divmod(done, self.batches_per_epoch)
        total = self.batches_per_epoch * self.num_epochs
        before = self._num_samples(done)
        fraction = fraction_of_training(done, num_steps, total, max_steps)
        progress = Progress(
            epoch=epoch,
            num_optimizer_steps=num_steps,
            num_micro_steps=done,
            num_samples=before,
            num_items=before,
            fraction=fraction,
        )
        ahead = Ahead(self.batches_per_epoch - first, total - done)
        count = self._num_samples(done + 1) - before
        window = rules.open(progress, batch_idx=first, count=count, ahead=ahead)
        length, full = self._length(rules, window.target, done, ahead)
        size = self._num_samples(done + length) - before
        stepped = full or rules.epoch_end != "drop"
        return WindowRecord(index, epoch, first, length, window.factor, window.target, size, stepped, before, done)

    def _length(self, rules: WindowRules, target: float, done: int, ahead: Ahead) -> tuple[int, bool]:
        """Return the micro-batches that the window opened after ``done`` holds, and whether it reaches its target."""
        limit = ahead.in_fit if rules.epoch_end == "carry" else ahead.in_epoch
        assert limit is not None
        before = self._num_samples(done)
        length = min(limit, rules.factor_for(target, self.batch_size * self.world_size))
        if rules.unit == "micro_batches":
            return length, length >= target
        while length < limit and self._num_samples(done + length) - before < target:
            length += 1
        return length, self._num_samples(done + length) - before >= target

    def _num_samples(self, num_batches: int) -> int:
        """Return the samples over all ranks in the first ``num_batches`` micro-batches of training."""
        num_epochs, rest = divmod(num_batches, self.batches_per_epoch)
        per_epoch = (self.batches_per_epoch - 1) * self.batch_size + self.last_batch_size
        return (num_epochs * per_epoch + rest * self.batch_size) * self.world_size
