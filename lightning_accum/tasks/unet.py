"""A small U-Net. Plain PyTorch, quick on a CPU."""

from __future__ import annotations

from typing import Final

from torch import Tensor, cat, nn
from torch.nn import functional

from lightning_accum.errors import check_counts, expected

_STEM_STRIDES: Final = (1, 2, 4)


class UNet(nn.Module):
    """Classes of pixels from an encoder and a decoder that are joined at every resolution.

    Ronneberger et al. 2015 (arXiv 1505.04597), with these departures: padded convolutions, so that any input size
    works and comes out again; strided convolutions instead of pooling; BatchNorm after each convolution; bilinear
    upsampling; and a strided stem, so that the full resolution, which costs most, is computed once and not four times.

    Args:
        num_classes: channels that come out.
        in_channels: channels that go in.
        width: channels of the first level; each further level has twice as many, up to ``max_width``.
        depth: levels below the first.
        max_width: the most channels that a level has.
        stem_stride: 1, 2 or 4: how much smaller the first level is than the input.

    Raises:
        ConfigError: for sizes that cannot be built.

    Example:
        >>> import torch
        >>> UNet(num_classes=9, width=8, depth=2)(torch.zeros(1, 3, 50, 70)).shape
        torch.Size([1, 9, 50, 70])
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int = 3,
        width: int = 32,
        depth: int = 4,
        max_width: int = 256,
        stem_stride: int = 2,
    ) -> None:
        super().__init__()
        check_counts({"num_classes": num_classes, "in_channels": in_channels, "width": width}, "UNet")
        if depth < 1 or stem_stride not in _STEM_STRIDES:
            raise expected("depth of at least 1 and stem_stride 1, 2 or 4", (depth, stem_stride), "UNet")
        widths = [min(width * 2**level, max_width) for level in range(depth + 1)]
        self.stem = nn.Sequential(
            _convolution(in_channels, widths[0], stride=min(stem_stride, 2)),
            _convolution(widths[0], widths[0], stride=2 if stem_stride == 4 else 1),
        )
        self.downs = nn.ModuleList(_Down(above, below) for above, below in zip(widths, widths[1:], strict=False))
        self.ups = nn.ModuleList(_Up(below, above) for above, below in zip(widths, widths[1:], strict=False))
        self.head = nn.Conv2d(widths[0], num_classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Return logits of shape ``(B, num_classes, height, width)`` for images ``(B, in_channels, height, width)``."""
        levels = [self.stem(image)]
        for down in self.downs:
            levels.append(down(levels[-1]))
        pixels = levels.pop()
        for up in reversed(self.ups):
            pixels = up(pixels, levels.pop())
        return _resize(self.head(pixels), image)


def _convolution(in_channels: int, out_channels: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


class _Down(nn.Sequential):
    def __init__(self, above: int, below: int) -> None:
        super().__init__(_convolution(above, below, stride=2), _convolution(below, below))


class _Up(nn.Module):
    def __init__(self, below: int, above: int) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(below, above, 1, bias=False)  # before upsampling: a quarter of the work
        self.joined = nn.Sequential(_convolution(2 * above, above), _convolution(above, above))

    def forward(self, pixels: Tensor, level: Tensor) -> Tensor:
        return self.joined(cat([_resize(self.narrow(pixels), level), level], dim=1))  # type: ignore[no-any-return]


def _resize(pixels: Tensor, like: Tensor) -> Tensor:
    if pixels.shape[-2:] == like.shape[-2:]:
        return pixels
    return functional.interpolate(pixels, size=like.shape[-2:], mode="bilinear", align_corners=False)
