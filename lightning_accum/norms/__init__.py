"""Normalisation layers that treat a micro-batch as they would treat the large batch.

All but the callback `NormSwap` is pure: Lightning is imported when that is asked for.
"""

from typing import TYPE_CHECKING, Any

from lightning_accum.norms.report import Finding, SwapReport
from lightning_accum.norms.swap import GroupNormAct, count_groups, register_norm, swap_norms

if TYPE_CHECKING:
    from lightning_accum.norms.callback import NormSwap

__all__ = ["Finding", "GroupNormAct", "NormSwap", "SwapReport", "count_groups", "register_norm", "swap_norms"]


def __getattr__(name: str) -> Any:
    if name == "NormSwap":
        from lightning_accum.norms.callback import NormSwap

        return NormSwap
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
