"""A backbone of your own: a list of levels, each a module from maps to maps. Every learner works with it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from hashroute import create_learner, load_scenario, register_backbone


def level(channels_in: int, channels_out: int) -> nn.Module:
    """Two convolutions that halve the sides of the maps."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(channels_out, channels_out, 3, stride=2, padding=1),
        nn.GroupNorm(4, channels_out),
        nn.GELU(),
    )


@register_backbone("gelu")
def gelu(image_shape: Sequence[int], width: float = 1.0) -> list[nn.Module]:
    """Two levels. The width factor makes "gelux0.5" a name, too."""
    channels = [image_shape[0], round(16 * width), round(32 * width)]
    return [level(before, after) for before, after in pairwise(channels)]


if __name__ == "__main__":
    digits = load_scenario("digits")
    module = nn.Sequential(level(1, 16), level(16, 32))  # a module works, too: its children are the levels
    for name, backbone in {"gelu": "gelu", "gelux0.5": "gelux0.5", "a module": module}.items():
        learner = create_learner("hrn", digits.image_shape, backbone=backbone, epochs=3)
        learner.learn(*digits.tasks[:1]).learn(*digits.tasks[1:2])
        task = digits.tasks[0]
        right = (learner.predict(task.test.images, task.name) == task.test.labels).double().mean()
        print(f"{name}: {learner.parameter_counts()['encoder']:,} weights, {100 * right:.1f} % of {task.name!r}")
