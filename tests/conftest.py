"""One thread, one seed, one environment: what all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield


@pytest.fixture(autouse=True)
def _environment_kept() -> Iterator[None]:
    """A launcher leaves its rank and port in the environment, and processes started later would believe them."""
    before = dict(os.environ)
    yield
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)
