"""The callback that swaps normalisation layers at the right time."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import nn
from typing_extensions import override

from lightning_accum.errors import expected
from lightning_accum.norms.report import SwapReport
from lightning_accum.norms.swap import swap_norms


class NormSwap(Callback):
    """Replaces batch normalisation before anything else sees the model: optimizers, wrappers, checkpoints.

    It does so for ``fit``, and for ``validate``, ``test`` and ``predict`` too, so that checkpoints of the swapped model
    load. A model that was swapped already is left as it is.

    Args:
        policy: ``"group"`` for GroupNorm; ``"keep"`` changes nothing.

    Attributes:
        report: what was found and done the last time that there was something to find.

    Raises:
        ConfigError: for an unknown policy; and, when training begins, for a model that cannot be swapped or whose
            optimizers were made already.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning.pytorch.demos.boring_classes import BoringModel
        >>> from torch import nn
        >>> class Model(BoringModel):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = nn.Sequential(nn.Linear(32, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        >>> model, swap = Model(), NormSwap("group")
        >>> Trainer(callbacks=[swap], fast_dev_run=True, accelerator="cpu", enable_progress_bar=False,
        ...         enable_model_summary=False, logger=False).fit(model)
        >>> type(model.layer[1]).__name__
        'GroupNorm'
    """

    def __init__(self, policy: str = "group") -> None:
        self.policy = policy
        self.report: SwapReport = swap_norms(nn.Module(), policy)  # an unknown policy is an error here and now

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        planned = swap_norms(pl_module, self.policy, dry_run=True)
        if planned.num_swapped and trainer.optimizers:
            got = [type(optimizer).__name__ for optimizer in trainer.optimizers]
            do = "Give the trainer that first trained the model the callback, or make a new trainer."
            raise expected("a model to swap before its optimizers are made", got, "NormSwap", do)
        if planned.findings:
            self.report = swap_norms(pl_module, self.policy)
        if planned.num_swapped:
            rank_zero_info(self.report.summary)
        if self.policy != "keep" and stage == "fit":
            self._tell_kept(planned)

    @staticmethod
    def _tell_kept(report: SwapReport) -> None:
        for found in report.kept:
            rank_zero_warn(
                f"{found.names[0]} ({found.kind}) was kept: {found.reason}. While it normalises each micro-batch by "
                "itself, a window is not the large batch."
            )
