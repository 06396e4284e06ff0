"""The common learning-rate curves as plain numbers, to be looked at beside a schedule."""

from __future__ import annotations

import math
from typing import Literal, get_args

from lightning_accum.errors import expected

LearningRateShape = Literal["constant", "cosine", "onecycle"]

_WARMUP_SHARE, _INITIAL_DIVISOR, _FINAL_DIVISOR = 0.3, 25.0, 1e4  # the defaults of torch's OneCycleLR


def make_learning_rates(shape: LearningRateShape, peak: float, num_optimizer_steps: int) -> list[float]:
    """Return the learning rate of each optimizer step, as torch's scheduler of that name with its defaults gives it.

    Args:
        shape: "constant"; "cosine" for CosineAnnealingLR down to 0; "onecycle" for OneCycleLR.
        peak: the largest learning rate.
        num_optimizer_steps: the length of the curve.

    Raises:
        ConfigError: a shape that does not exist, or a peak that is not positive.

    Example:
        >>> [f"{rate:.2f}" for rate in make_learning_rates("cosine", 1.0, 4)]
        ['1.00', '0.85', '0.50', '0.15']
        >>> f"{make_learning_rates('onecycle', 1.0, 26)[-1]:.0e}"
        '4e-06'
    """
    if shape not in get_args(LearningRateShape):
        raise expected(f"one of {', '.join(get_args(LearningRateShape))}", shape, where="lr_schedule")
    if not (math.isfinite(peak) and peak > 0):
        raise expected("a learning rate above 0", peak, where="lr")
    curve = {"constant": _constant, "cosine": _cosine, "onecycle": _one_cycle}[shape]
    return [peak * curve(step, num_optimizer_steps) for step in range(num_optimizer_steps)]


def _constant(step: int, num_steps: int) -> float:
    return 1.0


def _cosine(step: int, num_steps: int) -> float:
    return _anneal(1.0, 0.0, step / num_steps)


def _one_cycle(step: int, num_steps: int) -> float:
    """Up from 1 / 25 over the first 30% of the steps, then down to 1 / 250 000 at the last; both as half a cosine."""
    initial = 1 / _INITIAL_DIVISOR
    summit, end = _WARMUP_SHARE * num_steps - 1, num_steps - 1
    if step <= summit:
        return _anneal(initial, 1.0, step / summit)
    return _anneal(1.0, initial / _FINAL_DIVISOR, (step - summit) / (end - summit))


def _anneal(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2
