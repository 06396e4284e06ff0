"""The tests notice mistakes: each deliberate one in the source makes one of the tests named beside it fail.

Every mutant is a copy of the package with one small change. A copy without a change runs too, as a control: all tests
that are named must pass on it. Most mutants that need several processes run under the marker ``slow``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.mutant import Mutant
from tests.mutation.mutants import MUTANTS

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).resolve().parents[2]
TESTS_FAILED = 1
"""The exit code with which pytest says that tests ran and some failed; any other is no proof of anything."""

SECONDS = 100
"""For the tests of one mutant, or of the control; the distributed ones start two processes."""

CONTROL = "control"


def make_copy(folder: Path, mutant: Mutant | None) -> Path:
    """Copy the package and its tests, with the mistake in it."""
    unneeded = shutil.ignore_patterns("__pycache__", "*.jpg", "*.png")
    for name in ("lightning_accum", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=unneeded)
    shutil.copy(ROOT / "pyproject.toml", folder)
    if mutant is not None:
        source = folder / "lightning_accum" / mutant.file
        source.write_text(mutant.apply(source.read_text()))
    return folder


def get_mutants(request: Any) -> list[Mutant]:
    """The mutants that the selected tests ask for."""
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    asked = [chosen["mutant"] for chosen in parameters if "mutant" in chosen]
    return [mutant for mutant in MUTANTS if mutant in asked]


@pytest.fixture(scope="module")
def results(request: Any, tmp_path_factory: Any) -> dict[str, Any]:
    """What pytest said of each copy."""
    mutants = get_mutants(request)
    jobs, problems = [], {}
    every = sorted({killer for mutant in mutants for killer in mutant.killers})
    for number, mutant in enumerate([None, *mutants]):
        folder = tmp_path_factory.mktemp(f"mutant{number}")
        try:
            make_copy(folder, mutant)
        except AssertionError as error:
            problems[mutant.name] = str(error)
            continue
        tests = every if mutant is None else list(mutant.killers)
        jobs.append({"name": CONTROL if mutant is None else mutant.name, "folder": str(folder), "tests": tests})
    said = run(jobs, tmp_path_factory.mktemp("jobs") / "jobs.json")
    return {**problems, **{job["name"]: result for job, result in zip(jobs, said, strict=True)}}


def run(jobs: list[dict[str, Any]], path: Path) -> list[Any]:
    """Run the jobs in a process of their own, which has imported nothing of the package."""
    path.write_text(json.dumps([{**job, "seconds": SECONDS} for job in jobs]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, str(Path(__file__).with_name("runner.py")), str(path)]
    done = subprocess.run(command, env=environment, cwd=path.parent, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_source_without_a_mistake_passes_all_tests_that_are_named(results: dict[str, Any]) -> None:
    assert results[CONTROL]["code"] == 0, results[CONTROL]["output"]


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(m, id=m.name, marks=[pytest.mark.slow] if m.is_slow else []) for m in MUTANTS],
)
def test_mistake_in_the_source_is_noticed(mutant: Mutant, results: dict[str, Any]) -> None:
    result = results[mutant.name]
    assert isinstance(result, dict), result
    assert result["code"] == TESTS_FAILED, f"{mutant.name!r} survived {mutant.killers}:\n{result['output']}"
