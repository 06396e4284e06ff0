"""Schedules that go from one value to another: linear, cosine, exponential."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, get_args

from lightning_accum.errors import expected
from lightning_accum.progress import Duration, DurationUnit, Progress
from lightning_accum.schedules.base import Schedule, read_whole

RoundTo = Literal["multiple", "power_of_two"]

# How far from a whole number rounding errors may put a value that is that number; far below what anyone can set.
_RELATIVE_TOLERANCE, _ABSOLUTE_TOLERANCE = 1e-10, 1e-9


@dataclass(frozen=True)
class Ramp(Schedule):
    """What the ramps share: they differ only in the curve between the two ends.

    The value is ``start`` through ``delay``, follows the curve for ``over``, and stays at ``end``, which it reaches
    exactly when ``over`` has passed. In between it is rounded *towards* ``start``, to a multiple or a power of two: a
    ramp never runs ahead of its curve and never leaves the range of its ends. It may go down as well as up.

    Args:
        start: the value before the ramp.
        end: the value after it.
        over: how long the ramp takes, such as "2000 steps", "5e6 samples" or "30%".
        delay: how long it waits at ``start`` first, in the unit of ``over``.
        multiple: every value is a multiple of this.
        round_to: "multiple", or "power_of_two" for values out of 1, 2, 4, 8, ...

    Raises:
        ConfigError: an end that is not on the grid of ``multiple`` or ``round_to``, a duration without a unit, an empty
            ``over``, or a ``delay`` in another unit.
    """

    start: float
    end: float
    over: str
    delay: str | None = None
    multiple: int = 1
    round_to: RoundTo = "multiple"

    def __post_init__(self) -> None:
        name = type(self).__name__
        for field in ("start", "end", "multiple"):
            object.__setattr__(self, field, read_whole(getattr(self, field), f"{name}({field}=...)"))
        for field in ("over", "delay"):
            if (text := getattr(self, field)) is not None:
                object.__setattr__(self, field, str(Duration.parse(text, f"{name}({field}=...)")))
        self._check_durations(name)
        self._check_rounding(name)

    def __call__(self, progress: Progress) -> float:
        """Return the value of the curve at ``progress``, rounded towards ``start``."""
        over = Duration.parse(self.over)
        share = over.elapsed(progress if self.delay is None else progress.since(Duration.parse(self.delay)))
        if share <= 0:
            return self.start
        return self.end if share >= 1 else self._round(self._curve(share))

    def __str__(self) -> str:
        shown = [f"{self.start}, {self.end}, over={self.over}"]
        shown += [f"delay={self.delay}"] if self.delay is not None else []
        shown += [f"multiple={self.multiple}"] if self.multiple != 1 else []
        shown += [f"round_to={self.round_to}"] if self.round_to != "multiple" else []
        return f"{self._name()}({', '.join(shown)})"

    def max_value(self) -> float:
        """Return the larger of the two ends."""
        return max(self.start, self.end)

    @property
    def units(self) -> frozenset[DurationUnit]:
        """The unit of ``over``."""
        return frozenset({Duration.parse(self.over).unit})

    @abstractmethod
    def _curve(self, share: float) -> float:
        """Return the value, not rounded, after a ``share`` of the ramp: ``start`` at 0, ``end`` at 1, monotonous."""

    @classmethod
    def _name(cls) -> str:
        return cls.__name__.removesuffix("Ramp").lower()

    def _round(self, value: float) -> float:
        """Return the nearest point of the grid between ``start`` and ``value``."""
        up = self.end > self.start
        if self.round_to == "power_of_two":
            return int(2 ** _floor_or_ceil(math.log2(value), up))
        return self.multiple * _floor_or_ceil(value / self.multiple, up)

    def _check_durations(self, name: str) -> None:
        over = Duration.parse(self.over)
        if over.amount == 0:
            raise expected(
                "a duration longer than nothing", self.over, f"{name}(over=...)", "Use Constant for no ramp."
            )
        if self.delay is not None and (delay := Duration.parse(self.delay)).unit != over.unit:
            raise expected(f"a delay in {over.unit}, as over={self.over!r} is", str(delay), f"{name}(delay=...)")

    def _check_rounding(self, name: str) -> None:
        if self.round_to not in get_args(RoundTo):
            choices = " or ".join(repr(choice) for choice in get_args(RoundTo))
            raise expected(choices, self.round_to, f"{name}(round_to=...)")
        powers = self.round_to == "power_of_two"
        if powers and self.multiple != 1:
            raise expected("one of multiple= and round_to='power_of_two'", self.multiple, f"{name}(multiple=...)")
        for field in ("start", "end"):
            value = int(getattr(self, field))
            if powers and value & (value - 1):
                raise expected("a power of two, as round_to asks", value, f"{name}({field}=...)")
            if value % self.multiple:
                raise expected(f"a multiple of {self.multiple}, as multiple= asks", value, f"{name}({field}=...)")


@dataclass(frozen=True)
class LinearRamp(Ramp):
    """A straight line between two values; see :class:`Ramp` for the arguments.

    After a share t of ``over`` (0 <= t <= 1), from s = ``start`` to e = ``end``::

        b(t) = s + (e - s) t

    The shape of the batch-size ramp of Brown et al. (2020), Language Models are Few-Shot Learners, appendix B.

    Example:
        >>> ramp = LinearRamp(8, 32, over="2000 steps")
        >>> [ramp(Progress(num_optimizer_steps=step)) for step in (0, 1000, 1999, 2000, 9999)]
        [8, 20, 31, 32, 32]
        >>> coarse = LinearRamp(8, 32, over="300 steps", multiple=8)
        >>> [coarse(Progress(num_optimizer_steps=step)) for step in (0, 99, 100, 200, 300)]
        [8, 8, 16, 24, 32]
    """

    def _curve(self, share: float) -> float:
        return self.start + (self.end - self.start) * share


@dataclass(frozen=True)
class CosineRamp(Ramp):
    """Half a wave of a cosine between two values: slow, fast, slow; see :class:`Ramp` for the arguments.

    After a share t of ``over`` (0 <= t <= 1), from s = ``start`` to e = ``end``::

        b(t) = s + (e - s) (1 - cos(pi t)) / 2

    The shape in which Loshchilov & Hutter (2017), SGDR, lower a learning rate; here either way.

    Example:
        >>> ramp = CosineRamp(8, 32, over="400 steps")
        >>> [ramp(Progress(num_optimizer_steps=step)) for step in (0, 100, 200, 300, 400)]
        [8, 11, 20, 28, 32]
    """

    def _curve(self, share: float) -> float:
        return self.start + (self.end - self.start) * (1 - math.cos(math.pi * share)) / 2


@dataclass(frozen=True)
class ExponentialRamp(Ramp):
    """Growth by the same factor in the same time; see :class:`Ramp` for the arguments.

    After a share t of ``over`` (0 <= t <= 1), from s = ``start`` to e = ``end``::

        b(t) = s (e / s)^t

    Mirrors an exponential decay of the learning rate: Smith et al. (2018), Don't Decay the Learning Rate, Increase the
    Batch Size. With ``round_to="power_of_two"`` each power is held equally long.

    Example:
        >>> ramp = ExponentialRamp(1, 8, over="3 steps")
        >>> [ramp(Progress(num_optimizer_steps=step)) for step in range(5)]
        [1, 2, 4, 8, 8]
    """

    def _curve(self, share: float) -> float:
        return self.start * math.pow(self.end / self.start, share)


def _floor_or_ceil(value: float, down: bool) -> int:
    """Return ``value`` rounded down (or up), where what rounding errors moved off a whole number counts as that."""
    nearest = round(value)
    if math.isclose(value, nearest, rel_tol=_RELATIVE_TOLERANCE, abs_tol=_ABSOLUTE_TOLERANCE):
        return nearest
    return math.floor(value) if down else math.ceil(value)
