"""Reading what ``training_step`` returned: one loss or several terms, and how many items each is a mean over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lightning_accum.errors import expected
from lightning_accum.weighting import MAX_TERMS


@dataclass(slots=True)
class StepOutput:
    """What one ``training_step`` returned.

    Attributes:
        losses: the loss, or its terms in the order of their sorted names; empty if there is none.
        names: the terms' names; empty for a single loss.
        for_user: the loss that callbacks are shown, ``None`` if the step returned ``None``.
        for_lightning: the output in a form that Lightning takes.
        raw: what came, for weights that look at it.
        weights: the weight of each loss, once it is known.
    """

    losses: list[Tensor]
    names: list[str]
    for_user: Tensor | None
    for_lightning: Any
    raw: Any
    weights: list[float] = field(default_factory=list)


def read_output(output: Any, device: torch.device) -> StepOutput:
    """Return the losses in what ``training_step`` returned.

    Args:
        output: a loss, a mapping with a ``"loss"`` (itself a loss or a mapping of several), or ``None``.
        device: where the loss that stands in for ``None`` is made.

    Raises:
        ConfigError: for a loss of several elements, loss terms that are no tensors, or too many terms.

    Example:
        >>> step = read_output({"loss": {"b": torch.tensor(2.0), "a": torch.tensor(1.0)}}, torch.device("cpu"))
        >>> step.names, step.for_user
        (['a', 'b'], tensor(3.))
    """
    if output is None:
        return StepOutput([], [], None, torch.zeros((), device=device), None)
    loss = output if isinstance(output, Tensor) else output.get("loss") if isinstance(output, Mapping) else None
    if isinstance(loss, Tensor):
        if loss.ndim and loss.numel() != 1:
            do = "Return its mean; what the mean is over is its weight."
            raise expected("a loss of one element", tuple(loss.shape), "the shape of training_step's loss", do)
        return StepOutput([loss], [], loss.detach().clone(), output, output)
    if isinstance(loss, Mapping):
        return _read_terms(output, loss)
    return StepOutput([], [], None, output, output)


def _read_terms(output: Mapping[str, Any], loss: Mapping[str, Any]) -> StepOutput:
    names = sorted(loss, key=str)
    terms = [loss[name] for name in names]
    if not 1 <= len(names) <= MAX_TERMS or not all(isinstance(term, Tensor) and term.numel() == 1 for term in terms):
        kinds = {name: getattr(term, "shape", type(term).__name__) for name, term in zip(names, terms, strict=True)}
        raise expected(f"1 to {MAX_TERMS} loss terms, each a tensor of one element", kinds, "training_step's loss")
    total = torch.stack([term.reshape(()) for term in terms]).sum()
    return StepOutput(terms, names, total.detach(), {**output, "loss": total}, output)
