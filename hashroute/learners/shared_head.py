"""The shared head: a linear head over the classes of all tasks, solved in closed form over features that never change.

It keeps sums over features, no images. A task adds to them, so the head is the same for any order of tasks, and equal
to the head of all data at once. With the task given, a copy of the task's own columns answers, as they were when the
task was learned: later tasks do not change it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from hashroute import distributed
from hashroute.images import Images
from hashroute.learners.entries import TaskEntry
from hashroute.learners.learner import Learner
from hashroute.learners.maps import Maps
from hashroute.nn.closed_form import CHUNK, ClosedForm, Solution
from hashroute.nn.fixed_features import StemFeatures
from hashroute.nn.patches import PatchFeatures
from hashroute.schema import shown
from hashroute.tasks import Split

SHARPNESS = 0.3
"""Scores are multiplied by this before the softmax over the classes of all tasks."""

SHARPNESS_IN_TASK = (0.3, 0.15, 0.05, 0.0)
"""The same for the classes of one task, beside its head: held-out images choose; the usual one first."""

RIDGES = (4e-1, 1e-1, 2e-2, 4e-3, 1e-3)
"""Penalties among which held-out images choose, in units of the mean variance of a feature. Of equally good ones, the
largest is taken: its scores are the smoothest."""

MOST_FEATURES = 8192
"""The sums of more features take gigabytes."""


def check_fixed_features(learner: str, features: Any, least: int = 0) -> None:
    """Raise an error if an option `fixed_features` is impossible."""
    if type(features) is not int or not (features == 0 == least or 8 <= features <= MOST_FEATURES):
        none = "0, or " if least == 0 else ""
        expected = f"expected {none}a whole number from 8 to {MOST_FEATURES}"
        raise ValueError(f"fixed_features of {learner} is {features!r}: {expected}")


Batches = Iterable[tuple[Tensor, Tensor]]
"""Features and labels."""


class FixedFeatures(Protocol):
    """What turns images, or the maps of a stem, into features that never change."""

    features: int

    def draw(self, seed: int) -> None:
        """Prepare for the first images."""

    def __call__(self, images: Tensor, mirror: bool = False, whole: bool = False) -> Tensor:
        """(n, features) numbers from -127 to 127; whole: rounded, for exact sums."""


class Columns(nn.Module):
    """The part of the shared head that belongs to one task, as it was when the task was learned."""

    weight: Tensor
    bias: Tensor
    sharpness: Tensor
    """How much the columns count beside the head of the task."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(features, classes))
        self.register_buffer("bias", torch.zeros(classes))
        self.register_buffer("sharpness", torch.tensor(SHARPNESS_IN_TASK[0]))

    def forward(self, features: Tensor) -> Tensor:
        """features: (n, s). Returns the log-probability of each class of the task: (n, classes)."""
        scores = torch.addmm(self.bias, features.to(self.weight), self.weight)
        return (self.sharpness * scores).log_softmax(1)

    def sharpen(self, scores: Tensor, outputs: Tensor, labels: Tensor) -> None:
        """Choose the sharpness that gives the most right answers together with the head.

        The usual one stays unless another is better by more than a standard error: of n differences that are 1, 0 or
        -1, the sum must exceed the root of the sum of squares.

        scores: (n, classes) of the columns. outputs: (n, classes) of the head. labels: (n,).
        """
        known = outputs.log_softmax(1)
        right = torch.stack([((known + each * scores).argmax(1) == labels).double() for each in SHARPNESS_IN_TASK])
        gain = right - right[0]
        best = int(gain.mean(1).argmax())
        if gain[best].sum() > gain[best].norm():
            self.sharpness.fill_(SHARPNESS_IN_TASK[best])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Columns that were saved without a sharpness come from ridge regression, and have that of then."""
        state_dict.setdefault(prefix + "sharpness", torch.tensor(10.0))
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Lesson(NamedTuple):
    """What the shared head learns from a task."""

    sums: ClosedForm
    """Of all tasks so far."""
    evidence: Tensor
    solution: Solution
    columns: Columns
    held_out: Tensor
    """(n, classes) the scores of the task's columns for its held-out images."""


