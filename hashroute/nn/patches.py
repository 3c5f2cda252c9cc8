"""Fixed features of images: responses to a dictionary of whitened patches, pooled on a grid (Coates and Ng, 2011).

Nothing is learned from data. The dictionary comes from synthetic "dead leaves" images and a seed, so the features of an
image never change. Rounded to small whole numbers, they sum up exactly, in any order of images.

A patch p of side x side pixels, all channels, is centred and divided by its standard deviation. Its response to a
whitened dictionary patch is linear: z = A p / std(p) - b. Responses beyond a threshold are averaged on a grid,
positive and negative ones apart. The square root of each average is scaled to numbers from 0 to 127.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 127
"""The largest value of a feature. Products of two features sum up exactly in float32 for 1,000 images."""

CONTRAST = 10 / 255**2
"""Added to the variance of a patch, so that noise in flat patches is not amplified."""

WHITENING = 0.1
"""Added to the variances of normalised patches before whitening."""

THRESHOLD = 0.5
"""Weaker responses count as zero."""

SYNTHETIC_IMAGES = 200
SHAPES = 40
"""Shapes in a synthetic image."""

BATCH = 8
"""Images at a time. The responses of more images do not fit into the cache."""


class PatchFeatures(nn.Module):
    """Features of images that need no training.

    Args:
        image_shape: channels, height and width of the images.
        features: s, how many numbers there are for an image; rounded down to a multiple of 2 grid^2. Small images have
            at most 8 for each pixel.
        seed: of the dictionary. None leaves it empty until `draw`, or until a state is loaded.
        side: of a patch.
        grid: responses are averaged on grid x grid fields.
    """

    weight: Tensor
    offset: Tensor
    scale: Tensor

    def __init__(
        self, image_shape: tuple[int, ...], features: int = 1792, seed: int | None = 0, side: int = 6, grid: int = 2
    ) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.image_shape = tuple(image_shape)
        self.side = min(side, max(2, min(height, width) // 2))
        self.grid = grid
        count = max(1, min(features, 8 * height * width) // (2 * grid * grid))
        self.features = count * 2 * grid * grid
        self.register_buffer("weight", torch.zeros(channels * self.side**2, count))  # (patch numbers, dictionary)
        self.register_buffer("offset", torch.zeros(count))
        self.register_buffer("scale", torch.ones(()))
        if seed is not None:
            self.draw(seed)

    def draw(self, seed: int) -> None:
        """Make the dictionary, and set the scale of features on synthetic images."""
        channels, height, width = self.image_shape
        weight, offset = _dictionary(channels, self.weight.shape[1], self.side, seed)
        self.weight.copy_(weight)
        self.offset.copy_(offset)
        synthetic = synthetic_images(16, max(height, width), channels, seed + 1)[:, :, :height, :width].to(self.weight)
        raw = torch.cat([self._pooled(part) for part in synthetic.split(BATCH)]).clamp_min_(0).sqrt_()
        self.scale.copy_(scale_to(raw, LEVELS))

    @torch.no_grad()
    def forward(self, images: Tensor, mirror: bool = False, whole: bool = False) -> Tensor:
        """Numbers from 0 to 127: (n, features).

        images: (n, channels, height, width), uint8 or from 0 to 1. mirror: average over the image and its mirror image.
        whole: round them, for exact sums. Answers do not round: a tiny difference in pixels changes little.
        """
        parts = []
        for part in images.split(BATCH):
            pixels = part.to(self.weight.device, self.weight.dtype)
            pixels = pixels if part.is_floating_point() else pixels / 255
            pooled = self._pooled(pixels)
            if mirror:
                pooled = (pooled + self._pooled(pixels.flip(3))) / 2
            found = (pooled.clamp_min_(0).sqrt_() * self.scale).clamp_(0, LEVELS)
            parts.append(found.round_() if whole else found)
        return torch.cat(parts)

    def _pooled(self, pixels: Tensor) -> Tensor:
        """The responses beyond the threshold, positive and negative, averaged on the grid: (n, features)."""
        numbers = len(self.weight)
        patches = pixels.unfold(2, self.side, 1).unfold(3, self.side, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, numbers)
        patches -= patches.mean(1, keepdim=True)
        variance = patches.square().sum(1, keepdim=True) / (numbers - 1)
        responses = torch.addmm(self.offset, patches.mul_((variance + CONTRAST).rsqrt_()), self.weight, beta=-1)
        responses = F.softshrink(responses, THRESHOLD).view(len(pixels), -1, self.weight.shape[1])
        means = pooling(pixels.shape[2] - self.side + 1, pixels.shape[3] - self.side + 1, self.grid).to(responses)
        signed, absolute = means @ responses, means @ responses.abs_()
        return torch.cat([absolute + signed, absolute - signed], 1).flatten(1) / 2

    def extra_repr(self) -> str:
        """What a printed module says about the features."""
        return f"{self.features} features, patches of {self.side} x {self.side}"


@lru_cache(maxsize=8)
def pooling(rows: int, columns: int, grid: int) -> Tensor:
    """(grid^2, rows * columns) the weights of averages over fields of maps."""
    down, across = (F.adaptive_avg_pool1d(torch.eye(length), grid) for length in (rows, columns))
    return torch.kron(down, across).T.contiguous()


@lru_cache(maxsize=8)
def _dictionary(channels: int, count: int, side: int, seed: int) -> tuple[Tensor, Tensor]:
    """A and b of the responses: (patch numbers, count) and (count,)."""
    generator = torch.Generator().manual_seed(seed)
    images = synthetic_images(SYNTHETIC_IMAGES, 32, channels, seed)
    patches = F.unfold(images, side).transpose(1, 2).flatten(0, 1)
    patches = patches[torch.randperm(len(patches), generator=generator)[:100_000]]
    patches = patches[patches.var(1).argsort(descending=True)[: len(patches) // 4]]  # the most contrasted quarter
    patches = patches - patches.mean(1, keepdim=True)
    patches = (patches / (patches.var(1, keepdim=True) + CONTRAST).sqrt()).double()
    mean = patches.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov(patches.T))
    whitening = vectors @ torch.diag((values + WHITENING).rsqrt()) @ vectors.T
    chosen = (patches[torch.randperm(len(patches), generator=generator)[:count]] - mean) @ whitening
    linear = F.normalize(chosen) @ whitening  # (count, patch numbers)
    centred = linear - linear.mean(1, keepdim=True)  # the patch need not be centred, then
    return centred.T.float().contiguous(), (linear @ mean).float()


def synthetic_images(count: int, side: int, channels: int, seed: int) -> Tensor:
    """(count, channels, side, side) random ellipses and rectangles over one another, blurred, with noise."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    draw = torch.rand(count, SHAPES, 7, generator=generator)
    tint = 0.15 * torch.randn(count, SHAPES, channels, generator=generator) * (channels > 1)
    images = torch.rand(count, 1, 1, 1, generator=generator).expand(count, channels, side, side).clone()
    for shape in range(SHAPES):
        x, y, long, wide, angle, grey, kind = (each.view(-1, 1, 1) for each in draw[:, shape].T)
        right, below = columns - x * side, rows - y * side
        along = (right * (angle * math.pi).cos() + below * (angle * math.pi).sin()) / _radius(long, side)
        across = (below * (angle * math.pi).cos() - right * (angle * math.pi).sin()) / _radius(wide, side)
        ellipse, rectangle = along**2 + across**2 < 1, (along.abs() < 1) & (across.abs() < 1)
        inside = torch.where(kind < 0.5, ellipse, rectangle)[:, None]
        colour = (grey[:, :, :, None].view(-1, 1) + tint[:, shape]).clamp(0, 1).view(count, channels, 1, 1)
        images = torch.where(inside, colour, images)
    kernel = torch.tensor([0.25, 0.5, 0.25])
    blur = (kernel[:, None] * kernel).expand(channels, 1, 3, 3)
    images = F.conv2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), blur, groups=channels)
    return (images + 0.02 * torch.randn(images.shape, generator=generator)).clamp(0, 1)


def scale_to(values: Tensor, levels: int) -> Tensor:
    """The factor that brings all but 5 of 10,000 values to at most `levels`."""
    return levels / values.flatten().kthvalue(max(1, int(0.9995 * values.numel()))).values.clamp_min(1e-6)


def _radius(drawn: Tensor, side: int) -> Tensor:
    """Many small shapes, few large ones."""
    return side * (0.025 + 0.475 * drawn**2)
