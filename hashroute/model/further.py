"""More images, or new classes, of a task that was learned before.

Its units stay as they are, so no other task changes. Its head is trained further on the features of the new images,
together with random features that are drawn from the statistics of the old ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hashroute.learners.growth import HRNEntry
from hashroute.learners.randomness import isolated_rng
from hashroute.learners.trainer import new_training_state
from hashroute.model.calibration import temperature
from hashroute.model.learner import KeptLearner
from hashroute.model.statistics import ClassStatistics, Spread
from hashroute.nn.gaussian import GaussianMemories
from hashroute.tasks import Task

MOST_DRAWN = 500
"""Random features of each old class in an epoch, at most."""


@dataclass
class Further:
    """What learning further gave."""

    head: nn.Module
    kept_old: bool
    """Whether the old head was kept, because the new one is worse."""
    statistics: ClassStatistics
    memory: dict[str, Tensor]
    accuracy: float
    """Share of right answers to the new held-out images."""
    temperature: float


def learn_further(learner: KeptLearner, entry: HRNEntry, old: ClassStatistics, task: Task, seed: int) -> Further:
    """Train the head of a task further.

    task: the new images; its classes are the old ones, then new ones. old: the statistics of the old images.
    """
    epochs = learner.recipe.epochs_of(entry.index)
    seen, held = learner.record(task.train, entry), learner.record(task.validation, entry)
    with isolated_rng(seed, learner.device):
        head = _wider(learner, entry, task)
        _train(learner, head, seen, old, epochs)
        drawn = old.sample([max(1, min(count // 10, 50)) for count in old.counts.tolist()])
    features = torch.cat([held[0], drawn[0].to(held[0])])
    labels = torch.cat([held[1], drawn[1].to(held[1])])
    with torch.no_grad():
        outputs = head(features)
        kept_old = False
        if task.classes == len(entry.class_names):
            before = learner.heads[entry.index](features)
            gain = (outputs.argmax(1) == labels).double() - (before.argmax(1) == labels).double()
            kept_old = gain.mean().item() < -2 * gain.std().item() / len(gain) ** 0.5
            if kept_old:
                head, outputs = learner.heads[entry.index], before
    right = outputs[: len(held[1])].argmax(1) == held[1]
    joined = old.joined(ClassStatistics.of(*seen, task.classes))
    memory = _joined_memory(learner, entry, task, int(old.counts.sum()))
    return Further(head, kept_old, joined, memory, right.double().mean().item(), temperature(outputs, labels))


def _wider(learner: KeptLearner, entry: HRNEntry, task: Task) -> nn.Module:
    """The head of a task, with new outputs for new classes."""
    old: Any = learner.heads[entry.index]
    scale = learner.recipe.feature_scale or float(learner.scale_features)
    wider = replace(entry, class_names=task.class_names)
    head = learner.objective.new_head(learner.feature_count(), wider, scale).to(learner.device)
    state = head.state_dict()
    for name, value in old.state_dict().items():
        state[name][tuple(slice(0, size) for size in value.shape)] = value
    head.load_state_dict(state)
    return head


def _train(
    learner: KeptLearner, head: nn.Module, seen: tuple[Tensor, Tensor], old: ClassStatistics, epochs: int
) -> None:
    """Train a head on new features and on random old ones, which are drawn anew in each epoch."""
    counts = old.counts.clamp_max(MOST_DRAWN).tolist()
    batch = learner.recipe.batch_size
    steps = epochs * -(-(len(seen[0]) + sum(counts)) // batch)
    state = new_training_state(learner.recipe, (), steps, head.parameters())
    head.train()
    for _ in range(epochs):
        drawn = old.sample(counts)
        features = torch.cat([seen[0], drawn[0].to(seen[0])])
        labels = torch.cat([seen[1], drawn[1].to(seen[1])])
        for rows in torch.randperm(len(features)).to(learner.device).split(batch):
            state.step(learner.objective.loss(head(features[rows]), labels[rows]))
    head.eval()


def _joined_memory(learner: KeptLearner, entry: HRNEntry, task: Task, images: int) -> dict[str, Tensor]:
    """The memory of old and new data of a task; the old data had this many images."""
    old = {name: tensor.cpu() for name, tensor in learner.memory(entry).items()}
    learner.write_memory(replace(entry, data=task))
    new = {name: buffer[-1].cpu() for name, buffer in learner.memories.named_buffers()}
    share = len(task.train) / (images + len(task.train))
    shift = new["means"] - old["means"]
    spreads = [Spread(each["directions"], each["variances"], each["rests"]) for each in (old, new)]
    spread = spreads[0].joined(spreads[1], share, shift)
    room = old["directions"].shape[0]
    joined = GaussianMemories(len(shift), room)
    joined.reserve(1)
    joined.means[0] = old["means"] + share * shift
    count = len(spread.variances)
    joined.directions[0, :count] = spread.directions
    joined.variances[0] = spread.rest
    joined.variances[0, :count] = torch.maximum(spread.variances, spread.rest)
    joined.rests[0] = spread.rest
    # The new images show what is usual now; the old ones are as far from the old mean as they were.
    joined.usual[0] = torch.minimum(old["usual"], new["usual"]) * torch.tensor([1.0, 0.0]) + torch.maximum(
        old["usual"], new["usual"]
    ) * torch.tensor([0.0, 1.0])
    return {name: buffer[0] for name, buffer in joined.named_buffers()}
