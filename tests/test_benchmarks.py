"""The benchmarks' claims, in small: what the picture of proof shows, and that all contenders do the same work."""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
ROUNDING = 1e-5  # float32, relative: ten times what is seen, ten thousand times below the smallest true error


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def proof() -> ModuleType:
    return load("proof")


@pytest.fixture(scope="module")
def results(proof) -> dict[str, dict[str, list[float]]]:
    return proof.measure(num_epochs=1)


def test_proof_ours_every_step_is_the_large_batch(results):
    assert len(results) == 4
    for ways in results.values():
        assert len(ways["ours"]) == 6
        assert 0 < max(ways["ours"]) < ROUNDING


def test_proof_lightning_unequal_items_is_off_at_every_step(results):
    *unequal, short = results.values()
    for ways in unequal:
        assert len(ways["lightning"]) == 6
        assert min(ways["lightning"]) > 0.01
    assert short["lightning"][-1] == pytest.approx(0.5, rel=1e-5)
    assert max(short["lightning"][:-1]) < ROUNDING


def test_proof_picture_is_drawn_where_asked(proof, results, tmp_path):
    proof.draw(results, tmp_path / "new" / "proof.png")
    assert (tmp_path / "new" / "proof.png").stat().st_size > 10_000


def test_overhead_contenders_end_at_the_same_parameters():
    overhead = load("overhead")
    work = overhead.Work(num_micro_batches=24, factor=8, clock=time.perf_counter)
    outcomes = overhead.measure(work, repeats=2)
    assert all(len(ones) == 2 and all(one.seconds > 0 for one in ones) for ones in outcomes.values())
    assert overhead.largest_difference(outcomes) <= overhead.SAME_PARAMETERS
    assert overhead.make_table(outcomes, work).row_count == len(overhead.CONTENDERS)


def test_overhead_ratios_are_taken_within_a_turn():
    overhead = load("overhead")
    outcomes = {
        "a": [overhead.Outcome(seconds, None) for seconds in (2.0, 30.0, 4.0)],
        "b": [overhead.Outcome(seconds, None) for seconds in (1.0, 10.0, 1.0)],
    }
    assert statistics.median(overhead.find_ratios(outcomes, "a", "b")) == 3.0
