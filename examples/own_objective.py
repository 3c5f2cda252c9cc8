"""An objective of your own: learn from images without labels, by telling how each image was turned.

An objective says what a head gives, what the loss is, and how good held-out answers are. `hrn` keeps a fork if its
score is better, whatever the score is. The features are then judged with labels, by the nearest neighbour.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hashroute import Objective, create_learner, load_scenario, register_objective
from hashroute.learners.entries import Batch, TaskEntry


@register_objective("rotation")
class Rotation(Objective):
    """Tell by how many quarter turns an image was rotated (Gidaris et al., 2018)."""

    score_factor = 100.0  # scores are shown in percent

    def outputs(self, task: TaskEntry) -> int:  # noqa: ARG002
        """Four rotations."""
        return 4

    def prepare(self, batch: Batch) -> Batch:
        """All four rotations of every image, and the rotation as the target. Labels are never looked at."""
        turned = torch.cat([batch.images.rot90(turns, (2, 3)) for turns in range(4)])
        targets = torch.arange(4, device=turned.device).repeat_interleave(len(batch.images))
        return Batch(turned, targets, batch.task)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of the rotation."""
        return F.cross_entropy(outputs, targets)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """1 for a right answer, 0 for a wrong one."""
        return outputs.argmax(1) == targets


if __name__ == "__main__":
    digits = load_scenario("digits")
    learner = create_learner("hrn", digits.image_shape, objective="rotation", epochs=5)
    for task in digits.tasks[:3]:
        learner.learn(task)
        known, asked = (F.normalize(learner.encode(split.images, task.name)) for split in (task.train, task.test))
        nearest = task.train.labels[(asked @ known.T).argmax(1)]
        right = (nearest == task.test.labels).double().mean()
        print(f"{task.name}: the nearest neighbour in the features names {100 * right:.1f} % of the test images")
