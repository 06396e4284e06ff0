"""What the app trains: LightningModules, and a small network of its own."""

from lightning_accum.tasks.segmentation import SegmentationTask
from lightning_accum.tasks.unet import UNet

__all__ = ["SegmentationTask", "UNet"]
