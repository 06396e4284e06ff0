"""What the network sees in held-out images, drawn at the end of a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from rich.console import Console
from torch import Tensor

from lightning_accum.data.crops import Sample
from lightning_accum.report.segmentation import Example, make_prediction_figure


def draw_predictions(task: pl.LightningModule, datamodule: Any, num_examples: int, path: Path) -> None:
    """Draw validation images, what is in them and what the network finds, into a file.

    Args:
        task: gives logits for images.
        datamodule: has ``class_names``, ``class_colors``, ``ignore_index``, ``make_picture`` and ``describe``.
        num_examples: how many; those with the most evenly mixed classes are shown.
        path: the PNG file.
    """
    dataset = datamodule.val_dataloader().dataset
    shown = pick_most_varied([dataset[index]["mask"] for index in range(len(dataset))], num_examples)
    examples = [make_example(task, datamodule, dataset[index], datamodule.describe(index)) for index in shown]
    accuracy = sum(example.measure_accuracy(datamodule.ignore_index) for example in examples) / len(examples)
    subtitle = f"the {len(examples)} most varied of {len(dataset)} validation images; {accuracy:.0%} of pixels right"
    try:
        figure = make_prediction_figure(
            examples,
            datamodule.class_names,
            datamodule.class_colors,
            datamodule.ignore_index,
            title="Held out from training",
            subtitle=subtitle,
        )
    except ImportError as error:
        Console(markup=False).print(f"{path.name} was not drawn. {error}")
        return
    figure.savefig(path)


def pick_most_varied(masks: list[Tensor], number: int) -> list[int]:
    """Return the positions of the masks whose classes are most evenly mixed, in their order.

    Example:
        >>> pick_most_varied([torch.tensor([0, 0, 0, 0]), torch.tensor([0, 1, 2, 3]), torch.tensor([0, 0, 1, 1])], 2)
        [1, 2]
    """

    def measure_entropy(mask: Tensor) -> float:
        shares = mask.flatten().bincount()[:255].float()
        shares = shares[shares > 0] / shares.sum()
        return float(-(shares * shares.log()).sum())

    ranked = sorted(range(len(masks)), key=lambda index: -measure_entropy(masks[index]))
    return sorted(ranked[:number])


def make_example(task: pl.LightningModule, datamodule: Any, sample: Sample, caption: str) -> Example:
    """Return a sample with the network's prediction."""
    image = sample["image"]
    was_training = task.training
    task.eval()
    with torch.no_grad():
        like = next(task.parameters())
        prediction = task(image[None].to(like.device, like.dtype)).argmax(dim=1)[0]
    task.train(was_training)
    return Example(datamodule.make_picture(image), sample["mask"].numpy(), prediction.cpu().numpy(), caption)
