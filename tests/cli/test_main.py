"""The program's commands, their help, and what an error looks like."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from lightning_accum import __version__
from lightning_accum.cli.main import main
from lightning_accum.cli.train import explain, quote_schedules
from lightning_accum.cli.train import main as train
from lightning_accum.data.earth import load_earth
from lightning_accum.errors import ConfigError


def test_help_explains_each_command_with_an_example(capsys):
    assert main([]) == 0
    text = capsys.readouterr().out
    for command in ("train", "preview"):
        assert f"\n  {command} " in text
        assert f"\n  lightning-accum {command}" in text
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == text


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"lightning-accum {__version__}\n"


def test_unknown_command_is_an_error_that_names_the_choices(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["trian"])
    assert stopped.value.code == 2
    text = capsys.readouterr().err
    assert "trian" in text and "train" in text and "preview" in text


def test_preview_gets_its_arguments(tmp_path, capsys):
    picture = tmp_path / "preview.png"
    arguments = ["--schedule", "0:1, 1:4", "--batches-per-epoch", "8", "--epochs", "2", "--output", str(picture)]
    assert main(["preview", *arguments]) == 0
    assert picture.stat().st_size > 1000
    assert "10" in capsys.readouterr().out  # eight steps of 1, two of 4


def test_train_help_lists_the_groups_and_examples():
    done = subprocess.run(
        [sys.executable, "-m", "lightning_accum.cli.train", "--help"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0
    for expected in ("accumulation: constant, cosine, epochs", "lightning-accum train experiment=earth_smoke", "-m"):
        assert expected in done.stdout


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.crop=64", "Key 'crop' is not in struct"),
        ("data.crop_size=3000", "at most 1080 pixels, but got 3000"),
        ("accumulation.schedule=0:1,0:2", "each epoch once, but got [0, 0]"),
        ("accumulation.unit=sample", "sample"),
        ("norm.policy=grupp", "one of group, keep, but got 'grupp'"),
        ("model=vnet", "Could not find 'model/vnet'"),
        ("trainer=gpu", "(in trainer)"),
    ],
)
def test_setting_that_cannot_be_used_is_told_without_a_traceback(override, message, tmp_path, capfd):
    if override == "trainer=gpu" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    code = train(["trainer=cpu", override, f"hydra.run.dir={tmp_path}"])
    told = capfd.readouterr().err
    assert code == 2
    assert message in told
    assert "Traceback" not in told and "HYDRA_FULL_ERROR" not in told
    assert len(told.splitlines()) <= 10


def test_arguments_and_environment_are_given_back(tmp_path, monkeypatch):
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    before = list(sys.argv)
    train(["data.crop=64"])
    assert sys.argv == before
    assert "HYDRA_FULL_ERROR" not in os.environ


def test_full_error_shows_the_traceback(tmp_path, monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(Exception, match="grupp"):
        train(["norm.policy=grupp", "trainer=cpu", f"hydra.run.dir={tmp_path}"])


@pytest.mark.parametrize(
    ("given", "quoted"),
    [
        ("accumulation.schedule=0:1,4:8", 'accumulation.schedule="0:1,4:8"'),
        ("accumulation.schedule=linear(8, 32, over=20 steps)", 'accumulation.schedule="linear(8, 32, over=20 steps)"'),
        ('accumulation.schedule="0:1,4:8"', 'accumulation.schedule="0:1,4:8"'),
        ("accumulation.schedule=[[0,1],[4,8]]", "accumulation.schedule=[[0,1],[4,8]]"),
        ("accumulation.schedule=8", "accumulation.schedule=8"),
        ("reschedule=1,2", "reschedule=1,2"),
    ],
)
def test_quotes_that_the_shell_took_from_a_schedule_are_put_back(given, quoted):
    assert quote_schedules([given]) == [quoted]
    assert quote_schedules(["--multirun", given]) == ["--multirun", given]


def test_cause_is_told_and_not_what_stands_around_it():
    try:
        try:
            raise ConfigError("expected this, but got that.")
        except ConfigError as cause:
            raise RuntimeError("Error in call to target 'x'") from cause
    except RuntimeError as error:
        assert explain(error) == "expected this, but got that."


@pytest.mark.parametrize(
    ("package", "override", "extra"),
    [
        ("segmentation_models_pytorch", "model=smp_unet", "vision"),
        ("torchvision", "model=deeplabv3_mobilenet", "vision"),
        ("PIL", "data=earth", "vision"),
    ],
)
def test_missing_package_says_which_extra_has_it(package, override, extra, tmp_path, capfd, monkeypatch):
    load_earth.cache_clear()
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert train([override, "trainer=cpu", "logger=none", f"hydra.run.dir={tmp_path}"]) == 2
    assert f"pip install 'lightning-accum[{extra}]'" in capfd.readouterr().err
