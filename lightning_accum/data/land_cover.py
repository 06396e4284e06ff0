"""The classes of land cover: the 17 of IGBP, nine groups of them, and how to find a coast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lightning_accum.errors import expected

Bytes = npt.NDArray[np.uint8]

IGNORE_INDEX: Final = 255
WATER: Final = 0


@dataclass(frozen=True)
class LandClass:
    """A class of land cover.

    Args:
        name: as it stands in a legend.
        color: as ``#rrggbb``.
        igbp: the IGBP classes that belong to it.
    """

    name: str
    color: str
    igbp: tuple[int, ...]


# Grouped by what an RGB image of 7 km a pixel can tell apart: leaf form and not leaf season, density and not species.
# Permanent wetland (11) and urban land (13) stay out: together less than 0.4 % of the pixels, and neither a part of
# any group nor large enough to be learned as one.
GROUPS: Final = (
    LandClass("Water", "#1f4e79", (0,)),
    LandClass("Needleleaf and mixed forest", "#0b5d3b", (1, 3, 5)),
    LandClass("Broadleaf forest", "#3fa34d", (2, 4)),
    LandClass("Shrubland", "#b07d5b", (6, 7)),
    LandClass("Savanna", "#a9b84a", (8, 9)),
    LandClass("Grassland", "#cfe6a0", (10,)),
    LandClass("Cropland", "#e39a2d", (12, 14)),
    LandClass("Snow and ice", "#eef6fb", (15,)),
    LandClass("Barren", "#e2cfa6", (16,)),
)

IGBP: Final = (
    LandClass("Water", "#1f4e79", (0,)),
    LandClass("Evergreen needleleaf forest", "#0b5d3b", (1,)),
    LandClass("Evergreen broadleaf forest", "#2c8a3d", (2,)),
    LandClass("Deciduous needleleaf forest", "#3f7f6d", (3,)),
    LandClass("Deciduous broadleaf forest", "#63b04f", (4,)),
    LandClass("Mixed forest", "#1f7350", (5,)),
    LandClass("Closed shrubland", "#8a5a3c", (6,)),
    LandClass("Open shrubland", "#c39a7a", (7,)),
    LandClass("Woody savanna", "#8f9e35", (8,)),
    LandClass("Savanna", "#bcc75f", (9,)),
    LandClass("Grassland", "#cfe6a0", (10,)),
    LandClass("Permanent wetland", "#4aa3a2", (11,)),
    LandClass("Cropland", "#e39a2d", (12,)),
    LandClass("Urban", "#c0392b", (13,)),
    LandClass("Cropland and natural mosaic", "#f2c572", (14,)),
    LandClass("Snow and ice", "#eef6fb", (15,)),
    LandClass("Barren", "#e2cfa6", (16,)),
)


def find_classes(num_classes: int) -> tuple[LandClass, ...]:
    """Return the nine groups or the 17 IGBP classes.

    Raises:
        ConfigError: for another number.

    Example:
        >>> [land.name for land in find_classes(9)][:3]
        ['Water', 'Needleleaf and mixed forest', 'Broadleaf forest']
    """
    for classes in (GROUPS, IGBP):
        if len(classes) == num_classes:
            return classes
    raise expected("9 (groups) or 17 (IGBP)", num_classes, "EarthDataModule(num_classes=...)")


def make_mask(igbp: Bytes, classes: tuple[LandClass, ...], coast_border: int = 1) -> Bytes:
    """Return a mask: for each pixel the index of its class, 255 where there is none or where a coast is too near.

    At 7 km a pixel those along a coast are land and water at once, and both pictures were resampled: their label is a
    toss of a coin, so by default one pixel on either side does not count.

    Args:
        igbp: IGBP classes, of shape ``(height, width)``.
        classes: what to label.
        coast_border: how many pixels on either side of a coast to leave out.

    Example:
        >>> make_mask(np.array([[0, 0, 0, 13, 10, 10]], dtype=np.uint8), GROUPS)
        array([[  0,   0, 255, 255,   5,   5]], dtype=uint8)
    """
    index_of = np.full(256, IGNORE_INDEX, dtype=np.uint8)
    for index, land in enumerate(classes):
        index_of[list(land.igbp)] = index
    mask = index_of[igbp]
    mask[find_coast(igbp == WATER, coast_border)] = IGNORE_INDEX
    return mask


def find_coast(is_water: npt.NDArray[np.bool_], width: int) -> npt.NDArray[np.bool_]:
    """Return which pixels have both land and water within ``width`` steps up, down, left or right."""
    near_water, near_land = is_water, ~is_water
    for _ in range(width):
        near_water, near_land = _grow(near_water), _grow(near_land)
    return near_water & near_land


def _grow(region: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    grown = region.copy()
    grown[1:] |= region[:-1]
    grown[:-1] |= region[1:]
    grown[:, 1:] |= region[:, :-1]
    grown[:, :-1] |= region[:, 1:]
    return grown
