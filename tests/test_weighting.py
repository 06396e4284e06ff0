"""Equation (1) and the reading of weights."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_accum.errors import ConfigError
from lightning_accum.weighting import gradient_factor, loss_factor, read_weight


@given(
    weights=st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=1, max_size=4),
    reference=st.floats(0.1, 100),
    factor=st.integers(1, 9),
)
def test_factors_together_give_each_item_the_same_share(weights, reference, factor) -> None:
    total = sum(map(sum, weights))
    if total == 0:
        return
    scale = gradient_factor(total, reference, factor, world_size=len(weights))
    for rank in weights:
        for weight in rank:
            # what a rank's micro-batch contributes after the average over ranks
            share = loss_factor(weight, reference, factor) / len(weights) * scale
            assert share == pytest.approx(weight / total, rel=1e-12)  # a few roundings of 1e-16


@given(weight=st.integers(1, 2**40), factor=st.integers(1, 4096), world_size=st.integers(1, 64))
def test_factors_of_equal_weights_change_nothing(weight, factor, world_size) -> None:
    assert loss_factor(weight, weight, factor) == 1 / factor
    assert gradient_factor(weight * factor * world_size, weight, factor, world_size) == 1.0


def test_gradient_factor_of_a_planned_divisor_is_the_share_of_it() -> None:
    assert gradient_factor(4.0, 2.0, 2, 1, share=0.5) == 0.5


@pytest.mark.parametrize("weight", [3, 3.0, torch.tensor(3), torch.tensor([3.0])])
def test_read_weight_takes_one_number_in_any_form(weight) -> None:
    assert read_weight(weight, "here") == 3.0


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), torch.tensor([1, 2]), "three", None])
def test_read_weight_of_anything_else_says_where(weight) -> None:
    with pytest.raises(ConfigError, match="expected .* weight|expected one number") as error:
        read_weight(weight, "batch 3 of epoch 1")
    assert "batch 3 of epoch 1" in str(error.value)
