"""The state is one value of plain things."""

import io

import pytest
import torch

from lightning_accum import AccumulationState
from lightning_accum.errors import ConfigError
from lightning_accum.window import OpenWindow


def make_state() -> AccumulationState:
    state = AccumulationState(num_optimizer_steps=3, num_samples=24.0, window=OpenWindow(8, 4.0, 4, 2))
    state.add([3.0, 0.5], num_samples=2)
    state.add([], num_samples=0)
    return state


def test_state_survives_a_file_that_holds_weights_only() -> None:
    file = io.BytesIO()
    torch.save(make_state().to_dict(), file)
    file.seek(0)
    assert AccumulationState.from_dict(torch.load(file, weights_only=True)) == make_state()


def test_state_add_counts_only_what_contributes() -> None:
    state = make_state()
    assert (state.weights[:3], state.num_window_samples, state.num_contributing) == ([3.0, 0.5, 0.0], 2, 1)


def test_state_clear_window_keeps_the_progress() -> None:
    state = make_state()
    state.clear_window()
    assert state == AccumulationState(num_optimizer_steps=3, num_samples=24.0)


def test_state_two_of_them_share_nothing() -> None:
    first, second = AccumulationState(), AccumulationState()
    first.add([1.0], 1)
    assert second == AccumulationState()


def test_state_of_a_newer_version_is_an_error() -> None:
    with pytest.raises(ConfigError, match="noise_scale.*newer"):
        AccumulationState.from_dict({"noise_scale": 1.0})


def test_state_of_an_older_version_keeps_defaults() -> None:
    assert AccumulationState.from_dict({"num_optimizer_steps": 2}) == AccumulationState(num_optimizer_steps=2)
