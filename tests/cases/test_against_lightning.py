"""Where Lightning's own accumulation is right, ours is the same to the last bit, and costs no host synchronisation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from lightning_accum import GradientAccumulation
from tests.harness import Record, Spied, make_loader, train


class Classifier(Spied):
    """A small float32 net under AdamW."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(5, 16), nn.GELU(), nn.Linear(16, 4))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=40)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


def make_batches(count: int, size: int = 6) -> list[Any]:
    generator = torch.Generator().manual_seed(2)
    return [
        (torch.randn(size, 5, generator=generator), torch.randint(4, (size,), generator=generator))
        for _ in range(count)
    ]


def assert_identical(ours: Record, other: list[torch.Tensor]) -> None:
    assert len(ours.parameters) == len(other) > 0
    for step, (mine, theirs) in enumerate(zip(ours.parameters, other, strict=True)):
        assert torch.equal(mine, theirs), f"step {step}: {(mine - theirs).abs().max()}"


@pytest.mark.parametrize("factor", [1, 2, 3, 4, 5, 7, 12])
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("weight", ["samples", "equal"])
def test_full_windows_of_equal_weight_are_bit_identical_to_lightnings_own(
    factor: int, clip: float | None, weight: str
) -> None:
    batches = make_batches(3 * factor)
    options: dict[str, Any] = {"max_epochs": 2, "gradient_clip_val": clip}
    ours = train(Classifier(), batches, GradientAccumulation(factor, weight=weight), **options)
    lightnings = train(Classifier(), batches, accumulate_grad_batches=factor, **options)
    assert_identical(ours, lightnings.parameters)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_bit_identity_does_not_depend_on_the_batch_size(size: int) -> None:
    batches = make_batches(9, size)
    ours = train(Classifier(), batches, 3)
    assert_identical(ours, train(Classifier(), batches, accumulate_grad_batches=3).parameters)


def test_bit_identity_does_not_need_a_length_of_the_loader_where_windows_are_full() -> None:
    batches = make_batches(9)
    ours = train(Classifier(), make_loader(batches, with_length=False), 3)
    assert_identical(ours, train(Classifier(), batches, accumulate_grad_batches=3).parameters)


def test_trainers_own_factor_is_bit_identical_too() -> None:
    batches = make_batches(9)
    ours = train(Classifier(), batches, GradientAccumulation(), accumulate_grad_batches=3)
    assert_identical(ours, train(Classifier(), batches, accumulate_grad_batches=3).parameters)


@pytest.mark.parametrize(("num_batches", "factor"), [(10, 4), (11, 4), (8, 5), (13, 7)])
def test_short_last_window_is_bit_identical_to_a_loop_that_divides_by_its_length(num_batches: int, factor: int) -> None:
    """Lightning itself divides the tail by the factor; a hand-written loop that knows better is the measure."""
    batches = make_batches(num_batches)
    ours = train(Classifier(), batches, factor, gradient_clip_val=0.05)
    module = Classifier()
    (optimizer,), (config,) = module.configure_optimizers()
    by_hand = []
    for first in range(0, num_batches, factor):
        window = batches[first : first + factor]
        optimizer.zero_grad()
        for batch in window:
            (module.training_step(batch, 0) / len(window)).backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.05)
        optimizer.step()
        config["scheduler"].step()
        by_hand.append(torch.cat([p.detach().reshape(-1) for p in module.parameters()]).clone())
    assert_identical(ours, by_hand)


# --- host synchronisation


def count_synchronisations(num_batches: int, factor: int, ours: bool, **options: Any) -> int:
    """How often a training of ``num_batches`` waits for a device to read one number."""
    accumulation = GradientAccumulation(factor, **options.pop("settings", {})) if ours else None
    if not ours:
        options["accumulate_grad_batches"] = factor
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        train(Classifier(), make_batches(num_batches), accumulation, **options)
    return sum(event.count for event in recorded.key_averages() if event.key == "aten::_local_scalar_dense")


@pytest.mark.parametrize("log", [False, True])
def test_micro_batch_waits_for_the_device_no_more_often_than_lightnings_own(log: bool) -> None:
    """Two optimizer steps either way, with 4 and with 20 micro-batches each: the difference is 32 micro-batches."""
    options = {"log": log, "gradient_clip_val": 1.0}
    ours = count_synchronisations(40, 20, True, **options) - count_synchronisations(8, 4, True, **options)
    theirs = count_synchronisations(40, 20, False, **options) - count_synchronisations(8, 4, False, **options)
    assert ours <= theirs


def test_synchronisation_is_counted_at_all() -> None:
    """The measure works: a weight read from the device inside each micro-batch is seen."""

    def weight(batch: Any, outputs: Any) -> float:
        return batch[1].sum().item() + 1

    few, many = (count_synchronisations(2 * n, n, True, settings={"weight": weight}) for n in (4, 20))
    assert many - few >= 32
