"""Losses that are means over items, as users write them: what is counted, with batches to feed them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_accum.counting import FromBatch, Tokens
from tests.harness import Spied

NUM_FEATURES, NUM_HIDDEN, NUM_CLASSES, LENGTH = 3, 4, 3, 4
CLASS_WEIGHTS = torch.tensor([0.25, 1.0, 3.5], dtype=torch.float64)


class Net(nn.Module):
    """Two linear layers, applied to the last dimension of what comes in."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.hidden = nn.Linear(NUM_FEATURES, NUM_HIDDEN, dtype=dtype)
        self.head = nn.Linear(NUM_HIDDEN, NUM_CLASSES, dtype=dtype)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.hidden(x)))


class ConditionalNet(Net):
    """Has a layer that only those samples use that say so; where none does, it has no part in the graph."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.extra = nn.Linear(NUM_FEATURES, NUM_CLASSES, dtype=torch.float64)
        with torch.no_grad():
            for parameter in self.extra.parameters():
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).reshape(parameter.shape))

    def answer(self, batch: dict[str, Tensor]) -> Tensor:
        out = self(batch["x"])
        return out + batch["uses"][:, None] * self.extra(batch["x"]) if batch["uses"].any() else out


class TwoHeadNet(Net):
    """Has a second head, which one loss term alone uses, as detectors and multi-task models have."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.second = nn.Linear(NUM_HIDDEN, 1, dtype=torch.float64)
        with torch.no_grad():
            self.second.weight.copy_(torch.linspace(-1, 1, NUM_HIDDEN))
            self.second.bias.fill_(0.5)


@dataclass(frozen=True)
class Job:
    """A loss that is a mean over items.

    Attributes:
        weight: what a user gives as ``weight=`` for it.
        make: (generator, number of samples, whether no item is valid) -> batch.
        loss: (net, batch) -> the mean over the batch's items, or a dict of several such means.
        count: batch -> its number of items, or a dict of these. Written without the package.
        can_be_empty: whether a batch without a single valid item exists.
        is_returned: whether ``training_step`` returns the count beside the loss.
        is_mean_of_means: whether each micro-batch counts the same, whatever it holds.
        knows_items_before: whether the items can be counted before ``training_step``.
        net: the class of the net it trains.
    """

    weight: Any
    make: Callable[[torch.Generator, int, bool], Any]
    loss: Callable[[nn.Module, Any], Any]
    count: Callable[[Any], Any]
    can_be_empty: bool = True
    is_returned: bool = False
    is_mean_of_means: bool = False
    knows_items_before: bool = True
    net: type[Net] = Net


