"""vc and joint: a plain convolutional encoder, its tasks learned one after the other, or all at once."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from hashroute.learners.base import Learner, register_learner
from hashroute.nn.units import ConvUnit, UnitSpec


class PlainEncoder(nn.Module):
    """Convolution blocks, one after the other; the last map, perhaps pooled, is the features."""

    def __init__(self, channels: int, specs: Sequence[UnitSpec], pool: int) -> None:
        super().__init__()
        self.pool = pool
        self.units = nn.ModuleList()
        for number, spec in enumerate(specs):
            self.units.append(ConvUnit(spec, channels, "slice", f"block {number}"))
            channels = spec.channels_out

    def forward(self, maps: Tensor) -> Tensor:
        """maps: (n, channels, height, width); returns (n, features)."""
        for unit in self.units:
            maps = unit(maps)
        return (adaptive_avg_pool2d(maps, self.pool) if self.pool else maps).flatten(1)


@register_learner("vc")
class Vanilla(Learner):
    """A plain network that learns each task as if there were no other: what it forgets is what others must keep."""

    def new_encoder(self) -> PlainEncoder:
        return PlainEncoder(self.image_shape[0], self.recipe.backbone, self.recipe.pool)


@register_learner("joint")
class Joint(Vanilla):
    """The plain network, all tasks at once: not continual, but what a continual learner is measured by."""

    at_once = True
