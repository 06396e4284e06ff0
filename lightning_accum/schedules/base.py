"""What a schedule is, and the checks that all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from numbers import Real
from typing import TypeGuard

from lightning_accum.errors import expected
from lightning_accum.progress import DurationUnit, Progress

LARGEST = 2**53
"""The largest value of a schedule: up to it every whole number is a float of its own."""


class Schedule(ABC):
    """A number for each moment of training: how much the window that opens now shall hold.

    What the number counts (micro-batches, samples or items) is the ``unit`` of whoever asks, not of the schedule. It
    is asked once a window, when the window opens, so it cannot change inside one.

    A subclass defines ``__call__`` and, where it can say more than "unknown", the three properties of a forecast.

    Example:
        >>> class Doubling(Schedule):
        ...     def __call__(self, progress):
        ...         return 2 ** progress.epoch
        >>> Doubling()(Progress(epoch=3))
        8
    """

    @abstractmethod
    def __call__(self, progress: Progress) -> float:
        """Return the value, a number of at least 1, for a window that opens at ``progress``."""

    def max_value(self) -> float | None:
        """Return the largest value that this schedule can ever give; None if that is unknown."""
        return None

    @property
    def is_predictable(self) -> bool:
        """Whether the values depend on the Progress alone, so that steps can be counted before training."""
        return True

    @property
    def units(self) -> frozenset[DurationUnit] | None:
        """The units of training that the values depend on; None if that is unknown."""
        return None


def read_whole(value: object, where: str) -> int:
    """Return ``value`` as an int if it is a whole number of at least 1.

    Args:
        value: a number, or the text of one.
        where: the argument it was given to.

    Raises:
        ConfigError: anything else, booleans included.

    Example:
        >>> read_whole(8.0, "Constant(value=...)"), read_whole("5e6", "Constant(value=...)")
        (8, 5000000)
    """
    number = _read_number(value)
    if number is None or not 1 <= number <= LARGEST or number != int(number):
        raise expected("a whole number of at least 1", value, where)
    return int(number)


def check_value(value: object, schedule: Schedule, progress: Progress) -> float:
    """Return what a schedule gave if a window can be that large.

    Args:
        value: what ``schedule(progress)`` returned.
        schedule: who returned it, for the error.
        progress: when, for the error.

    Raises:
        ConfigError: anything but a finite number of at least 1.

    Example:
        >>> from lightning_accum.schedules import Constant
        >>> check_value(8.0, Constant(8), Progress())
        8
    """
    if not _is_number(value) or not 1 <= value <= LARGEST:
        raise expected(
            "a finite number of at least 1",
            value,
            where=f"the value of {schedule} at {progress}",
            do="Return a Python number; a window holds at least one.",
        )
    return int(value) if value == int(value) else float(value)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)


def _read_number(value: object) -> float | None:
    """Return ``value``, or the number that it is the text of; None if it is neither."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return value if _is_number(value) else None
