import pytest

from lightning_accum.errors import ConfigError
from lightning_accum.progress import Progress
from lightning_accum.schedules import Constant, FromCallable, PerEpoch, Schedule, Stages, check_value


def read_steps(schedule, steps):
    return [schedule(Progress(num_optimizer_steps=step)) for step in steps]


def read_epochs(schedule, epochs):
    return [schedule(Progress(epoch=epoch)) for epoch in epochs]


# Constant


def test_constant_gives_its_value_whatever_the_progress():
    assert Constant(8)(Progress()) == Constant(8)(Progress(9, 9, 9, 9, 9, 0.9)) == 8


def test_constant_whole_float_is_shown_as_int():
    assert repr(Constant(8.0)) == "Constant(value=8)"


@pytest.mark.parametrize("value", [0, -1, 0.5, 2.5, float("nan"), float("inf"), True, None, "eight", [8]])
def test_constant_that_is_no_count_is_an_error(value):
    with pytest.raises(ConfigError, match=r"whole number of at least 1, but got .* \(in Constant\(value=\.\.\.\)\)"):
        Constant(value)


# PerEpoch


def test_per_epoch_changes_at_its_0_based_epochs():
    assert read_epochs(PerEpoch({0: 1, 2: 4, 5: 2}), range(7)) == [1, 1, 4, 4, 4, 2, 2]


def test_per_epoch_looks_at_nothing_but_the_epoch():
    assert PerEpoch({0: 1, 4: 8})(Progress(0, 100, 100, 100, 100, 1.0)) == 1


def test_per_epoch_copies_and_keeps_the_callers_dict():
    mine = {4: 8, 0: 1}
    schedule = PerEpoch(mine)
    assert mine == {4: 8, 0: 1}
    mine[0] = 99
    assert schedule(Progress()) == 1


def test_per_epoch_accepts_any_order_of_epochs():
    assert PerEpoch({4: 8, 0: 1}) == PerEpoch("0:1, 4:8") == PerEpoch([[0, 1], (4, 8.0)])


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({4: 8}, r"first epoch, 0.*but got \[4\].*counted from 0: add '0:1'"),
        ("4:8", "first epoch, 0"),
        ([(0, 1), (0, 2)], "each epoch once"),
        ({0: 0}, "whole number of at least 1"),
        ({0: 1.5}, "whole number of at least 1"),
        ({-1: 1}, "an epoch, a whole number counted from 0"),
        ({0.5: 1}, "an epoch, a whole number counted from 0"),
        ({False: 1}, "an epoch, a whole number counted from 0"),
        ({"0 steps": 1}, "an epoch, a whole number counted from 0"),
        ({}, "expected pairs such as"),
        ([], "expected pairs such as"),
        ("", "expected pairs such as"),
        (8, "expected pairs such as"),
        ([0, 1], "expected pairs such as"),
        (["01"], "expected pairs such as"),
    ],
)
def test_per_epoch_that_cannot_be_is_an_error(values, problem):
    with pytest.raises(ConfigError, match=problem) as error:
        PerEpoch(values)
    assert "PerEpoch(values=...)" in str(error.value)


# Stages


def test_stages_change_at_their_start():
    schedule = Stages("0 steps: 1, 4 steps: 3, 6 steps: 2")
    assert read_steps(schedule, range(8)) == [1, 1, 1, 1, 3, 3, 2, 2]


@pytest.mark.parametrize(
    ("stages", "before", "after"),
    [
        ("0 epochs: 1, 2 epochs: 4", Progress(epoch=1), Progress(epoch=2)),
        ("0 samples: 1, 5e3 samples: 4", Progress(num_samples=4999), Progress(num_samples=5000)),
        ("0 items: 1, 5e3 items: 4", Progress(num_items=4999), Progress(num_items=5000)),
        ("0 micro_steps: 1, 5 micro_steps: 4", Progress(num_micro_steps=4), Progress(num_micro_steps=5)),
        ("0%: 1, 29%: 4", Progress(fraction=0.28), Progress(fraction=0.29)),
    ],
)
def test_stages_count_in_any_unit(stages, before, after):
    assert (Stages(stages)(before), Stages(stages)(after)) == (1, 4)


