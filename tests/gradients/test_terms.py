"""Gradient sums of loss terms with totals of their own, on one rank (several ranks run as processes)."""

import torch
from torch.nn import Parameter

from lightning_accum.gradients.losses import WindowLosses
from lightning_accum.gradients.sync import Ranks, _buckets
from lightning_accum.gradients.terms import TermGradients

ALONE = Ranks(1, torch.device("cpu"))


def test_terms_leave_grad_alone_until_applied() -> None:
    weight, unused = Parameter(torch.ones(2)), Parameter(torch.ones(2))
    frozen = Parameter(torch.ones(2), requires_grad=False)
    terms = TermGradients([weight, unused, frozen])
    loss = (weight * frozen).sum()
    terms.add(1, loss)
    terms.add(1, 2 * loss)
    loss.backward()
    assert weight.grad.tolist() == [1.0, 1.0]
    terms.apply(1, 10.0, ALONE)
    assert weight.grad.tolist() == [31.0, 31.0]
    assert unused.grad is None and frozen.grad is None


def test_terms_applied_twice_count_once() -> None:
    weight = Parameter(torch.ones(()))
    terms = TermGradients([weight])
    terms.add(1, weight * 3)
    terms.apply(1, 1.0, ALONE)
    terms.apply(1, 1.0, ALONE)
    assert weight.grad.item() == 3.0


def test_losses_weigh_and_skip_what_has_no_weight() -> None:
    losses = WindowLosses(torch.device("cpu"))
    losses.add([torch.tensor(1.0), torch.tensor(10.0)], [1.0, 2.0])
    losses.add([torch.tensor(float("nan")), torch.tensor(40.0)], [0.0, 1.0])
    losses.add([torch.tensor([5.0]), torch.tensor(0.0)], [3.0, 1.0])
    assert losses.mean([4.0, 4.0]).item() == 4.0 + 15.0
    assert losses.mean([8.0, 8.0] + [0.0] * 6, 2 * losses.sums()).item() == 4.0 + 15.0


def test_buckets_hold_one_dtype_and_a_limited_size() -> None:
    small, double, large = torch.zeros(4), torch.zeros(4, dtype=torch.float64), torch.zeros(7_000_000)
    buckets = _buckets([small, small, double, small, large, large])
    assert [len(bucket) for bucket in buckets] == [2, 1, 1, 1, 1]
