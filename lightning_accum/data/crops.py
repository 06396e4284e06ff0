"""Crops of one large image: random ones to train on, fixed ones to validate on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from lightning_accum.data.land_cover import Bytes
from lightning_accum.data.tiles import Box, Counts

Sample = dict[str, Tensor]


# of the square root of brightness, over all pixels from 72 N to 72 S
_MEAN: Final = torch.tensor([0.290, 0.375, 0.452]).view(3, 1, 1)
_STD: Final = torch.tensor([0.230, 0.200, 0.170]).view(3, 1, 1)


def standardise(image: Tensor) -> Tensor:
    """Return an 8-bit RGB image of shape ``(3, height, width)`` as a network gets it.

    Example:
        >>> standardise(torch.tensor([[[21]], [[36]], [[52]]], dtype=torch.uint8)).round().flatten().tolist()
        [-0.0, 0.0, -0.0]
    """
    return (image.float().div(255).sqrt() - _MEAN) / _STD


def make_picture(image: Tensor) -> Bytes:
    """Return such an image as 8-bit RGB of shape ``(height, width, 3)``, brightened for the eye.

    Example:
        >>> make_picture(standardise(torch.full((3, 1, 1), 255, dtype=torch.uint8)))
        array([[[255, 255, 255]]], dtype=uint8)
    """
    brightness = (image.cpu().float() * _STD + _MEAN).clamp(0, 1)  # its square root, which is how bright to show it
    return brightness.mul(255).round().byte().permute(1, 2, 0).numpy()


def count_classes(mask: Bytes, boxes: Sequence[Box], num_classes: int) -> Counts:
    """Return the pixels of each class in each box, of shape ``(boxes, classes)``.

    Example:
        >>> count_classes(np.array([[0, 1], [1, 255]], dtype=np.uint8), [Box(0, 0, 2)], num_classes=3)
        array([[1, 2, 0]])
    """
    return np.stack([np.bincount(box.cut(mask).ravel(), minlength=256)[:num_classes] for box in boxes])


class Crops(Dataset[Sample]):
    """Fixed crops.

    The image is given to networks as the square root of its brightness, standardised: most of the map is dark, and what
    tells one forest from another lies there.

    Args:
        image: 8-bit image of shape ``(3, height, width)``.
        mask: classes of shape ``(height, width)``.
        boxes: where the crops are.

    Returns:
        For each box ``{"image": float32 (3, size, size), "mask": int64 (size, size)}``.
    """

    def __init__(self, image: Tensor, mask: Tensor, boxes: Sequence[Box]) -> None:
        self.image = image
        self.mask = mask
        self.boxes = tuple(boxes)

    def __len__(self) -> int:
        return len(self.boxes)

    def __getitem__(self, index: int) -> Sample:
        return self.cut(self.boxes[index])

    def cut(self, box: Box) -> Sample:
        """Return one crop as tensors of their own."""
        return {"image": standardise(box.cut(self.image)), "mask": box.cut(self.mask).long()}


class RandomCrops(Crops):
    """Random crops that lie within tiles, mirrored at random.

    A crop begins with a class, each as likely as any other: then a pixel of that class, and then a crop that holds the
    pixel. So rare classes, which lie in few places, are seen as often as these places allow.

    The crop with a given number is always the same one, whatever worker or rank makes it and in whatever order, so a
    resumed training sees what an uninterrupted one would have seen. Numbers go on over epochs (:class:`EpochSampler`).

    Args:
        crops: image, mask and tiles.
        num_classes: the classes to begin with; those that no tile holds are left out.
        crop_size: height and width.
        num_crops: the crops of an epoch.
        seed: another one gives other crops.
    """

    def __init__(self, crops: Crops, num_classes: int, crop_size: int, num_crops: int, seed: int) -> None:
        super().__init__(crops.image, crops.mask, crops.boxes)
        self.crop_size = crop_size
        self.num_crops = num_crops
        self.seed = seed
        self.counts = count_classes(self.mask.numpy(), self.boxes, num_classes)
        self.found = np.flatnonzero(self.counts.sum(axis=0))

    def __len__(self) -> int:
        return self.num_crops

    def __getitem__(self, index: int) -> Sample:
        generator = np.random.default_rng((self.seed, index))
        sample = self.cut(self.pick_box(generator))
        mirrored = [dim for dim, mirror in ((-1, generator.random() < 0.5), (-2, generator.random() < 0.5)) if mirror]
        return {name: value.flip(mirrored) for name, value in sample.items()}

    def pick_box(self, generator: np.random.Generator) -> Box:
        """Return where a crop is, drawn as the class says."""
        kind = generator.choice(self.found)
        counts = self.counts[:, kind]
        tile = self.boxes[generator.choice(len(self.boxes), p=counts / counts.sum())]
        pixel = generator.choice(np.flatnonzero(tile.cut(self.mask.numpy()) == kind))
        corner = []
        for place in divmod(int(pixel), tile.size):
            first, last = max(0, place - self.crop_size + 1), min(place, tile.size - self.crop_size)
            corner.append(int(generator.integers(first, last + 1)))
        return Box(tile.top + corner[0], tile.left + corner[1], self.crop_size)


class EpochSampler(Sampler[int]):
    """Numbers the samples of all epochs: epoch ``e`` of ``n`` samples has the numbers from ``e * n`` on.

    Lightning tells it the epoch. A plain sampler would give every epoch the same numbers, and with them the same crops.

    Example:
        >>> sampler = EpochSampler(3)
        >>> sampler.set_epoch(2)
        >>> list(sampler)
        [6, 7, 8]
    """

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Begin that epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        first = self.epoch * self.num_samples
        return iter(range(first, first + self.num_samples))
