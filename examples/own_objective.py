"""An objective of your own: learn from images without labels, by restoring them.

An objective says what a head gives, what the loss is, and how good held-out answers are. `hrn` keeps a fork if its
score is better, whatever the score is. The features are then judged with labels, by the nearest neighbour.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hashroute import Objective, create_learner, load_scenario, register_objective
from hashroute.learners.entries import Batch, TaskEntry


@register_objective("restoration")
class Restoration(Objective):
    """Give the brightness of an image in 4 x 4 fields, from an image with noise."""

    score_name = "negative error"

    def outputs(self, task: TaskEntry) -> int:  # noqa: ARG002
        """One number for each field."""
        return 16

    def prepare(self, batch: Batch) -> Batch:
        """Add noise to the images, and take the fields as targets. Labels are never looked at."""
        fields = F.adaptive_avg_pool2d(batch.images.mean(1, keepdim=True), 4).flatten(1)
        return batch._replace(images=batch.images + 0.5 * torch.randn_like(batch.images), targets=fields)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean squared error."""
        return F.mse_loss(outputs, targets)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The squared error of each image, less is better."""
        return -(outputs - targets).square().mean(1)


if __name__ == "__main__":
    digits = load_scenario("digits")
    learner = create_learner("hrn", digits.image_shape, objective="restoration", epochs=5)
    for task in digits.tasks[:3]:
        learner.learn(task)
        known, asked = (F.normalize(learner.encode(split.images, task.name)) for split in (task.train, task.test))
        nearest = task.train.labels[(asked @ known.T).argmax(1)]
        right = (nearest == task.test.labels).double().mean()
        print(f"{task.name}: the nearest neighbour in the features names {100 * right:.1f} % of the test images")
