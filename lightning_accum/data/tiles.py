"""Disjoint tiles of a large image, and their division into training, validation and test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lightning_accum.errors import expected

Counts = npt.NDArray[np.int64]

NUM_TRIES: Final = 1000


@dataclass(frozen=True)
class Box:
    """A square of an image, in pixels."""

    top: int
    left: int
    size: int

    def cut(self, picture: Any) -> Any:
        """Return this part of an array or tensor of shape ``(..., height, width)``, without a copy.

        Example:
            >>> Box(0, 1, 2).cut(np.arange(6).reshape(2, 3))
            array([[1, 2],
                   [4, 5]])
        """
        return picture[..., self.top : self.top + self.size, self.left : self.left + self.size]

    def centre_windows(self, size: int) -> list[Box]:
        """Return the disjoint windows of that size that fit in, together in the middle.

        Example:
            >>> Box(0, 0, 10).centre_windows(4)[0], len(Box(0, 0, 10).centre_windows(4))
            (Box(top=1, left=1, size=4), 4)
        """
        fitting = self.size // size
        margin = (self.size - fitting * size) // 2
        return [
            Box(self.top + margin + row * size, self.left + margin + column * size, size)
            for row in range(fitting)
            for column in range(fitting)
        ]


@dataclass(frozen=True)
class Split:
    """Which tiles are trained on, and which are held out. No pixel is in two of them."""

    train: tuple[Box, ...]
    val: tuple[Box, ...]
    test: tuple[Box, ...]


def make_tiles(top: int, bottom: int, width: int, size: int) -> list[Box]:
    """Return the tiles that cover the rows from ``top`` to ``bottom`` without a gap.

    Raises:
        ConfigError: if they do not fill the area: a rest would silently stay unused.

    Example:
        >>> make_tiles(10, 30, 20, size=10)[1:3]
        [Box(top=10, left=10, size=10), Box(top=20, left=0, size=10)]
    """
    if size < 1 or (bottom - top) % size or width % size:
        raise expected(f"a tile size that divides both {bottom - top} and {width}", size, "tile_size=")
    return [Box(row, column, size) for row in range(top, bottom, size) for column in range(0, width, size)]


def split_tiles(
    tiles: Sequence[Box], counts: Counts, val_share: float = 0.2, test_share: float = 0.2, seed: int = 0
) -> Split:
    """Divide tiles so that each part gets, of every class, its share as nearly as whole tiles allow.

    Of 1000 random divisions it takes the one whose worst class is off by least. Rare classes lie in few tiles: a single
    random division often holds out a class that training never sees.

    Args:
        tiles: the tiles.
        counts: pixels of each class in each tile, of shape ``(tiles, classes)``.
        val_share: the part of the tiles to validate on.
        test_share: the part of the tiles to test on.
        seed: another one gives another division.

    Raises:
        ConfigError: for shares that leave a part without a tile.

    Example:
        >>> tiles = make_tiles(0, 10, 100, size=10)
        >>> counts = np.array([[9, 1], [1, 9]] * 5)
        >>> split = split_tiles(tiles, counts)
        >>> len(split.train), len(split.val), len(split.test)
        (6, 2, 2)
    """
    num_val, num_test = round(val_share * len(tiles)), round(test_share * len(tiles))
    num_train = len(tiles) - num_val - num_test
    if min(num_train, num_val, num_test) < 1:
        got = {"train": num_train, "val": num_val, "test": num_test}
        raise expected("at least one tile in each part", got, f"{len(tiles)} tiles", "Change the shares or tile_size.")
    generator = np.random.default_rng(seed)
    ends = [num_train, num_train + num_val]
    share_of_class = counts / np.maximum(counts.sum(axis=0), 1)
    sizes = np.array([num_train, num_val, num_test])[:, None] / len(tiles)

    def is_off_by(order: npt.NDArray[np.int64]) -> float:
        shares = np.stack([share_of_class[part].sum(axis=0) for part in np.split(order, ends)])
        return float(np.abs(shares / sizes - 1).max())

    best = min((generator.permutation(len(tiles)) for _ in range(NUM_TRIES)), key=is_off_by)
    train, val, test = (tuple(tiles[index] for index in sorted(part)) for part in np.split(best, ends))
    return Split(train, val, test)
