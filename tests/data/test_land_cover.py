"""Classes: each IGBP class has its place, and coasts do not count."""

from __future__ import annotations

import numpy as np
import pytest

from lightning_accum.data.land_cover import GROUPS, IGBP, IGNORE_INDEX, find_classes, find_coast, make_mask
from lightning_accum.errors import ConfigError


def test_groups_hold_each_igbp_class_once_but_wetland_and_urban():
    grouped = sorted(kind for land in GROUPS for kind in land.igbp)
    assert grouped == [kind for kind in range(17) if kind not in (11, 13)]


@pytest.mark.parametrize("classes", [GROUPS, IGBP])
def test_classes_have_names_and_colors_of_their_own(classes):
    assert len({land.name for land in classes}) == len({land.color for land in classes}) == len(classes)
    assert all(len(land.color) == 7 and int(land.color[1:], 16) >= 0 for land in classes)


@pytest.mark.parametrize("number", [9, 17])
def test_classes_are_found_by_their_number(number):
    assert len(find_classes(number)) == number


def test_another_number_of_classes_is_an_error():
    with pytest.raises(ConfigError, match="9 .groups. or 17"):
        find_classes(5)


def test_mask_names_groups_and_ignores_what_is_in_none():
    igbp = np.arange(1, 17, dtype=np.uint8)[None]
    assert make_mask(igbp, GROUPS)[0].tolist() == [1, 2, 1, 2, 1, 3, 3, 4, 4, 5, 255, 6, 255, 6, 7, 8]
    assert make_mask(igbp, IGBP)[0].tolist() == list(range(1, 17))


@pytest.mark.parametrize("width", [0, 1, 2])
def test_coast_is_as_wide_as_asked_for_on_either_side(width):
    is_water = np.zeros((9, 9), dtype=bool)
    is_water[:, :4] = True
    coast = find_coast(is_water, width)
    assert coast.any(axis=0).tolist() == [4 - width <= column < 4 + width for column in range(9)]


def test_coast_of_an_island_is_found_up_and_down_too():
    is_water = np.ones((5, 5), dtype=bool)
    is_water[2, 2] = False
    coast = find_coast(is_water, 1)
    assert coast.sum() == 5 and coast[2, 1] and coast[1, 2] and not coast[1, 1]


def test_mask_ignores_the_coast_only_where_asked_to():
    igbp = np.array([[0, 0, 10, 10]], dtype=np.uint8)
    assert make_mask(igbp, GROUPS, coast_border=0)[0].tolist() == [0, 0, 5, 5]
    assert make_mask(igbp, GROUPS, coast_border=1)[0].tolist() == [0, IGNORE_INDEX, IGNORE_INDEX, 5]
