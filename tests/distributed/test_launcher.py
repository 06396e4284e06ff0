"""The launcher itself: a rank that fails or hangs ends its task, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed import launcher

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]


def test_task_that_fails_or_hangs_is_reported_and_the_next_one_runs(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(launcher, "TASK_SECONDS", 10)
    outcomes = launcher.launch(2, ["fail on rank 1", "hang on rank 1", "unequal items"], tmp_path)
    assert outcomes["unequal items"].get()[0] == pytest.approx([2.3], rel=1e-6)
    assert "broken on purpose" in outcomes["fail on rank 1"].failure
    assert "did not finish" in outcomes["hang on rank 1"].failure
