"""Gradient accumulation for PyTorch Lightning that is exactly the large batch.

>>> from lightning_accum import GradientAccumulation, LinearRamp
>>> callback = GradientAccumulation(LinearRamp(8, 32, over="200 steps"), unit="samples")
"""

from importlib.metadata import version

from lightning_accum.callback import GradientAccumulation
from lightning_accum.counting import Equal, FromBatch, FromOutputs, Pixels, Returned, Samples, Tokens, Weight
from lightning_accum.errors import ConfigError
from lightning_accum.progress import Duration, Progress
from lightning_accum.schedules import (
    Constant,
    CosineRamp,
    ExponentialRamp,
    FromCallable,
    LinearRamp,
    PerEpoch,
    Schedule,
    Sequence,
    Stages,
    as_schedule,
)
from lightning_accum.simulation import simulate_windows
from lightning_accum.state import AccumulationState
from lightning_accum.strategy import register_strategies
from lightning_accum.window import Window

__version__ = version("lightning-accum")
__all__ = [
    "AccumulationState",
    "ConfigError",
    "Constant",
    "CosineRamp",
    "Duration",
    "Equal",
    "ExponentialRamp",
    "FromBatch",
    "FromCallable",
    "FromOutputs",
    "GradientAccumulation",
    "LinearRamp",
    "PerEpoch",
    "Pixels",
    "Progress",
    "Returned",
    "Samples",
    "Schedule",
    "Sequence",
    "Stages",
    "Tokens",
    "Weight",
    "Window",
    "as_schedule",
    "register_strategies",
    "simulate_windows",
]

register_strategies()
