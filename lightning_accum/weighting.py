"""Equation (1): what a micro-batch weighs, and what a window's gradient is divided by.

Micro-batch i on rank r has a loss l_ri that is a mean over w_ri items. The gradient of the large batch, the mean over
all items of the window, is::

    g = sum_ri( w_ri * grad l_ri ) / sum_ri( w_ri )                                                              (1)

It is computed in two parts, so that no micro-batch has to wait for the next one. Each loss is multiplied by
``w_ri / (w_ref * N)`` before its backward (:func:`loss_factor`), which keeps the running sum as large as an averaged
gradient (``w_ref`` is a typical weight, ``N`` the number of micro-batches expected). When the window is over and its
true total is known, all gradients are multiplied once by ``R * w_ref * N / sum_ri( w_ri )``
(:func:`gradient_factor`), where the ``R`` ranks' gradients were averaged. With equal weights and a full window both
factors are exactly what a division by ``N`` does.

Pure: knows neither Lightning nor processes.
"""

from __future__ import annotations

import math
from typing import Any

from lightning_accum.errors import expected

MAX_TERMS = 8
"""Loss terms, each with a denominator of its own, that one ``training_step`` may return."""


def loss_factor(weight: float, reference: float, factor: int) -> float:
    """Return what a micro-batch's mean loss is multiplied by before its backward: ``w_ri / (w_ref * N)``.

    Example:
        >>> loss_factor(weight=6.0, reference=2.0, factor=4)
        0.75
    """
    return weight / reference / factor


def gradient_factor(total_weight: float, reference: float, factor: int, world_size: int, share: float = 1.0) -> float:
    """Return what a window's gradient is multiplied by at its end: ``R * w_ref * N / sum_ri( w_ri )``.

    Args:
        total_weight: the weight of the window over all ranks; above 0.
        reference: the same ``w_ref`` that its losses were divided by.
        factor: the same ``N`` that its losses were divided by.
        world_size: ``R``, the ranks that gradients were averaged over.
        share: below 1 for a short window under ``divisor="planned"``.

    Example:
        >>> gradient_factor(total_weight=8.0, reference=2.0, factor=4, world_size=1)
        1.0
    """
    return share * (world_size * reference * factor / total_weight)


def read_weight(value: Any, where: str) -> float:
    """Return a weight as a float; the one place where a weight on a device is waited for.

    Raises:
        ConfigError: unless it is a single, finite number of at least 0.

    Example:
        >>> import torch
        >>> read_weight(torch.tensor(3), where="batch 0")
        3.0
    """
    try:
        weight = float(value)
    except (TypeError, ValueError, RuntimeError):
        raise expected("one number", value, where, "A weight is a count or a sum of weights.") from None
    if not math.isfinite(weight) or weight < 0:
        raise expected("a finite weight of at least 0", weight, where)
    return weight
