"""The Earth: parts that share no pixel, crops that can be made again, batches as tasks expect them."""

from __future__ import annotations

import sys
from importlib import resources

import numpy as np
import pytest
import torch

from lightning_accum.data import EarthDataModule
from lightning_accum.data.crops import EpochSampler, RandomCrops
from lightning_accum.data.earth import BOTTOM, TILE_SIZES, TOP, WIDTH, load_earth
from lightning_accum.errors import ConfigError

PARTS = ("train", "val", "test")


def make_data(**options):
    data = EarthDataModule(**{"crop_size": 256, "num_crops": 6, **options})
    data.setup("fit")
    return data


@pytest.fixture(scope="module")
def data():
    return make_data()


def cover(boxes):
    covered = np.zeros((2700, WIDTH), dtype=bool)
    for box in boxes:
        box.cut(covered)[...] = True
    return covered


@pytest.mark.parametrize("crop_size", [128, 256, 512])
def test_parts_share_no_pixel_and_stay_within_72_degrees(crop_size):
    data = make_data(crop_size=crop_size)
    covers = [cover(data.boxes(part)) for part in PARTS]
    assert sum(covered.astype(int) for covered in covers).max() == 1
    assert not any(covered[:TOP].any() or covered[BOTTOM:].any() for covered in covers)


def test_random_crops_stay_within_the_tiles_of_training(data):
    dataset = data.train_dataloader().dataset
    trained = cover(data.boxes("train"))
    generator = np.random.default_rng(0)
    assert all(dataset.pick_box(generator).cut(trained).all() for _ in range(200))


@pytest.mark.parametrize("part", PARTS)
def test_every_class_is_in_every_part(data, part):
    mask = data.train_dataloader().dataset.mask.numpy()
    found = np.unique(np.concatenate([box.cut(mask).ravel() for box in data.boxes(part)]))
    assert set(found) == {*range(9), 255}


def test_split_is_the_same_for_every_seed_of_crops(data):
    other = make_data(seed=7)
    assert [other.boxes(part) for part in PARTS] == [data.boxes(part) for part in PARTS]
    assert not torch.equal(other.train_dataloader().dataset[0]["image"], data.train_dataloader().dataset[0]["image"])


def test_batches_are_what_tasks_expect(data):
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader(), data.predict_dataloader()):
        batch = next(iter(loader))
        assert batch["image"].shape == (2, 3, 256, 256) and batch["image"].dtype == torch.float32
        assert batch["mask"].shape == (2, 256, 256) and batch["mask"].dtype == torch.int64
        assert batch["image"].is_contiguous() and batch["mask"].is_contiguous()


def test_crop_with_a_number_is_always_the_same_and_epochs_go_on(data):
    again = make_data()
    first, second = data.train_dataloader(), again.train_dataloader()
    torch.testing.assert_close(first.dataset[3], second.dataset[3])
    second.sampler.set_epoch(1)
    one, two = (torch.cat([batch["image"] for batch in loader]) for loader in (first, second))
    assert len({image.sum().item() for image in torch.cat([one, two])}) == 12
    torch.testing.assert_close(two[0], first.dataset[6]["image"])


def test_crops_show_rare_classes_about_as_often_as_common_ones(data):
    dataset = make_data(num_crops=120, crop_size=64, tile_size=270).train_dataloader().dataset
    seen = torch.zeros(9)
    for number in range(120):
        mask = dataset[number]["mask"]
        seen += torch.tensor([(mask == kind).any() for kind in range(9)])
    assert seen.min() >= 120 / 9 / 2  # at least half of what beginning with each class equally often promises


def test_mirroring_keeps_image_and_mask_together(data):
    dataset = data.train_dataloader().dataset
    igbp_water = dataset.mask == 0
    blue = dataset.image[2][igbp_water].float().mean() / dataset.image[0][igbp_water].float().mean()
    assert blue > 2
    for number in range(8):
        crop = dataset[number]
        water = crop["mask"] == 0
        if 0.1 < water.float().mean() < 0.9:  # the sea is darker in red than the land, wherever it was mirrored to
            assert crop["image"][0][water].mean() < crop["image"][0][~water].mean()


def test_coast_and_what_is_in_no_group_do_not_count(data):
    bordered = data.train_dataloader().dataset.mask
    bare = make_data(coast_border=0).train_dataloader().dataset.mask
    _, igbp = load_earth()
    assert ((bare == 255).numpy() == np.isin(igbp, (11, 13))).all()
    share = (bordered == 255)[TOP:BOTTOM].float().mean().item()
    assert 0.01 < share < 0.05


def test_all_17_classes_can_be_had():
    data = make_data(num_classes=17, tile_size=180, crop_size=128)
    assert data.num_classes == len(data.class_names) == len(data.class_colors) == 17
    assert data.train_dataloader().dataset.mask[TOP:BOTTOM].unique().tolist() == [*range(17), 255]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 10}, "9 .groups. or 17"),
        ({"crop_size": 2000}, "at most 1080"),
        ({"crop_size": 300, "tile_size": 270}, "fits into a tile of 270, but got 300"),
        ({"tile_size": 512}, "divides both 2160 and 5400, but got 512"),
        ({"crop_size": 0}, "fits into a tile"),
        ({"batch_size": 0}, "batch_size"),
        ({"num_crops": 0}, "num_crops"),
    ],
)
def test_sizes_that_do_not_fit_are_errors_that_name_them(options, message):
    with pytest.raises(ConfigError, match=message):
        EarthDataModule(**options)


def test_every_tile_size_divides_the_map_and_holds_crops_up_to_it():
    assert all((BOTTOM - TOP) % size == WIDTH % size == 0 for size in TILE_SIZES)
    assert [EarthDataModule(crop_size=size).tile_size for size in (64, 256, 270, 271, 512)] == [120, 270, 270, 360, 540]


def test_description_of_a_place_is_its_latitude_and_longitude(data):
    box = data.boxes("val")[0]
    north, south = 90 - box.top / 15, 90 - (box.top + box.size) / 15
    text = data.describe(0)
    assert ("N" in text) == (north + south > 0)
    assert float(text.split("°")[0]) == pytest.approx(abs(north + south) / 2, abs=0.6)


def test_picture_is_8_bit_and_brighter_than_the_dark_original(data):
    sample = data.val_dataloader().dataset[0]
    picture = data.make_picture(sample["image"])
    assert picture.shape == (256, 256, 3) and picture.dtype == np.uint8
    assert picture.mean() > data.boxes("val")[0].cut(data.train_dataloader().dataset.image).float().mean()


def test_missing_pillow_is_an_error_that_says_what_to_install(monkeypatch):
    load_earth.cache_clear()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'lightning-accum\[vision\]'"):
        load_earth()


def test_licences_and_a_description_lie_beside_the_images():
    names = {file.name for file in (resources.files("lightning_accum.data") / "earth_files").iterdir()}
    assert names >= {"LICENSE.blue_marble.txt", "LICENSE.land_cover.txt", "README.md"}


def test_sampler_numbers_go_on_from_epoch_to_epoch():
    sampler = EpochSampler(4)
    assert list(sampler) == [0, 1, 2, 3]
    sampler.set_epoch(3)
    assert list(sampler) == [12, 13, 14, 15] and len(sampler) == 4


def test_crops_begin_only_with_classes_that_are_there(data):
    crops = data.train_dataloader().dataset
    more = RandomCrops(crops, num_classes=12, crop_size=64, num_crops=20, seed=0)
    assert more.found.tolist() == list(range(9))
    assert more[0]["mask"].shape == (64, 64)
