"""Tiles fill the map, and no pixel is in two parts."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_accum.data.tiles import Box, make_tiles, split_tiles
from lightning_accum.errors import ConfigError


def count_cover(boxes, height, width):
    cover = np.zeros((height, width), dtype=int)
    for box in boxes:
        box.cut(cover)[...] += 1
    return cover


def test_tiles_cover_the_rows_asked_for_once_and_no_other():
    cover = count_cover(make_tiles(10, 30, 40, size=10), 50, 40)
    assert (cover[10:30] == 1).all() and (cover[:10] == 0).all() and (cover[30:] == 0).all()


@pytest.mark.parametrize("size", [7, 0, -5, 25])
def test_tile_size_that_leaves_a_rest_is_an_error(size):
    with pytest.raises(ConfigError, match=f"divides both 20 and 40, but got {size}"):
        make_tiles(10, 30, 40, size=size)


@pytest.mark.parametrize(("tile", "window", "number"), [(270, 256, 1), (540, 256, 4), (540, 512, 1), (270, 128, 4)])
def test_windows_lie_in_the_middle_of_their_tile_and_do_not_overlap(tile, window, number):
    windows = Box(0, 0, tile).centre_windows(window)
    cover = count_cover(windows, tile, tile)
    assert len(windows) == number
    assert cover.max() == 1 and cover.sum() == number * window**2
    assert (cover == cover[::-1, ::-1]).all()


def test_split_has_every_tile_in_exactly_one_part():
    tiles = make_tiles(0, 40, 50, size=10)
    split = split_tiles(tiles, np.ones((20, 2), dtype=int), val_share=0.2, test_share=0.1)
    assert sorted([*split.train, *split.val, *split.test], key=tiles.index) == tiles
    assert (len(split.val), len(split.test)) == (4, 2)


def test_split_gives_every_part_its_share_of_a_rare_class():
    counts = np.zeros((30, 2), dtype=int)
    counts[:, 0] = 100
    counts[:6, 1] = 10  # only six tiles have it: by chance alone a part of six goes without in a quarter of all splits
    tiles = make_tiles(0, 10, 300, size=10)
    for seed in range(5):
        split = split_tiles(tiles, counts, 0.2, 0.2, seed=seed)
        rare = set(tiles[:6])
        assert [len(rare & set(part)) for part in (split.train, split.val, split.test)] in (
            [4, 1, 1],
            [3, 1, 2],
            [3, 2, 1],
        )


def test_split_is_decided_by_its_seed():
    tiles = make_tiles(0, 10, 300, size=10)
    counts = np.random.default_rng(0).integers(0, 9, (30, 4))
    assert split_tiles(tiles, counts, seed=1) == split_tiles(tiles, counts, seed=1)
    assert split_tiles(tiles, counts, seed=1) != split_tiles(tiles, counts, seed=2)


@pytest.mark.parametrize("shares", [(0.0, 0.2), (0.2, 0.01), (0.5, 0.5)])
def test_split_with_an_empty_part_is_an_error(shares):
    with pytest.raises(ConfigError, match="at least one tile in each part"):
        split_tiles(make_tiles(0, 10, 100, size=10), np.ones((10, 2), dtype=int), *shares)
