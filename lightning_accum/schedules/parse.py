"""Reading a schedule out of a number, a mapping, a list, a function, or a text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Listing
from numbers import Real
from typing import Any, Final

from lightning_accum.errors import expected
from lightning_accum.schedules.base import Schedule
from lightning_accum.schedules.ramps import CosineRamp, ExponentialRamp, LinearRamp
from lightning_accum.schedules.sequence import Sequence
from lightning_accum.schedules.shapes import Constant, FromCallable, PerEpoch, Stages, list_pairs
from lightning_accum.schedules.text import split_call, split_outside_brackets, strip_brackets

_RAMPS: Final[Mapping[str, Callable[..., Schedule]]] = {
    "linear": LinearRamp,
    "cosine": CosineRamp,
    "exponential": ExponentialRamp,
}
_RAMP_ARGUMENTS: Final = ("start", "end", "over", "delay", "multiple", "round_to")
_FORMS: Final = (
    "'8', '0:1, 4:8', '0 steps: 1, 500 steps: 4', 'linear(8, 32, over=2000 steps)' (or cosine, exponential), or "
    "'8 for 500 steps, then 16'"
)


def as_schedule(value: Any) -> Schedule:
    """Return the schedule that ``value`` is or describes.

    ========================================  ================================
    value                                     schedule
    ========================================  ================================
    a Schedule                                itself
    ``8``, ``"8"``                            Constant
    ``{0: 1, 4: 8}``, ``[[0, 1], [4, 8]]``,
    ``"0:1, 4:8"``, ``"0:1 4:8"``             PerEpoch
    ``{"0 steps": 1, "500 steps": 4}``,
    ``"0 steps: 1, 500 steps: 4"``            Stages
    ``"linear(8, 32, over=2000 steps)"``      LinearRamp; so too cosine, exponential
    ``"8 for 500 steps, then 16"``            Sequence
    a function of Progress                    FromCallable
    ========================================  ================================

    ``str`` of a schedule is text that gives the same schedule back, unless a function is in it.

    Args:
        value: any of these.

    Raises:
        ConfigError: anything else, or a value that the schedule's own class refuses.

    Example:
        >>> as_schedule("0:1, 4:8")
        PerEpoch(values=((0, 1), (4, 8)))
        >>> as_schedule("linear(8, 32, over=2000 steps)") == LinearRamp(8, 32, over="2000 steps")
        True
    """
    if isinstance(value, Schedule):
        return value
    if isinstance(value, str):
        return _read_text(value)
    if isinstance(value, Mapping | Listing):
        return _read_pairs(value)
    if callable(value) and not isinstance(value, type):
        return FromCallable(value)
    if isinstance(value, Real):
        return Constant(float(value))
    raise expected(f"a schedule, a number, {{0: 1, 4: 8}}, a callable of Progress, or text such as {_FORMS}", value)


def _read_text(text: str) -> Schedule:
    text = strip_brackets(text)
    if len(parts := split_outside_brackets(text, "then")) > 1:
        return _read_sequence(parts)
    if (call := split_call(text)) is not None:
        return _read_call(text, *call)
    if ":" in text:
        return _read_pairs(text)
    try:
        value = float(text)
    except ValueError:
        raise expected(_FORMS, text, where="a schedule as text") from None
    return Constant(value)


def _read_pairs(pairs: Mapping[Any, Any] | Listing[Any] | str) -> Schedule:
    """Return PerEpoch where the first key is a bare number, and Stages where it has a unit."""
    listed = list_pairs(pairs, where="a schedule as pairs")
    first = listed[0][0]
    is_epoch = first.strip().isdecimal() if isinstance(first, str) else isinstance(first, int)
    shape: Callable[..., Schedule] = PerEpoch if is_epoch else Stages
    return shape(listed)


def _read_call(text: str, name: str, positional: list[str], named: dict[str, str]) -> Schedule:
    if name not in _RAMPS:
        raise expected(f"one of {', '.join(_RAMPS)}", name, where=text)
    arguments = dict(zip(_RAMP_ARGUMENTS, positional, strict=False))
    unknown = [*positional[len(_RAMP_ARGUMENTS) :], *(key for key in named if key not in _RAMP_ARGUMENTS)]
    if unknown or arguments.keys() & named.keys():
        raise expected(f"arguments out of {', '.join(_RAMP_ARGUMENTS)}, each once", text)
    arguments |= named
    if missing := [key for key in ("start", "end", "over") if key not in arguments]:
        raise expected(f"{' and '.join(missing)} too, as in {name}(8, 32, over=2000 steps)", text)
    return _RAMPS[name](**arguments)


def _read_sequence(parts: list[str]) -> Sequence:
    phases = []
    for part in parts[:-1]:
        schedule, *duration = split_outside_brackets(part.strip().removesuffix(","), "for")
        if len(duration) != 1:
            raise expected("a schedule and its duration such as '8 for 500 steps'", part.strip())
        phases.append((schedule, duration[0]))
    return Sequence(phases, parts[-1])
