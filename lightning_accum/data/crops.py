"""Crops of one large image: random ones to train on, fixed ones to validate on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from lightning_accum.data.tiles import Box

Sample = dict[str, Tensor]


class Crops(Dataset[Sample]):
    """Fixed crops.

    Args:
        image: 8-bit image of shape ``(3, height, width)``.
        mask: classes of shape ``(height, width)``.
        boxes: where the crops are.
        mean: of each channel, in 8-bit values, taken off.
        std: of each channel, divided by.

    Returns:
        For each box ``{"image": float32 (3, size, size), "mask": int64 (size, size)}``.
    """

    def __init__(
        self, image: Tensor, mask: Tensor, boxes: Sequence[Box], mean: Sequence[float], std: Sequence[float]
    ) -> None:
        self.image = image
        self.mask = mask
        self.boxes = tuple(boxes)
        self.mean = torch.tensor(mean).view(-1, 1, 1)
        self.std = torch.tensor(std).view(-1, 1, 1)

    def __len__(self) -> int:
        return len(self.boxes)

    def __getitem__(self, index: int) -> Sample:
        return self.cut(self.boxes[index])

    def cut(self, box: Box) -> Sample:
        """Return one crop as tensors of their own."""
        return {"image": (box.cut(self.image) - self.mean) / self.std, "mask": box.cut(self.mask).long()}


class RandomCrops(Crops):
    """Random crops that lie within tiles, mirrored at random.

    The crop with a given number is always the same one, whatever worker or rank makes it and in whatever order, so a
    resumed training sees what an uninterrupted one would have seen. Numbers go on over epochs (:class:`EpochSampler`).

    Args:
        crops: image, mask and tiles; a tile is drawn in proportion to its share of ``weights``.
        weights: how often each tile is drawn.
        crop_size: height and width.
        num_crops: the crops of an epoch.
        seed: another one gives other crops.
    """

    def __init__(self, crops: Crops, weights: Sequence[float], crop_size: int, num_crops: int, seed: int) -> None:
        super().__init__(
            crops.image, crops.mask, crops.boxes, crops.mean.flatten().tolist(), crops.std.flatten().tolist()
        )
        self.crop_size = crop_size
        self.num_crops = num_crops
        self.seed = seed
        self.chances = np.asarray(weights, dtype=np.float64) / np.sum(weights)

    def __len__(self) -> int:
        return self.num_crops

    def __getitem__(self, index: int) -> Sample:
        generator = np.random.default_rng((self.seed, index))
        tile = self.boxes[generator.choice(len(self.boxes), p=self.chances)]
        top, left = generator.integers(tile.size - self.crop_size + 1, size=2)
        sample = self.cut(Box(tile.top + int(top), tile.left + int(left), self.crop_size))
        mirrored = [dim for dim, mirror in ((-1, generator.random() < 0.5), (-2, generator.random() < 0.5)) if mirror]
        return {name: value.flip(mirrored) for name, value in sample.items()}


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
