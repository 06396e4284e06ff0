"""The built-in network: any size in, the same size out, and something for a swap to do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_accum.errors import ConfigError
from lightning_accum.norms import swap_norms
from lightning_accum.tasks import UNet


@pytest.mark.parametrize("size", [(64, 64), (65, 33), (17, 90)])
@pytest.mark.parametrize("stem_stride", [1, 2, 4])
def test_unet_gives_logits_for_every_pixel_of_any_size(size, stem_stride):
    model = UNet(num_classes=5, width=4, depth=3, stem_stride=stem_stride)
    assert model(torch.randn(2, 3, *size)).shape == (2, 5, *size)


def test_unet_is_as_wide_and_deep_as_asked_for():
    model = UNet(num_classes=2, in_channels=6, width=8, depth=3, max_width=24)
    assert [down[1][0].out_channels for down in model.downs] == [16, 24, 24]
    assert model.stem[0][0].in_channels == 6


def test_unet_has_batch_norm_to_swap_and_works_without():
    model = UNet(num_classes=2, width=8, depth=2)
    report = swap_norms(model)
    assert report.num_swapped == sum(isinstance(module, nn.GroupNorm) for module in model.modules()) == 10
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    batch = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(model(batch)[:1], model(batch[:1]), rtol=1e-4, atol=1e-5)


def test_unet_sees_far_and_near():
    model = UNet(num_classes=1, width=8, depth=4).eval()
    image = torch.randn(1, 3, 128, 128, requires_grad=True)
    model(image)[0, 0, 64, 64].backward()
    reach = image.grad.abs().sum(dim=(0, 1)) > 0
    assert reach[64, 64] and reach.any(dim=0).sum() > 90


@pytest.mark.parametrize(
    "options", [{"num_classes": 0}, {"width": 0}, {"depth": 0}, {"stem_stride": 3}, {"in_channels": 0}]
)
def test_unet_that_cannot_be_built_is_an_error_that_names_the_size(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        UNet(**{"num_classes": 2, **options})
