"""Semantic segmentation: each pixel of an image gets a class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex
from typing_extensions import override

from lightning_accum.data.crops import Sample
from lightning_accum.errors import expected

_LENGTH_ARGUMENTS: Final = ("total_steps", "T_max", "total_iters")


class SegmentationTask(pl.LightningModule):
    """Trains any network that gives logits for pixels, with cross entropy over the pixels that count.

    The loss is a mean over the valid pixels of the micro-batch, so ``GradientAccumulation(weight="pixels")`` makes a
    window's step exactly that of the large batch. With ``class_weights`` the mean is over the sum of the weights of
    these pixels; ``training_step`` then returns that sum as ``num_items``, and ``weight`` has to be ``"returned"``.

    Validation and test log the loss, the pixel accuracy and ``mIoU``, the mean over classes of intersection over union.

    Args:
        model: a network from ``(B, channels, H, W)`` to logits of shape ``(B, num_classes, h, w)``; a mapping with
            ``"out"`` or ``"logits"``, or an object with ``logits``, is understood too, and smaller maps are enlarged.
        num_classes: the number of classes.
        optimizer: makes the optimizer from parameters. Default: AdamW with its own settings.
        scheduler: makes the learning-rate schedule from the optimizer. If it has an argument for its length
            (``total_steps``, ``T_max`` or ``total_iters``) that is not given yet, it gets the number of steps.
        ignore_index: the mask value that does not count.
        class_names: names by index, for the metrics of single classes.
        class_weights: how much the pixels of each class count.

    Raises:
        ConfigError: for a number of names or weights that is not that of classes.

    Example:
        >>> from lightning_accum.tasks import UNet
        >>> task = SegmentationTask(UNet(num_classes=2, width=4, depth=1), num_classes=2)
        >>> batch = {"image": torch.zeros(1, 3, 8, 8), "mask": torch.zeros(1, 8, 8, dtype=torch.long)}
        >>> task.training_step(batch, 0).ndim
        0
    """

    def __init__(
        self,
        model: nn.Module,
        num_classes: int,
        optimizer: Callable[..., Optimizer] = AdamW,
        scheduler: Callable[..., LRScheduler] | None = None,
        ignore_index: int = 255,
        class_names: Sequence[str] | None = None,
        class_weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        for name, values in {"class_names": class_names, "class_weights": class_weights}.items():
            if values is not None and len(values) != num_classes:
                raise expected(f"{num_classes} values, one for each class", values, f"SegmentationTask({name}=...)")
        self.model = model
        self.make_optimizer = optimizer
        self.make_scheduler = scheduler
        self.ignore_index = ignore_index
        self.class_names = list(class_names or map(str, range(num_classes)))
        self.class_weights: Tensor | None
        weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float32)
        self.register_buffer("class_weights", weights, persistent=False)
        self.val_metrics = self._make_metrics("val/", num_classes)
        self.test_metrics = self._make_metrics("test/", num_classes)
        self.val_iou = MulticlassJaccardIndex(num_classes, average="none", ignore_index=ignore_index)

    def _make_metrics(self, prefix: str, num_classes: int) -> MetricCollection:
        return MetricCollection(
            {
                "mIoU": MulticlassJaccardIndex(num_classes, ignore_index=self.ignore_index),
                "accuracy": MulticlassAccuracy(num_classes, average="micro", ignore_index=self.ignore_index),
            },
            prefix=prefix,
        )

    @override
    def forward(self, image: Tensor) -> Tensor:
        """Return logits of shape ``(B, num_classes, H, W)`` for images ``(B, channels, H, W)``."""
        logits = read_logits(self.model(image))
        if logits.shape[-2:] == image.shape[-2:]:
            return logits
        return functional.interpolate(logits, size=image.shape[-2:], mode="bilinear", align_corners=False)

    @override
    def training_step(self, batch: Sample, batch_idx: int) -> Tensor | dict[str, Tensor]:
        loss = self.measure_loss(self(batch["image"]), batch["mask"])
        if self.class_weights is None:
            return loss
        valid = batch["mask"][batch["mask"] != self.ignore_index]
        return {"loss": loss, "num_items": self.class_weights[valid].sum()}

    def measure_loss(self, logits: Tensor, mask: Tensor) -> Tensor:
        """Return the mean cross entropy over the pixels that count; not a number where none does."""
        return functional.cross_entropy(logits, mask, self.class_weights, ignore_index=self.ignore_index)

    @override
    def validation_step(self, batch: Sample, batch_idx: int) -> None:
        logits = self._evaluate(batch, "val", self.val_metrics)
        self.val_iou.update(logits.argmax(dim=1), batch["mask"])

    @override
    def test_step(self, batch: Sample, batch_idx: int) -> None:
        self._evaluate(batch, "test", self.test_metrics)

    @override
    def predict_step(self, batch: Sample, batch_idx: int) -> Tensor:
        return self(batch["image"]).argmax(dim=1)  # type: ignore[no-any-return]

    def _evaluate(self, batch: Sample, part: str, metrics: MetricCollection) -> Tensor:
        """Update the metrics, and log the loss so that its mean over batches is the mean over pixels."""
        logits: Tensor = self(batch["image"])
        metrics.update(logits.argmax(dim=1), batch["mask"])
        num_pixels = int((batch["mask"] != self.ignore_index).sum())
        loss = self.measure_loss(logits, batch["mask"]) if num_pixels else logits.new_zeros(())
        self.log(f"{part}/loss", loss, batch_size=num_pixels, on_epoch=True, sync_dist=True)
        self.log_dict(metrics, batch_size=num_pixels, on_epoch=True)
        return logits

    @override
    def on_validation_epoch_end(self) -> None:
        for name, iou in zip(self.class_names, self.val_iou.compute(), strict=True):
            self.log(f"val/IoU/{name}", iou, sync_dist=True)  # the same on all ranks; said so to be asked nothing
        self.val_iou.reset()

    @override
    def configure_optimizers(self) -> Any:
        optimizer = self.make_optimizer(self.parameters())
        if self.make_scheduler is None:
            return optimizer
        length = name_length_argument(self.make_scheduler)
        lengths = {} if length is None else {length: int(self.trainer.estimated_stepping_batches)}
        scheduler = self.make_scheduler(optimizer, **lengths)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def read_logits(output: Any) -> Tensor:
    """Return the logits that a network's output is or holds.

    Raises:
        ConfigError: if there are none.

    Example:
        >>> read_logits({"out": torch.zeros(1), "aux": torch.ones(1)})
        tensor([0.])
    """
    found = output
    if isinstance(output, Mapping):
        found = output.get("out", output.get("logits"))
    elif not isinstance(output, Tensor):
        found = getattr(output, "logits", None)
    if not isinstance(found, Tensor):
        got = sorted(output) if isinstance(output, Mapping) else type(output).__name__
        raise expected("logits, or a mapping with 'out' or 'logits'", got, "what the model returned")
    return found


def name_length_argument(make_scheduler: Callable[..., Any]) -> str | None:
    """Return the argument by which a schedule is told how many steps there will be, None if it has none or has it.

    Example:
        >>> from functools import partial
        >>> from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, StepLR
        >>> [name_length_argument(kind) for kind in (OneCycleLR, CosineAnnealingLR, StepLR)]
        ['total_steps', 'T_max', None]
        >>> name_length_argument(partial(CosineAnnealingLR, T_max=100)) is None
        True
    """
    given = getattr(make_scheduler, "keywords", {})
    parameters = inspect.signature(make_scheduler).parameters
    return next((name for name in _LENGTH_ARGUMENTS if name in parameters and given.get(name) is None), None)