class SharedHead(nn.Module):
    """One linear head over the classes of all tasks.

    Args:
        fixed: gives the features.
        exact: the penalty depends on the sums alone, so that the head is the same for any order of tasks; otherwise
            held-out images choose it.
    """

    fixed: FixedFeatures
    evidence: Tensor
    """(ridges,) how many held-out images were answered correctly so far, each when its task was learned."""

    def __init__(self, fixed: FixedFeatures, exact: bool = False) -> None:
        super().__init__()
        self.fixed = fixed
        self.exact = exact
        self.sums = ClosedForm(fixed.features)
        self.register_buffer("evidence", torch.zeros(len(RIDGES)))
        self._solved: tuple[Tensor, Solution] | None = None

    def study(self, train: Batches, held_out: Batches, columns: Sequence[int]) -> Lesson:
        """What a task adds. The head stays as it is until `take`.

        train, held_out: batches of features and labels of the task; in many processes, a part of those to train on.
        columns: the column of each of its classes.
        """
        own = torch.tensor(columns, device=self.evidence.device)
        sums, added = copy.deepcopy(self.sums), ClosedForm(self.sums.features).to(own.device)
        added.reserve(max(columns) + 1)
        for features, labels in _chunks(train):
            added.add(features, own[labels])
        added.sum_over_ranks()
        sums.merge(added, torch.arange(added.classes, device=own.device))
        tried = list(sums.solutions([sums.shrinkage()] if self.exact else RIDGES))
        evidence = self.evidence.clone()
        scores: list[list[Tensor]] = [[] for _ in tried]
        for features, labels in held_out:
            for place, solution in enumerate(tried):
                found = solution(features)
                evidence[place] += 0 if self.exact else (found.argmax(1) == own[labels]).sum()
                scores[place].append(found[:, own])
        chosen = 0 if self.exact else int(evidence.argmax())
        best = tried[chosen]
        frozen = Columns(sums.features, len(columns)).to(self.evidence)
        frozen.weight.copy_(best.weight[:, own])
        frozen.bias.copy_(best.bias[own])
        return Lesson(sums, evidence, best, frozen, torch.cat(scores[chosen]))

    def take(self, lesson: Lesson) -> None:
        """Learn what `study` found."""
        self.sums, self.evidence = lesson.sums, lesson.evidence
        self._solved = (self.sums.gram, lesson.solution)

    @property
    def solution(self) -> Solution:
        """The head of all classes. It is solved when it is first asked for after a change."""
        if self._solved is None or self._solved[0] is not self.sums.gram:
            ridge = self.sums.shrinkage() if self.exact else RIDGES[int(self.evidence.argmax())]
            self._solved = (self.sums.gram, self.sums.solve(ridge))
        return self._solved[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_solved": None}  # type: ignore[no-untyped-call]

    def _load_from_state_dict(self, *arguments: Any) -> None:
        self._solved = None
        super()._load_from_state_dict(*arguments)


def _chunks(batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    """The same rows in larger batches, whose sums are faster."""
    waiting: list[tuple[Tensor, Tensor]] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += len(batch[1])
        if count >= CHUNK:
            yield _joined(waiting)
            waiting, count = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    features, labels = zip(*batches, strict=True)
    return torch.cat(features), torch.cat(labels)


# -------------------------------------------------------------------- learners that have one


@dataclass
class SharedEntry(TaskEntry):
    """What a learner with a shared head knows about one task."""

    columns: tuple[int, ...] = ()
    """The columns of its classes in the shared head; none if there is no shared head."""
    mirror: bool = False
    """Whether the shared head sees an image together with its mirror image."""


class SharedHeadLearner(Learner):
    """A learner with a shared head over the classes of all tasks."""

    Entry = SharedEntry
    shared: SharedHead | None

    def kind_of_data(self, task: SharedEntry) -> Any:
        """Classes of the same name share a column if their tasks have the same kind of data."""
        raise NotImplementedError

    def new_shared_head(self) -> SharedHead:
        """A shared head over the maps of the frozen stem, or over patches of images."""
        if self.backbone.stem is not None:
            return SharedHead(StemFeatures(self.backbone.stem, self.image_shape), exact=True)
        return SharedHead(PatchFeatures(self.image_shape, self.options.fixed_features, seed=None))

    def study(self, task: SharedEntry) -> Lesson:
        """What the shared head learns from the images of a task; it stays as it is."""
        assert self.shared is not None
        if not self.shared.sums.classes:
            self.shared.fixed.draw(self.seed)
        if not task.columns:
            flipped = self.recipe.augment and "flip" in task.data.augmentations
            task.mirror = flipped and self.backbone.stem is None  # maps are not mirrored
        task.columns = self.columns_of(task)
        train, held_out = (self.inputs(split, task) for split in (task.data.train, task.data.validation))
        if (own := distributed.own_rows(len(train))) != slice(None):
            train = train[own]
        return self.shared.study(self._fixed_batches(train, task), self._fixed_batches(held_out, task), task.columns)

    def columns_of(self, task: SharedEntry) -> tuple[int, ...]:
        """The column of each class of a task."""
        assert self.shared is not None
        entries: Any = self.tasks
        known = {
            (self.kind_of_data(entry), name): column
            for entry in entries
            for name, column in zip(entry.class_names, entry.columns, strict=False)  # a new class has none yet
        }
        kind, free = self.kind_of_data(task), self.shared.sums.classes
        for name in task.class_names:
            if known.setdefault((kind, name), free) == free:
                free += 1
        return tuple(known[kind, name] for name in task.class_names)

    def _fixed_batches(self, split: Split, task: SharedEntry) -> Iterator[tuple[Tensor, Tensor]]:
        """Features of the shared head and labels, batch by batch."""
        if not len(split):  # a part of few images
            return
        labels = split.labels.split(self._batch_size())
        for images, some in zip(self._parts(split.images), labels, strict=True):
            yield self.fixed(images, task.mirror, whole=True), some.to(self.device)

    def check_columns(self) -> None:
        """Raise an error if tasks that were loaded have columns that the shared head does not have."""
        entries: Any = self.tasks
        for entry in entries if self.shared is not None else ():
            known = range(self.shared.sums.classes)  # type: ignore[union-attr]
            if entry.columns and (
                len(entry.columns) != len(entry.class_names) or not all(each in known for each in entry.columns)
            ):
                raise ValueError(f"task {entry.name!r} has the columns {shown(entry.columns)} of {len(known)}")

    def on_state_loaded(self) -> None:
        super().on_state_loaded()
        self.check_columns()

    @torch.no_grad()
    def fixed(self, images: Tensor, mirror: bool, whole: bool = False) -> Tensor:
        """(n, s) the features of the shared head, of images or of maps of the stem."""
        assert self.shared is not None
        if self.backbone.stem is not None and not isinstance(images, Maps):
            images = self._stem_maps(images)
        return self.shared.fixed(images.as_subclass(Tensor), mirror, whole)

    def shared_scores(self, images: Tensor | Images, tasks: Sequence[SharedEntry]) -> Tensor:
        """(n, classes) the log-probability of each class of these tasks, among all classes of the shared head.

        Classes of tasks whose images may be mirrored are asked with both views of an image.
        """
        assert self.shared is not None
        places = torch.tensor([column for entry in tasks for column in entry.columns], device=self.device)
        found = []
        for part in self._parts(images):
            scores = torch.zeros(len(part), self.shared.sums.classes, device=self.device)
            for mirror in {entry.mirror for entry in tasks}:
                own = sorted({column for entry in tasks if entry.mirror == mirror for column in entry.columns})
                scores[:, own] = self.shared.solution(self.fixed(part, mirror))[:, own]
            found.append((SHARPNESS * scores).log_softmax(1)[:, places])
        return torch.cat(found).to(self._place)
