"""Settings that contradict each other, found when training is set up and not later."""

from __future__ import annotations

import ast
import inspect
import textwrap

import lightning.pytorch as pl
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from lightning_accum import _lightning
from lightning_accum.counting import Weight
from lightning_accum.errors import ConfigError, expected
from lightning_accum.schedules import Constant, Schedule
from lightning_accum.window import Unit


def check_trainer(trainer: pl.Trainer, callback: pl.Callback, schedule: Schedule, weight: Weight, unit: Unit) -> None:
    """Raise :class:`ConfigError` for settings of a trainer that contradict the callback or cannot be right."""
    _check_alone(trainer, callback)
    _check_factor(trainer, schedule, unit)
    if not trainer.lightning_module.automatic_optimization:
        name = type(trainer.lightning_module).__name__
        raise expected("automatic optimization", "automatic_optimization=False", name)
    if unit == "items" and weight.needs_outputs:
        do = "Give weight='tokens', 'pixels', or FromBatch(function)."
        raise expected("a weight that the batch alone tells, as a window must know its end", weight, "unit='items'", do)
    if _may_accumulate(schedule, unit):
        _check_static_graph(trainer)
    _tell_divided_loss(trainer.lightning_module)


def _check_alone(trainer: pl.Trainer, callback: pl.Callback) -> None:
    others = [
        other
        for other in _lightning.callbacks_of(trainer)
        if other is not callback and isinstance(other, (type(callback), GradientAccumulationScheduler))
    ]
    if others:
        got = [type(callback).__name__, *(type(other).__name__ for other in others)]
        raise expected("one callback that decides about windows", got, "Trainer(callbacks=...)", "Leave one.")


def _check_factor(trainer: pl.Trainer, schedule: Schedule, unit: Unit) -> None:
    factor = int(trainer.accumulate_grad_batches)
    if factor != 1 and not (unit == "micro_batches" and schedule == Constant(factor)):
        raise ConfigError(
            f"expected one accumulation factor, but got Trainer(accumulate_grad_batches={factor}) and "
            f"GradientAccumulation({schedule!r}, unit={unit!r}). Leave out one of them."
        )


def _may_accumulate(schedule: Schedule, unit: Unit) -> bool:
    largest = schedule.max_value()
    return unit != "micro_batches" or largest is None or largest > 1


def _check_static_graph(trainer: pl.Trainer) -> None:
    strategy = trainer.strategy
    if isinstance(strategy, DDPStrategy) and strategy._ddp_kwargs.get("static_graph"):
        raise ConfigError(
            "expected DDPStrategy(static_graph=False), but got static_graph=True with windows of more than one "
            "micro-batch (torch fails inside such a graph when synchronisation is skipped). Leave static_graph out."
        )


def _tell_divided_loss(module: pl.LightningModule) -> None:
    """Warn if ``training_step`` seems to divide its loss by an accumulation factor, which would divide it twice."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(type(module).training_step)))
    except (OSError, TypeError, SyntaxError):
        return
    for node in ast.walk(tree):
        divisor = _divisor(node)
        if divisor is not None and "accum" in (text := ast.unparse(divisor)).lower():
            rank_zero_warn(
                f"{type(module).__name__}.training_step divides by `{text}`. The loss is already divided by the items "
                "of its window; if this is the loss, it is divided twice and the gradient that many times too small. "
                "Return the mean loss as it is."
            )
            return


def _divisor(node: ast.AST) -> ast.expr | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return node.right
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        return node.args[0] if node.func.attr in ("div", "div_", "true_divide") else None
    return None
