"""What the app tells is what happens."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import nn

from lightning_accum import GradientAccumulation
from lightning_accum.cli.pictures import draw_predictions, make_example, pick_most_varied
from lightning_accum.cli.show import describe_plan, make_result_table
from lightning_accum.data import SyntheticSegmentation
from lightning_accum.preview import make_preview
from lightning_accum.tasks import SegmentationTask


def make_task():
    return SegmentationTask(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)), num_classes=4)


def test_plan_says_one_number_where_there_is_one():
    preview = make_preview("4", batches_per_epoch=8, num_epochs=1, batch_size=2, world_size=2)
    text = describe_plan(preview, GradientAccumulation(4))
    assert text == "2 optimizer steps of 4 micro-batches: effective batch size 16, weighed by Samples()"


def test_result_table_has_a_column_for_each_part_and_a_row_for_each_class():
    metrics = {"val/mIoU": 0.5, "val/loss": 1.0, "test/mIoU": 0.25, "val/IoU/Water": 0.75, "train/loss": 3.0}
    table = make_result_table(metrics, 12, [])
    columns = {column.header: list(column.cells) for column in table.columns}
    assert columns[""] == ["mIoU", "loss", "IoU of Water", "optimizer steps", "effective batch size"]
    assert columns["validation"][:3] == ["0.500", "1.000", "0.750"]
    assert columns["test"][:3] == ["0.250", "", ""]
    assert columns["validation"][3:] == ["12", "unknown"]


def test_varied_masks_are_picked_whatever_does_not_count():
    masks = [torch.tensor([0, 0, 1, 255]), torch.tensor([0, 1, 2, 3]), torch.tensor([255, 255, 255, 255])]
    assert pick_most_varied(masks, 1) == [1]
    assert pick_most_varied(masks, 5) == [0, 1, 2]


def test_example_is_predicted_in_evaluation_and_the_mode_is_given_back():
    data, task = SyntheticSegmentation(), make_task()
    task.train()
    sample = data.val_dataloader().dataset[0]
    statistics = task.model[1].running_mean.clone()
    example = make_example(task, data, sample, "here")
    assert task.training
    assert torch.equal(task.model[1].running_mean, statistics)
    assert example.prediction.shape == (32, 32) and np.array_equal(example.truth, sample["mask"].numpy())


@pytest.mark.parametrize("number", [1, 3])
def test_picture_has_as_many_rows_as_asked_for(number, tmp_path):
    draw_predictions(make_task(), SyntheticSegmentation(), number, tmp_path / "prediction.png")
    assert (tmp_path / "prediction.png").stat().st_size > 5000


def test_picture_without_matplotlib_is_left_out_and_said_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    draw_predictions(make_task(), SyntheticSegmentation(), 1, tmp_path / "prediction.png")
    assert "lightning-accum[report]" in capsys.readouterr().out.replace("\n", "")
    assert not (tmp_path / "prediction.png").exists()
