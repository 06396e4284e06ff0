import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_accum.errors import ConfigError
from lightning_accum.progress import Progress
from lightning_accum.schedules import CosineRamp, ExponentialRamp, LinearRamp

RAMPS = [LinearRamp, CosineRamp, ExponentialRamp]


def read(schedule, steps):
    return [schedule(Progress(num_optimizer_steps=step)) for step in steps]


@st.composite
def ramps(draw):
    """A ramp of up to 60 steps after a delay of up to 10, on any grid, up or down; with its length and delay."""
    over, delay = draw(st.integers(1, 60)), draw(st.integers(0, 10))
    if draw(st.booleans()):
        start, end = (2 ** draw(st.integers(0, 10)) for _ in range(2))
        rounding = {"round_to": "power_of_two"}
    else:
        multiple = draw(st.integers(1, 16))
        start, end = (multiple * draw(st.integers(1, 80)) for _ in range(2))
        rounding = {"multiple": multiple}
    shape = draw(st.sampled_from(RAMPS))
    return shape(start, end, over=f"{over} steps", delay=f"{delay} steps", **rounding), over, delay


@given(ramps())
def test_ramp_is_monotone_and_within_its_ends(case):
    ramp, over, delay = case
    values = read(ramp, range(over + delay + 5))
    ordered = values if ramp.end >= ramp.start else values[::-1]
    assert all(earlier <= later for earlier, later in pairwise(ordered))
    assert {min(values), max(values)} == {min(ramp.start, ramp.end), max(ramp.start, ramp.end)}


@given(ramps())
def test_ramp_waits_at_its_start_and_stays_at_its_end(case):
    ramp, over, delay = case
    assert set(read(ramp, range(delay + 1))) == {ramp.start}
    assert set(read(ramp, range(delay + over, delay + over + 5))) == {ramp.end}


@given(ramps())
def test_ramp_does_not_reach_its_end_before_its_time(case):
    ramp, over, delay = case
    if ramp.start != ramp.end and not isinstance(ramp, CosineRamp):
        assert ramp.end not in read(ramp, range(delay + over))


@given(ramps())
def test_ramp_values_lie_on_the_grid(case):
    ramp, over, delay = case
    for value in read(ramp, range(over + delay + 2)):
        assert value % ramp.multiple == 0
        if ramp.round_to == "power_of_two":
            assert math.log2(value).is_integer()


@given(start=st.integers(1, 500), end=st.integers(1, 500), over=st.integers(1, 3000), data=st.data())
def test_linear_ramp_equals_integer_arithmetic(start, end, over, data):
    step = data.draw(st.integers(0, over))
    rise = abs(end - start) * step // over
    assert read(LinearRamp(start, end, over=f"{over} steps"), [step]) == [start + rise if end > start else start - rise]


def test_linear_ramp_holds_each_value_equally_long():
    assert read(LinearRamp(8, 32, over="12 steps", multiple=8), range(14)) == [8] * 4 + [16] * 4 + [24] * 4 + [32] * 2


def test_linear_ramp_goes_down_as_it_goes_up():
    up, down = LinearRamp(8, 32, over="48 steps"), LinearRamp(32, 8, over="48 steps")
    assert [40 - value for value in read(up, range(50))] == read(down, range(50))


def test_exponential_ramp_doubles_in_equal_times():
    ramp = ExponentialRamp(4, 64, over="8 steps", round_to="power_of_two")
    assert read(ramp, range(10)) == [4, 4, 8, 8, 16, 16, 32, 32, 64, 64]


def test_ramp_value_that_is_whole_but_for_rounding_errors_is_that_whole_number():
    assert read(LinearRamp(1, 50, over="49 steps"), range(50)) == list(
        range(1, 51)
    )  # 1 + 49 * (27 / 49) < 28 in floats
    assert read(ExponentialRamp(1, 8, over="3 steps"), range(4)) == [1, 2, 4, 8]  # 8 ** (2 / 3) < 4 in floats


def test_exponential_ramp_halves_in_equal_times():
    assert read(ExponentialRamp(8, 1, over="3 steps"), range(4)) == [8, 4, 2, 1]


def test_cosine_ramp_is_half_way_at_half_time_and_slow_at_both_ends():
    values = read(CosineRamp(100, 300, over="1000 steps"), [100, 500, 900])
    assert values == [104, 200, 295]  # 100 (1 - cos(0.1 pi)) = 4.89


