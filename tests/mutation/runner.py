"""Runs tests on several copies of the package, without importing torch and Lightning anew for each.

``python runner.py JOBS``: reads a JSON list of ``{"folder", "tests", "seconds"}`` from a file and prints a list of
``{"code", "output"}``. Each job runs in a forked child, so nothing of the package must be imported here.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

NUM_JOBS_AT_ONCE = 2
HEAVY = ["torch", "lightning", "lightning.pytorch", "lightning.pytorch.cli", "torch.profiler", "pytest_timeout"]

QUICK = ["-x", "-q", "-m", "", "-W", "ignore", "--show-capture=no", "--assert=plain", "-p", "pytest_timeout"]
QUICK += [part for name in ("cacheprovider", "unraisableexception", "threadexception") for part in ("-p", f"no:{name}")]
"""Of pytest only what it takes to run tests: its plugins cost more than they do."""

TIMED_OUT = 124


def start(job: dict[str, Any]) -> int:
    """Fork a child that runs pytest in the job's folder; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    code = 70
    try:
        folder = job["folder"]
        log = os.open(str(Path(folder) / "output.txt"), os.O_CREAT | os.O_WRONLY)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(folder)
        sys.path.insert(0, folder)
        code = run_pytest(job["tests"], folder)
    finally:
        sys.stdout.flush()
        os._exit(code)


def run_pytest(tests: list[str], folder: str) -> int:
    """Run the tests on the package that lies in the folder, and on no other."""
    import pytest

    package = importlib.import_module("lightning_accum")
    assert str(package.__file__).startswith(folder), f"{package.__file__} is not the copy"
    return int(pytest.main([*QUICK, *tests]))


def wait_for_one(running: dict[int, tuple[int, float]]) -> tuple[int, int]:
    """Wait until a child ended or its time is over; return its process id and exit code."""
    while True:
        for pid, (_, deadline) in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return pid, os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return pid, TIMED_OUT
        time.sleep(0.02)


def main() -> None:
    for name in HEAVY:
        importlib.import_module(name)
    assert "lightning_accum" not in sys.modules
    jobs = json.loads(Path(sys.argv[1]).read_text())
    results: list[Any] = [None] * len(jobs)
    running: dict[int, tuple[int, float]] = {}
    waiting = list(range(len(jobs)))
    while waiting or running:
        while waiting and len(running) < NUM_JOBS_AT_ONCE:
            number = waiting.pop(0)
            running[start(jobs[number])] = (number, time.monotonic() + jobs[number]["seconds"])
        pid, code = wait_for_one(running)
        number, _ = running.pop(pid)
        output = (Path(jobs[number]["folder"]) / "output.txt").read_text(errors="replace")
        results[number] = {"code": code, "output": output[-3000:]}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
