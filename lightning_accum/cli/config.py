"""The app's configuration: what its files may compute, and composing it without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from lightning_accum.cli import conf_dir

_GPUS: Final = ("gpu", "cuda", "mps")


def cpu_or_gpu(on_cpu: Any, on_gpu: Any, *, _root_: DictConfig) -> Any:
    """Return the one of two values that suits the device that ``trainer.accelerator`` names.

    Example:
        >>> cpu_or_gpu(256, 512, _root_=OmegaConf.create({"trainer": {"accelerator": "cpu"}}))
        256
    """
    accelerator = OmegaConf.select(_root_, "trainer.accelerator", default="auto")
    has_gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    return on_gpu if accelerator in _GPUS or (accelerator == "auto" and has_gpu) else on_cpu


def register_resolvers() -> None:
    """Make ``${cpu_or_gpu:a,b}`` known to OmegaConf."""
    OmegaConf.register_new_resolver("cpu_or_gpu", cpu_or_gpu, replace=True)


def make_config(overrides: Sequence[str] = (), output_dir: str | Path = "outputs") -> DictConfig:
    """Return the configuration that ``lightning-accum train`` would run with.

    Args:
        overrides: as on the command line.
        output_dir: where results would be written.

    Example:
        >>> make_config(["accumulation=linear", "trainer=cpu"]).data.crop_size
        256
    """
    register_resolvers()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("train", [f'output_dir="{output_dir}"', *overrides])
