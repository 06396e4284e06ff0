"""How far is an accumulated gradient from the large batch's? Ours beside Lightning's own, in real training.

    python benchmarks/proof.py                      draws docs/images/proof.png
    python benchmarks/proof.py --output /tmp/p.png --epochs 3

Four small models train on the CPU in float32, each twice: with ``GradientAccumulation`` and with Lightning's own
``Trainer(accumulate_grad_batches=...)``. Just before every optimizer step the gradient that the optimizer is about to
use is compared with the gradient of one large batch, made of the same window's micro-batches, at the same parameters.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import lightning as L
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_accum import GradientAccumulation, Tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Batch = tuple[Tensor, Tensor]
FACTOR = 4
SMALLEST_SHOWN = 1e-9  # a difference of exactly 0 cannot stand on a logarithmic axis
OUTPUT = Path(__file__).resolve().parent.parent / "docs" / "images" / "proof.png"


class Module(L.LightningModule):
    """A network whose loss is a cross entropy over every label that is not ``ignore_index``."""

    def __init__(self, network: nn.Module, ignore_index: int) -> None:
        super().__init__()
        self.network = network
        self.ignore_index = ignore_index

    def training_step(self, batch: Batch, batch_idx: int = 0) -> Tensor:
        inputs, labels = batch
        return F.cross_entropy(self.network(inputs), labels, ignore_index=self.ignore_index)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


@dataclass(frozen=True)
class Setting:
    """One way in which micro-batches come to hold different numbers of items."""

    title: str
    weight: object
    make_batches: Callable[[torch.Generator], list[Batch]]
    make_network: Callable[[], nn.Module]
    ignore_index: int = 255


@dataclass
class CompareWithLargeBatch(L.Callback):
    """Keeps the relative difference between each step's gradient and the large batch's."""

    differences: list[float] = field(default_factory=list)
    window: list[Batch] = field(default_factory=list)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        self.window.append(batch)

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: object) -> None:
        parameters = list(pl_module.parameters())
        used = torch.cat([parameter.grad.flatten() for parameter in parameters])
        large_batch = tuple(torch.cat(part) for part in zip(*self.window, strict=True))
        with torch.enable_grad():
            gradients = torch.autograd.grad(pl_module.training_step(large_batch), parameters)
        wanted = torch.cat([gradient.flatten() for gradient in gradients])
        self.differences.append(float((used - wanted).norm() / wanted.norm()))
        self.window.clear()


def make_ragged_batches(generator: torch.Generator) -> list[Batch]:
    """Return 24 batches of 1 to 8 samples, as a loader that groups samples by size makes them."""
    sizes = torch.randint(1, 9, (24,), generator=generator).tolist()
    return [make_samples(size, generator) for size in sizes]


def make_short_epoch(generator: torch.Generator) -> list[Batch]:
    """Return 22 equal batches: windows of 4, and one of 2 at the end of every epoch."""
    return [make_samples(4, generator) for _ in range(22)]


def make_samples(size: int, generator: torch.Generator) -> Batch:
    inputs = torch.randn(size, 16, generator=generator)
    return inputs, (inputs[:, :4] + 0.5 * torch.randn(size, 4, generator=generator)).argmax(1)


def make_images(generator: torch.Generator) -> list[Batch]:
    """Return 24 pairs of images whose masks leave out between a tenth and nine tenths of the pixels."""
    batches = []
    for _ in range(24):
        coarse = torch.randn(2, 3, 6, 6, generator=generator)
        images = F.interpolate(coarse, size=(24, 24), mode="bilinear", align_corners=False)
        masks = images.argmax(1)
        share_ignored = 0.1 + 0.8 * torch.rand((), generator=generator)
        masks[torch.rand(masks.shape, generator=generator) < share_ignored] = 255
        batches.append((images + 0.3 * torch.randn(images.shape, generator=generator), masks))
    return batches


def make_sentences(generator: torch.Generator) -> list[Batch]:
    """Return 24 pairs of sentences of 2 to 32 tokens, padded to 32; each label is the token after its input."""
    batches = []
    for _ in range(24):
        tokens = torch.randint(0, 11, (2, 33), generator=generator).cumsum(1) % 11
        inputs, labels = tokens[:, :-1].clone(), tokens[:, 1:].clone()
        lengths = torch.randint(2, 33, (2, 1), generator=generator)
        labels[torch.arange(32) >= lengths] = -100
        batches.append((inputs, labels))
    return batches


class NextToken(nn.Module):
    """A small recurrent language model; returns (samples, classes, tokens)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.mix = nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.mix(self.embed(tokens))[0]).movedim(-1, 1)


