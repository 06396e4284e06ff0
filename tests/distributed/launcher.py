"""Starts real processes over gloo, gives them many tasks, and never hangs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]

START_SECONDS = 120
"""For importing torch and Lightning: four times at once on two cores that others use too."""

TASK_SECONDS = 40
"""For each task, which takes well under a second: a rank that waits longer waits for nobody."""


@dataclass
class Outcome:
    """What each rank returned for a task, or why it did not."""

    values: list[Any] | None = None
    failure: str = ""

    def get(self) -> list[Any]:
        """The values of all ranks; fails with the ranks' own words if there are none."""
        assert self.values is not None, self.failure
        return self.values


def launch(world_size: int, names: list[str], folder: Path) -> dict[str, Outcome]:
    """Run the tasks on ``world_size`` processes and return an outcome for each.

    One set of processes runs them all. A task that fails or hangs ends its set; the tasks after it get a new one.
    """
    outcomes: dict[str, Outcome] = {}
    attempt = 0
    while remaining := [name for name in names if name not in outcomes]:
        attempt += 1
        place = folder / f"attempt{attempt}"
        place.mkdir(parents=True)
        done, failure = _run_once(world_size, remaining, place)
        outcomes.update({name: Outcome(values) for name, values in done.items()})
        if failure:
            broken = next(name for name in remaining if name not in done)
            outcomes[broken] = Outcome(failure=failure)
    return outcomes


def _run_once(world_size: int, names: list[str], place: Path) -> tuple[dict[str, list[Any]], str]:
    port = _find_free_port()
    ranks = range(world_size)
    processes = [_start(rank, world_size, names, place, port) for rank in ranks]
    done: dict[str, list[Any]] = {}
    failure = ""
    try:
        failure = _wait_for([place / f"ready.{rank}.pt" for rank in ranks], processes, START_SECONDS, place)
        for number, name in enumerate(names):
            paths = [place / f"{number}.{rank}.pt" for rank in ranks]
            failure = failure or _wait_for(paths, processes, TASK_SECONDS, place)
            if failure:
                break
            done[name] = [torch.load(path)["value"] for path in paths]
    finally:
        _end(processes, patience=0 if failure else 20)
    return done, failure


def _wait_for(paths: list[Path], processes: list[Any], seconds: float, place: Path) -> str:
    """Wait until all ranks left their file; return why that will not happen, or nothing."""
    deadline = time.monotonic() + seconds
    while not all(path.exists() for path in paths):
        if failure := _find_failure(paths, processes, deadline, place):
            return failure
        time.sleep(0.02)
    return _find_failure(paths, processes, deadline, place)


def _find_failure(paths: list[Path], processes: list[Any], deadline: float, place: Path) -> str:
    """Why a task will not be done, or nothing."""
    for rank, path in enumerate(paths):
        if path.exists() and (error := torch.load(path).get("error")):
            return f"rank {rank}: {error}"
    for rank, (path, process) in enumerate(zip(paths, processes, strict=True)):
        if not path.exists() and process.poll() is not None and not path.exists():
            return f"rank {rank} ended with {process.returncode}:\n{_tail(place, rank)}"
    waiting = [rank for rank, path in enumerate(paths) if not path.exists()]
    if waiting and time.monotonic() > deadline:
        return f"ranks {waiting} did not finish in time:\n" + "\n".join(_tail(place, rank) for rank in waiting)
    return ""


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(rank: int, world_size: int, names: list[str], place: Path, port: int) -> subprocess.Popen[bytes]:
    """Start one rank in the form in which Lightning's own launcher starts its children."""
    own = {
        "LOCAL_RANK": str(rank),
        "NODE_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ACCUM_WORLD_SIZE": str(world_size),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    with (place / f"{rank}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.distributed.worker", str(place), *names],
            env={**os.environ, **own},
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _tail(place: Path, rank: int) -> str:
    return (place / f"{rank}.log").read_text(errors="replace")[-4000:]


def _end(processes: list[Any], patience: float) -> None:
    """Let the processes end by themselves for a while, then end them."""
    deadline = time.monotonic() + patience
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
