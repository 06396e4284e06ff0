"""Two and four real processes over gloo against the large batch over all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.distributed.launcher import Outcome, launch
from tests.distributed.table import TABLE
from tests.harness import FLOAT32, FLOAT64, Scalar, singles, train

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]

AROUND_ZERO = 1e-13
"""Absolute error allowed for parameters near 0, whose relative error means nothing; typical ones are of size 1."""

LOGGED = 1e-6
"""Relative error of a logged loss, which Lightning keeps in float32."""

OTHERS_ON_TWO = [
    "unequal items",
    "unequal items of Lightning alone",
    "reductions",
    "reductions by name",
    "reductions, short tail",
    "reductions, carry",
    "reductions, drop",
    "collectives",
    "None from the loader",
    "dropping collate",
]


def select(request: Any, world_size: int, others: list[str]) -> list[str]:
    """The tasks that the selected tests ask for: rows of the table by their parameter, the others all or none."""
    asked = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    plain = any("on_two" in item.fixturenames or "on_four" in item.fixturenames for item in request.session.items)
    names = [name for name in TABLE if name in asked and TABLE[name].world_size == world_size]
    return names + [name for name in others if plain]


@pytest.fixture(scope="module")
def on_two(request: Any, tmp_path_factory: Any) -> dict[str, Outcome]:
    """What two processes did with everything that they were asked for."""
    return launch(2, select(request, 2, OTHERS_ON_TWO), tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def on_four(request: Any, tmp_path_factory: Any) -> dict[str, Outcome]:
    """What four processes did with everything that they were asked for."""
    return launch(4, select(request, 4, ["one micro-batch a rank"]), tmp_path_factory.mktemp("four"))


def test_table_holds_what_it_should() -> None:
    assert len(TABLE) >= 24
    assert {combination.world_size for combination in TABLE.values()} == {2, 4}


@pytest.mark.parametrize("name", TABLE)
def test_training_on_processes_equals_the_real_large_batch(name: str, request: Any) -> None:
    combination = TABLE[name]
    outcomes = request.getfixturevalue("on_two" if combination.world_size == 2 else "on_four")
    ranks = outcomes[name].get()
    windows, expected = combination.windows(), combination.run_large()
    stepped = [window for window in windows if window.steps]
    assert len(stepped) == len(expected.parameters) > 0
    for rank, seen in enumerate(ranks):
        assert seen["global_step"] == len(seen["parameters"]) == len(stepped), f"rank {rank}"
        assert seen["batch_of_step"] == [window.last_batch for window in stepped], f"rank {rank}"
        for step, (mine, theirs) in enumerate(zip(seen["parameters"], expected.parameters, strict=True)):
            place = f"rank {rank}, after step {step}: "
            torch.testing.assert_close(
                mine, theirs, rtol=FLOAT64, atol=AROUND_ZERO, msg=lambda text, place=place: place + text
            )
            assert torch.equal(mine, ranks[0]["parameters"][step]), f"{place}differs from rank 0"


@pytest.mark.parametrize("name", TABLE)
def test_what_processes_count_and_log_is_the_sum_over_them(name: str, request: Any) -> None:
    combination = TABLE[name]
    outcomes = request.getfixturevalue("on_two" if combination.world_size == 2 else "on_four")
    windows, expected = combination.windows(), combination.run_large()
    stepped = [window for window in windows if window.steps]
    kept = [w for w in windows if combination.epoch_end != "drop" or w.reached(combination.unit)]
    for seen in outcomes[name].get():
        assert seen["losses"] == pytest.approx(expected.losses, rel=LOGGED)
        assert seen["num_empty_windows"] == sum(window.num_items == 0 for window in kept)
        if not combination.silent:  # whether a micro-batch without a loss held samples is nobody's business
            assert seen["effective_batch_sizes"] == [window.num_samples for window in stepped]
            assert seen["num_samples"] == sum(window.num_samples for window in windows)


# --- by hand


def test_unequal_items_on_two_ranks_have_the_mean_of_all_items(on_two: dict[str, Outcome]) -> None:
    for gradients in on_two["unequal items"].get():
        assert gradients == pytest.approx([2.3], rel=FLOAT32)


def test_unequal_items_on_two_ranks_of_lightning_alone_have_a_mean_of_means(on_two: dict[str, Outcome]) -> None:
    for gradients in on_two["unequal items of Lightning alone"].get():
        assert gradients == pytest.approx([4.25], rel=FLOAT32)


@pytest.mark.parametrize("name", ["reductions", "reductions by name"])
def test_window_is_reduced_once_and_its_forwards_are_inside_no_sync(name: str, on_two: dict[str, Outcome]) -> None:
    for seen in on_two[name].get():
        assert seen["reductions"] == {0: 3}
        assert seen["syncs"] == [False, False, False, True] * 3
        assert seen["gradients"] == pytest.approx([2.5, 6.5, 10.5], rel=FLOAT32)


@pytest.mark.parametrize(
    ("name", "num_reductions", "gradients"),
    [
        ("reductions, short tail", 3, [2.5, 6.5, 9.5]),
        ("reductions, carry", 3, [2.5, 6.5, 9.5]),
        ("reductions, drop", 2, [2.5, 6.5]),
    ],
)
def test_short_window_is_reduced_once_or_not_at_all(
    name: str, num_reductions: int, gradients: list[float], on_two: dict[str, Outcome]
) -> None:
    for seen in on_two[name].get():
        assert seen["reductions"] == {0: num_reductions}
        assert seen["gradients"] == pytest.approx(gradients, rel=FLOAT32)


def test_ranks_talk_once_a_window_besides_the_gradients(on_two: dict[str, Outcome]) -> None:
    for few, many_windows, long_windows in on_two["collectives"].get():
        assert many_windows - few == 3  # three windows more
        assert long_windows - few == -1  # one window less, and twelve micro-batches more


def test_none_from_the_loader_on_several_ranks_is_right_or_an_error(on_two: dict[str, Outcome]) -> None:
    for seen in on_two["None from the loader"].get():
        assert seen.startswith("ValueError: expected a batch") or seen == repr([8 / 3, 6.5])


def test_unit_samples_counts_what_a_collate_function_really_left_on_all_ranks(on_two: dict[str, Outcome]) -> None:
    """On both ranks batches of 2, 1, 2, 1, 2, 2 samples: 4 + 2 + 4 reach 8, then 2 + 4 + 4."""
    for seen in on_two["dropping collate"].get():
        assert seen["batch_of_step"] == [2, 5]
        assert seen["gradients"] == pytest.approx([3.0, 8.0], rel=FLOAT32)


def test_window_of_four_on_one_rank_equals_windows_of_one_on_four_ranks(on_four: dict[str, Outcome]) -> None:
    on_one = train(Scalar(lr=0.1), singles(12), 4)
    for parameters in on_four["one micro-batch a rank"].get():
        assert parameters == pytest.approx([p.item() for p in on_one.parameters], rel=FLOAT32)
        assert len(parameters) == 3
