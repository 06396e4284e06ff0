import pytest

from lightning_accum.errors import ConfigError
from lightning_accum.progress import Progress
from lightning_accum.schedules import Constant, FromCallable, LinearRamp, PerEpoch, Schedule, Sequence, Stages


def read(schedule, steps):
    return [schedule(Progress(num_optimizer_steps=step)) for step in steps]


def test_sequence_gives_each_schedule_its_turn():
    schedule = Sequence([(1, "2 steps"), (4, "3 steps")], last=2)
    assert read(schedule, range(7)) == [1, 1, 4, 4, 4, 2, 2]


def test_sequence_schedules_begin_anew_at_their_turn():
    schedule = Sequence(
        [(2, "10 steps"), (LinearRamp(2, 6, over="4 steps"), "6 steps")], last=Stages("0 steps: 6, 3 steps: 1")
    )
    assert read(schedule, range(8, 21)) == [2, 2, 2, 3, 4, 5, 6, 6, 6, 6, 6, 1, 1]


def test_sequence_in_epochs_shifts_the_epochs_of_a_later_schedule():
    schedule = Sequence([(8, "3 epochs")], last=PerEpoch({0: 1, 2: 4}))
    assert [schedule(Progress(epoch=epoch)) for epoch in range(7)] == [8, 8, 8, 1, 1, 4, 4]


def test_sequence_in_percent_is_exact_in_spite_of_binary_fractions():
    schedule = Sequence([(8, "10%"), (16, "20%")], last="linear(16, 32, over=20%)")
    assert [schedule(Progress(fraction=share)) for share in (0.0, 0.1, 0.3, 0.4, 0.5)] == [8, 16, 16, 24, 32]


def test_sequence_first_schedule_may_count_in_any_unit():
    schedule = Sequence([(PerEpoch("0:1, 1:2"), "10 steps")], last=8)
    assert schedule(Progress(epoch=1, num_optimizer_steps=5)) == 2
    assert schedule(Progress(epoch=1, num_optimizer_steps=10)) == 8


def test_sequence_function_sees_its_own_count_shifted_and_the_others_as_they_are():
    seen = []
    schedule = Sequence([(1, "10 steps")], last=lambda progress: seen.append(progress) or 4)
    schedule(Progress(epoch=3, num_optimizer_steps=12, num_samples=99))
    assert seen == [Progress(epoch=3, num_optimizer_steps=2, num_samples=99)]


def test_sequence_in_a_sequence_is_counted_from_its_turn():
    inner = Sequence([(2, "3 steps")], last=4)
    assert read(Sequence([(1, "2 steps"), (inner, "5 steps")], last=8), range(9)) == [1, 1, 2, 2, 2, 4, 4, 8, 8]


@pytest.mark.parametrize(
    ("phases", "last", "problem"),
    [
        ([(1, "2 steps"), (2, "3 epochs")], 4, "durations in one unit, steps, but got '3 epochs'"),
        ([(1, 500)], 4, "number with a unit.*but got 500"),
        ([(1, "0 steps")], 4, "longer than nothing, but got '0 steps'"),
        ([(1, "60%"), (2, "40%")], 4, "less than 100% together"),
        ([], 4, "pairs of a schedule and its duration"),
        ("8 for 2 steps", 4, "pairs of a schedule and its duration"),
        ([8], 4, "a pair of a schedule and its duration, but got 8"),
        (["ab"], 4, "a pair of a schedule and its duration, but got 'ab'"),
        ([(0, "2 steps")], 4, "whole number of at least 1"),
        ([(1, "2 steps")], None, "expected a schedule"),
    ],
)
def test_sequence_that_cannot_be_is_an_error(phases, last, problem):
    with pytest.raises(ConfigError, match=problem):
        Sequence(phases, last)


@pytest.mark.parametrize(
    "later", [PerEpoch("0:1, 4:8"), "linear(8, 32, over=30%)", "0 samples: 1, 9 samples: 2", "8 for 2 epochs, then 3"]
)
def test_sequence_later_schedule_in_another_unit_is_an_error(later):
    with pytest.raises(ConfigError, match="later schedule that counts in steps"):
        Sequence([(8, "500 steps")], last=later)
    with pytest.raises(ConfigError, match="later schedule that counts in steps"):
        Sequence([(8, "500 steps"), (later, "500 steps")], last=8)


def test_sequence_str_reads_as_a_sentence():
    schedule = Sequence([("linear(1, 8, over=5 steps)", "9 steps"), (Sequence([(2, "3 steps")], 4), "7 steps")], last=8)
    assert str(schedule) == "linear(1, 8, over=5 steps) for 9 steps, then (2 for 3 steps, then 4) for 7 steps, then 8"


def test_sequence_tells_the_largest_value_and_all_units():
    schedule = Sequence([(PerEpoch("0:64, 1:2"), "9 steps")], last=8)
    assert (schedule.max_value(), schedule.units) == (64, {"epochs", "steps"})


def test_sequence_with_an_unknown_schedule_tells_nothing():
    schedule = Sequence([(8, "9 steps")], last=FromCallable(lambda progress: 3))
    assert (schedule.max_value(), schedule.units) == (None, None)


def test_sequence_is_predictable_if_all_its_schedules_are():
    adaptive = FromCallable(lambda progress: 3, is_predictable=False)
    assert Sequence([(8, "9 steps")], last=4).is_predictable
    assert not Sequence([(8, "9 steps")], last=adaptive).is_predictable
    assert not Sequence([(adaptive, "9 steps")], last=8).is_predictable


def test_sequence_copies_its_phases():
    phases = [[1, "2 steps"]]
    schedule = Sequence(phases, last=Constant(2))
    phases[0][0] = 99
    assert read(schedule, [0]) == [1]
    assert all(isinstance(schedule, Schedule) for schedule, _ in schedule.turns)
