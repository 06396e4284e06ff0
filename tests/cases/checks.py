"""What several case tests assert."""

from __future__ import annotations

import pytest

from tests.harness import FLOAT32, Record


def assert_gradients(record: Record, *expected: float) -> None:
    """The callback's and the module's hook saw these gradients, and no other, and every one became an update."""
    assert record.gradients == pytest.approx(expected, rel=FLOAT32)
    assert record.module_gradients == pytest.approx(expected, rel=FLOAT32)
    assert record.global_step == record.num_updates == record.num_scheduler_steps == len(expected)
