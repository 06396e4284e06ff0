"""Networks that people have, swapped and trained a step as they are."""

from __future__ import annotations

import copy
from functools import partial

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lightning_accum import GradientAccumulation
from lightning_accum.norms import NormSwap, swap_norms
from lightning_accum.tasks import SegmentationTask

NUM_CLASSES = 3
# GroupNorm gives a sample the same alone and in a batch, up to the order of sums in float32 through some 60 layers
LARGE_BATCH = 1e-10  # float64, relative; the step is read back from the parameters, which loses some digits
TOLERANCE = {"rtol": 1e-3, "atol": 1e-4}


def make_smp_unet():
    smp = pytest.importorskip("segmentation_models_pytorch")
    return smp.Unet("resnet18", encoder_weights=None, classes=NUM_CLASSES)


def make_deeplabv3():
    segmentation = pytest.importorskip("torchvision.models.segmentation")
    return segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=NUM_CLASSES)


def make_timm(name):
    return pytest.importorskip("timm").create_model(name, pretrained=False, num_classes=NUM_CLASSES)


SEGMENTERS = {"smp_unet": make_smp_unet, "torchvision_deeplabv3": make_deeplabv3}
CLASSIFIERS = {name: partial(make_timm, name) for name in ("resnet18", "efficientnet_b0")}


class Classifier(pl.LightningModule):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.model(batch["image"]), batch["label"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def make_trainer(tmp_path, *callbacks, **options):
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    return pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=list(callbacks),
        default_root_dir=tmp_path,
        **dict.fromkeys(quiet, False),
        **options,
    )


def make_batches(**targets):
    return DataLoader([{"image": torch.randn(3, 64, 64), **targets} for _ in range(4)], batch_size=2)


def count_batch_norms(model):
    return sum(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


@pytest.mark.parametrize("make", [*SEGMENTERS.values(), *CLASSIFIERS.values()], ids=[*SEGMENTERS, *CLASSIFIERS])
def test_swap_of_a_known_network_leaves_no_batch_norm_behind(make):
    model = make()
    before = count_batch_norms(model)
    report = swap_norms(model)
    assert before >= 20
    assert (report.num_swapped, count_batch_norms(model)) == (before, 0)


@pytest.mark.parametrize("make", CLASSIFIERS.values(), ids=CLASSIFIERS)
def test_swapped_network_gives_a_sample_the_same_alone_and_in_a_batch(make):
    model = make()
    swap_norms(model)
    model.eval()  # no dropout; GroupNorm does the same in training
    batch = torch.randn(3, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(batch)[:1], model(batch[:1]), **TOLERANCE)


@pytest.mark.parametrize(
    ("make", "wrap", "targets", "weight"),
    [
        *(
            pytest.param(
                make,
                partial(SegmentationTask, num_classes=NUM_CLASSES, optimizer=partial(torch.optim.SGD, lr=0.01)),
                {"mask": torch.ones(64, 64, dtype=torch.long)},
                "pixels",
                id=name,
            )
            for name, make in SEGMENTERS.items()
        ),
        *(
            pytest.param(make, Classifier, {"label": torch.tensor(1)}, "samples", id=name)
            for name, make in CLASSIFIERS.items()
        ),
    ],
)
def test_known_network_swapped_by_the_callback_trains_a_step(make, wrap, targets, weight, tmp_path):
    module = wrap(make())
    swap = NormSwap("group")
    trainer = make_trainer(tmp_path, GradientAccumulation(2, weight=weight), swap)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    trainer.fit(module, make_batches(**targets))
    moved = [not torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True)]
    assert trainer.global_step == 1
    assert swap.report.num_swapped >= 20
    assert sum(moved) > 0.25 * len(moved)  # timm begins residual branches at 0: most of them get no gradient at first
    assert torch.isfinite(trainer.callback_metrics["accumulation/loss"])


def test_window_of_a_swapped_network_is_the_large_batch_and_with_batch_norm_it_is_not(tmp_path):
    errors = {}
    for policy in ("group", "keep"):
        torch.manual_seed(0)
        module = Classifier(make_timm("resnet18"))
        alone = copy.deepcopy(module.model).double()
        swap_norms(alone, policy)
        loader = make_batches(label=torch.tensor(1))
        images = torch.stack([sample["image"] for sample in loader.dataset]).double()
        loss = nn.functional.cross_entropy(alone(images), torch.ones(4, dtype=torch.long))
        large = torch.autograd.grad(loss, list(alone.parameters()))
        before = [parameter.detach().double() for parameter in module.parameters()]
        make_trainer(tmp_path, GradientAccumulation(2), NormSwap(policy), precision="64-true").fit(module, loader)
        steps = [(old - new) / 0.01 for old, new in zip(before, module.parameters(), strict=True)]
        difference = sum((step - gradient).square().sum() for step, gradient in zip(steps, large, strict=True))
        errors[policy] = float((difference / sum(gradient.square().sum() for gradient in large)).sqrt())
    assert errors["group"] < LARGE_BATCH
    assert errors["keep"] > 1e-2
