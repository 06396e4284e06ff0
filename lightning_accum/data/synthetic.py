"""A segmentation task that is made on the fly: for tests, and to try settings in seconds."""

from __future__ import annotations

from typing import Final

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from lightning_accum.data.crops import Sample
from lightning_accum.data.land_cover import IGNORE_INDEX, Bytes
from lightning_accum.errors import check_counts, expected

COLORS: Final = ("#3b4252", "#d08770", "#a3be8c", "#5e81ac", "#ebcb8b", "#b48ead", "#88c0d0", "#bf616a")


class SyntheticSegmentation(pl.LightningDataModule):
    """Coloured rectangles on a dark ground, with noise; a class is a colour.

    Batches are ``{"image": float32 (B, 3, size, size), "mask": int64 (B, size, size)}``. The image with a given number
    is always the same. Ignored pixels differ in number from image to image, so micro-batches weigh differently.

    Args:
        num_classes: from 2 to 8, the ground included.
        crop_size: height and width.
        batch_size: images in a micro-batch.
        num_train: images in an epoch of training.
        num_val: images to validate on, and as many to test on.
        noise: standard deviation of the noise; colours lie between -1 and 1.
        most_ignored: the largest part of an image that does not count; the smallest is 0.
        seed: another one gives other images.

    Raises:
        ConfigError: for a number that cannot be used.

    Example:
        >>> data = SyntheticSegmentation(crop_size=16, batch_size=2)
        >>> {name: tuple(value.shape) for name, value in next(iter(data.train_dataloader())).items()}
        {'image': (2, 3, 16, 16), 'mask': (2, 16, 16)}
    """

    ignore_index = IGNORE_INDEX

    def __init__(
        self,
        num_classes: int = 4,
        crop_size: int = 32,
        batch_size: int = 2,
        num_train: int = 64,
        num_val: int = 8,
        noise: float = 0.3,
        most_ignored: float = 0.3,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not 2 <= num_classes <= len(COLORS):
            raise expected(f"from 2 to {len(COLORS)} classes", num_classes, "SyntheticSegmentation(num_classes=...)")
        counts = {"crop_size": crop_size, "batch_size": batch_size, "num_train": num_train}
        check_counts(counts, "SyntheticSegmentation")
        self.num_classes = num_classes
        self.crop_size = crop_size
        self.batch_size = batch_size
        self.num_train = num_train
        self.num_val = num_val
        self.noise = noise
        self.most_ignored = most_ignored
        self.seed = seed

    @property
    def class_names(self) -> list[str]:
        """The classes' names, by index."""
        return ["Ground", *(f"Kind {index}" for index in range(1, self.num_classes))]

    @property
    def class_colors(self) -> list[str]:
        """The classes' colours as ``#rrggbb``, by index."""
        return list(COLORS[: self.num_classes])

    @override
    def train_dataloader(self) -> DataLoader[Sample]:
        return DataLoader(_Rectangles(self, 0, self.num_train), batch_size=self.batch_size, shuffle=True)

    @override
    def val_dataloader(self) -> DataLoader[Sample]:
        return DataLoader(_Rectangles(self, self.num_train, self.num_val), batch_size=self.batch_size)

    @override
    def test_dataloader(self) -> DataLoader[Sample]:
        return DataLoader(_Rectangles(self, self.num_train + self.num_val, self.num_val), batch_size=self.batch_size)

    @override
    def predict_dataloader(self) -> DataLoader[Sample]:
        return self.test_dataloader()

    def describe(self, index: int) -> str:
        """Return the number of a validation image."""
        return f"image {index}"

    def make_picture(self, image: Tensor) -> Bytes:
        """Return an image of a batch as 8-bit RGB of shape ``(height, width, 3)``."""
        return (image.cpu().float().add(1).mul(127.5)).clamp(0, 255).byte().permute(1, 2, 0).numpy()


class _Rectangles(Dataset[Sample]):
    def __init__(self, data: SyntheticSegmentation, first: int, num_images: int) -> None:
        self.data = data
        self.first = first
        self.num_images = num_images
        colors = [[int(color[place : place + 2], 16) for place in (1, 3, 5)] for color in data.class_colors]
        self.colors = torch.tensor(colors).div(127.5).sub(1)

    def __len__(self) -> int:
        return self.num_images

    def __getitem__(self, index: int) -> Sample:
        data = self.data
        generator = np.random.default_rng((data.seed, self.first + index))
        size = data.crop_size
        mask = torch.zeros(size, size, dtype=torch.long)
        for kind in range(1, data.num_classes):
            (top, left), (height, width) = (
                generator.integers(size, size=2),
                generator.integers(1, size // 2 + 2, size=2),
            )
            mask[top : top + height, left : left + width] = kind
        noise = torch.from_numpy(generator.normal(0, data.noise, (3, size, size))).float()
        image = self.colors[mask].permute(2, 0, 1) + noise
        mask[:, : round(size * generator.uniform(0, data.most_ignored))] = IGNORE_INDEX
        return {"image": image, "mask": mask}
