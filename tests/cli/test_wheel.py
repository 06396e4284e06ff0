"""A wheel, unpacked in a folder without the repository, has its configuration and its images."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import lightning_accum
from pathlib import Path
from lightning_accum.cli import conf_dir
from lightning_accum.cli.config import make_config
from lightning_accum.data.earth import load_earth

here = Path.cwd()
assert Path(lightning_accum.__file__).is_relative_to(here), lightning_accum.__file__
assert conf_dir() == here / "lightning_accum" / "conf", conf_dir()
assert make_config(["experiment=earth_smoke"]).data.num_crops
image, land_cover = load_earth()
print(image.shape, land_cover.shape)
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    for needed in ("build", "hatchling"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


def test_wheel_has_every_configuration_file_and_the_earth(unpacked):
    package = unpacked / "lightning_accum"
    for part, source in (("conf", ROOT / "conf"), ("data/earth_files", ROOT / "lightning_accum/data/earth_files")):
        shipped = {path.relative_to(package / part) for path in (package / part).rglob("*") if path.is_file()}
        assert shipped == {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
        assert shipped


def test_wheel_finds_its_configuration_and_images_far_from_the_repository(unpacked):
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=unpacked, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "(2700, 5400, 3) (2700, 5400)"


def test_wheel_trains_from_another_folder(unpacked, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    arguments = ["data=synthetic_segmentation", "trainer=cpu", "trainer.max_epochs=1", "model.width=4"]
    done = subprocess.run(
        [sys.executable, "-m", "lightning_accum.cli.train", *arguments],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "outputs" / "synthetic_segmentation").iterdir()
    assert (folder / "prediction.png").exists()
