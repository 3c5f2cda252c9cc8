"""Objectives without labels beside each other: what the features of a plain network are worth after short streams.

Rotation: by how many quarter turns an image was rotated. Reconstruction: its brightness, averaged to 8 x 8.
Barlow Twins: two views of an image agree, and outputs do not repeat each other; it needs both views in one batch, which
the reuse of `hrn` does not give, so it is measured with `vc` alone. Images to name and to cluster are validation
images; test images are not used.
usage: python experiments/objectives.py      (some minutes; needs MNIST and CIFAR-100)
Writes experiments/results/objectives.json.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hashroute import Objective, register_objective, run
from hashroute.learners.entries import Batch, TaskEntry
from hashroute.storage import write_json

OUTPUT = Path(__file__).parent / "results" / "objectives.json"
STREAMS = {"upl-mnist": 0.1, "upl-cifar100": 0.1}


@register_objective("reconstruction")
class Reconstruction(Objective):
    """Give the brightness of an image, averaged to 8 x 8; the image is seen with noise."""

    def outputs(self, task: TaskEntry) -> int:  # noqa: ARG002
        return 64

    def prepare(self, batch: Batch) -> Batch:
        few = F.adaptive_avg_pool2d(batch.images.mean(1, keepdim=True), 8).flatten(1)
        return batch._replace(images=batch.images + 0.5 * torch.randn_like(batch.images), targets=few)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, targets)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return -(outputs - targets).square().mean(1)


@register_objective("barlow-twins")
class BarlowTwins(Objective):
    """Outputs of two views of an image agree, and are not correlated with each other (Zbontar et al., 2021)."""

    def outputs(self, task: TaskEntry) -> int:  # noqa: ARG002
        return 64

    def prepare(self, batch: Batch) -> Batch:
        views = torch.cat([_view(batch.images), _view(batch.images)])
        return batch._replace(images=views, targets=torch.arange(len(views)) % len(batch.images))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG002
        one, other = ((each - each.mean(0)) / (each.std(0) + 1e-4) for each in outputs.chunk(2))
        correlation = one.T @ other / len(one)
        apart = correlation.square().sum() - correlation.diagonal().square().sum()
        return (correlation.diagonal() - 1).square().sum() + 0.02 * apart

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG002
        one, other = F.normalize(outputs).chunk(2)
        return (one * other).sum(1).repeat(2)


def _view(images: Tensor) -> Tensor:
    """Images that are cut out, scaled back, and changed in contrast, each in its own way."""
    n = len(images)
    size, shift = 0.6 + 0.4 * torch.rand(n, 1), torch.rand(n, 2) * 2 - 1
    place = torch.zeros(n, 2, 3)
    place[:, 0, 0] = place[:, 1, 1] = size[:, 0]
    place[:, :, 2] = shift * (1 - size)
    views = F.grid_sample(images, F.affine_grid(place, list(images.shape), align_corners=False), align_corners=False)
    return views * (0.6 + 0.8 * torch.rand(n, 1, 1, 1)) + 0.1 * torch.randn_like(views)


def measure(stream: str, learner: str, objective: str) -> dict[str, Any]:
    """What the features are worth after the last phase."""
    result, _ = run(stream, learner, objective=objective, fraction=STREAMS[stream], evaluate_on="validation")
    last = {name: round(value, 1) for name, value in result.features[-1].items() if isinstance(value, float)}
    return {"stream": stream, "learner": learner, "objective": objective, **last, "seconds": round(result.seconds)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    found: dict[str, Any] = {"command": "python experiments/objectives.py", "fractions": STREAMS, "rows": []}
    for stream in sys.argv[1:] or STREAMS:
        for learner, objective in (
            ("hash-only", "rotation"),
            *(("vc", each) for each in ("rotation", "reconstruction", "barlow-twins")),
            *(("hrn", each) for each in ("rotation", "reconstruction")),
        ):
            found["rows"].append(measure(stream, learner, objective))
            print(found["rows"][-1], flush=True)
            write_json(OUTPUT, found)
