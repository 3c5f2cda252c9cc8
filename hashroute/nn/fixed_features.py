"""Fixed features of a frozen stem: its last maps, averaged over each image."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hashroute.nn.patches import LEVELS, scale_to, synthetic_images
from hashroute.nn.pretrained import FrozenStem

SYNTHETIC_IMAGES = 32
"""Images on which the scale of features is set."""


class StemFeatures(nn.Module):
    """Features of images that need no training, from the maps of a frozen stem.

    Args:
        stem: it is not a part of this module, whose state does not hold its weights.
        image_shape: channels, height and width of the images.
    """

    scale: Tensor

    def __init__(self, stem: FrozenStem, image_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = (stem,)  # a tuple hides it from this module
        self.image_shape = tuple(image_shape)
        self.features = stem.shape[0]
        self.register_buffer("scale", torch.ones(()))

    def draw(self, seed: int) -> None:
        """Set the scale of features on synthetic images."""
        channels, height, width = self.image_shape
        synthetic = synthetic_images(SYNTHETIC_IMAGES, max(height, width), channels, seed)[:, :, :height, :width]
        maps = torch.cat([self.stem[0](part) for part in synthetic.to(self.scale.device).split(8)])
        self.scale.copy_(scale_to(maps.mean((2, 3)).abs(), LEVELS))

    @torch.no_grad()
    def forward(self, maps: Tensor, mirror: bool = False, whole: bool = False) -> Tensor:  # noqa: ARG002
        """Numbers from -127 to 127: (n, features).

        maps: of the stem. mirror: maps are not mirrored. whole: round them, for exact sums.
        """
        found = (maps.to(self.scale).mean((2, 3)) * self.scale).clamp_(-LEVELS, LEVELS)
        return found.round_() if whole else found
