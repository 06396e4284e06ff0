import copy
import pickle

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from jsonargparse import ArgumentParser
from omegaconf import OmegaConf

from lightning_accum.errors import ConfigError
from lightning_accum.progress import Progress
from lightning_accum.schedules import (
    Constant,
    CosineRamp,
    ExponentialRamp,
    FromCallable,
    LinearRamp,
    PerEpoch,
    Schedule,
    Sequence,
    Stages,
    as_schedule,
)

PER_EPOCH = PerEpoch({0: 1, 4: 8})
STAGES = Stages({"0 steps": 1, "500 steps": 4})
RAMP = LinearRamp(8, 32, over="2000 steps")
EVERY_FORM = [
    (8, Constant(8)),
    (8.0, Constant(8)),
    ("8", Constant(8)),
    (" 5e6 ", Constant(5_000_000)),
    ({0: 1, 4: 8}, PER_EPOCH),
    ({"0": 1, "4": 8}, PER_EPOCH),
    ([[0, 1], [4, 8]], PER_EPOCH),
    (((0, 1), (4, 8)), PER_EPOCH),
    ("0:1,4:8", PER_EPOCH),
    ("0:1, 4:8", PER_EPOCH),
    ("0:1 4:8", PER_EPOCH),
    ("0 : 1 , 4 : 8 ", PER_EPOCH),
    ("0:8", PerEpoch({0: 8})),
    ({"0 steps": 1, "500 steps": 4}, STAGES),
    ([["0 steps", 1], ["500 steps", 4]], STAGES),
    ("0 steps: 1, 500 steps: 4", STAGES),
    ("0 steps:1 500 steps:4", STAGES),
    ("0%: 1, 30%: 4", Stages({"0%": 1, "30%": 4})),
    ("linear(8, 32, over=2000 steps)", RAMP),
    ("linear(8,32,2000 steps)", RAMP),
    ("linear(end=32, over=2e3 steps, start=8)", RAMP),
    ("cosine(8, 32, over=30%, delay=5%)", CosineRamp(8, 32, over="30%", delay="5%")),
    ("exponential(8, 32, 3 epochs, multiple=1)", ExponentialRamp(8, 32, over="3 epochs")),
    ("linear(8, 32, over=9 steps, round_to=power_of_two)", LinearRamp(8, 32, "9 steps", round_to="power_of_two")),
    ("8 for 500 steps, then 16", Sequence([(8, "500 steps")], 16)),
    ("8 for 500 steps then 16", Sequence([(8, "500 steps")], 16)),
    ("0:1, 4:8 for 9 epochs, then 0:2, 1:4", Sequence([(PER_EPOCH, "9 epochs")], PerEpoch({0: 2, 1: 4}))),
    (
        "(1 for 2 steps, then linear(1, 4, over=3 steps)) for 9 steps, then 8",
        Sequence([(Sequence([(1, "2 steps")], LinearRamp(1, 4, over="3 steps")), "9 steps")], 8),
    ),
    (OmegaConf.create({0: 1, 4: 8}), PER_EPOCH),
    (OmegaConf.create([[0, 1], [4, 8]]), PER_EPOCH),
]


@pytest.mark.parametrize(("value", "schedule"), EVERY_FORM, ids=lambda value: repr(value)[:50])
def test_as_schedule_reads_every_form(value, schedule):
    assert as_schedule(value) == schedule


def test_as_schedule_of_schedule_is_itself():
    assert as_schedule(RAMP) is RAMP


def test_as_schedule_of_function_calls_it():
    schedule = as_schedule(lambda progress: 3)
    assert isinstance(schedule, FromCallable)
    assert schedule(Progress()) == 3


@pytest.mark.parametrize("value", [None, object(), Constant, {8}])
def test_as_schedule_of_something_else_is_an_error_that_lists_the_forms(value):
    with pytest.raises(ConfigError, match=r"expected a schedule, a number, .*'linear\(8, 32, over=2000 steps\)'"):
        as_schedule(value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected '8', "),
        ("eight", "expected '8', "),
        ("8 for 500 steps", "expected '8', "),
        ("linear(8, 32, over=2000 steps", "expected '8', "),
        ("0", "whole number of at least 1"),
        ("nan", "whole number of at least 1"),
        ("4:8", "first epoch, 0"),
        ("0:1, 5 steps: 4", "an epoch"),
        ("0:1:2", "expected pairs"),
        ("0:1,,4:8", "expected pairs"),
        (":8", "expected pairs"),
        ("0:", "expected pairs"),
        ("square(8, 32, over=3 steps)", "one of linear, cosine, exponential, but got 'square'"),
        ("linear()", "start and end and over too"),
        ("linear(8, 32)", r"over too, as in linear\(8, 32, over=2000 steps\)"),
        ("linear(8, 32, over=2000)", "number with a unit.*LinearRamp"),
        ("linear(8, 32, until=20 steps)", "arguments out of start, end, over"),
        ("linear(8, 32, 9 steps, 1 steps, 1, multiple, 7)", "arguments out of start, end, over"),
        ("linear(8, 32, over=2 steps, start=9)", "each once"),
        ("linear(8, 32, over=2 steps, over=9 steps)", "arguments such as"),
        ("linear(8, over=2 steps, 32)", "arguments such as"),
        ("linear(8,, over=2 steps)", "arguments such as"),
        ("linear(8, =32, over=2 steps)", "arguments such as"),
        ("linear(eight, 32, over=2 steps)", r"whole number.*'eight' \(in LinearRamp\(start"),
        ("8, then 16", "a schedule and its duration such as"),
        ("8 for 3 steps for 4 steps, then 16", "a schedule and its duration such as"),
        ("8 for 3, then 16", "number with a unit"),
        ("8 for 3 steps, then", "expected '8', "),
    ],
)
def test_as_schedule_of_broken_text_is_an_error(text, problem):
    with pytest.raises(ConfigError, match=problem):
        as_schedule(text)


