import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_accum.errors import ConfigError
from lightning_accum.progress import Duration, Progress

UNITS = ["steps", "micro_steps", "epochs", "samples", "items", "percent"]
WHERE_IT_IS_COUNTED = {
    "steps": Progress(num_optimizer_steps=6),
    "micro_steps": Progress(num_micro_steps=6),
    "epochs": Progress(epoch=6),
    "samples": Progress(num_samples=6),
    "items": Progress(num_items=6),
    "percent": Progress(fraction=0.06),
}


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("2000 steps", Duration(2000, "steps")),
        ("2_000steps", Duration(2000, "steps")),
        ("1 step", Duration(1, "steps")),
        ("12 micro-steps", Duration(12, "micro_steps")),
        ("12 micro steps", Duration(12, "micro_steps")),
        (" 3 Epochs ", Duration(3, "epochs")),
        ("5e6 samples", Duration(5_000_000, "samples")),
        ("2e9 items", Duration(2_000_000_000, "items")),
        (".5 items", Duration(0.5, "items")),
        ("30%", Duration(30, "percent")),
        ("12.5 percent", Duration(12.5, "percent")),
    ],
)
def test_duration_written_as_text_is_read(text, duration):
    assert Duration.parse(text) == duration


def test_duration_whole_float_becomes_int():
    assert isinstance(Duration(5e6, "samples").amount, int)


def test_duration_parse_of_duration_returns_it():
    duration = Duration(3, "epochs")
    assert Duration.parse(duration) is duration


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (Duration(2000, "steps"), "2000 steps"),
        (Duration(1, "steps"), "1 step"),
        (Duration(0, "epochs"), "0 epochs"),
        (Duration(5_000_000, "samples"), "5e6 samples"),
        (Duration(1_500_000, "samples"), "1500000 samples"),
        (Duration(12_000_000, "samples"), "12e6 samples"),
        (Duration(0.5, "items"), "0.5 items"),
        (Duration(30, "percent"), "30%"),
        (Duration(12.5, "percent"), "12.5%"),
    ],
)
def test_duration_str_is_as_a_person_writes_it(duration, text):
    assert str(duration) == text


@given(
    unit=st.sampled_from(UNITS),
    amount=st.one_of(st.integers(0, 10**12), st.floats(0, 1e9, allow_subnormal=False)),
)
def test_duration_str_is_read_back_as_the_same(unit, amount):
    if unit == "percent":
        amount = min(amount, 100)
    elif unit != "items":
        amount = int(amount)
    duration = Duration(amount, unit)
    assert Duration.parse(str(duration)) == duration


@pytest.mark.parametrize("bare", [2000, 2000.0, "2000", "5e6", "1_000"])
def test_duration_bare_number_is_an_error_that_names_the_units(bare):
    with pytest.raises(
        ConfigError, match=r"steps, micro_steps, epochs, samples, items or %.*in here.*Write \""
    ) as error:
        Duration.parse(bare, where="here")
    assert f"{bare} steps" in str(error.value)


@pytest.mark.parametrize("text", ["", "steps", "many steps", "1.2.3 steps", "2000 steps 3", None, ["2000 steps"]])
def test_duration_that_is_no_duration_is_an_error(text):
    with pytest.raises(ConfigError, match="expected a number with a unit"):
        Duration.parse(text)


@pytest.mark.parametrize("text", ["5 batches", "5 hours", "5 micro_epochs"])
def test_duration_unknown_unit_is_an_error_that_shows_the_text(text):
    with pytest.raises(ConfigError, match=f"a unit out of .* but got '{text}'"):
        Duration.parse(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("-1 steps", "at least 0"),
        ("2.5 steps", "a whole number of steps"),
        ("0.5 epochs", "a whole number of epochs"),
        ("101%", "at most 100%"),
        ("1e999 steps", "finite"),
    ],
)
def test_duration_impossible_amount_is_an_error_from_text_and_from_numbers(text, problem):
    with pytest.raises(ConfigError, match=problem):
        Duration.parse(text, where="over")
    amount, unit = (text[:-1], "percent") if text.endswith("%") else text.split()
    with pytest.raises(ConfigError, match=problem):
        Duration(float(amount), unit)


def test_duration_of_wrong_types_is_an_error():
    with pytest.raises(ConfigError, match="a unit out of"):
        Duration(3, "hours")
    with pytest.raises(ConfigError, match="at least 0"):
        Duration(True, "steps")
    with pytest.raises(ConfigError, match="at least 0"):
        Duration("3", "steps")


@pytest.mark.parametrize("unit", UNITS)
def test_duration_looks_at_the_count_of_its_own_unit(unit):
    progress = WHERE_IT_IS_COUNTED[unit]
    assert Duration(4, unit).position(progress) == pytest.approx(6)
    assert Duration(4, unit).elapsed(progress) == pytest.approx(1.5)
    others = [Duration(4, other) for other in UNITS if other not in (unit, "percent")]
    assert [other.position(progress) for other in others] == [0] * len(others)


@pytest.mark.parametrize("percent", range(1, 101))
def test_duration_in_percent_is_reached_exactly_at_that_share(percent):
    duration = Duration(percent, "percent")
    assert duration.reached(Progress(fraction=percent / 100))
    assert not duration.reached(Progress(fraction=(percent - 0.5) / 100))


def test_duration_reached_begins_at_its_end():
    duration = Duration.parse("10 steps")
    assert [duration.reached(Progress(num_optimizer_steps=step)) for step in (0, 9, 10, 11)] == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("unit", UNITS)
def test_duration_of_nothing_has_passed_at_once(unit):
    assert Duration(0, unit).reached(Progress(fraction=0.0))


@pytest.mark.parametrize("method", ["position", "elapsed", "reached"])
def test_duration_in_percent_of_unknown_length_says_what_to_set(method):
    with pytest.raises(ConfigError, match=r"known length.*'30%'.*Set max_epochs or max_steps"):
        getattr(Duration.parse("30%"), method)(Progress())


def test_progress_since_shifts_only_the_count_of_its_unit():
    progress = Progress(
        epoch=3, num_optimizer_steps=700, num_micro_steps=1400, num_samples=10, num_items=20, fraction=0.7
    )
    shifted = progress.since(Duration.parse("500 steps"))
    assert shifted == Progress(3, 200, 1400, 10, 20, 0.7)
    assert progress.since(Duration.parse("2 epochs")).epoch == 1
    assert progress.since(Duration.parse("15 items")).num_items == 5


@pytest.mark.parametrize("first", range(1, 60))
def test_progress_since_percent_leaves_no_rounding_error(first):
    shifted = Progress(fraction=(first + 37) / 100).since(Duration(first, "percent"))
    assert shifted.fraction == 0.37


def test_progress_since_percent_of_unknown_length_is_an_error():
    with pytest.raises(ConfigError, match="known length"):
        Progress().since(Duration.parse("30%"))


def test_progress_and_duration_are_values():
    assert pickle.loads(pickle.dumps(Progress(1, 2))) == Progress(1, 2)
    assert {Duration.parse("2e3 steps"), Duration.parse("2000 steps")} == {Duration(2000, "steps")}
    with pytest.raises(AttributeError):
        Progress().epoch = 1
