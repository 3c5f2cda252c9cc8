"""The growth policy of `hrn`: which units a new task starts from, and whether a fork is kept."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from hashroute import distributed
from hashroute.learners.randomness import isolated_rng
from hashroute.learners.shared_head import SharedEntry
from hashroute.learners.trainer import new_training_state
from hashroute.schema import check

if TYPE_CHECKING:
    from hashroute.learners.hrn import HRN


@dataclass
class Decision:
    """What was decided about a task. Scores are on validation images; for classification, in percent."""

    task: str
    action: str = "fresh"
    """fresh: the first units; fork: units of its own; reuse: a head on the units of another task."""
    looks_like: str | None = None
    """The task whose data its own data was recognised as."""
    known: bool = False
    """Whether the same classes were learned from the same kind of data before."""
    distance: float | None = None
    """Divergence of its data from the most similar remembered data, in nats."""
    parent: str | None = None
    """The task whose units were forked, if the fork was kept, or whose units are reused."""
    tried: dict[str, float] = field(default_factory=dict)
    """Scores of heads on frozen units, by the task that these units belong to."""
    reused: float | None = None
    """The best score of a head on frozen units."""
    forked: float | None = None
    """The score with units of its own."""
    error: float | None = None
    """Standard error of the difference of the two."""
    units_added: int = 0
    bytes_added: int = 0
    """Bytes of units and memories."""
    head_bytes: int = 0
    """Bytes of its head."""

    def to_dict(self) -> dict[str, Any]:
        """The decision as plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The decision that `to_dict` described; values that only earlier versions had are left out."""
        known = {part.name: values[part.name] for part in fields(cls) if part.name in values}
        return cls(**check(known, cls, "decision"))


@dataclass
class HRNEntry(SharedEntry):
    """What `hrn` knows about one task."""

    path: int = -1
    """The path of units that its images go through."""
    domain: int = 0
    """The kind of data that its images are: tasks of recognised data share a domain."""
    memory: int | None = None
    """The Gaussian memory of its data; None while it is being learned."""
    decision: Decision | None = None

    @classmethod
    def from_dict(cls, values: dict[str, Any], index: int) -> Self:
        """The entry that `to_dict` described."""
        decision = values["decision"]
        plain = {**values, "decision": None if decision is None else Decision.from_dict(decision)}
        return super().from_dict(plain, index)


class Growth:
    """Decides for each task which units are forked or reused, and whether a fork has earned its place."""

    def __init__(self, learner: HRN) -> None:
        self.learner = learner

    # ---------------------------------------------------------------- before a task: recognise, reuse, fork

    def before_task(self, task: HRNEntry) -> None:
        """Choose the units that a task starts from. A head on frozen units shows what a fork must beat."""
        learner, decision = self.learner, Decision(task.name)
        if task.index == 0:
            self.check_one_path_fits()
            task.path = learner.encoder.grow()
        else:
            self._choose(task, decision)
        task.decision = decision

    def _choose(self, task: HRNEntry, decision: Decision) -> None:
        """Recognise the data of a task, find its parent, and fork it unless growth is bounded."""
        learner = self.learner
        entries = learner.entries[: task.index]
        distances = distributed.first(lambda: learner.distances_of(task).tolist())
        near = [entry for entry in entries if distances[entry.index] <= learner.recognition_limit]
        same = [entry for entry in near if entry.class_names == task.class_names]
        nearest = min(same or near or entries, key=lambda entry: distances[entry.index])
        decision.distance, decision.known = max(0.0, distances[nearest.index]), bool(same)
        decision.looks_like = nearest.name if near else None
        task.domain = nearest.domain if near else 1 + max(entry.domain for entry in entries)
        if self.at_bound():
            parent = path = nearest.path
        else:
            similar = {entry.path for entry in near} - {entry.path for entry in same}
            candidates = self.candidates(nearest.path, similar, task)
            known = [max(entry.path for entry in same)] if same else []
            parent = self._try_reuse(task, candidates, known, decision)
            path = learner.encoder.grow(parent, learner.options.rank)
        self._start_like(learner.heads[task.index], task, parent)
        task.path, decision.parent = path, self.owner(parent)

    def candidates(self, familiar: int, similar: set[int], task: HRNEntry) -> list[int]:  # noqa: ARG002
        """The paths that may be forked, the preferred one first.

        These are the most recent path, and the most recent path of similar data.

        familiar: the path of the most similar data. similar: the paths of similar data, without those of the same
        classes. On these a head scores best, because they were trained for the same classes; a fork does not.
        """
        recent = len(self.learner.encoder) - 1
        return [recent, max(similar)] if similar and max(similar) != recent else [recent]

    def owner(self, path: int) -> str:
        """The name of the task that a path was made for."""
        return next(entry.name for entry in self.learner.entries if entry.path == path)

    def _start_like(self, head: nn.Module, task: HRNEntry, path: int) -> None:
        """Copy the head of the latest task on a path that has the same classes, if there is one."""
        found = [
            entry
            for entry in self.learner.entries[: task.index]
            if entry.path == path and entry.class_names == task.class_names
        ]
        if found:
            head.load_state_dict(self.learner.heads[found[-1].index].state_dict())

    def _try_reuse(self, task: HRNEntry, parents: Iterable[int], known: Iterable[int], decision: Decision) -> int:
        """Train a head on the features of frozen paths; returns the parent on which it scores best.

        parents: paths that may be forked. known: the most recent path of the same data and classes; its head is trained
        further. The best head of all is kept until the end of the task. A fork does not start with it: a head that fits
        these images already leaves the units little to learn.
        """
        learner, objective = self.learner, self.learner.objective
        shares: dict[int, float] = {}
        for path in dict.fromkeys([*parents, *known]):
            task.path = path
            seen, held = learner.record(task.data.train, task), learner.record(task.data.validation, task)
            task.path = -1
            head = copy.deepcopy(learner.heads[task.index])
            self._start_like(head, task, path)
            with isolated_rng(learner.task_seed(task), learner.device):
                self._train_head(head, *seen, learner.recipe.epochs_of(task.index))
            scores = distributed.first(partial(self._scores, head, *held))
            share = scores.double().mean().item()
            if share > max(shares.values(), default=-float("inf")):
                learner.scratch = {"path": torch.tensor(path), "scores": scores}
                learner.scratch |= {f"head.{name}": weight for name, weight in head.state_dict().items()}
            shares[path] = share
        decision.tried = {self.owner(path): objective.score_factor * share for path, share in shares.items()}
        decision.reused = max(decision.tried.values())
        return max(parents, key=lambda path: shares[path])

    @torch.no_grad()
    def _scores(self, head: nn.Module, features: Tensor, targets: Tensor) -> Tensor:
        return self.learner.objective.scores(head(features), targets)

    def tried_head(self) -> dict[str, Tensor]:
        """The state of the best head on frozen units, while a task is being learned."""
        kept = self.learner.scratch.items()
        return {name.removeprefix("head."): tensor for name, tensor in kept if name.startswith("head.")}

    def _train_head(self, head: nn.Module, features: Tensor, targets: Tensor, epochs: int) -> None:
        """Train a head on recorded features, for as many epochs as any other."""
        head.train()
        learner, batch = self.learner, self.learner.recipe.batch_size
        state = new_training_state(learner.recipe, (), epochs * -(-len(features) // batch), head.parameters())
        for _ in range(epochs):
            for rows in torch.randperm(len(features)).to(learner.device).split(batch):
                state.step(learner.objective.loss(head(features[rows]), targets[rows]))
        head.eval()

    # ---------------------------------------------------------------- after a task: keep or drop, freeze, remember

    def after_task(self, task: HRNEntry) -> None:
        """Keep and freeze the fork, or drop it; remember what the data was like if that is new."""
        learner, decision = self.learner, self._decision(task)
        grown = any(weight.requires_grad for weight in learner.encoder.paths[task.path].parameters())
        kept = grown and (not learner.scratch or self.earned(task, decision))
        memory, added = self._remember(task, decision, kept)  # this takes time: if interrupted, nothing has changed
        decision.bytes_added = added
        decision.head_bytes = learner.byte_count(sum(each.numel() for each in learner.heads[task.index].parameters()))
        if kept:
            learner.encoder.freeze(task.path)
            decision.action = "fresh" if decision.parent is None else "fork"
            decision.units_added = learner.backbone.depth
            decision.bytes_added += learner.byte_count(learner.encoder.weights(task.path))
        else:
            decision.action = "reuse"
            if grown:
                learner.encoder.drop_last()
                task.path = int(learner.scratch["path"])
                decision.parent = self.owner(task.path)
                learner.heads[task.index].load_state_dict(self.tried_head())
        task.memory = memory

    @staticmethod
    def _decision(task: HRNEntry) -> Decision:
        assert task.decision is not None, "before_task makes it"
        return task.decision

    def _remember(self, task: HRNEntry, decision: Decision, kept: bool) -> tuple[int, int]:
        """The memory of a task's data, new or existing, and the bytes that it adds."""
        learner = self.learner
        if kept or (not decision.known and self.fits(learner.memories.bytes_each)):  # a dropped fork leaves room
            learner.write_memory(task)
            return len(learner.memories) - 1, learner.memories.bytes_each
        if decision.looks_like is not None:
            similar = learner.entries[learner.find_task(decision.looks_like).index]
        else:  # there is no room for another memory
            similar = learner.entries[distributed.first(lambda: int(learner.distances_of(task).argmin()))]
        assert similar.memory is not None, "every task that was learned has one"
        return similar.memory, 0

    def earned(self, task: HRNEntry, decision: Decision) -> bool:
        """Whether a fork is kept, by the paired difference of its scores from those of the reused units.

        If the classes are known there, the fork must be better by more than two standard errors. Otherwise it is kept
        unless reuse is better by two standard errors: what it has learned also helps later tasks, and no validation
        image of this task shows that.
        """
        learner = self.learner
        scores = distributed.first(lambda: learner.recorded_scores(task.data.validation, task)).cpu().double()
        difference = scores - learner.scratch["scores"].cpu().double()
        decision.forked = learner.objective.score_factor * scores.mean().item()
        error = difference.std().item() / len(difference) ** 0.5 if len(difference) > 1 else 0.0
        decision.error = learner.objective.score_factor * error
        return difference.mean().item() > 2 * (error if decision.known else -error) + 1e-9  # more than rounding

    # ---------------------------------------------------------------- bounds

    def at_bound(self) -> bool:
        """Whether another path would exceed a bound."""
        learner, options = self.learner, self.learner.options
        more = learner.byte_count(learner.encoder.fork_weights(options.rank)) + learner.memories.bytes_each
        units = learner.backbone.depth * (len(learner.encoder) + 1)
        return (options.max_units is not None and units > options.max_units) or not self.fits(more)

    def fits(self, more: int) -> bool:
        """Whether this many bytes more are allowed, beside all units and memories."""
        learner, most = self.learner, self.learner.options.max_bytes
        if most is None:
            return True
        units = learner.byte_count(sum(map(learner.encoder.weights, range(len(learner.encoder)))))
        present = units + len(learner.memories) * learner.memories.bytes_each
        return bool(present + more <= most)

    def check_one_path_fits(self) -> None:
        """Raise an error if the bounds do not allow a single path."""
        learner, options = self.learner, self.learner.options
        if options.max_units is not None and options.max_units < learner.backbone.depth:
            raise ValueError(
                f"max_units of {learner.name} is {options.max_units}: expected at least {learner.backbone.depth}, the "
                "units of one path"
            )
        least = learner.byte_count(learner.path_weights) + learner.memories.bytes_each
        if options.max_bytes is not None and options.max_bytes < least:
            raise ValueError(
                f"max_bytes of {learner.name} is {options.max_bytes}: expected at least {least}, the bytes of the "
                "units of one path and of a memory"
            )
