"""Schedules whose values are listed one by one: constant, per epoch, in stages, or from a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Listing
from dataclasses import dataclass
from typing import cast

from lightning_accum.errors import expected
from lightning_accum.progress import Duration, DurationUnit, Progress
from lightning_accum.schedules.base import Schedule, check_value, read_whole
from lightning_accum.schedules.text import split_pairs


@dataclass(frozen=True)
class Constant(Schedule):
    """The same value throughout.

    Args:
        value: a whole number of at least 1.

    Example:
        >>> Constant(8)(Progress(num_optimizer_steps=10_000))
        8
    """

    value: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", read_whole(self.value, "Constant(value=...)"))

    def __call__(self, progress: Progress) -> float:
        """Return the value."""
        return self.value

    def __str__(self) -> str:
        return str(self.value)

    def max_value(self) -> float:
        """Return the value."""
        return self.value

    @property
    def units(self) -> frozenset[DurationUnit]:
        """None of them: the value never changes."""
        return frozenset()


@dataclass(frozen=True)
class PerEpoch(Schedule):
    """A value from each of some epochs on, as in Lightning's own ``{0: 1, 4: 8}``.

    Epochs are counted from 0: here the fifth epoch is the first that gets 8.

    Args:
        values: from epoch (0 must be there) to value; as a mapping, as pairs, or as text such as "0:1, 4:8". It is
            copied, in order of the epochs.

    Raises:
        ConfigError: epoch 0 is missing, an epoch is named twice, or a key or value is not a whole number.

    Example:
        >>> schedule = PerEpoch({0: 1, 4: 8})
        >>> schedule(Progress(epoch=3)), schedule(Progress(epoch=4))
        (1, 8)
        >>> print(schedule)
        0:1, 4:8
    """

    values: Mapping[int, float] | Listing[tuple[int, float]] | str

    def __post_init__(self) -> None:
        where = "PerEpoch(values=...)"
        pairs = [(_read_epoch(key, where), read_whole(value, where)) for key, value in list_pairs(self.values, where)]
        epochs = sorted(epoch for epoch, _ in pairs)
        if len(set(epochs)) < len(epochs):
            raise expected("each epoch once", epochs, where)
        if epochs[0] != 0:
            raise expected("a value for the first epoch, 0", epochs, where, do="Epochs are counted from 0: add '0:1'.")
        object.__setattr__(self, "values", tuple(sorted(pairs)))

    @property
    def pairs(self) -> tuple[tuple[int, float], ...]:
        """The epochs and their values, in order."""
        return cast(tuple[tuple[int, float], ...], self.values)

    def __call__(self, progress: Progress) -> float:
        """Return the value of the last named epoch that is not after ``progress.epoch``."""
        return [value for epoch, value in self.pairs if epoch <= progress.epoch][-1]

    def __str__(self) -> str:
        return ", ".join(f"{epoch}:{value}" for epoch, value in self.pairs)

    def max_value(self) -> float:
        """Return the largest of the values."""
        return max(value for _, value in self.pairs)

    @property
    def units(self) -> frozenset[DurationUnit]:
        """Epochs, unless there is only one value."""
        return frozenset({"epochs"}) if len(self.pairs) > 1 else frozenset()


@dataclass(frozen=True)
class Stages(Schedule):
    """A value from each of some moments on, in any one unit of training.

    Args:
        stages: from moment ("0 steps" must come first) to value, in ascending order; as a mapping, as pairs, or as text
            such as "0 steps: 1, 500 steps: 4".

    Raises:
        ConfigError: the first moment is not 0, the moments do not ascend or mix units, or a value is not whole.

    Example:
        >>> schedule = Stages("0 steps: 1, 500 steps: 4")
        >>> schedule(Progress(num_optimizer_steps=499)), schedule(Progress(num_optimizer_steps=500))
        (1, 4)
        >>> schedule == Stages({"0 steps": 1, "500 steps": 4}) == Stages([("0 steps", 1), ("500 steps", 4)])
        True
    """

    stages: Mapping[str, float] | Listing[tuple[str, float]] | str

    def __post_init__(self) -> None:
        where = "Stages(stages=...)"
        pairs = [
            (Duration.parse(cast(str, key), where), read_whole(value, where))
            for key, value in list_pairs(self.stages, where)
        ]
        _check_starts([start for start, _ in pairs], where)
        object.__setattr__(self, "stages", tuple((str(start), value) for start, value in pairs))

    @property
    def pairs(self) -> tuple[tuple[str, float], ...]:
        """The starts of the stages and their values, in order."""
        return cast(tuple[tuple[str, float], ...], self.stages)

    def __call__(self, progress: Progress) -> float:
        """Return the value of the last stage that has begun."""
        begun = [value for start, value in self.pairs[1:] if Duration.parse(start).reached(progress)]
        return begun[-1] if begun else self.pairs[0][1]

    def __str__(self) -> str:
        return ", ".join(f"{start}: {value}" for start, value in self.pairs)

    def max_value(self) -> float:
        """Return the largest of the values."""
        return max(value for _, value in self.pairs)

    @property
    def units(self) -> frozenset[DurationUnit]:
        """The unit of the stages, unless there is only one."""
        return frozenset(Duration.parse(start).unit for start, _ in self.pairs[1:])


@dataclass(frozen=True)
class FromCallable(Schedule):
    """A schedule from a function of Progress, for the shapes that nobody foresaw.

    Args:
        function: gives a finite number of at least 1 for any Progress.
        is_predictable: whether the function looks at nothing but the Progress. If it does look at something else (a
            loss, the time), say False, or the number of optimizer steps will be forecast wrongly.

    Example:
        >>> schedule = FromCallable(lambda progress: min(2 ** progress.num_optimizer_steps, 8))
        >>> [schedule(Progress(num_optimizer_steps=step)) for step in range(5)]
        [1, 2, 4, 8, 8]
    """

    function: Callable[[Progress], float]
    is_predictable: bool = True

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise expected("a callable of Progress", self.function, where="FromCallable(function=...)")

    def __call__(self, progress: Progress) -> float:
        """Return what the function gives.

        Raises:
            ConfigError: that is not a finite number of at least 1.
        """
        return check_value(self.function(progress), self, progress)

    def __str__(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))


def list_pairs(pairs: object, where: str) -> list[tuple[object, object]]:
    """Return the (key, value) pairs of a mapping, of a list of pairs, or of the text of one.

    Raises:
        ConfigError: anything else, or no pairs at all.

    Example:
        >>> list_pairs({0: 1}, "here") == list_pairs([[0, 1]], "here"), list_pairs("0:1", "here")
        (True, [('0', '1')])
    """
    listed: object = pairs
    if isinstance(pairs, str):
        listed = split_pairs(pairs, where)
    elif isinstance(pairs, Mapping):
        listed = list(pairs.items())
    if not isinstance(listed, Listing) or not listed or not all(_is_pair(pair) for pair in listed):
        raise expected("pairs such as {0: 1, 4: 8}, [[0, 1], [4, 8]] or '0:1, 4:8'", pairs, where)
    return [(pair[0], pair[1]) for pair in listed]


def _is_pair(pair: object) -> bool:
    return isinstance(pair, Listing) and not isinstance(pair, str) and len(pair) == 2


def _read_epoch(key: object, where: str) -> int:
    text = key.strip() if isinstance(key, str) else key
    if isinstance(text, str) and text.isdecimal():
        return int(text)
    if isinstance(text, bool) or not isinstance(text, int) or text < 0:
        raise expected("an epoch, a whole number counted from 0", key, where)
    return text


def _check_starts(starts: list[Duration], where: str) -> None:
    if starts[0].amount != 0:
        raise expected("a first stage that starts at 0", str(starts[0]), where, do=f"Add '0 {starts[0].unit}: 1'.")
    for earlier, later in zip(starts, starts[1:], strict=False):
        if later.unit != earlier.unit:
            raise expected(f"one unit throughout, {earlier.unit}", str(later), where)
        if later.amount <= earlier.amount:
            raise expected(f"a stage that starts after {earlier}", str(later), where)
