"""The task: a mean over the pixels that count, metrics over the same pixels, and a schedule of the exact length."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, StepLR

from lightning_accum import GradientAccumulation
from lightning_accum.data import SyntheticSegmentation
from lightning_accum.errors import ConfigError
from lightning_accum.tasks import SegmentationTask, UNet


class PixelNet(nn.Module):
    """A class from a pixel's colour."""

    def __init__(self, wrap=lambda logits: logits, shrink: int = 1) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 1, stride=shrink)
        self.wrap = wrap

    def forward(self, image):
        return self.wrap(self.layer(image))


def make_task(model=None, **options):
    return SegmentationTask(model or PixelNet(), num_classes=4, **options)


def make_batch(size=8, num_ignored=0):
    mask = torch.randint(4, (2, size, size))
    mask.view(-1)[:num_ignored] = 255
    return {"image": torch.randn(2, 3, size, size), "mask": mask}


def make_trainer(tmp_path, *callbacks, **options):
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options = {"max_epochs": 1, "num_sanity_val_steps": 0, **dict.fromkeys(quiet, False), **options}
    return pl.Trainer(accelerator="cpu", default_root_dir=tmp_path, callbacks=list(callbacks), **options)


def test_loss_is_the_mean_over_the_pixels_that_count():
    task, batch = make_task(), make_batch(num_ignored=50)
    counts = batch["mask"] != 255
    picked = task(batch["image"]).permute(0, 2, 3, 1)[counts]
    expected_loss = nn.functional.cross_entropy(picked, batch["mask"][counts])
    torch.testing.assert_close(task.training_step(batch, 0), expected_loss)


def test_class_weights_return_the_denominator_of_the_loss():
    weights = [1.0, 2.0, 0.5, 4.0]
    task, batch = make_task(class_weights=weights), make_batch(num_ignored=30)
    outputs = task.training_step(batch, 0)
    each = nn.functional.cross_entropy(
        task(batch["image"]), batch["mask"], torch.tensor(weights), ignore_index=255, reduction="sum"
    )
    torch.testing.assert_close(outputs["loss"] * outputs["num_items"], each)


@pytest.mark.parametrize(
    ("class_weights", "weight"), [(None, "pixels"), ([1.0, 2.0, 0.5, 4.0], "returned")], ids=["plain", "weighted"]
)
def test_window_of_the_task_is_the_large_batch(class_weights, weight, tmp_path):
    data = SyntheticSegmentation(num_train=6, batch_size=1, crop_size=16)
    samples = [data.train_dataloader().dataset[index] for index in range(6)]
    task = make_task(class_weights=class_weights, optimizer=partial(torch.optim.SGD, lr=1.0))
    start = [parameter.detach().clone() for parameter in task.parameters()]
    whole = {name: torch.stack([sample[name] for sample in samples]) for name in ("image", "mask")}
    outputs = task.training_step(whole, 0)
    loss = outputs["loss"] if class_weights else outputs
    large = torch.autograd.grad(loss, list(task.parameters()))
    make_trainer(tmp_path, GradientAccumulation(6, weight=weight)).fit(
        task, torch.utils.data.DataLoader(samples, batch_size=1)
    )
    for old, parameter, gradient in zip(start, task.parameters(), large, strict=True):
        torch.testing.assert_close(old - parameter, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda logits: {"out": logits, "aux": logits * 0},
        lambda logits: {"logits": logits},
        lambda logits: SimpleNamespace(logits=logits),
    ],
    ids=["torchvision", "mapping", "transformers"],
)
def test_logits_are_found_in_what_networks_return(wrap):
    plain = PixelNet()
    wrapped = PixelNet(wrap)
    wrapped.load_state_dict(plain.state_dict())
    image = torch.randn(1, 3, 4, 4)
    torch.testing.assert_close(make_task(wrapped)(image), make_task(plain)(image))


def test_smaller_logits_are_enlarged_to_the_image():
    assert make_task(PixelNet(shrink=4))(torch.randn(1, 3, 16, 24)).shape == (1, 4, 16, 24)


