"""What an installed copy promises: its version, extras, types, and no trace of the place it was made in."""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import metadata, requires, version
from pathlib import Path

import pytest

import lightning_accum

ROOT = Path(__file__).resolve().parent.parent
CORE = {"lightning", "torch", "torchmetrics", "hydra-core", "omegaconf", "rich"}
EXTRAS = {"vision", "language", "sweep", "report", "notebooks", "dev"}


def test_version_is_the_metadatas():
    assert lightning_accum.__version__ == version("lightning-accum")


def test_core_requirements_are_the_few_that_training_needs():
    core = [line for line in requires("lightning-accum") if "extra ==" not in line]
    assert {re.split(r"[<>=!\[; ]", line)[0] for line in core} == CORE


def test_extras_are_by_purpose():
    assert set(metadata("lightning-accum").get_all("Provides-Extra")) == EXTRAS


def test_types_are_declared():
    assert (Path(lightning_accum.__file__).parent / "py.typed").exists()


def test_public_names_all_exist_and_are_sorted():
    names = lightning_accum.__all__
    assert all(hasattr(lightning_accum, name) for name in names)
    assert names == sorted(names)


def test_changelog_names_this_version_or_an_unreleased_one():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[([^\]]+)\]", text, flags=re.MULTILINE)
    assert headings[0] in ("Unreleased", version("lightning-accum"))


def test_tracked_text_files_name_no_folder_of_the_machine_they_were_made_on():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode or not listed.stdout:
        pytest.skip("not a git checkout")
    found = []
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path == Path(__file__) or not path.is_file():
            continue
        data = path.read_bytes()
        if b"\0" not in data[:8192] and re.search(rb"(?<![\w.])/(?:work|root|tmp/bash_jobs)/", data):
            found.append(name)
    assert not found
