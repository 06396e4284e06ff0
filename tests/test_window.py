"""Windows, their rules and their simulation, without Lightning."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_accum.errors import ConfigError
from lightning_accum.progress import Progress
from lightning_accum.simulation import simulate_windows
from lightning_accum.window import Ahead, OpenWindow, Window, WindowRules, fraction_of_training


def run_rules(rules: WindowRules, counts: list[float], num_epochs: int = 1, has_length: bool = True) -> list[int]:
    """Feed micro-batches one by one, as the callback does; return the length of each window that closed."""
    lengths, window, steps = [], None, 0
    for epoch in range(num_epochs):
        for batch_idx, count in enumerate(counts):
            left = len(counts) - batch_idx
            known = has_length or left == 1
            ahead = Ahead(left if known else None, left + (num_epochs - 1 - epoch) * len(counts) if known else None)
            if window is None:
                progress = Progress(epoch=epoch, num_optimizer_steps=steps)
                window = rules.open(progress, batch_idx=batch_idx, count=count, ahead=ahead)
            rules.extend(window, count, ahead)
            shown = window.as_window()
            assert (batch_idx % shown == 0) == (window.num_micro_batches == 1)
            assert ((batch_idx + 1) % shown == 0) == window.closes
            if window.closes:
                lengths.append(window.num_micro_batches)
                window, steps = None, steps + 1
        if window is not None:
            window.first -= len(counts)
            window = None if rules.epoch_end == "drop" else window
    return lengths


@given(first=st.integers(-20, 20), factor=st.integers(1, 9), offset=st.integers(0, 30))
def test_window_multiples_are_counted_from_its_first(first: int, factor: int, offset: int) -> None:
    assert (first + offset) % Window(factor, first) == offset % factor


def test_window_is_the_factor_as_an_integer() -> None:
    window = Window(6, first=4)
    assert (window, 12 / window, window * 2, max(window, 2), f"{window}") == (6, 2.0, 12, 6, "6")


def test_window_pickled_keeps_its_first() -> None:
    window = pickle.loads(pickle.dumps(Window(6, first=4)))
    assert (window, window.first) == (6, 4)


@pytest.mark.parametrize(
    ("unit", "target", "counts", "lengths"),
    [
        ("micro_batches", 4, [0] * 10, [4, 4, 2]),
        ("samples", 8, [4, 4, 4, 4, 2], [2, 2, 1]),
        ("samples", 7, [4, 4, 4, 4, 4], [2, 2, 1]),
        ("items", 10, [3, 9, 1, 1, 8, 30, 2], [2, 3, 1, 1]),
        ("items", 10, [0, 0, 12, 0], [3, 1]),
    ],
)
@pytest.mark.parametrize("has_length", [True, False])
def test_rules_close_a_window_with_the_micro_batch_that_reaches_its_target(unit, target, counts, lengths, has_length):
    assert run_rules(WindowRules(target, unit), counts, has_length=has_length) == lengths


@pytest.mark.parametrize(("epoch_end", "lengths"), [("flush", [4, 1, 4, 1]), ("carry", [4, 4, 2]), ("drop", [4, 4])])
def test_rules_at_the_end_of_an_epoch(epoch_end, lengths) -> None:
    assert run_rules(WindowRules(4, "micro_batches", epoch_end), [0] * 5, num_epochs=2) == lengths


def test_rules_expect_no_more_micro_batches_than_the_epoch_has() -> None:
    window = WindowRules(8).open(Progress(), batch_idx=7, count=0, ahead=Ahead(in_epoch=3))
    assert (window.factor, window.target) == (3, 8.0)


def test_rules_of_an_unknown_unit_name_the_choices() -> None:
    with pytest.raises(ConfigError, match="'micro_batches', 'samples', 'items'.*'batches'"):
        WindowRules(4, "batches")


def test_rules_refuse_half_a_micro_batch() -> None:
    with pytest.raises(ConfigError, match=r"2\.5.*unit='samples'"):
        WindowRules(lambda progress: 2.5).open(Progress(), batch_idx=0, count=0, ahead=Ahead())


@pytest.mark.parametrize(
    ("window", "unit", "share"),
    [
        (OpenWindow(0, 4.0, 2, num_micro_batches=2), "micro_batches", 0.5),
        (OpenWindow(0, 32.0, 8, num_micro_batches=2, num_counted=8.0), "samples", 0.25),
        (OpenWindow(0, 30.0, 8, num_micro_batches=8, num_counted=32.0), "samples", 1.0),
    ],
)
def test_open_window_share_held_never_exceeds_one(window, unit, share) -> None:
    assert window.share_held(window.num_micro_batches, unit) == share


def test_fraction_of_training_is_of_the_limit_that_comes_first() -> None:
    assert fraction_of_training(10, 30, total_micro_steps=100, max_steps=40) == 0.75
    assert fraction_of_training(10, 30, total_micro_steps=None, max_steps=None) is None
    assert fraction_of_training(200, 0, total_micro_steps=100, max_steps=None) == 1.0


@settings(max_examples=200, deadline=None)
@given(
    factors=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    num_batches=st.integers(1, 25),
    num_epochs=st.integers(1, 3),
    epoch_end=st.sampled_from(["flush", "carry", "drop"]),
)
def test_simulated_windows_equal_those_fed_one_by_one(factors, num_batches, num_epochs, epoch_end) -> None:
    def schedule(progress: Progress) -> int:
        return factors[progress.num_optimizer_steps % len(factors)]

    windows = simulate_windows(
        schedule, batches_per_epoch=num_batches, num_epochs=num_epochs, epoch_end=epoch_end, batch_size=2
    )
    fed = run_rules(WindowRules(schedule, "micro_batches", epoch_end), [2] * num_batches, num_epochs)
    assert [window.num_micro_batches for window in windows if window.stepped] == fed
    assert sum(window.num_micro_batches for window in windows) == num_batches * num_epochs
    assert sum(window.effective_batch_size for window in windows) == 2 * num_batches * num_epochs


def test_simulated_windows_count_a_short_last_batch() -> None:
    windows = simulate_windows(
        8, unit="samples", batches_per_epoch=5, num_epochs=1, batch_size=4, last_batch_size=1, world_size=1
    )
    assert [window.effective_batch_size for window in windows] == [8, 8, 1]


def test_simulated_windows_carry_samples_over_epochs() -> None:
    windows = simulate_windows(
        8, unit="samples", epoch_end="carry", batches_per_epoch=3, num_epochs=3, batch_size=4, last_batch_size=1
    )
    assert [window.effective_batch_size for window in windows] == [8, 9, 9, 1]


def test_simulated_windows_end_with_max_steps() -> None:
    assert len(simulate_windows(4, batches_per_epoch=10, num_epochs=1000, max_steps=7)) == 7


@pytest.mark.parametrize("name", ["batches_per_epoch", "num_epochs", "batch_size", "world_size"])
def test_simulated_windows_of_an_impossible_size_name_it(name) -> None:
    sizes = {"batches_per_epoch": 4, "num_epochs": 1, name: 0}
    with pytest.raises(ConfigError, match=f"at least 1, but got 0.*{name}"):
        simulate_windows(4, **sizes)
