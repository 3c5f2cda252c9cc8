"""hrn: route, fork, freeze. Similar data goes to the same units, and what a unit has learned is never overwritten."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hashroute.learners.base import Familiar, Learner, count_weights, drawn_apart, evenly, register_learner
from hashroute.nn.forest import Forest
from hashroute.nn.gaussian import Memories, edges
from hashroute.nn.hashing import FeatureHash
from hashroute.tasks import Task

UNFAMILIAR = 3.0
"""An image is unfamiliar if it is less likely than usual by so many deviations, for all data that is remembered: one of
a hundred images of known data."""


@dataclass(frozen=True)
class HRNOptions:
    """Options of hrn."""

    rank: int = 0
    """Of the differences that a fork may have from its parent: 0 for any."""
    max_units: int | None = None
    """Add no units where there would be more than this; None for no bound."""
    max_bytes: int | None = None
    """Units and memories together never weigh more than this; None for no bound. Heads, one for each task as in any
    learner, do not count."""
    looked_at: int = 500
    """Training images, labels unseen, that are compared with every memory before a task is learned."""
    recognised: float = 0.02
    """Data is taken for remembered data that is no more nats away than this, for each number of a hash vector."""
    directions: int = 24
    """m, principal directions of a memory."""
    memory_features: int = 1000
    """Length of the hash vectors of memories; where a memory would weigh more than a path of full rank, they are
    shorter, and their directions fewer."""
    remembered: int = 2000
    """Training images that a memory is made of, at most."""
    within: float = 0.1
    """With no task given, tasks are asked whose kind of data makes an image at most this many nats less likely than
    the best one does, and whose own data does so than the best of its kind, for each number of a hash vector."""
    trust: float = 60.0
    """How much a nat between tasks of one kind, for each number of a hash vector, counts beside a logit."""
    trust_in_kinds: float = 120.0
    """The same of a nat between kinds of data."""

    def __post_init__(self) -> None:
        whole = {"rank": 0, "looked_at": 1, "directions": 1, "memory_features": 2, "remembered": 1}
        whole |= {name: 1 for name in ("max_units", "max_bytes") if getattr(self, name) is not None}
        others = {"recognised": -math.inf, "within": 0, "trust": 0, "trust_in_kinds": 0}
        for name, bound in (whole | others).items():
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            if not number or value < bound or (name in whole and value != int(value)):
                kind = "a whole number" if name in whole else "a number"
                least = f", at least {bound}" if math.isfinite(bound) else ""
                raise ValueError(f"{name} of hrn is {value!r}: expected {kind}{least}")
            if name in whole:
                object.__setattr__(self, name, int(value))  # 1e6 is as good as 1000000


@dataclass
class Decision:
    """What was decided about a task, and why; accuracies are on validation images, in percent."""

    task: str
    action: str = "fresh"
    """fresh: first units; fork: units of its own; reuse: a head on the units of another task."""
    looks_like: str | None = None
    """The task whose data it was taken for."""
    known: bool = False
    """Whether the same classes were learned from such data before."""
    distance: float | None = None
    """Of its data from the remembered data that it was taken for, or is most like, in nats."""
    parent: str | None = None
    """The task whose units were forked and the fork kept, or whose units are reused."""
    why: str = "nothing was learned before"
    tried: dict[str, float] = field(default_factory=dict)
    """Accuracies of heads on frozen units, by the task whose units these are."""
    forked_from: str | None = None
    """The task whose units were forked, whether the fork was kept or not."""
    reused: float | None = None
    """The best of the accuracies of heads on frozen units."""
    forked: float | None = None
    """Accuracy with units of its own."""
    error: float | None = None
    """Standard error of the difference of the two."""
    units_added: int = 0
    bytes_added: int = 0
    """Of units and memories."""
    said: str = field(default="", repr=False)
    """All of this in one line."""

    def say(self) -> None:
        """Write the line."""
        seen = ""
        if self.distance is not None:
            like = f"like {self.looks_like}" if self.looks_like else "like nothing so far"
            seen = f"looks {like} ({self.distance:,.1f} nats away); "
        what = {"fresh": "fresh units", "fork": f"forks {self.parent}", "reuse": f"reuses {self.parent}"}[self.action]
        gain = ""
        if self.forked is not None and self.reused is not None:
            gain = f": {self.forked:.1f} % with units of its own, {self.reused:.1f} % without, ± {self.error:.1f}"
        size = f"{self.bytes_added / 1000:,.0f} kB"
        kept = f"{self.units_added} units, {size} added" if self.units_added else f"{size} of memory added"
        kept = kept if self.bytes_added else "nothing added"
        self.said = f"{self.task}: {seen}{what} ({self.why}){gain}; {kept}"


@register_learner("hrn")
class HRN(Learner):
    """Paths of frozen units, forked from one another. A head remembers its path, so nothing is ever forgotten.

    A task's data is looked at, and compared with what is remembered. A head is trained on the frozen units of the most
    recent path, and of the most recent one of such data, if that is another. Where it does best, the first of them at a
    tie, these units are forked and trained together with a new head. The fork stays, frozen for good, unless it is
    behind by two standard errors on validation images, or no different. Where the same classes of such data were
    learned before, their head goes on on its own units, too, and the fork stays only if it is ahead of all by as much.
    """

    version = 4
    """2: a fork starts with a new head. 3: paths of the same data and classes are reused, but not forked. 4: forks may
    be behind by two standard errors instead of one."""
    Options = HRNOptions
    norm_features = True
    encoder: Forest

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if min(self.image_shape[1:]) < 3:
            size = " x ".join(map(str, self.image_shape[1:]))
            raise ValueError(f"{self.name} was given images of {size} pixels: expected at least 3 x 3")
        most, levels = self.options.max_units, len(self.recipe.backbone)
        if most is not None and most < levels:
            raise ValueError(f"max_units of {self.name} is {most}: expected at least {levels}, the units of one path")
        self.ways: list[int] = []
        """The path of each task."""
        self.known_as: list[int] = []
        """The memory of each task's data."""
        self.kinds: list[int] = []
        """The kind of each task's data: that of the task it was taken for, or a new one."""
        self.path_weights = numbers = count_weights(self.encoder.new_units())
        # m directions of s numbers, their mean and m + 3 numbers more are at most s (m + 2) where s > m + 2.
        fitting = (some for some in range(self.options.directions, 0, -1) if numbers // (some + 2) > some + 2)
        count = next(fitting, 1)
        size = min(self.options.memory_features, max(count + 1, numbers // (count + 2)))
        self.memory_hash = FeatureHash(size, (self.seed << 8) + 255)
        self.memories = Memories(size, count)
        self._check_one_path_fits()

    def new_encoder(self) -> Forest:
        return Forest(self.image_shape, self.recipe.backbone, self.recipe.features, self.seed)

    def feature_count(self) -> int:
        return self.encoder.features

    def trainable(self, tasks: Sequence[int]) -> Iterator[nn.Parameter]:
        for task in tasks:
            yield from (weight for weight in self.encoder.paths[self.ways[task]].parameters() if weight.requires_grad)
            yield from self.heads[task].parameters()

    def features(self, images: Tensor, task: int) -> Tensor:
        features: Tensor = self.encoder(images, self.ways[task])
        return features

    def encoding(self, task: int) -> Any:
        return self.ways[task], self.scaling(task)

    # ---------------------------------------------------------------- before a task: look, reuse, fork

    def begin(self, *tasks: Task) -> None:
        if len(tasks) > 1:
            raise ValueError(f"{self.name} was given {len(tasks)} tasks at once: it learns one after the other")
        super().begin(*tasks)

    def take_back(self, first: int) -> None:
        super().take_back(first)
        del self.ways[first:], self.kinds[first:], self.known_as[first:]
        while len(self.encoder) > max(self.ways, default=-1) + 1:
            self.encoder.drop_last()

    def look(self, tasks: Sequence[Task], first: int) -> None:
        """Decide which units the task starts from; a head on them as they are shows what a fork is worth."""
        (task,) = tasks
        decision = Decision(task.name)
        if not self.ways:
            self._check_one_path_fits()  # of the present precision
            self.ways.append(self.encoder.grow())
            self.kinds.append(0)
        else:
            away = self._far(task).tolist()
            limit = self.options.recognised * self.memory_hash.features
            near = [number for number, distance in enumerate(away) if distance <= limit]
            same = [number for number in near if self.tasks[number].class_names == task.class_names]
            nearest = min(same or near or range(first), key=lambda number: away[number])
            familiar, decision.distance, decision.known = self.ways[nearest], max(0.0, away[nearest]), bool(same)
            decision.looks_like = self.tasks[nearest].name if near else None
            self.kinds.append(self.kinds[nearest] if near else max(self.kinds) + 1)
            if self._at_bound():
                parent, decision.why = familiar, "the most familiar units, at the bound on growth"
                path = parent
            else:
                alike = {self.ways[number] for number in near} - {self.ways[number] for number in same}
                candidates = self.candidates(familiar, alike)
                known = [max(self.ways[number] for number in same)] if same else []
                parent = self._try_reuse(task, first, candidates, known, decision)
                decision.why = candidates[parent] + (", where a head does best" if len(candidates) > 1 else "")
                path = self.encoder.grow(parent, self.options.rank)
                decision.forked_from = self._owner(parent)
            self._start_like(self.heads[first], task, parent)
            self.ways.append(path)
            decision.parent = self._owner(parent)
        self.decisions.append(asdict(decision))
        self.to(self._place)

    def candidates(self, familiar: int, alike: set[int]) -> dict[int, str]:  # noqa: ARG002
        """The paths that may be forked, and why, the preferred one first.

        The most recent one, for all that was learned since, and the most recent one of such data.

        familiar: the path of the data that a task's is most like; alike: the paths of such data, but for those of the
        same classes: there a head does best, since these units were made for them; a fork does not.
        """
        found = {len(self.encoder) - 1: "the most recent units"}
        if alike:
            found.setdefault(max(alike), "the most recent units of such data")
        return found

    def _owner(self, path: int) -> str:
        """The name of the task that a path was made for."""
        return self.tasks[self.ways.index(path)].name

    def _start_like(self, head: nn.Module, task: Task, path: int) -> None:
        """Copy the head of the latest task on a path with the same classes as this one, if there is one."""
        found = [n for n, way in enumerate(self.ways) if way == path and self.tasks[n].class_names == task.class_names]
        if found:
            head.load_state_dict(self.heads[found[-1]].state_dict())

    def _at_bound(self) -> bool:
        """Whether another path would be too many."""
        options, levels = self.options, len(self.recipe.backbone)
        more = self._bytes(self.encoder.fork_weights(options.rank)) + self.memories.bytes_each
        units = options.max_units is not None and levels * (len(self.encoder) + 1) > options.max_units
        return units or not self._fits(more)

    def _fits(self, more: int) -> bool:
        """Whether so many bytes more are allowed, beside all units and memories."""
        units = self._bytes(sum(map(self.encoder.weights, range(len(self.encoder)))))
        weigh = units + len(self.memories) * self.memories.bytes_each
        return self.options.max_bytes is None or weigh + more <= self.options.max_bytes

    def _bytes(self, weights: int) -> int:
        """What so many weights weigh."""
        return weights * self._place.element_size()

    def _check_one_path_fits(self) -> None:
        least = self._bytes(self.path_weights) + self.memories.bytes_each
        if self.options.max_bytes is not None and self.options.max_bytes < least:
            raise ValueError(
                f"max_bytes of {self.name} is {self.options.max_bytes}: expected at least {least}, the weight of the "
                "units of one path and of a memory"
            )

    def _try_reuse(
        self, task: Task, number: int, parents: Iterable[int], known: Iterable[int], decision: Decision
    ) -> int:
        """Train a head on the features of paths as they are; returns the one of the parents where it does best.

        parents: those that may be forked; known: the most recent of the same data and classes, whose head goes on.
        The best head of all is kept until the task's end. A fork does not start with it: a head that knows these images
        by heart already leaves the units little to learn from them.
        """
        shares: dict[int, float] = {}
        for path in dict.fromkeys([*parents, *known]):
            self.ways.append(path)
            seen, held = (self.encode(split.images, number) for split in (task.train, task.validation))
            self.ways.pop()
            head = copy.deepcopy(self.heads[number])
            self._start_like(head, task, path)
            with drawn_apart(self.seed * 1000 + number, self.device):
                self._train_head(head, seen, task.train.labels.to(self.device), self.recipe.epochs_of(number))
            with torch.no_grad():
                right = head(held).argmax(1).cpu() == task.validation.labels
            share = right.double().mean().item()
            if share > max(shares.values(), default=-1.0):
                self.scratch = {"path": torch.tensor(path), "right": right}
                self.scratch |= {f"head.{name}": weight for name, weight in head.state_dict().items()}
            shares[path] = share
        decision.tried = {self._owner(path): 100 * share for path, share in shares.items()}
        decision.reused = max(decision.tried.values())
        return max(parents, key=lambda path: shares[path])

    def tried_head(self) -> dict[str, Tensor]:
        """The state of the head that did best on units as they are, while a task is being learned."""
        return {name.removeprefix("head."): kept for name, kept in self.scratch.items() if name.startswith("head.")}

    def _train_head(self, head: nn.Module, features: Tensor, labels: Tensor, epochs: int) -> None:
        """Train a head on recorded features, as long as any other."""
        head.train()
        batch = self.recipe.batch_size
        optimizer, schedule = self.new_optimizer(head.parameters(), epochs * -(-len(features) // batch))
        for _ in range(epochs):
            for rows in torch.randperm(len(features)).to(self.device).split(batch):
                optimizer.zero_grad()
                self.errors(head(features[rows]), labels[rows]).backward()
                optimizer.step()
                if schedule is not None:
                    schedule.step()
        head.eval()

    # ---------------------------------------------------------------- after a task: keep or drop, freeze, remember

    def consolidate(self, tasks: Sequence[Task], first: int) -> None:
        """The fork stays if it has earned it, and is frozen; what the data was like is written down if it is new."""
        (task,) = tasks
        decision, path = Decision(**self.decisions[-1]), self.ways[first]
        grown = any(weight.requires_grad for weight in self.encoder.paths[path].parameters())
        stays = grown and (not self.scratch or self._earned(task, first, decision))
        if stays or (not decision.known and self._fits(self.memories.bytes_each)):  # where a fork was, there is room
            splits = (_spread(split.images, self.options.remembered) for split in (task.train, task.validation))
            self.memories.write(*map(self._hashed, splits))  # this takes a while: interrupted, nothing has changed
            self.known_as.append(len(self.memories) - 1)
            decision.bytes_added = self.memories.bytes_each
        elif decision.looks_like is not None:
            self.known_as.append(self.known_as[self.task_number(decision.looks_like)])
        else:  # there is no room for a memory more
            self.known_as.append(self.known_as[int(self._far(task).argmin())])
        if stays:
            self.encoder.freeze(path)
            decision.action = "fresh" if decision.parent is None else "fork"
            decision.units_added = len(self.recipe.backbone)
            decision.bytes_added += self._bytes(self.encoder.weights(path))
        else:
            decision.action = "reuse"
            if grown:
                self.encoder.drop_last()
                self.ways[first] = int(self.scratch["path"])
                decision.parent = self._owner(self.ways[first])
                self.heads[first].load_state_dict(self.tried_head())
                decision.why = "units of its own gain too little"
        decision.say()
        self.decisions[-1] = asdict(decision)

    def _earned(self, task: Task, number: int, decision: Decision) -> bool:
        """Whether the fork is to stay, by its difference from the reused units on validation images.

        For classes known there it must be ahead by more than two standard errors. Else it must not be behind by two:
        what it has learned will help the next task, too, and no validation image of this one shows that.
        """
        right = self.predict(task.validation.images, number).cpu() == task.validation.labels
        difference = right.double() - self.scratch["right"].cpu().double()
        decision.forked = 100 * right.double().mean().item()
        error = difference.std().item() / len(difference) ** 0.5 if len(difference) > 1 else 0.0
        decision.error = 100 * error
        return difference.mean().item() > 2 * (error if decision.known else -error) + 1e-9  # not by rounding alone

    # ---------------------------------------------------------------- what it remembers of data

    @torch.no_grad()
    def _hashed(self, images: Tensor) -> Tensor:
        """Hash vectors of the edges in images: (n, memory features)."""
        # On Apple's devices maps are pooled only to sides that divide theirs.
        place = torch.device("cpu") if self.device.type == "mps" else self.device
        parts = (edges(part.to(place).to(self._place.dtype)) for part in self._parts(images))
        return torch.cat([self.memory_hash.normalised(part) for part in parts]).to(self.device)

    def distances(self, images: Tensor) -> Tensor:
        """(tasks,) how far a batch of images, as a whole, is from the data of each task, in nats.

        Below `recognised` for each number of a hash vector, 20 in all by default, `learn` takes it for such data. It
        needs hundreds of images.
        """
        self._check_remembers()
        return self.memories.divergence(self._hashed(images))[self.known_as]

    def _far(self, task: Task) -> Tensor:
        """(tasks,) how far a task's data is from that of each, by the images that are looked at."""
        return self.distances(_spread(task.train.images, self.options.looked_at))

    def _likely(self, images: Tensor) -> Tensor:
        """(n, memories) how likely remembered data makes each image."""
        return torch.cat([self.memories.log_likelihood(self._hashed(part)) for part in self._parts(images)])

    def familiarity(self, images: Tensor) -> Tensor:
        """(n, memories) how likely images are beside what is usual for remembered data, in deviations."""
        usual = self.memories.usual
        return (self._likely(images) - usual[:, 0]) / usual[:, 1]

    def unfamiliar(self, images: Tensor) -> Tensor:
        """(n,) which images are unlike all data that is remembered.

        One image says little: what is smoother than known data, as house numbers beside photographs, passes for it.
        Of a whole batch `distances` says much more.
        """
        self._check_remembers()
        unlike: Tensor = self.familiarity(images).amax(1) < -UNFAMILIAR
        return unlike

    def _check_remembers(self) -> None:
        if not len(self.memories):
            raise ValueError(f"{self.name} has learned no task yet: there is nothing that images could be unlike")

    def known_by(self, images: Tensor, task: int) -> Familiar:  # noqa: ARG002
        """The familiarity of images to every memory."""
        return Familiar("memories", self.familiarity(images))

    def prior(self, images: Tensor) -> Tensor:
        """By how much the data of each task makes an image less likely than the data that makes it most likely.

        First its kind, by the mean over all tasks of that kind, since the best of many would be likelier than the only
        one of another kind; then the task within it.
        """
        if not len(self.memories):  # the first task is being learned
            return super().prior(images)
        likely = self._likely(images)[:, self.known_as] / self.memory_hash.features
        kinds = torch.tensor(self.kinds[: len(self.known_as)], device=likely.device)
        member = F.one_hot(kinds).to(likely)  # (tasks, kinds)
        usual = likely @ (member / member.sum(0))
        best = torch.stack([likely[:, kind > 0].amax(1) for kind in member.T], 1)
        between, inside = (usual - usual.amax(1, keepdim=True))[:, kinds], likely - best[:, kinds]
        prior = self.options.trust_in_kinds * between + self.options.trust * inside
        prior = prior.masked_fill(torch.minimum(between, inside) < -self.options.within, -torch.inf)
        learning = len(self.tasks) - len(self.known_as)  # a task that is being learned has no memory yet
        return F.pad(prior, (0, learning), value=-torch.inf)

    def paths(self, images: Tensor, task: int) -> Tensor:
        """(n, levels) units of the task's path: all its images go one way."""
        levels = len(self.recipe.backbone)
        return (self.ways[task] * levels + torch.arange(levels)).expand(len(images), levels)

    def analyse(self, images: Tensor, task: int) -> dict[str, Any]:  # noqa: ARG002
        """The task's path, and how many units there are."""
        return {"path": self.ways[task], "units": len(self.encoder) * len(self.recipe.backbone)}

    def unit_facts(self) -> list[dict[str, Any]]:
        """Of each unit its path and level, its weights, the path that it was forked from, and the tasks that use it."""
        return [
            {
                "unit": f"{path}.{level}",
                "parameters": count_weights(unit),
                "forked_from": None if parent is None else f"{parent}.{level}",
                "tasks": [task.name for task, way in zip(self.tasks, self.ways, strict=True) if way == path],
            }
            for path, (units, parent) in enumerate(zip(self.encoder.paths, self.encoder.parents, strict=True))
            for level, unit in enumerate(units.children())
        ]

    # ---------------------------------------------------------------- files

    def description(self) -> dict[str, Any]:
        grown = {"forest": self.encoder.config, "ways": self.ways, "known_as": self.known_as, "kinds": self.kinds}
        return {**super().description(), **grown, "memories": len(self.memories), "decisions": self.decisions}

    @classmethod
    def from_description(cls, description: dict[str, Any]) -> Learner:
        learner = super().from_description(description)
        assert isinstance(learner, HRN)
        learner.encoder.grow_like(description["forest"])
        learner.ways = list(description["ways"])
        learner.known_as = list(description["known_as"])
        learner.kinds = list(description["kinds"])
        learner.decisions = list(description["decisions"])
        learner.memories.reserve(description["memories"])
        for way in learner.ways[: len(learner.known_as)]:  # all but those of a task that is being learned
            learner.encoder.freeze(way)
        return learner

    def load_state(self, state: dict[str, Tensor]) -> None:
        super().load_state(state)
        self.encoder.settle()


def _spread(images: Tensor, count: int) -> Tensor:
    """So many images, evenly spread over all, or all."""
    return images[evenly(len(images), count)]
