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
from hashroute.nn.gaussian import FEW, GaussianMemories
from hashroute.tasks import Task

DRAWN = 500
"""Random hash vectors that show how a joined memory differs from its parts."""
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


def learn_further(
    learner: KeptLearner, entry: HRNEntry, old: ClassStatistics, held_out: int, task: Task, seed: int
) -> Further:
    """Train the head of a task further.

    task: the new images; its classes are the old ones, then new ones. old: the statistics of the old images.
    held_out: how many old images were held out.
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
    with isolated_rng(seed, learner.device):
        memory = _joined_memory(learner, entry, task, int(old.counts.sum()), held_out)
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


def _joined_memory(learner: KeptLearner, entry: HRNEntry, task: Task, images: int, held_out: int) -> dict[str, Tensor]:
    """The memory of old and new data of a task; the old data had this many images to train on and held out."""
    old = {name: tensor.cpu() for name, tensor in learner.memory(entry).items()}
    learner.write_memory(replace(entry, held=task))
    new = {name: buffer[-1].cpu() for name, buffer in learner.memories.named_buffers()}
    share = len(task.train) / (images + len(task.train))
    shift = new["means"] - old["means"]
    spreads = [Spread(each["directions"], each["variances"], each["rests"]) for each in (old, new)]
    spread = spreads[0].joined(spreads[1], share, shift)
    joined = GaussianMemories(len(shift), len(old["variances"]))
    joined.reserve(1)
    count = len(spread.variances)
    joined.means[0] = old["means"] + share * shift
    joined.directions[0, :count] = spread.directions
    joined.variances[0] = spread.rest
    joined.variances[0, :count] = torch.maximum(spread.variances, spread.rest)
    joined.rests[0] = spread.rest
    joined.usual[0] = torch.stack(
        [torch.minimum(old["usual"], new["usual"])[0], torch.maximum(old["usual"], new["usual"])[1]]
    )
    moved = [_moved_ranges(each, part, joined) for each, part in zip((old, new), spreads, strict=True)]
    joined.ranges[0] = _joined_ranges(*moved)
    count = len(task.validation)
    usual = torch.maximum(old["limits"] / (1 + FEW / held_out), new["limits"] / (1 + FEW / count))
    joined.limits[0] = usual * (1 + FEW / (held_out + count))
    return {name: buffer[0] for name, buffer in joined.named_buffers()}


def _moved_ranges(memory: dict[str, Tensor], spread: Spread, joined: GaussianMemories) -> Tensor:
    """The ranges of a memory, moved by as much as random data like its own moves in a joined memory."""
    single = GaussianMemories(joined.means.shape[1], joined.variances.shape[1])
    single.reserve(1)
    for name, buffer in single.named_buffers():
        buffer[0] = memory[name]
    drawn = memory["means"] + spread.sample(DRAWN)
    change = (joined.facts(drawn) - single.facts(drawn))[:, 0].median(0).values
    ranges = memory["ranges"].clone()
    ranges[:, 0] += change.to(ranges)
    return ranges


def _joined_ranges(one: Tensor, other: Tensor) -> Tensor:
    """Ranges (4, 3) that contain both: the middle of the two medians, and distances to the outer ends."""
    low = torch.minimum(one[:, 0] - one[:, 1], other[:, 0] - other[:, 1])
    high = torch.maximum(one[:, 0] + one[:, 2], other[:, 0] + other[:, 2])
    middle = (one[:, 0] + other[:, 0]) / 2
    return torch.stack([middle, middle - low, high - middle], 1)