def test_stages_single_stage_needs_no_progress():
    assert Stages("0%: 3")(Progress(fraction=None)) == 3


def test_stages_same_from_mapping_pairs_and_text():
    stages = Stages("0 steps: 1, 500 steps: 4")
    assert stages == Stages({"0 steps": 1, "5e2 steps": 4}) == Stages([["0 steps", 1], ("500 steps", 4.0)])


@pytest.mark.parametrize(
    ("stages", "problem"),
    [
        ("5 steps: 1", "first stage that starts at 0, but got '5 steps'.*Add '0 steps: 1'"),
        ("0 steps: 1, 9 steps: 2, 9 steps: 3", "starts after 9 steps, but got '9 steps'"),
        ("0 steps: 1, 9 steps: 2, 3 steps: 3", "starts after 9 steps, but got '3 steps'"),
        ("0 steps: 1, 3 epochs: 2", "one unit throughout, steps, but got '3 epochs'"),
        ("0: 1, 500: 4", "a number with a unit.*but got '0'"),
        ({0: 1}, "a number with a unit.*but got 0"),
        ("0 steps: 0", "whole number of at least 1"),
        ("0 steps", "expected pairs such as"),
        ("0 steps: 1,", "expected pairs such as"),
        ([], "expected pairs such as"),
    ],
)
def test_stages_that_cannot_be_are_an_error(stages, problem):
    with pytest.raises(ConfigError, match=problem) as error:
        Stages(stages)
    assert "Stages(stages=...)" in str(error.value)


# FromCallable


def test_from_callable_passes_the_progress_on():
    assert read_epochs(FromCallable(lambda progress: 1 + progress.epoch), range(3)) == [1, 2, 3]


def test_from_callable_keeps_fractions():
    assert FromCallable(lambda progress: 2.5)(Progress()) == 2.5


@pytest.mark.parametrize("value", [0, 0.99, -3, float("nan"), float("inf"), None, "8", True, [8]])
def test_from_callable_that_gives_no_size_is_an_error_that_names_the_progress(value):
    with pytest.raises(ConfigError, match=r"finite number of at least 1, but got .*Progress\(epoch=3"):
        FromCallable(lambda progress: value)(Progress(epoch=3))


def test_from_callable_of_no_callable_is_an_error():
    with pytest.raises(ConfigError, match="a callable of Progress, but got 8"):
        FromCallable(8)


def test_from_callable_says_if_it_can_be_predicted():
    assert FromCallable(len).is_predictable
    assert not FromCallable(len, is_predictable=False).is_predictable


def test_check_value_accepts_numbers_of_other_libraries():
    numpy = pytest.importorskip("numpy")
    assert check_value(numpy.int64(8), Constant(1), Progress()) == 8
    assert check_value(numpy.float32(2.5), Constant(1), Progress()) == 2.5


# What all of them tell


@pytest.mark.parametrize(
    ("schedule", "largest", "units"),
    [
        (Constant(8), 8, set()),
        (PerEpoch("0:1, 4:8, 6:2"), 8, {"epochs"}),
        (PerEpoch("0:3"), 3, set()),
        (Stages("0 samples: 1, 5 samples: 4"), 4, {"samples"}),
        (Stages("0%: 3"), 3, set()),
        (FromCallable(len), None, None),
    ],
)
def test_schedule_tells_its_largest_value_and_its_units(schedule, largest, units):
    assert schedule.max_value() == largest
    assert schedule.units == units


def test_schedule_of_a_user_needs_only_a_call():
    class Mine(Schedule):
        def __call__(self, progress):
            return 3

    assert (Mine()(Progress()), Mine().max_value(), Mine().units, Mine().is_predictable) == (3, None, None, True)


def test_schedule_without_a_call_cannot_be_made():
    class Mine(Schedule):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Mine()
