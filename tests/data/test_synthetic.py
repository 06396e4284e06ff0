"""Rectangles: always the same ones, of as many classes as asked for, with pixels that do not count."""

from __future__ import annotations

import pytest
import torch

from lightning_accum.data import SyntheticSegmentation
from lightning_accum.errors import ConfigError


def test_images_are_the_same_every_time_and_differ_between_parts():
    first, second = SyntheticSegmentation(), SyntheticSegmentation()
    parts = [first.train_dataloader().dataset, first.val_dataloader().dataset, first.test_dataloader().dataset]
    torch.testing.assert_close(parts[1][0], second.val_dataloader().dataset[0])
    assert len({part[0]["image"].sum().item() for part in parts}) == 3


def test_masks_hold_every_class_and_a_varying_number_of_ignored_pixels():
    data = SyntheticSegmentation(num_classes=5)
    masks = torch.stack([sample["mask"] for sample in (data.train_dataloader().dataset[i] for i in range(20))])
    assert masks.unique().tolist() == [0, 1, 2, 3, 4, 255]
    assert len((masks == 255).flatten(1).sum(dim=1).unique()) > 3


def test_class_can_be_told_by_its_color():
    data = SyntheticSegmentation(noise=0.01, most_ignored=0)
    sample = data.train_dataloader().dataset[0]
    colors = data.train_dataloader().dataset.colors
    nearest = (sample["image"].permute(1, 2, 0)[..., None, :] - colors).norm(dim=-1).argmin(dim=-1)
    assert torch.equal(nearest, sample["mask"])


@pytest.mark.parametrize("options", [{"num_classes": 1}, {"num_classes": 9}, {"batch_size": 0}, {"num_train": 0}])
def test_numbers_that_cannot_be_used_are_errors_that_name_them(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        SyntheticSegmentation(**options)
