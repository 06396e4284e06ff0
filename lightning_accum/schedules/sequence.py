"""A schedule made of schedules, one after the other."""

from __future__ import annotations

from collections.abc import Sequence as Listing
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

from lightning_accum.errors import expected
from lightning_accum.progress import Duration, DurationUnit, Progress
from lightning_accum.schedules.base import Schedule


@dataclass(frozen=True)
class Sequence(Schedule):
    """Each of some schedules for a while, then the last one to the end of training.

    Each begins anew: it sees progress counted from its own start, in the unit that the sequence's durations are written
    in. When a schedule begins "after 500 steps" nobody knows in advance how many samples or epochs have passed, so a
    schedule that is not the first must count in that same unit; a function of Progress sees the other counts as they
    are.

    Args:
        phases: pairs of a schedule and how long it lasts. A schedule may be anything that :func:`as_schedule` reads.
        last: the schedule after them.

    Raises:
        ConfigError: durations that mix units or are empty, or a later schedule that counts in another unit.

    Example:
        >>> schedule = Sequence([(8, "500 steps")], last="linear(8, 32, over=1000 steps)")
        >>> [schedule(Progress(num_optimizer_steps=step)) for step in (0, 499, 500, 1000, 1500)]
        [8, 8, 8, 20, 32]
        >>> print(schedule)
        8 for 500 steps, then linear(8, 32, over=1000 steps)
    """

    phases: Listing[tuple[Schedule | float | str, str]]
    last: Schedule | float | str

    def __post_init__(self) -> None:
        from lightning_accum.schedules.parse import as_schedule  # which must know Sequence to read one

        where = "Sequence(phases=...)"
        if isinstance(self.phases, str) or not isinstance(self.phases, Listing) or not self.phases:
            raise expected("pairs of a schedule and its duration", self.phases, where)
        for phase in self.phases:
            if isinstance(phase, str) or not isinstance(phase, Listing) or len(phase) != 2:
                raise expected("a pair of a schedule and its duration", phase, where)
        phases = tuple((as_schedule(phase[0]), str(Duration.parse(phase[1], where))) for phase in self.phases)
        object.__setattr__(self, "phases", phases)
        object.__setattr__(self, "last", as_schedule(self.last))
        self._check_units(where)

    def __call__(self, progress: Progress) -> float:
        """Return the value of the schedule whose turn it is, at its own progress."""
        (first, _), *later = self.turns
        begun = [(schedule, start) for schedule, start in later if start.reached(progress)]
        if not begun:
            return first(progress)
        schedule, start = begun[-1]
        return schedule(progress.since(start))

    def __str__(self) -> str:
        *phases, last = (
            f"({schedule})" if isinstance(schedule, Sequence) else str(schedule) for schedule, _ in self.turns
        )
        parts = [f"{schedule} for {duration}" for schedule, (_, duration) in zip(phases, self.phases, strict=True)]
        return ", then ".join([*parts, last])

    def max_value(self) -> float | None:
        """Return the largest value of any of the schedules; None if one of them does not know."""
        known = [value for schedule, _ in self.turns if (value := schedule.max_value()) is not None]
        return max(known) if len(known) == len(self.turns) else None

    @property
    def is_predictable(self) -> bool:
        """Whether all of the schedules are."""
        return all(schedule.is_predictable for schedule, _ in self.turns)

    @property
    def units(self) -> frozenset[DurationUnit] | None:
        """The units of the schedules and of the durations; None if one of the schedules does not know."""
        known = [units for schedule, _ in self.turns if (units := schedule.units) is not None]
        own = {start.unit for _, start in self.turns}
        return frozenset(own.union(*known)) if len(known) == len(self.turns) else None

    @property
    def turns(self) -> tuple[tuple[Schedule, Duration], ...]:
        """Each schedule, and how long after the start of training its turn comes."""
        durations = [Duration.parse(duration) for _, duration in self.phases]
        starts = accumulate((duration.amount for duration in durations), initial=0)
        schedules = [*(schedule for schedule, _ in self.phases), self.last]
        unit = durations[0].unit
        return tuple(
            (cast(Schedule, schedule), Duration(start, unit)) for schedule, start in zip(schedules, starts, strict=True)
        )

    def _check_units(self, where: str) -> None:
        durations = [Duration.parse(duration) for _, duration in self.phases]
        unit = durations[0].unit
        for duration in durations:
            if duration.unit != unit:
                raise expected(f"durations in one unit, {unit}", str(duration), where)
            if duration.amount == 0:
                raise expected("a duration longer than nothing", str(duration), where, do="Leave that schedule out.")
        if unit == "percent" and sum(duration.amount for duration in durations) >= 100:
            raise expected(
                "less than 100% together", str(self.phases[-1][1]), where, do="The last one needs a turn too."
            )
        for schedule, _ in self.turns[1:]:
            if schedule.units is not None and not schedule.units <= {unit}:
                raise expected(
                    f"a later schedule that counts in {unit}, as the durations do",
                    str(schedule),
                    where="Sequence",
                    do="It begins anew when its turn comes, and only the durations' own unit tells when that is.",
                )