def test_network_without_logits_is_an_error_that_says_what_came():
    with pytest.raises(ConfigError, match="logits.*but got \\['features'\\]"):
        make_task(PixelNet(lambda logits: {"features": logits}))(torch.randn(1, 3, 4, 4))


@pytest.mark.parametrize("name", ["class_names", "class_weights"])
def test_wrong_number_of_names_or_weights_is_an_error(name):
    with pytest.raises(ConfigError, match=name):
        make_task(**{name: [1, 2, 3]})


def test_validation_measures_the_pixels_that_count_over_all_batches(tmp_path):
    task = make_task(class_names=["a", "b", "c", "d"])
    batches = [make_batch(num_ignored=0), make_batch(num_ignored=100), make_batch(num_ignored=128)]
    (metrics,) = make_trainer(tmp_path).validate(
        task, torch.utils.data.DataLoader(batches, batch_size=None), verbose=False
    )
    mask = torch.cat([batch["mask"] for batch in batches])
    with torch.no_grad():
        logits = torch.cat([task(batch["image"]) for batch in batches])
    found, counts = logits.argmax(dim=1), mask != 255
    ious = []
    for kind in range(4):
        both = ((found == kind) & (mask == kind) & counts).sum()
        either = (((found == kind) | (mask == kind)) & counts).sum()
        ious.append(float(both / either))
    assert metrics["val/mIoU"] == pytest.approx(sum(ious) / 4)
    assert [metrics[f"val/IoU/{name}"] for name in "abcd"] == pytest.approx(ious)
    assert metrics["val/accuracy"] == pytest.approx(float((found == mask)[counts].float().mean()))
    loss = nn.functional.cross_entropy(logits, mask, ignore_index=255)
    assert metrics["val/loss"] == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "options", "num_steps"),
    [(OneCycleLR, {"max_lr": 0.1}, 5), (CosineAnnealingLR, {}, 5), (CosineAnnealingLR, {"T_max": 9}, 9)],
)
def test_schedule_is_as_long_as_training_unless_told_otherwise(kind, options, num_steps, tmp_path):
    task = make_task(optimizer=partial(torch.optim.SGD, lr=0.1), scheduler=partial(kind, **options))
    ramp = GradientAccumulation("0 steps: 1, 2 steps: 2", weight="pixels")  # 1, 1, 2, 2, 2 micro-batches
    rates = []

    class Watch(pl.Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            rates.append(optimizer.param_groups[0]["lr"])

    trainer = make_trainer(tmp_path, ramp, Watch())
    trainer.fit(task, SyntheticSegmentation(num_train=16, crop_size=8))
    scheduler = trainer.lr_scheduler_configs[0].scheduler
    assert trainer.global_step == 5
    assert getattr(scheduler, "total_steps", getattr(scheduler, "T_max", None)) == num_steps
    if kind is OneCycleLR:
        assert rates[-1] == pytest.approx(0.1 / 25 / 1e4)  # the last step has the smallest rate, as the schedule ends


@pytest.mark.parametrize("scheduler", [None, partial(StepLR, step_size=2)])
def test_training_without_a_length_to_tell_works(scheduler, tmp_path):
    task = make_task(scheduler=scheduler)
    trainer = make_trainer(tmp_path, GradientAccumulation(4, weight="pixels"))
    trainer.fit(task, SyntheticSegmentation(num_train=16, crop_size=8))
    assert trainer.global_step == 2


def test_small_unet_learns_the_synthetic_task(tmp_path):
    task = SegmentationTask(UNet(4, width=8, depth=2, stem_stride=1), 4, partial(torch.optim.AdamW, lr=1e-2))
    trainer = make_trainer(tmp_path, GradientAccumulation(4, weight="pixels"), max_epochs=4)
    trainer.fit(task, SyntheticSegmentation(num_train=128, batch_size=2, crop_size=24))
    assert trainer.callback_metrics["val/mIoU"] > 0.6
    (images,) = [trainer.predict(task, SyntheticSegmentation(num_val=2, crop_size=24))]
    assert images[0].shape == (2, 24, 24)