@pytest.mark.parametrize("shape", RAMPS)
def test_ramp_from_a_value_to_itself_is_constant(shape):
    assert set(read(shape(8, 8, over="10 steps"), range(12))) == {8}


@pytest.mark.parametrize(
    ("over", "delay", "half_way"),
    [
        ("10 epochs", "2 epochs", Progress(epoch=7)),
        ("1e3 samples", "500 samples", Progress(num_samples=1000)),
        ("1e3 items", None, Progress(num_items=500)),
        ("8 micro_steps", None, Progress(num_micro_steps=4)),
        ("20%", "10%", Progress(fraction=0.2)),
    ],
)
@pytest.mark.parametrize("shape", [LinearRamp, CosineRamp])
def test_ramp_counts_in_any_unit(shape, over, delay, half_way):
    assert shape(10, 30, over=over, delay=delay)(half_way) == 20


def test_ramp_in_percent_ends_exactly_in_spite_of_binary_fractions():
    assert LinearRamp(8, 32, over="20%", delay="10%")(Progress(fraction=0.3)) == 32  # 0.3 - 0.1 < 0.2 in floats


def test_ramp_in_percent_of_unknown_length_is_an_error():
    with pytest.raises(ConfigError, match="known length"):
        LinearRamp(8, 32, over="20%")(Progress())


@pytest.mark.parametrize("shape", RAMPS)
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"over": 2000}, r"number with a unit.*but got 2000 \(in {name}\(over=\.\.\.\)\). Write \"2000 steps\""),
        ({"over": "0 steps"}, r"longer than nothing.*{name}\(over"),
        ({"delay": 5}, r"number with a unit.*{name}\(delay"),
        ({"delay": "2 epochs"}, r"a delay in steps, as over='200 steps' is, but got '2 epochs'"),
        ({"start": 0}, r"whole number of at least 1, but got 0 \(in {name}\(start"),
        ({"end": 2.5}, r"whole number of at least 1, but got 2.5 \(in {name}\(end"),
        ({"multiple": 0}, r"whole number of at least 1, but got 0 \(in {name}\(multiple"),
        ({"multiple": 5}, r"multiple of 5, as multiple= asks, but got 8 \(in {name}\(start"),
        ({"multiple": 8, "end": 30}, r"multiple of 8, as multiple= asks, but got 30 \(in {name}\(end"),
        ({"round_to": "power_of_two", "end": 30}, r"power of two, as round_to asks, but got 30 \(in {name}\(end"),
        ({"round_to": "power_of_two", "multiple": 8}, r"one of multiple= and round_to='power_of_two'"),
        ({"round_to": "nearest"}, r"'multiple' or 'power_of_two', but got 'nearest'"),
    ],
)
def test_ramp_that_cannot_be_is_an_error(shape, arguments, problem):
    with pytest.raises(ConfigError, match=problem.replace("{name}", shape.__name__)):
        shape(**({"start": 8, "end": 32, "over": "200 steps"} | arguments))


@pytest.mark.parametrize(
    ("ramp", "text"),
    [
        (LinearRamp(8, 32, over="2e3 steps"), "linear(8, 32, over=2000 steps)"),
        (CosineRamp(8, 32, over="30%", delay="5%"), "cosine(8, 32, over=30%, delay=5%)"),
        (LinearRamp(8, 32, over="5e6 samples", multiple=8), "linear(8, 32, over=5e6 samples, multiple=8)"),
        (
            ExponentialRamp(8, 32, over="3 epochs", round_to="power_of_two"),
            "exponential(8, 32, over=3 epochs, round_to=power_of_two)",
        ),
    ],
)
def test_ramp_str_says_what_was_set(ramp, text):
    assert str(ramp) == text


def test_ramp_of_another_shape_is_not_equal():
    assert LinearRamp(8, 32, over="2 steps") != CosineRamp(8, 32, over="2 steps")


@pytest.mark.parametrize(("start", "end"), [(8, 32), (32, 8)])
def test_ramp_tells_its_largest_value_and_its_unit(start, end):
    ramp = LinearRamp(start, end, over="30%")
    assert (ramp.max_value(), ramp.units, ramp.is_predictable) == (32, {"percent"}, True)
