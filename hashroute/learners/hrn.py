"""hrn: route, fork, freeze. Similar data goes through the same units, and no unit is ever overwritten."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hashroute.images import Images
from hashroute.learners.candidates import members_of, most_promising
from hashroute.learners.entries import Familiarity, TaskEntry
from hashroute.learners.growth import Decision, Growth, HRNEntry
from hashroute.learners.learner import Style, count_weights
from hashroute.learners.options import Space, Span
from hashroute.learners.randomness import evenly_spaced_indices
from hashroute.learners.registry import register_learner
from hashroute.learners.shared_head import Columns, Lesson, SharedEntry, SharedHeadLearner, check_fixed_features
from hashroute.nn.forest import Forest
from hashroute.nn.gaussian import GaussianMemories, edges, texture
from hashroute.nn.hashing import FeatureHash
from hashroute.user_data import to_uint8

NO_SHARED_HEAD = {"fixed_features": 0, "within": 0.1, "trust": 60.0, "trust_in_domains": 120.0}
"""Options that give the numbers of version 4."""

UNFAMILIAR = 3.0
"""A memory that was saved without ranges finds an image strange that is this many standard deviations less likely than
its own data."""

HEAD_WEIGHT = 4.0
"""Weight of the log-probability of a class within its task, beside the confidence of the head."""

SHARED_WEIGHT = 4.0
"""Weight of the log-probability of a class by the shared head."""

MOST = 10**15
"""The largest value of any option."""


@dataclass(frozen=True)
class HRNOptions:
    """Options of hrn."""

    rank: int = 0
    """Rank of the differences between a fork and its parent: 0 for any."""
    max_units: int | None = None
    """Most units that there may be; None for no bound."""
    max_bytes: int | None = None
    """Most bytes that units and memories may take together; None for no bound. Heads are not counted: every learner has
    one for each task."""
    compared_images: int = 500
    """Training images, without labels, that are compared with every memory before a task is learned."""
    recognised: float = 0.02
    """Data is recognised if its divergence from a memory is at most this (nats per dimension)."""
    directions: int = 24
    """m, the principal directions of a memory."""
    memory_features: int = 1000
    """Length of the hash vectors of memories. They are shorter, with fewer directions, where a memory would otherwise
    take more bytes than a path."""
    remembered: int = 2000
    """Training images that a memory is made from, at most."""
    within: float = 0.5
    """Only tasks whose memory scores within this margin of the best one are considered (nats per dimension)."""
    trust: float = 30.0
    """Weight of the likelihood between tasks of one domain, beside the confidence of heads (per nat per dimension)."""
    trust_in_domains: float = 60.0
    """Weight of the likelihood between domains, beside the confidence of heads (per nat per dimension)."""
    fixed_features: int = 1792
    """Features of the shared head, which is solved in closed form; 0 for no shared head. A frozen backbone has its own
    number."""

    def __post_init__(self) -> None:
        whole = {"rank": 0, "compared_images": 1, "directions": 1, "memory_features": 2, "remembered": 1}
        check_fixed_features("hrn", self.fixed_features)
        whole |= {name: 1 for name in ("max_units", "max_bytes") if getattr(self, name) is not None}
        others = {"recognised": -math.inf, "within": 0, "trust": 0, "trust_in_domains": 0}
        for name, bound in (whole | others).items():
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            if not number or not bound <= value <= MOST or (name in whole and value != int(value)):
                kind = "a whole number" if name in whole else "a number"
                least = f", at least {bound}" if math.isfinite(bound) else ""
                raise ValueError(f"{name} of hrn is {value!r}: expected {kind}{least}")
            if name in whole:
                object.__setattr__(self, name, int(value))  # 1e6 is as good as 1000000


@register_learner("hrn")
class HRN(SharedHeadLearner):
    """Paths of frozen units, forked from one another. A head remembers its path, so nothing is ever forgotten.

    Before a task, its data is compared with the memories of all tasks, and a head is trained on frozen units: those of
    the most recent path, and of the most recent path of similar data. The units on which it scores best are forked and
    trained together with a new head. The fork is kept, and frozen for good, unless reuse is better by two standard
    errors on validation images. If the same classes were learned from the same kind of data before, the fork must be
    better than reuse by two standard errors.

    A shared head over the classes of all tasks is solved in closed form, from sums over features that are never trained
    (`SharedHead`). With the task given, the task's columns of it, frozen with the task, are added to its head.
    """

    style = Style("#D55E00", "-", "o")
    version = 5
    """2: a fork starts with a new head. 3: paths of the same data and classes are reused, but not forked. 4: a fork is
    dropped if it is behind by two standard errors instead of one. 5: a shared head in closed form."""
    Options = HRNOptions
    space: ClassVar[Space] = {
        "rank": (0, 4, 16),
        "recognised": Span(0.002, 0.2, log=True),
        "within": Span(0.05, 2.0, log=True),
        "trust": Span(3.0, 300.0, log=True),
        "trust_in_domains": Span(3.0, 300.0, log=True),
    }
    Entry = HRNEntry
    Growth: ClassVar[type[Growth]] = Growth
    scale_features = True
    remembers_data = True
    encoder: Forest

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if min(self.image_shape[1:]) < 3:
            size = " x ".join(map(str, self.image_shape[1:]))
            raise ValueError(f"{self.name} was given images of {size} pixels: expected at least 3 x 3")
        with self.random.use(self.device):
            self.path_weights = weights = count_weights(self.backbone.new_levels())
        # m directions of s numbers, their mean and m + 3 numbers more are at most s (m + 2) if s > m + 2. The ranges
        # of a memory, 19 numbers, are not counted.
        most = min(self.options.directions, math.isqrt(weights))
        fitting = (count for count in range(most, 0, -1) if weights // (count + 2) > count + 2)
        directions = next(fitting, 1)
        size = min(self.options.memory_features, max(directions + 1, weights // (directions + 2)))
        self.memory_hash = FeatureHash(size, (self.seed << 8) + 255)
        self.memories = GaussianMemories(size, directions)
        self.shared = self.new_shared_head() if self.options.fixed_features and self.objective.names_classes else None
        self.task_columns = nn.ModuleList()
        """For each learned task, its columns of the shared head."""
        self.growth.check_one_path_fits()

    @property
    def growth(self) -> Any:
        """What decides about units. It is made when it is needed: a learner that held it would be freed late."""
        return self.Growth(self)

    @classmethod
    def saved_options(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {"fixed_features": 0, **values}  # the shared head came with version 5

    def new_encoder(self) -> Forest:
        return Forest(self.backbone, self.recipe.features, self.seed)

    @property
    def entries(self) -> list[HRNEntry]:
        """What it knows about each task."""
        return self.tasks  # type: ignore[return-value]

    @property
    def decisions(self) -> list[Decision]:
        return [entry.decision for entry in self.entries if entry.decision is not None]

    def feature_count(self) -> int:
        return self.encoder.features

    def trainable(self, tasks: Sequence[TaskEntry]) -> Iterator[nn.Parameter]:
        for task in tasks:
            yield from (weight for weight in self._path(task).parameters() if weight.requires_grad)
            yield from self.heads[task.index].parameters()

    def features(self, images: Tensor, task: TaskEntry) -> Tensor:
        features: Tensor = self.encoder(images, self.entries[task.index].path)
        return features

    def features_of_several(self, asked: Sequence[tuple[Tensor, TaskEntry]]) -> Tensor:
        return self.encoder.forward_several([(images, self.entries[task.index].path) for images, task in asked])

    def feature_key(self, task: TaskEntry) -> Any:
        return self.entries[task.index].path, self.pixel_statistics(task)

    def _path(self, task: TaskEntry) -> nn.Module:
        return self.encoder.paths[self.entries[task.index].path]

    def byte_count(self, weights: int) -> int:
        """The bytes of this many weights."""
        return weights * self._place.element_size()

    def before_task(self, task: TaskEntry) -> None:
        """Decide which units the task starts from."""
        self.growth.before_task(self.entries[task.index])
        self.to(self._place)

    def after_task(self, task: TaskEntry) -> None:
        """Decide whether its units are kept, and remember its classes and what its data was like."""
        entry = self.entries[task.index]
        lesson = None if self.shared is None else self.study(entry)  # this takes time: if interrupted, nothing changed
        self.growth.after_task(entry)
        if lesson is not None:
            self.take(lesson, entry)

    def rollback(self, task: TaskEntry) -> None:
        super().rollback(task)
        self.task_columns = self.task_columns[: task.index]
        while len(self.encoder) > max((entry.path for entry in self.entries), default=-1) + 1:
            self.encoder.drop_last()

    # ---------------------------------------------------------------- the shared head

    def kind_of_data(self, task: SharedEntry) -> int:
        """The domain of a task. On a frozen stem, no task shares columns: domains depend on the order of tasks."""
        return self.entries[task.index].domain if self.backbone.stem is None else task.index

    def take(self, lesson: Lesson, task: TaskEntry) -> None:
        """Let the shared head learn a task, and freeze the task's columns.

        Held-out images decide how much the columns count beside the head of the task.
        """
        assert self.shared is not None
        held_out = self.inputs(task.data.validation, task)
        outputs = self.logits(held_out.images, task)  # of the head alone: the task has no columns yet
        lesson.columns.sharpen(lesson.held_out, outputs, held_out.labels.to(self.device))
        self.shared.take(lesson)
        self.task_columns.append(lesson.columns)

    def adjusted(self, outputs: Tensor, images: Tensor | Images, task: TaskEntry) -> Tensor:
        """The log-probability by the head, plus that by the task's columns of the shared head."""
        if task.index >= len(self.task_columns):  # it is being learned, or there is no shared head
            return outputs
        columns, mirror = self.task_columns[task.index], self.entries[task.index].mirror
        known = torch.cat([columns(self.fixed(part, mirror)) for part in self._parts(images)])
        return outputs.log_softmax(1) + known.to(outputs)

    def class_scores(self, images: Tensor | Images) -> Tensor:
        """(n, all classes) the sum of what memory, head and shared head say about each class.

        These are the prior of its task, the confidence of the head of its task, and weighted log-probabilities: of the
        class within its task by the head, and of the class among all classes by the shared head. Only the `MOST_ASKED`
        tasks for which memory and shared head say most are considered.

        On a frozen stem the shared head answers alone: the order in which tasks came does not matter.
        """
        if len(self.task_columns) and self.backbone.stem is not None:
            shared = self.shared_scores(images, self.entries[: len(self.task_columns)])
            learning = sum(len(entry.class_names) for entry in self.entries[len(self.task_columns) :])
            return F.pad(shared, (0, learning), value=-torch.inf)
        prior = self.task_prior(images)
        if not len(self.task_columns):
            return self._confident_scores(images, prior)
        scores, places = self._no_scores(prior)
        known = self.entries[: len(self.task_columns)]
        shared = SHARED_WEIGHT * self.shared_scores(images, known)
        prior = most_promising(prior, shared, [len(entry.class_names) for entry in known])
        for entry, rows, outputs in self._asked(images, prior):
            best = prior[rows, entry.index] + self.objective.confidence(outputs)
            scores[rows, places[entry.index]] = best[:, None] + HEAD_WEIGHT * outputs.log_softmax(1)
        scores[:, : shared.shape[1]] += shared
        return scores

    # ---------------------------------------------------------------- memories of data

    @torch.no_grad()
    def hashed(self, images: Tensor | Images) -> Tensor:
        """Hash vectors of the edges in images: (n, memory features)."""
        return torch.cat([self.memory_hash.normalised(part) for part in self._edges(images)]).to(self.device)

    def _edges(self, images: Tensor | Images) -> Iterator[Tensor]:
        """The edges in images, batch by batch."""
        # On Apple's devices maps are pooled only to sides that divide theirs.
        place = torch.device("cpu") if self.device.type == "mps" else self.device
        return (edges(part.to(place).to(self._place.dtype)) for part in self._parts(images))

    @torch.no_grad()
    def _hashed_with_textures(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Hash vectors of the edges in images, and their textures: (n, memory features) and (n, 4)."""
        found = [(self.memory_hash.normalised(part), texture(part)) for part in self._edges(to_uint8(images))]
        hashed, textures = (torch.cat(parts).to(self.device) for parts in zip(*found, strict=True))
        return hashed, textures

    def write_memory(self, task: TaskEntry) -> None:
        """Add a memory of the data of a task that is being learned."""
        seen, held = (
            _spread(split.images, self.options.remembered) for split in (task.data.train, task.data.validation)
        )
        self.memories.write(self.hashed(seen), *self._hashed_with_textures(held))

    def distances(self, images: Tensor | Images) -> Tensor:
        """(tasks,) the divergence of a batch of images, as a whole, from the data of each task, in nats.

        `learn` recognises data that is closer than the option `recognised` times the length of the hash vectors, by
        default 20 nats. The batch needs hundreds of images.
        """
        self._check_remembers()
        if len(images.shape) == 4 and len(images) == 1:
            raise ValueError(
                "distances() was given one image: expected a batch, best of hundreds; unfamiliar() judges single images"
            )
        return self.divergence_of(self.hashed(images))

    def distances_of(self, task: TaskEntry) -> Tensor:
        """(tasks,) the divergence of a new task's data from the data of each learned task, in nats."""
        return self.divergence_of(self.hashed(_spread(task.data.train.images, self.options.compared_images)))

    def divergence_of(self, hashed: Tensor) -> Tensor:
        """(tasks,) the divergence of a batch, given as hash vectors of its edges, from the data of each task."""
        return self.memories.divergence(hashed.to(self.device))[self._memory_of_task()]

    @property
    def recognition_limit(self) -> float:
        """The divergence up to which data is recognised, in nats."""
        return float(self.options.recognised * self.memory_hash.features)

    def _memory_of_task(self) -> list[int]:
        return [entry.memory for entry in self.entries if entry.memory is not None]

    def _log_likelihood(self, images: Tensor | Images) -> Tensor:
        """(n, memories) the log-likelihood of each image under each memory."""
        return torch.cat([self.memories.log_likelihood(self.hashed(part)) for part in self._parts(images)])

    def familiarity(self, images: Tensor | Images) -> Tensor:
        """(n, memories) how likely images are, in standard deviations from the mean of each memory's own data."""
        usual = self.memories.usual
        return (self._log_likelihood(images) - usual[:, 0]) / usual[:, 1]

    def unfamiliar(self, images: Tensor | Images) -> Tensor:
        """(n,) which images are unlike all data that is remembered.

        An image is familiar if one memory finds its likelihood and texture within the usual ranges, which hold for 99
        of 100 held-out images. One image says little about similar data: `distances` of a whole batch says more.
        """
        self._check_remembers()
        return torch.cat([self._unfamiliar(part) for part in self._parts(images)])

    def _unfamiliar(self, images: Tensor) -> Tensor:
        memories, (hashed, textures) = self.memories, self._hashed_with_textures(images)
        strange = memories.strangeness(hashed, textures) > memories.limits
        if not memories.limits.isinf().any():
            return strange.all(1)
        usual = memories.usual
        unlikely = (memories.log_likelihood(hashed) - usual[:, 0]) / usual[:, 1] < -UNFAMILIAR
        return torch.where(memories.limits.isinf(), unlikely, strange).all(1)

    def _check_remembers(self) -> None:
        if not len(self.memories):
            raise ValueError(f"{self.name} has learned no task yet: it has nothing to compare images with")

    def known_by(self, images: Tensor, task: TaskEntry) -> Familiarity:  # noqa: ARG002
        """The familiarity of images to every memory."""
        return Familiarity("memories", self.familiarity(images))

    def task_prior(self, images: Tensor | Images) -> Tensor:
        """(n, tasks) the weighted log-likelihood of images under the memory of each task, relative to the best."""
        if not self._memory_of_task():  # the first task is being learned
            return super().task_prior(images)
        return self.prior_of(self._log_likelihood(images))

    def prior_of(self, log_likelihood: Tensor) -> Tensor:
        """(n, tasks) the evidence for each task from the log-likelihood of images under each memory: (n, memories).

        Domains are compared first, by the mean over their tasks, because the best of many tasks would win over the
        only task of another domain. Then tasks are compared within their domain.
        """
        memories = self._memory_of_task()
        likely = log_likelihood[:, memories] / self.memory_hash.features
        domains = [entry.domain for entry in self.entries[: len(memories)]]
        member = F.one_hot(torch.tensor(domains), max(domains) + 1).to(likely)  # (tasks, domains)
        usual = likely @ (member / member.sum(0))
        best = likely[:, members_of(domains)].amax(2)
        between, inside = (usual - usual.amax(1, keepdim=True))[:, domains], likely - best[:, domains]
        prior = self.options.trust_in_domains * between + self.options.trust * inside
        prior = prior.masked_fill(torch.minimum(between, inside) < -self.options.within, -torch.inf)
        learning = len(self.tasks) - len(memories)  # a task that is being learned has no memory yet
        return F.pad(prior, (0, learning), value=-torch.inf)

    # ---------------------------------------------------------------- facts and files

    def paths(self, images: Tensor | Images, task: TaskEntry) -> Tensor:
        """(n, levels) the units of the task's path: all its images go the same way."""
        levels, path = self.backbone.depth, self.entries[task.index].path
        return (path * levels + torch.arange(levels)).expand(len(images), levels)

    def analyse(self, images: Tensor | Images, task: TaskEntry) -> dict[str, Any]:  # noqa: ARG002
        """The task's path, and how many units there are."""
        return {"path": self.entries[task.index].path, "units": len(self.encoder) * self.backbone.depth}

    def unit_facts(self) -> list[dict[str, Any]]:
        """For each unit: path and level, weights, the unit that it was forked from, and the tasks that use it."""
        return [
            {
                "unit": f"{path}.{level}",
                "parameters": count_weights(unit),
                "forked_from": None if parent is None else f"{parent}.{level}",
                "tasks": [entry.name for entry in self.entries if entry.path == path],
            }
            for path, (units, parent) in enumerate(zip(self.encoder.paths, self.encoder.parents, strict=True))
            for level, unit in enumerate(units.children())
        ]

    def extra_description(self) -> dict[str, Any]:
        return {"forest": self.encoder.config, "memories": len(self.memories)}

    def make_room(self, description: dict[str, Any]) -> None:
        super().make_room(description)
        self.encoder.grow_like(description["forest"])
        if self.shared is not None:
            learned = (entry for entry in self.entries if entry.memory is not None)
            self.task_columns.extend(Columns(self.shared.sums.features, len(entry.class_names)) for entry in learned)
        if not 0 <= description["memories"] <= len(self.entries):  # a task has at most one
            raise ValueError(f"it names {description['memories']} memories of {len(self.entries)} tasks")
        self.memories.reserve(description["memories"])
        for entry in self.entries:
            paths, memories = range(len(self.encoder.paths)), (None, *range(len(self.memories)))
            if entry.path not in paths or entry.memory not in memories:
                raise ValueError(f"task {entry.name!r} has path {entry.path!r} and memory {entry.memory!r}")
            if entry.memory is not None:  # all tasks but one that is being learned
                self.encoder.freeze(entry.path)

    def on_state_loaded(self) -> None:
        super().on_state_loaded()
        self.encoder.settle()


def _spread(images: Tensor | Images, count: int) -> Tensor:
    """Evenly spaced images, this many or all."""
    return images[evenly_spaced_indices(len(images), count)]
