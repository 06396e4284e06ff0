"""How far training has come, and durations that are measured against it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal, cast, get_args

from lightning_accum.errors import ConfigError, expected

DurationUnit = Literal["steps", "micro_steps", "epochs", "samples", "items", "percent"]

_FIELD: Final[dict[DurationUnit, str]] = {
    "steps": "num_optimizer_steps",
    "micro_steps": "num_micro_steps",
    "epochs": "epoch",
    "samples": "num_samples",
    "items": "num_items",
    "percent": "fraction",
}
_FRACTIONAL: Final = frozenset({"items", "percent"})  # the units of which there can be half a one
_TEXT: Final = re.compile(
    r"\s*(?P<amount>[-+]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(?P<unit>%|[A-Za-z][A-Za-z_ -]*)?\s*"
)
_FRACTION_DIGITS: Final = 12  # a difference of two fractions is rounded to these, so that 0.3 - 0.1 is 0.2
_UNITS: Final = "steps, micro_steps, epochs, samples, items or %"


@dataclass(frozen=True)
class Progress:
    """What a schedule may look at when a window opens: everything counted here has already happened.

    Attributes:
        epoch: epochs completed, so 0 throughout the first one.
        num_optimizer_steps: updates made.
        num_micro_steps: micro-batches seen by one rank.
        num_samples: samples seen by all ranks together.
        num_items: items (tokens, valid pixels, ...) seen by all ranks together.
        fraction: the share of training that has passed, 0 to 1; None where its length is unknown.

    Example:
        >>> Progress(epoch=1, num_optimizer_steps=40, num_samples=320).num_samples
        320
    """

    epoch: int = 0
    num_optimizer_steps: int = 0
    num_micro_steps: int = 0
    num_samples: float = 0
    num_items: float = 0
    fraction: float | None = None

    def since(self, start: Duration) -> Progress:
        """Return this progress with the one count that ``start`` is written in counted from ``start`` on.

        The other counts stay those of the whole training: when ``start`` is "500 steps", nothing says how many
        samples or epochs had passed by then.

        Example:
            >>> Progress(epoch=3, num_optimizer_steps=700).since(Duration.parse("500 steps"))
            Progress(epoch=3, num_optimizer_steps=200, num_micro_steps=0, num_samples=0, num_items=0, fraction=None)
        """
        if start.unit == "percent":
            return replace(self, fraction=round(_known(self.fraction, start) - start.amount / 100, _FRACTION_DIGITS))
        name = _FIELD[start.unit]
        return replace(self, **{name: getattr(self, name) - start.amount})


@dataclass(frozen=True)
class Duration:
    """A length of training with its unit: "2000 steps", "3 epochs", "5e6 samples", "2e9 items", "30%".

    Steps are optimizer steps; micro_steps are micro-batches of one rank; samples and items are counted over all
    ranks; epochs are whole ones; per cent is of the whole training.

    Attributes:
        amount: how many; at least 0, whole except for items and per cent.
        unit: of what.

    Raises:
        ConfigError: an amount that the unit cannot have.

    Example:
        >>> half = Duration.parse("2000 steps")
        >>> half.elapsed(Progress(num_optimizer_steps=500)), half.reached(Progress(num_optimizer_steps=2000))
        (0.25, True)
        >>> print(Duration(5_000_000, "samples"), Duration(30, "percent"))
        5e6 samples 30%
    """

    amount: float
    unit: DurationUnit

    def __post_init__(self) -> None:
        if self.unit not in get_args(DurationUnit):
            raise expected(f"a unit out of {_UNITS}", self.unit, where="Duration(unit=...)")
        if problem := _find_problem(self.amount, self.unit):
            raise expected(problem, self.amount, where="Duration(amount=...)")
        if self.amount == int(self.amount):
            object.__setattr__(self, "amount", int(self.amount))

    def __str__(self) -> str:
        if self.unit == "percent":
            return f"{self.amount}%"
        unit = self.unit[:-1] if self.amount == 1 else self.unit
        return f"{_short(self.amount)} {unit}"

    @classmethod
    def parse(cls, text: str | Duration, where: str = "") -> Duration:
        """Return the duration that ``text`` writes down.

        Args:
            text: such as "2000 steps"; a Duration is returned as it is.
            where: the argument it was given to, for the error.

        Raises:
            ConfigError: a bare number (steps or epochs?), an unknown unit, or an impossible amount.

        Example:
            >>> Duration.parse("1 epoch")
            Duration(amount=1, unit='epochs')
            >>> Duration.parse("2000", where="LinearRamp(over=...)")
            Traceback (most recent call last):
            ...
            lightning_accum.errors.ConfigError: expected a number with a unit (steps, micro_steps, epochs, samples, \
items or %), but got '2000' (in LinearRamp(over=...)). Write "2000 steps", for example.
        """
        if isinstance(text, Duration):
            return text
        if not isinstance(text, str):
            raise _no_unit(text, where)
        return _parse(text, where)

    def position(self, progress: Progress) -> float:
        """Return how much of this duration's unit has passed in ``progress``.

        Raises:
            ConfigError: the duration is in per cent and the length of training is unknown.

        Example:
            >>> Duration.parse("30%").position(Progress(fraction=0.25))
            25.0
        """
        if self.unit == "percent":
            return 100 * _known(progress.fraction, self)
        return cast(float, getattr(progress, _FIELD[self.unit]))

    def elapsed(self, progress: Progress) -> float:
        """Return the share of this duration that has passed: 0 at the start, 1 at its end, more after it.

        A duration of nothing has always passed: ``inf``.

        Raises:
            ConfigError: the duration is in per cent and the length of training is unknown.

        Example:
            >>> Duration.parse("4 epochs").elapsed(Progress(epoch=6))
            1.5
        """
        if self.unit == "percent":  # fraction / 0.29 is 1 where the fraction is 0.29; 100 * 0.29 is not 29
            passed, whole = _known(progress.fraction, self), self.amount / 100
        else:
            passed, whole = self.position(progress), self.amount
        return passed / whole if whole else math.inf

    def reached(self, progress: Progress) -> bool:
        """Return whether all of this duration has passed.

        Raises:
            ConfigError: the duration is in per cent and the length of training is unknown.

        Example:
            >>> Duration.parse("5e6 samples").reached(Progress(num_samples=4_999_999))
            False
        """
        return self.elapsed(progress) >= 1


@lru_cache(maxsize=1024)
def _parse(text: str, where: str) -> Duration:
    found = _TEXT.fullmatch(text)
    if found is None or found["unit"] is None:
        raise _no_unit(text, where)
    unit = _read_unit(found["unit"])
    if unit is None:
        raise expected(f"a unit out of {_UNITS}", text, where)
    amount = float(found["amount"])
    if problem := _find_problem(amount, unit):
        raise expected(problem, text, where)
    return Duration(amount, unit)


def _read_unit(text: str) -> DurationUnit | None:
    """Return the unit written as "steps", "step", "micro-steps", "%" ...; None if it is none."""
    name = re.sub(r"[ -]", "_", text.strip().lower())
    if name in ("%", "percent"):
        return "percent"
    plural = name if name.endswith("s") else f"{name}s"
    return plural if plural in _FIELD else None


def _find_problem(amount: object, unit: DurationUnit) -> str:
    """Return what would have been right if ``unit`` cannot have ``amount``; "" if it can."""
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not math.isfinite(amount) or amount < 0:
        return f"a finite number of {unit} of at least 0"
    if unit not in _FRACTIONAL and amount != int(amount):
        return f"a whole number of {unit}"
    if unit == "percent" and amount > 100:
        return "at most 100%"
    return ""


def _known(fraction: float | None, duration: Duration) -> float:
    if fraction is None:
        raise expected(
            "a training of known length",
            None,
            where=f"Progress.fraction, for {str(duration)!r}",
            do="Set max_epochs or max_steps and a loader with a length, or write the duration in steps.",
        )
    return fraction


def _no_unit(got: object, where: str) -> ConfigError:
    found = _TEXT.fullmatch(str(got))
    example = found["amount"] if found else "2000"
    return expected(f"a number with a unit ({_UNITS})", got, where, do=f'Write "{example} steps", for example.')


def _short(amount: float) -> str:
    """Return 5000000 as "5e6", and any other number as Python prints it."""
    digits = str(amount)
    significant = digits.rstrip("0")
    num_zeros = len(digits) - len(significant)
    return f"{significant}e{num_zeros}" if isinstance(amount, int) and num_zeros >= 6 else digits
