"""What the app trains on: a real high-resolution segmentation task that comes with the package, and a synthetic one."""

from lightning_accum.data.earth import EarthDataModule
from lightning_accum.data.synthetic import SyntheticSegmentation

__all__ = ["EarthDataModule", "SyntheticSegmentation"]