def make_perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))


def make_segmenter() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 3, 3, padding=1))


SETTINGS = (
    Setting("Batches of 1 to 8 samples", "samples", make_ragged_batches, make_perceptron),
    Setting("Ignored pixels", "pixels", make_images, make_segmenter),
    Setting("Padded tokens", Tokens(labels=1, shift=False), make_sentences, NextToken, ignore_index=-100),
    Setting("Short last window of an epoch", "samples", make_short_epoch, make_perceptron),
)


def train(setting: Setting, *, ours: bool, num_epochs: int) -> list[float]:
    """Train once; return each optimizer step's relative difference from the large batch's gradient."""
    torch.manual_seed(0)
    module = Module(setting.make_network(), setting.ignore_index)
    batches = setting.make_batches(torch.Generator().manual_seed(1))
    compare = CompareWithLargeBatch()
    accumulation = [GradientAccumulation(FACTOR, weight=setting.weight)] if ours else []
    trainer = L.Trainer(
        max_epochs=num_epochs,
        accelerator="cpu",
        accumulate_grad_batches=1 if ours else FACTOR,
        callbacks=[*accumulation, compare],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(batches, batch_size=None))
    return compare.differences


def measure(num_epochs: int) -> dict[str, dict[str, list[float]]]:
    """Return, for each setting and each way to accumulate, the relative difference at every optimizer step."""
    return {
        setting.title: {
            "lightning": train(setting, ours=False, num_epochs=num_epochs),
            "ours": train(setting, ours=True, num_epochs=num_epochs),
        }
        for setting in SETTINGS
    }


def make_table(results: dict[str, dict[str, list[float]]]) -> Table:
    table = Table(title="Relative difference from the large batch's gradient: median and largest of all steps")
    table.add_column("setting", no_wrap=True)
    table.add_column("Lightning's own", justify="right")
    table.add_column("ours", justify="right")
    for title, ways in results.items():
        cells = [f"{statistics.median(ways[way]):.1e}  {max(ways[way]):.1e}" for way in ("lightning", "ours")]
        table.add_row(title, *cells)
    return table


def draw(results: dict[str, dict[str, list[float]]], output: Path) -> None:
    """Draw one panel for each setting into the file ``output``."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    style = {"font.size": 11, "axes.titlesize": 11.5, "axes.titleweight": "bold", "axes.titlelocation": "left"}
    plt.rcParams.update(style | {"axes.spines.top": False, "axes.spines.right": False})
    figure, panels = plt.subplots(2, 2, figsize=(9.5, 6.2), sharey=True, layout="constrained")
    figure.get_layout_engine().set(hspace=0.06, wspace=0.04)
    for panel, (title, ways) in zip(panels.flat, results.items(), strict=True):
        draw_panel(panel, title, ways)
    for panel in panels[:, 0]:
        panel.set_ylabel("relative difference")
    for panel in panels[-1]:
        panel.set_xlabel("optimizer step")
    figure.suptitle("How far each step's gradient is from the large batch's", weight="bold", size=14)
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=160)
    plt.close(figure)


def draw_panel(panel: Axes, title: str, ways: dict[str, list[float]]) -> None:
    rounding = 10 * torch.finfo(torch.float32).eps
    panel.axhspan(SMALLEST_SHOWN, rounding, color="0.93", linewidth=0, zorder=0)
    panel.text(1, 1.4 * rounding, "rounding in float32", color="0.45", fontsize=9, va="bottom")
    for way, colour, marker, label in (
        ("lightning", "#D55E00", "s", f"Trainer(accumulate_grad_batches={FACTOR})"),
        ("ours", "#0072B2", "o", f"GradientAccumulation({FACTOR}, weight=...)"),
    ):
        heights = [max(value, SMALLEST_SHOWN) for value in ways[way]]
        panel.semilogy(range(1, len(heights) + 1), heights, marker, color=colour, markersize=4.5, label=label)
    panel.set(title=title, ylim=(1e-8, 3))
    panel.set_yticks([1e-8, 1e-6, 1e-4, 1e-2, 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the picture's file")
    parser.add_argument("--epochs", type=int, default=5, help="epochs of about 6 optimizer steps each")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    results = measure(arguments.epochs)
    Console().print(make_table(results))
    draw(results, arguments.output)
    print(f"drawn: {arguments.output}")


if __name__ == "__main__":
    main()
