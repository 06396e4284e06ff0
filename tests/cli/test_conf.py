"""Every file of the configuration composes and can be instantiated."""

from __future__ import annotations

import re

import pytest
from hydra.errors import ConfigCompositionException
from hydra.utils import instantiate
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import nn

from lightning_accum import GradientAccumulation
from lightning_accum.cli import conf_dir
from lightning_accum.cli.config import make_config
from lightning_accum.cli.job import make_trainer

FILES = sorted(conf_dir().glob("*/*.yaml"))
GROUPS = {
    "accumulation": {"constant", "epochs", "linear", "cosine", "exponential", "stages", "samples"},
    "data": {"earth", "earth_smoke", "synthetic_segmentation"},
    "experiment": {"earth", "earth_smoke"},
    "logger": {"csv", "tensorboard", "csv_tensorboard", "none"},
    "model": {"unet", "smp_unet", "smp_fpn", "smp_deeplabv3plus", "timm_unet", "deeplabv3_mobilenet"},
    "norm": {"keep", "group"},
    "optimizer": {"adamw"},
    "precision": {"32-true", "64-true", "bf16-mixed", "16-mixed"},
    "scheduler": {"onecycle", "none"},
    "task": {"segmentation"},
    "trainer": {"auto", "cpu", "gpu", "ddp_cpu"},
    "callbacks": {"default", "none"},
    "hydra": {"default"},
}


def name_of(path):
    return f"{path.parent.name}={path.stem}"


def test_every_file_is_known():
    found = {}
    for path in FILES:
        found.setdefault(path.parent.name, set()).add(path.stem)
    assert found == GROUPS
    assert len(FILES) == sum(map(len, GROUPS.values())) == 39
    assert [path.name for path in conf_dir().glob("*.yaml")] == ["train.yaml"]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_file_is_short_and_opens_with_its_command_if_an_experiment(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 25
    if path.parent.name == "experiment":
        assert lines[1] == f"# lightning-accum train experiment={path.stem}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_file_composes_and_instantiates(path, tmp_path):
    if path.parent.name == "model":
        pytest.importorskip("segmentation_models_pytorch")
        pytest.importorskip("torchvision")
    overrides = [name_of(path)] if path.parent.name != "trainer" else [name_of(path), "precision=32-true"]
    config = make_config(overrides, tmp_path)
    assert not OmegaConf.missing_keys(config)
    data = instantiate(config.data, _convert_="all")
    task = instantiate(config.task, class_names=data.class_names, _convert_="all")
    assert isinstance(task.model, nn.Module)
    if name_of(path) == "trainer=gpu":
        with pytest.raises(Exception, match="GPU|CUDA|gpu"):
            make_trainer(config)
        return
    trainer = make_trainer(config)
    assert any(isinstance(callback, GradientAccumulation) for callback in trainer.callbacks)
    assert len(trainer.loggers) == len(config.logger or {})


def test_default_is_the_earth_experiment(tmp_path):
    assert make_config([], tmp_path) == make_config(["experiment=earth"], tmp_path)


def test_default_is_the_main_job(tmp_path):
    config = make_config(["trainer=cpu"], tmp_path)
    assert (config.data.num_classes, config.data.crop_size, config.data.batch_size) == (9, 256, 2)
    callback = instantiate(config.accumulation, _convert_="all")
    schedule = callback.rules.schedule
    assert callback.rules.unit == "samples"
    assert (schedule.start, schedule.end) == (8, 32)


@pytest.mark.parametrize(("trainer", "crop_size"), [("cpu", 256), ("ddp_cpu", 256), ("gpu", 512)])
def test_crops_are_larger_on_a_gpu(trainer, crop_size, tmp_path):
    assert make_config([f"trainer={trainer}"], tmp_path).data.crop_size == crop_size


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ('accumulation.schedule="0:1,4:8"', "0:1, 4:8"),
        ("accumulation.schedule=[[0,1],[4,8]]", "0:1, 4:8"),
        ("accumulation.schedule=8", "8"),
        ('accumulation.schedule="0 steps: 1, 500 steps: 4"', "0 steps: 1, 500 steps: 4"),
    ],
)
def test_schedule_is_overridden_as_exactly_that(override, text, tmp_path):
    config = make_config(["accumulation=epochs", override], tmp_path)
    schedule = instantiate(config.accumulation, _convert_="all").rules.schedule
    assert re.sub(r"\.0\b", "", str(schedule)) == text


@pytest.mark.parametrize(
    "override", ["data.crop=64", "trainer.max_epoch=3", "modle=unet", "accumulation.shedule=4", "sed=1"]
)
def test_misspelt_key_is_an_error(override, tmp_path):
    with pytest.raises(
        (ConfigCompositionException, OmegaConfBaseException), match=override.split("=")[0].split(".")[-1]
    ):
        make_config([override], tmp_path)


@pytest.mark.parametrize("group", ["model", "data", "accumulation", "norm"])
def test_experiment_gives_way_to_a_group_from_the_command_line(group, tmp_path):
    for name in GROUPS[group]:
        alone, mixed = (
            make_config([*first, f"{group}={name}"], tmp_path) for first in ([], ["experiment=earth_smoke"])
        )
        assert mixed[group] == alone[group]
