"""Land cover of the Earth from satellite images: a real high-resolution segmentation task in 3 MB."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import Any, Final

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from typing_extensions import override

from lightning_accum.data.crops import Crops, EpochSampler, RandomCrops, Sample, count_classes, make_picture
from lightning_accum.data.land_cover import IGNORE_INDEX, WATER, Bytes, find_classes, make_mask
from lightning_accum.data.tiles import Box, Split, make_tiles, split_tiles
from lightning_accum.errors import check_counts, expected

HEIGHT: Final = 2700
WIDTH: Final = 5400
# 72 N to 72 S, at 15 pixels a degree: beyond that the map is stretched to more than three times its width
TOP: Final = 270
BOTTOM: Final = 2430
TILE_SIZES: Final = (120, 180, 270, 360, 540, 1080)


class EarthDataModule(pl.LightningDataModule):
    """Crops of the whole Earth and their land cover, divided by tile into training, validation and test.

    Batches are ``{"image": float32 (B, 3, size, size), "mask": int64 (B, size, size)}``; a mask pixel of 255 does not
    count. Between 72 N and 72 S the map is cut into tiles; those that are nearly all sea are left out, and the others
    divided so that every part has its share of every class. Training draws random crops within its tiles, each class as
    likely as any other to be in one; validation and test see the middle of each of their tiles, whole and unmirrored.

    Args:
        num_classes: 9 groups of classes, or all 17 of IGBP.
        crop_size: height and width of a crop, in pixels of 7 km.
        tile_size: height and width of a tile: one of 120, 180, 270, 360, 540, 1080. By default the smallest that
            holds a crop. Fix it to compare crop sizes, as it decides which pixels are held out.
        batch_size: crops in a micro-batch.
        num_crops: crops in an epoch of training.
        coast_border: how many pixels on either side of a coast do not count.
        min_land: the share of land that a tile needs.
        val_share: the part of the tiles to validate on.
        test_share: the part of the tiles to test on.
        num_workers: processes that cut crops; cutting is cheap.
        seed: of the crops.
        split_seed: of the division into parts.

    Raises:
        ConfigError: for sizes and shares that do not fit.
        ImportError: Pillow is not installed.

    Example:
        >>> data = EarthDataModule(crop_size=64, batch_size=2, num_crops=8)
        >>> data.setup("fit")
        >>> {name: tuple(value.shape) for name, value in next(iter(data.train_dataloader())).items()}
        {'image': (2, 3, 64, 64), 'mask': (2, 64, 64)}
        >>> data.class_names[5]
        'Grassland'
    """

    def __init__(
        self,
        num_classes: int = 9,
        crop_size: int = 256,
        tile_size: int | None = None,
        batch_size: int = 2,
        num_crops: int = 256,
        coast_border: int = 1,
        min_land: float = 0.1,
        val_share: float = 0.2,
        test_share: float = 0.2,
        num_workers: int = 0,
        seed: int = 0,
        split_seed: int = 0,
    ) -> None:
        super().__init__()
        self.classes = find_classes(num_classes)
        self.crop_size = crop_size
        self.tile_size = _pick_tile_size(crop_size) if tile_size is None else tile_size
        if not 1 <= crop_size <= self.tile_size:
            raise expected(f"a crop that fits into a tile of {self.tile_size}", crop_size, "crop_size=")
        self.tiles = make_tiles(TOP, BOTTOM, WIDTH, self.tile_size)
        check_counts({"batch_size": batch_size, "num_crops": num_crops}, "EarthDataModule")
        self.batch_size = batch_size
        self.num_crops = num_crops
        self.coast_border = coast_border
        self.min_land = min_land
        self.val_share = val_share
        self.test_share = test_share
        self.num_workers = num_workers
        self.seed = seed
        self.split_seed = split_seed
        self._parts: dict[str, Crops] = {}

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return len(self.classes)

    @property
    def class_names(self) -> list[str]:
        """The classes' names, by index."""
        return [land.name for land in self.classes]

    @property
    def class_colors(self) -> list[str]:
        """The classes' colours as ``#rrggbb``, by index."""
        return [land.color for land in self.classes]

    @property
    def ignore_index(self) -> int:
        """The mask value that does not count."""
        return IGNORE_INDEX

    @override
    def setup(self, stage: str | None = None) -> None:
        if self._parts:
            return
        image, igbp = load_earth()
        mask = make_mask(igbp, self.classes, self.coast_border)
        land = [float((tile.cut(igbp) != WATER).mean()) for tile in self.tiles]
        split = self.make_split(mask, land)
        pixels, classes = torch.from_numpy(image).permute(2, 0, 1).contiguous(), torch.from_numpy(mask)
        train = Crops(pixels, classes, split.train)
        self._parts["train"] = RandomCrops(train, self.num_classes, self.crop_size, self.num_crops, self.seed)
        for name, tiles in (("val", split.val), ("test", split.test)):
            windows = [window for tile in tiles for window in tile.centre_windows(self.crop_size)]
            self._parts[name] = Crops(pixels, classes, windows)

    def make_split(self, mask: Bytes, land: list[float]) -> Split:
        """Return the division of those tiles that have enough land.

        Args:
            mask: the classes of all pixels.
            land: the share of land of each tile.
        """
        tiles = [tile for tile, share in zip(self.tiles, land, strict=True) if share >= self.min_land]
        counts = count_classes(mask, tiles, self.num_classes)
        return split_tiles(tiles, counts, self.val_share, self.test_share, self.split_seed)

    @override
    def train_dataloader(self) -> DataLoader[Sample]:
        return self._make_loader("train", sampler=EpochSampler(self.num_crops))

    @override
    def val_dataloader(self) -> DataLoader[Sample]:
        return self._make_loader("val")

    @override
    def test_dataloader(self) -> DataLoader[Sample]:
        return self._make_loader("test")

    @override
    def predict_dataloader(self) -> DataLoader[Sample]:
        return self._make_loader("test")

    def _make_loader(self, part: str, **options: Any) -> DataLoader[Sample]:
        return DataLoader(
            self._parts[part],
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            pin_memory=torch.cuda.is_available(),
            **options,
        )

    def boxes(self, part: str) -> tuple[Box, ...]:
        """Return where the crops of ``"val"`` or ``"test"``, or the tiles of ``"train"``, are in the image."""
        return self._parts[part].boxes

    def describe(self, index: int) -> str:
        """Return where the middle of a validation crop is."""
        box = self.boxes("val")[index]
        north = 90 - (box.top + box.size / 2) * 180 / HEIGHT
        east = (box.left + box.size / 2) * 360 / WIDTH - 180
        return f"{abs(north):.0f}\u00b0 {'N' if north >= 0 else 'S'}, {abs(east):.0f}\u00b0 {'E' if east >= 0 else 'W'}"

    def make_picture(self, image: Tensor) -> Bytes:
        """Return an image of a batch as 8-bit RGB of shape ``(height, width, 3)``, brightened for the eye."""
        return make_picture(image)


def _pick_tile_size(crop_size: int) -> int:
    fitting = [size for size in TILE_SIZES if size >= crop_size]
    if not fitting:
        raise expected(f"a crop of at most {TILE_SIZES[-1]} pixels", crop_size, "EarthDataModule(crop_size=...)")
    return fitting[0]


@lru_cache(maxsize=1)
def load_earth() -> tuple[Bytes, Bytes]:
    """Return the image, 8-bit RGB of shape ``(2700, 5400, 3)``, and its IGBP classes, of shape ``(2700, 5400)``.

    Raises:
        ImportError: Pillow is not installed.

    Example:
        >>> image, igbp = load_earth()
        >>> image.shape, igbp.shape, int(igbp.max())
        ((2700, 5400, 3), (2700, 5400), 16)
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("The Earth's images are read with Pillow: pip install 'lightning-accum[vision]'.") from error
    folder = resources.files("lightning_accum.data") / "earth_files"
    arrays = []
    for name, mode in (("blue_marble.jpg", "RGB"), ("land_cover.png", "L")):
        with (folder / name).open("rb") as file, Image.open(file) as picture:
            arrays.append(np.array(picture.convert(mode)))
    return arrays[0], arrays[1]