def _random(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _labels(generator: torch.Generator, shape: tuple[int, ...], ignored: int, empty: bool) -> Tensor:
    labels = torch.randint(NUM_CLASSES, shape, generator=generator)
    drop = torch.rand(shape, generator=generator) < 0.4
    return torch.where(drop | torch.tensor(empty), torch.tensor(ignored), labels)


def _make_regression(generator: torch.Generator, size: int, empty: bool) -> dict[str, Tensor]:
    valid = (torch.rand(size, 2, generator=generator, dtype=torch.float64) + 0.1) * (not empty)
    return {
        "x": _random(generator, size, NUM_FEATURES),
        "y": _random(generator, size, NUM_CLASSES),
        "valid": valid[:, 0],
        "other": valid[:, 1] * (torch.rand(size, generator=generator) < 0.5),
    }


def _errors(net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return (net(batch["x"]) - batch["y"]).square().sum(-1)


def _loss_samples(net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return _errors(net, batch).mean()


def _loss_masked(net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return (_errors(net, batch) * batch["valid"]).sum() / batch["valid"].sum()  # 0/0 where nothing is valid


def _loss_terms(net: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    distances = net(batch["x"]).abs().sum(-1)
    return {"error": _loss_masked(net, batch), "distance": (distances * batch["other"]).sum() / batch["other"].sum()}


def _loss_heads(net: TwoHeadNet, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    distances = net.second(torch.tanh(net.hidden(batch["x"])))[:, 0].square()
    return {"error": _loss_masked(net, batch), "size": (distances * batch["other"]).sum() / batch["other"].sum()}


def _count_terms(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"error": batch["valid"].sum(), "distance": batch["other"].sum()}


def _count_heads(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"error": batch["valid"].sum(), "size": batch["other"].sum()}


def _loss_conditional(net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    errors = (net.answer(batch) - batch["y"]).square().sum(-1)
    return (errors * batch["valid"]).sum() / batch["valid"].sum()


def _make_tokens(generator: torch.Generator, size: int, empty: bool) -> dict[str, Tensor]:
    x = _random(generator, size, LENGTH, NUM_FEATURES)
    return {"x": x, "labels": _labels(generator, (size, LENGTH), -100, empty)}


def _loss_shifted(net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    logits, labels = net(batch["x"])[:, :-1], batch["labels"][:, 1:]
    return F.cross_entropy(logits.reshape(-1, NUM_CLASSES), labels.reshape(-1), ignore_index=-100)


def _loss_tagged(net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(net(batch["x"]).reshape(-1, NUM_CLASSES), batch["labels"].reshape(-1), ignore_index=-100)


def _make_pixels(generator: torch.Generator, size: int, empty: bool) -> tuple[Tensor, Tensor]:
    return _random(generator, size, NUM_FEATURES, 2, 2), _labels(generator, (size, 2, 2), 255, empty)


def _loss_pixels(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    logits = net(batch[0].movedim(1, -1)).movedim(-1, 1)
    return F.cross_entropy(logits, batch[1], ignore_index=255)


def _loss_class_weighted(net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    logits, labels = net(batch["x"]).reshape(-1, NUM_CLASSES), batch["labels"].reshape(-1)
    return F.cross_entropy(logits, labels, weight=CLASS_WEIGHTS, ignore_index=-100)


def count_class_weight(batch: dict[str, Tensor], outputs: Any = None) -> Tensor:
    """What a class-weighted cross entropy divides by: the weights of the labels that count."""
    labels = batch["labels"]
    return CLASS_WEIGHTS[labels.clamp(min=0)][labels != -100].sum()


def count_valid(batch: dict[str, Tensor]) -> Tensor:
    """The sum of the weights of a batch's samples."""
    return batch["valid"].sum()


JOBS: dict[str, Job] = {
    "samples": Job("samples", _make_regression, _loss_samples, lambda batch: len(batch["x"]), can_be_empty=False),
    "equal": Job("equal", _make_regression, _loss_samples, lambda batch: 1, can_be_empty=False, is_mean_of_means=True),
    "tokens": Job("tokens", _make_tokens, _loss_shifted, lambda batch: (batch["labels"][:, 1:] >= 0).sum().item()),
    "tags": Job(Tokens(shift=False), _make_tokens, _loss_tagged, lambda batch: (batch["labels"] >= 0).sum().item()),
    "pixels": Job("pixels", _make_pixels, _loss_pixels, lambda batch: (batch[1] < 255).sum().item()),
    "batch": Job(FromBatch(count_valid), _make_regression, _loss_masked, count_valid),
    "callable": Job(
        count_class_weight, _make_tokens, _loss_class_weighted, count_class_weight, knows_items_before=False
    ),
    "returned": Job(
        "returned", _make_regression, _loss_masked, count_valid, is_returned=True, knows_items_before=False
    ),
    "terms": Job("returned", _make_regression, _loss_terms, _count_terms, is_returned=True, knows_items_before=False),
    "heads": Job(
        "returned",
        _make_regression,
        _loss_heads,
        _count_heads,
        is_returned=True,
        knows_items_before=False,
        net=TwoHeadNet,
    ),
}

CONDITIONAL = Job("returned", _make_regression, _loss_conditional, count_valid, is_returned=True, net=ConditionalNet)
"""For a :class:`ConditionalNet`, on batches with a key ``"uses"``."""


class JobModule(Spied):
    """Trains a net on a job, as a user would write it; at the batches in ``gives_up`` the step returns nothing."""

    def __init__(
        self, job: Job, net: nn.Module, configure: Callable[[nn.Module], Any], gives_up: set[int] = frozenset()
    ):
        super().__init__()
        self.job, self.net, self.configure = job, net, configure
        self.gives_up = gives_up
        self.num_estimated: float | None = None
        self.asks_for_estimate = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx in self.gives_up:
            return None
        loss = self.job.loss(self.net, batch)
        return {"loss": loss, "num_items": self.job.count(batch)} if self.job.is_returned else loss

    def configure_optimizers(self) -> Any:
        if self.asks_for_estimate:
            self.num_estimated = self.trainer.estimated_stepping_batches
        return self.configure(self.net)