# Text and back


def _grow(schedules):
    pairs = st.lists(st.tuples(schedules, st.integers(1, 99).map("{} steps".format)), min_size=1, max_size=3)
    return st.builds(Sequence, pairs, schedules)


WHOLE = st.integers(1, 10**7)
SIMPLE = st.one_of(
    st.builds(Constant, WHOLE),
    st.dictionaries(st.integers(1, 99), WHOLE).map(
        lambda later: Stages({"0 steps": 3} | {f"{step} steps": later[step] for step in sorted(later)})
    ),
    st.builds(
        lambda shape, *arguments: shape(*arguments),
        st.sampled_from([LinearRamp, CosineRamp, ExponentialRamp]),
        WHOLE,
        WHOLE,
        st.integers(1, 10**7).map("{} steps".format),
        st.none() | st.integers(0, 99).map("{} steps".format),
    ),
)


@given(st.recursive(SIMPLE, _grow, max_leaves=6))
def test_schedule_as_text_is_read_back_as_the_same(schedule):
    assert as_schedule(str(schedule)) == schedule


@pytest.mark.parametrize(("value", "schedule"), EVERY_FORM, ids=lambda value: repr(value)[:50])
def test_schedule_is_a_value(value, schedule):
    again = as_schedule(value)
    assert {again} == {schedule}
    assert eval(repr(schedule)) == schedule
    assert pickle.loads(pickle.dumps(schedule)) == copy.deepcopy(schedule) == schedule
    with pytest.raises(AttributeError):
        schedule.value = 3


# From a command line and from a file


@pytest.mark.parametrize(
    ("override", "schedule"),
    [
        ("accumulation.schedule=8", Constant(8)),
        ('accumulation.schedule="0:1,4:8"', PER_EPOCH),
        ("accumulation.schedule=0:1 4:8", PER_EPOCH),
        ("accumulation.schedule=[[0,1],[4,8]]", PER_EPOCH),
        ("accumulation.schedule=0 steps:1 500 steps:4", STAGES),
        ('accumulation.schedule="linear(8, 32, over=2000 steps)"', RAMP),
        ("accumulation.schedule=8 for 500 steps then 16", Sequence([(8, "500 steps")], 16)),
    ],
)
def test_hydra_override_replaces_the_schedule(tmp_path, override, schedule):
    (tmp_path / "config.yaml").write_text("accumulation: {schedule: '0:3, 7:5'}")
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        config = compose("config", overrides=[override])
    assert as_schedule(config.accumulation.schedule) == schedule


def test_hydra_sweep_takes_schedules_as_values():
    sweep = OverridesParser.create().parse_override('schedule=8,"0:1,4:8",0:1 4:8,"linear(8, 32, over=2000 steps)"')
    values = [
        OverridesParser.create().parse_override(f"schedule={text}").value() for text in sweep.sweep_string_iterator()
    ]
    assert [as_schedule(value) for value in values] == [Constant(8), PER_EPOCH, PER_EPOCH, RAMP]


@pytest.mark.parametrize(
    ("name", "arguments", "schedule"),
    [
        ("Constant", "{value: 8}", Constant(8)),
        ("PerEpoch", "{values: {0: 1, 4: 8}}", PER_EPOCH),
        ("PerEpoch", "{values: [[0, 1], [4, 8]]}", PER_EPOCH),
        ("PerEpoch", "{values: '0:1,4:8'}", PER_EPOCH),
        ("Stages", "{stages: {0 steps: 1, 500 steps: 4}}", STAGES),
        ("Stages", "{stages: [[0 steps, 1], [500 steps, 4]]}", STAGES),
        ("Stages", "{stages: '0 steps: 1, 500 steps: 4'}", STAGES),
        ("LinearRamp", "{start: 8, end: 32, over: 2000 steps}", RAMP),
        ("CosineRamp", "{start: 8, end: 32, over: 30%, delay: 5%}", CosineRamp(8, 32, "30%", "5%")),
        (
            "ExponentialRamp",
            "{start: 8, end: 32, over: 9 steps, round_to: power_of_two}",
            ExponentialRamp(8, 32, "9 steps", round_to="power_of_two"),
        ),
        ("Sequence", "{phases: [['8', 500 steps]], last: 16}", Sequence([(8, "500 steps")], 16)),
        (
            "Sequence",
            "{phases: [[8, 5 steps]], last: {class_path: LinearRamp, init_args: {start: 8, end: 32, over: 20 steps}}}",
            Sequence([(8, "5 steps")], LinearRamp(8, 32, "20 steps")),
        ),
        ("FromCallable", "{function: builtins.len}", FromCallable(len)),
    ],
)
def test_jsonargparse_builds_each_class_from_yaml(name, arguments, schedule):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--schedule", type=Schedule)
    config = parser.parse_string(f"schedule: {{class_path: lightning_accum.schedules.{name}, init_args: {arguments}}}")
    instantiate = getattr(parser, "instantiate", None) or parser.instantiate_classes  # its name before 4.49
    assert instantiate(config).schedule == schedule
