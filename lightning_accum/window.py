"""Windows: who opens one, who closes one, and what it divides by. Everything else asks here.

A window is the run of micro-batches that ends in one optimizer step. This module is pure: the callback feeds it
real micro-batches, `simulation.py` feeds it imagined ones, and both get their answers from the same lines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lightning_accum.errors import expected
from lightning_accum.progress import Progress
from lightning_accum.schedules import Schedule, as_schedule, check_value

Unit = Literal["micro_batches", "samples", "items"]
EpochEnd = Literal["flush", "carry", "drop"]
Divisor = Literal["actual", "planned"]


class Window(int):
    """An accumulation factor whose multiples are counted from the window's own first micro-batch.

    Trainers ask of the factor ``N`` whether ``batch_idx % N == 0`` (the window opens) and ``(batch_idx + 1) % N == 0``
    (it closes). Counted from batch 0 these answers break as soon as ``N`` changes inside an epoch; counted from
    ``first`` they stay right for every reader.

    Args:
        factor: micro-batches in the window.
        first: index in the epoch of its first micro-batch; negative if it opened in an earlier epoch.

    Example:
        >>> window = Window(3, first=4)
        >>> [batch_idx % window == 0 for batch_idx in (4, 5, 6)], (6 + 1) % window == 0
        ([True, False, False], True)
        >>> window == 3, 12 / window
        (True, 4.0)
    """

    first: int

    def __new__(cls, factor: int, first: int = 0) -> Window:
        """Return the integer ``factor`` that counts from ``first``."""
        window = super().__new__(cls, factor)
        window.first = first
        return window

    def __rmod__(self, count: int) -> int:
        return int.__mod__(count - self.first, self)

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]
        return int(self), self.first


@dataclass(frozen=True)
class Ahead:
    """How many micro-batches are still to come, the present one included; ``None`` where nobody knows."""

    in_epoch: int | None = None
    in_fit: int | None = None


@dataclass
class OpenWindow:
    """A window from its first micro-batch to its optimizer step. Plain values, saved with the state.

    Attributes:
        first: index in the epoch of its first micro-batch; negative once it was carried over from an earlier one.
        target: what the schedule asked for, in the unit of the schedule.
        factor: micro-batches it was expected to hold when it opened. Every loss of the window is divided by this.
        num_micro_batches: micro-batches begun so far.
        num_counted: samples or items over all ranks so far (0 where the unit is micro-batches).
        closes: whether the micro-batch begun last is the last of the window.
    """

    first: int
    target: float
    factor: int
    num_micro_batches: int = 0
    num_counted: float = 0.0
    closes: bool = False

    def as_window(self) -> Window:
        """Return the integer that gives every reader of the factor the right answer for the present micro-batch."""
        return Window(self.shown_factor, self.first)

    @property
    def shown_factor(self) -> int:
        """The factor as it is known by now: exact at the last micro-batch, before that what was expected."""
        return self.num_micro_batches if self.closes else max(self.factor, self.num_micro_batches + 1)

    def share_held(self, num_contributing: float, unit: Unit) -> float:
        """Return the share (at most 1) of the planned window that it really held, for ``divisor="planned"``."""
        held = num_contributing if unit == "micro_batches" else self.num_counted
        return min(1.0, held / self.target)


@dataclass(frozen=True)
class WindowRules:
    """When windows open and close: a schedule, the unit of its values, and what an epoch's end does.

    Args:
        schedule: anything :func:`~lightning_accum.schedules.as_schedule` takes.
        unit: what a value of the schedule counts: ``"micro_batches"`` per rank, or ``"samples"`` or ``"items"`` over
            all ranks.
        epoch_end: ``"flush"`` closes a short window at the end of an epoch, ``"carry"`` continues it in the next epoch
            (and closes it at the end of training), ``"drop"`` throws it away.

    Raises:
        ConfigError: for a schedule, unit or policy that does not exist.

    Example:
        >>> rules = WindowRules(4)
        >>> window = rules.open(Progress(), batch_idx=8, count=0, ahead=Ahead(in_epoch=2))
        >>> rules.extend(window, count=0, ahead=Ahead(in_epoch=2))
        >>> window.factor, window.closes
        (2, False)
    """

    schedule: Schedule
    unit: Unit = "micro_batches"
    epoch_end: EpochEnd = "flush"

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", as_schedule(self.schedule))
        check_choice(self.unit, Unit, "unit")
        check_choice(self.epoch_end, EpochEnd, "epoch_end")

    def extend(self, window: OpenWindow, count: float, ahead: Ahead) -> None:
        """Put the next micro-batch into the window and decide whether it is the last.

        Args:
            window: the open window, changed in place.
            count: samples or items of this micro-batch over all ranks; ignored where the unit is micro-batches.
            ahead: what is known of the micro-batches to come, this one included.
        """
        window.num_micro_batches += 1
        window.num_counted += count
        window.closes = self._is_full(window) or self._is_cut(ahead)

    def open(self, progress: Progress, *, batch_idx: int, count: float, ahead: Ahead) -> OpenWindow:
        """Return a new, still empty window: the schedule is asked here and nowhere else.

        Args:
            progress: what training has done so far.
            batch_idx: index in the epoch of the window's first micro-batch.
            count: samples or items of that micro-batch over all ranks; ignored where the unit is micro-batches.
            ahead: what is known of the micro-batches to come.
        """
        target = check_value(self.schedule(progress), self.schedule, progress)
        if self.unit == "micro_batches" and target != int(target):
            where = f"the schedule {self.schedule} at {progress}"
            raise expected("a whole number of micro-batches", target, where, "Round it, or give unit='samples'.")
        factor = self.factor_for(target, count)
        limit = self._limit(ahead)
        return OpenWindow(batch_idx, float(target), factor if limit is None else max(1, min(factor, limit)))

    def factor_for(self, target: float, count: float) -> int:
        """Return the number of micro-batches of ``count`` samples or items each that reach ``target``."""
        if self.unit == "micro_batches":
            return int(target)
        return max(1, math.ceil(target / count)) if count > 0 else max(1, int(target))

    def _is_full(self, window: OpenWindow) -> bool:
        reached = window.num_micro_batches if self.unit == "micro_batches" else window.num_counted
        return reached >= window.target

    def _is_cut(self, ahead: Ahead) -> bool:
        limit = self._limit(ahead)
        return limit is not None and limit <= 1

    def _limit(self, ahead: Ahead) -> int | None:
        """Return after how many micro-batches a window must close whatever it holds."""
        if self.epoch_end == "flush":
            return ahead.in_epoch
        return ahead.in_fit if self.epoch_end == "carry" else None


def check_choice(value: object, choices: Any, name: str) -> None:
    """Raise the house error unless ``value`` is one of the strings of the ``Literal`` type ``choices``."""
    if value not in get_args(choices):
        listed = ", ".join(repr(choice) for choice in get_args(choices))
        raise expected(f"one of {listed}", value, where=f"{name}=")


def fraction_of_training(
    num_micro_steps: int, num_optimizer_steps: int, total_micro_steps: int | None, max_steps: int | None
) -> float | None:
    """Return how much of training is over, 0 to 1, by whichever limit ends it first; ``None`` if it has no limit.

    Example:
        >>> fraction_of_training(50, 10, total_micro_steps=100, max_steps=None)
        0.5
    """
    shares = []
    if total_micro_steps:
        shares.append(num_micro_steps / total_micro_steps)
    if max_steps:
        shares.append(num_optimizer_steps / max_steps)
    return min(1.0, max(shares)) if shares else None
