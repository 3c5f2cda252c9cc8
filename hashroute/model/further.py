"""More images, or new classes, of a task that was learned before. No other task changes.

The images of earlier lessons are gone. Random features stand for them, drawn from the statistics of each class. With
these and the features of the new images, the head of the task is trained further on its own units, which stay as they
are. Then the units are forked, and the fork is trained on the new images. Its features are held near those of the old
units, and the statistics move by as much as the features of new images nearby have moved (semantic drift compensation:
Yu, 2020). The fork is kept if it is better than the head alone by two standard errors, on held-out and random features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from hashroute import distributed
from hashroute.learners.entries import Batch, TaskEntry
from hashroute.learners.growth import HRNEntry
from hashroute.learners.randomness import isolated_rng
from hashroute.learners.trainer import new_training_state
from hashroute.model.calibration import temperature
from hashroute.model.learner import KeptLearner
from hashroute.model.records import ModelSettings, TaskRecord
from hashroute.model.statistics import ClassStatistics, Spread
from hashroute.model.store import Store
from hashroute.nn.gaussian import FEW, GaussianMemories

DRAWN = 500
"""Random hash vectors that show how a joined memory differs from its parts."""
MOST_DRAWN = 500
"""Random features of each old class in an epoch, at most."""
NEAR = 3.0
"""Weight of the squared distance between the features of a fork and those of the old units."""
BEFORE = "before"
"""The name of the task as it was, while it is learned further."""


@dataclass
class Further:
    """What learning further gave."""

    kept: str
    """head: a new head on the old units. fork: new units, too. before: nothing new, because it would be worse."""
    shares: dict[str, float]
    """The share of right answers of each that was tried, on held-out and random features."""
    statistics: ClassStatistics
    memory: dict[str, Tensor]
    accuracy: float
    """Share of right answers to the new held-out images."""
    temperature: float

    @property
    def summary(self) -> str:
        """What was decided, and why, in plain words."""
        decided = {
            "fork": "the units of the task were forked and trained further",
            "head": "the units of the task stay as they were, and its head was trained further",
            "before": "the head of the task stays as it was: training it further made it worse",
        }
        names = {"fork": "a fork", "head": "a new head", "before": "the old head"}
        shares = ", ".join(f"{100 * share:.1f} % with {names[kind]}" for kind, share in self.shares.items())
        return f"{decided[self.kept]} ({shares})"


class FurtherLearner(KeptLearner):
    """Learns more of one task: as the second of two tasks, of which the first is the same task before.

    Args:
        store: where the objects are.
        settings: of the model.
        known: the record of the task as it is.
        shared: the object with the shared head.
        epochs: of this lesson.
    """

    def __init__(
        self, store: Store, settings: ModelSettings, known: TaskRecord, shared: str | None, epochs: int
    ) -> None:
        super().__init__(store, settings, {BEFORE: known}, shared, epochs, known.private)
        self.known = known
        stored = store.tensors(known.objects["statistics"])
        self.old = ClassStatistics.from_tensors(stored, len(known.classes), self.feature_count())
        self.found: Further | None = None

    # ---------------------------------------------------------------- hooks of a learner

    def before_task(self, task: TaskEntry) -> None:
        """Train a head on the old units, and fork them."""
        entry = self.entries[task.index]
        before = self.entries[0]
        entry.path, entry.columns, entry.mirror = before.path, before.columns, before.mirror
        seen = self.record(entry.data.train, entry)
        self.heads[entry.index] = self._wider(entry)
        with isolated_rng(self.task_seed(entry), self.device):
            head = self._wider(entry)
            self._train_head(head, seen, self.old)
        self.scratch = {f"head.{name}": weight for name, weight in head.state_dict().items()}
        entry.path = self.encoder.grow(entry.path)
        self.to(self._place)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss of new images and random old features, and how far the features have moved from the old units."""
        features, head = self.features(batch.images, batch.task), self.heads[batch.task.index]
        with torch.no_grad():
            before = self.encoder(batch.images, self.entries[0].path)
        shares = self.old.counts.clamp_max(MOST_DRAWN) / len(batch.task.data.train)
        counts = (shares * distributed.batch_rows(len(batch.targets)) + torch.rand(len(shares))).long()
        drawn, labels = self.old.sample(counts.tolist())
        with distributed.more_rows(len(labels)) as (own, factor):
            outputs = head(torch.cat([features, drawn[own].to(features)]))
        loss = self.objective.loss(outputs, torch.cat([batch.targets, labels[own].to(batch.targets)]))
        moved = (features - before).square().sum(1).mean()
        return factor * loss + NEAR * moved, outputs[: len(batch.targets)]

    def after_task(self, task: TaskEntry) -> None:
        """Keep the fork, the head alone, or nothing. The shared head learns the new images in any case."""
        entry = self.entries[task.index]
        lesson = None if self.shared is None else self.study(entry)
        fork, seen = entry.path, self.record(entry.data.train, entry)
        statistics = {"head": self.old, "before": self.old, "fork": self._moved(entry, seen)}
        heads: dict[str, nn.Module] = {"head": self._wider(entry), "fork": self.heads[entry.index]}
        heads["head"].load_state_dict({name.removeprefix("head."): each for name, each in self.scratch.items()})
        if entry.class_names == self.entries[0].class_names:
            heads["before"] = self.heads[0]
        with isolated_rng(self.task_seed(entry), self.device):
            self._train_head(heads["fork"], seen, statistics["fork"])
        outputs: dict[str, Tensor] = {}
        for kind, head in heads.items():
            entry.path = fork if kind == "fork" else self.entries[0].path
            held = self.record(entry.data.validation, entry)
            drawn, labels = self._drawn(statistics[kind])
            with torch.no_grad():
                outputs[kind] = head(torch.cat([held[0], drawn.to(held[0])]))
        labels = torch.cat([held[1], labels.to(held[1])])
        right = {kind: (each.argmax(1) == labels).double() for kind, each in outputs.items()}
        right = distributed.first(lambda: right)
        kept = "fork" if _better(right["fork"], right["head"]) else "head"
        if "before" in right and _better(right["before"], right[kept]):
            kept = "before"
        entry.path = fork if kept == "fork" else self.entries[0].path
        if kept == "fork":
            self.encoder.freeze(fork)
        else:
            self.encoder.drop_last()
            seen = self.record(entry.data.train, entry)
        self.heads[entry.index] = heads[kept]
        with isolated_rng(self.task_seed(entry), self.device):
            memory = self._joined_memory(entry)
        if lesson is not None:
            self.take(lesson, entry)
        answers = self.adjusted(outputs[kept][: len(held[1])], self.inputs(entry.data.validation, entry).images, entry)
        self.found = Further(
            kept,
            {kind: each.mean().item() for kind, each in right.items()},
            statistics[kept].joined(ClassStatistics.of(*seen, len(entry.class_names))),
            memory,
            (answers.argmax(1) == held[1]).double().mean().item(),
            temperature(answers, held[1]),
        )

    # ---------------------------------------------------------------- parts

    def _wider(self, entry: HRNEntry) -> nn.Module:
        """The head of the task as it was, with new outputs for new classes."""
        head = self.new_head(entry)
        state = head.state_dict()
        for name, value in self.heads[0].state_dict().items():
            state[name][tuple(slice(0, size) for size in value.shape)] = value
        head.load_state_dict(state)
        return head.to(self.device)

    def _train_head(self, head: nn.Module, seen: tuple[Tensor, Tensor], old: ClassStatistics) -> None:
        """Train a head on new features and on random old ones, which are drawn anew in each epoch."""
        counts, batch = old.counts.clamp_max(MOST_DRAWN).tolist(), self.recipe.batch_size
        epochs = self.recipe.epochs_of(0)
        steps = epochs * -(-(len(seen[0]) + sum(counts)) // batch)
        state = new_training_state(self.recipe, (), steps, head.parameters())
        head.train()
        for _ in range(epochs):
            drawn = old.sample(counts)
            features = torch.cat([seen[0], drawn[0].to(seen[0])])
            labels = torch.cat([seen[1], drawn[1].to(seen[1])])
            for rows in torch.randperm(len(features)).to(self.device).split(batch):
                state.step(self.objective.loss(head(features[rows]), labels[rows]))
        head.eval()

    def _drawn(self, statistics: ClassStatistics) -> tuple[Tensor, Tensor]:
        """Random features to compare heads with: the same random numbers at each call."""
        with isolated_rng(self.task_seed(self.entries[-1]), self.device):
            return statistics.sample([max(1, min(count // 10, 50)) for count in statistics.counts.tolist()])

    def _moved(self, entry: HRNEntry, seen: tuple[Tensor, Tensor]) -> ClassStatistics:
        """The statistics of the old images in the features of the fork: each mean moves as new images nearby do."""
        fork = entry.path
        entry.path = self.entries[0].path
        before = self.record(entry.data.train, entry)[0].cpu().float()
        entry.path = fork
        drift = seen[0].cpu().float() - before
        distances = torch.cdist(self.old.means, before).square()
        near = (-distances / distances.median().clamp_min(1e-12)).softmax(1)
        return replace(self.old, means=self.old.means + near @ drift)

    def _joined_memory(self, entry: HRNEntry) -> dict[str, Tensor]:
        """The memory of old and new data of the task."""
        old = {name: tensor.cpu() for name, tensor in self.memory(self.entries[0]).items()}
        self.write_memory(entry)
        new = {name: buffer[-1].cpu() for name, buffer in self.memories.named_buffers()}
        train, count = len(entry.data.train), len(entry.data.validation)
        share = train / (int(self.old.counts.sum()) + train)
        shift = new["means"] - old["means"]
        spreads = [Spread(each["directions"], each["variances"], each["rests"]) for each in (old, new)]
        spread = spreads[0].joined(spreads[1], share, shift)
        joined = GaussianMemories(len(shift), len(old["variances"]))
        joined.reserve(1)
        directions = len(spread.variances)
        joined.means[0] = old["means"] + share * shift
        joined.directions[0, :directions] = spread.directions
        joined.variances[0] = spread.rest
        joined.variances[0, :directions] = torch.maximum(spread.variances, spread.rest)
        joined.rests[0] = spread.rest
        joined.usual[0] = torch.stack(
            [torch.minimum(old["usual"], new["usual"])[0], torch.maximum(old["usual"], new["usual"])[1]]
        )
        moved = [_moved_ranges(each, part, joined) for each, part in zip((old, new), spreads, strict=True)]
        joined.ranges[0] = _joined_ranges(*moved)
        held_out = self.known.held_out
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
    """Ranges (6, 3) that contain both: the middle of the two medians, and distances to the outer ends."""
    low = torch.minimum(one[:, 0] - one[:, 1], other[:, 0] - other[:, 1])
    high = torch.maximum(one[:, 0] + one[:, 2], other[:, 0] + other[:, 2])
    middle = (one[:, 0] + other[:, 0]) / 2
    return torch.stack([middle, middle - low, high - middle], 1)


def _better(one: Tensor, other: Tensor) -> bool:
    """Whether the first is right more often by more than two standard errors of the difference."""
    gain = one - other
    return bool(gain.mean() > 2 * gain.std() / len(gain) ** 0.5)
