"""Heads: what turns the features of an image into the answer of one task."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from hashroute import distributed
from hashroute.recipe import HeadSpec


class ScaleFeatures(nn.Module):
    """Centres the features of each image and scales them to a root mean square."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, features: Tensor) -> Tensor:
        """features: (n, features)."""
        return self.scale * F.layer_norm(features, features.shape[1:])

    def extra_repr(self) -> str:
        """What a printed module says about the layer."""
        return f"{self.scale:g}"


class Dropout(nn.Dropout):
    """Dropout that drops the same numbers of a batch in however many processes it is computed."""

    def forward(self, features: Tensor) -> Tensor:
        """features: (n, features)."""
        if not self.training or not distributed.sharing():
            return super().forward(features)
        width = features.shape[1:]
        return features * distributed.draw_rows(
            len(features), lambda rows: F.dropout(features.new_ones(rows, *width), self.p)
        )


class Head(nn.Sequential):
    """Hidden layers as a `HeadSpec` describes them, then a linear layer with some outputs.

    scale: the root mean square to which features are scaled first; 0 leaves them as they are.
    """

    def __init__(self, features: int, spec: HeadSpec, outputs: int, scale: float) -> None:
        layers: list[nn.Module] = [ScaleFeatures(scale)] if scale else []
        activation = nn.LeakyReLU if spec.activation == "leaky_relu" else nn.ReLU
        for width, rate in zip(spec.widths, spec.dropout, strict=True):
            layers += [nn.Linear(features, width), activation()]
            if rate:
                layers.append(Dropout(rate))
            features = width
        super().__init__(*layers, nn.Linear(features, outputs))
