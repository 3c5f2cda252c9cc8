"""Prediction: from images to features, answers and scores, with and without the task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import Any, overload

import torch
from torch import Tensor, nn

from hashroute import distributed
from hashroute.images import Images, batches_of
from hashroute.learners.entries import Batch, TaskEntry, TaskFree
from hashroute.learners.inputs import ImagesLike, as_images, check_images
from hashroute.learners.maps import Maps, keep_maps
from hashroute.learners.objectives import Objective
from hashroute.learners.randomness import isolated_rng
from hashroute.nn.backbones import Backbone
from hashroute.recipe import Recipe
from hashroute.tasks import Split, Task

EVALUATION_BATCH = 128
"""Small images at a time where nothing is trained. Larger batches are slower: their maps do not fit into the cache."""

EVALUATION_PIXELS = EVALUATION_BATCH * 64 * 64
"""Pixels at a time, at most: larger images come in smaller batches."""

TaskLike = int | str | Task | TaskEntry
"""A task that was learned: its index, its name, the task itself, or its entry."""

ASKED_AT_ONCE = 4096
"""Images whose scores for all classes are in memory at once."""

RECORDED_BYTES = 2**29
"""Features of a task that are held in memory at once, at most."""


class Predictor(nn.Module):
    """What a learner needs to answer: an encoder, a head for each task, and what it knows about the tasks."""

    image_shape: tuple[int, ...]
    recipe: Recipe
    backbone: Backbone
    objective: Objective
    seed: int
    tasks: list[TaskEntry]
    heads: nn.ModuleList
    encoder: nn.Module
    _place: Tensor

    # ---------------------------------------------------------------- hooks: what kinds of learners override

    def features(self, images: Tensor, task: TaskEntry) -> Tensor:  # noqa: ARG002
        """Features of normalised images, for the head of a task."""
        features: Tensor = self.encoder(images)
        return features

    def features_of_several(self, asked: Sequence[tuple[Tensor, TaskEntry]]) -> Tensor:
        """Features of normalised images, each batch for the head of its task, one after the other."""
        return torch.cat([self.features(images, task) for images, task in asked])

    def feature_key(self, task: TaskEntry) -> Any:
        """Tasks with the same key have the same features for the same image."""
        return self.pixel_statistics(task)

    def adjusted(self, outputs: Tensor, images: Tensor | Images, task: TaskEntry) -> Tensor:  # noqa: ARG002
        """The outputs of a task's head, together with whatever else a learner knows about the classes of its images."""
        return outputs

    def task_prior(self, images: Tensor | Images) -> Tensor:
        """(n, tasks) evidence for each task before its head is asked; minus infinity rules a task out."""
        return torch.zeros(len(images), len(self.tasks), dtype=self._place.dtype, device=self.device)

    def class_scores(self, images: Tensor | Images) -> Tensor:
        """(n, all classes) a score for every class of every task, no task given; the highest one is the answer.

        By default the task with the highest sum of prior and confidence of its head answers.
        """
        return self._confident_scores(images, self.task_prior(images))

    def _confident_scores(self, images: Tensor | Images, prior: Tensor) -> Tensor:
        scores, places = self._no_scores(prior)
        for entry, rows, outputs in self._asked(images, prior):
            best = prior[rows, entry.index] + self.objective.confidence(outputs)
            scores[rows, places[entry.index]] = best[:, None] + (outputs - outputs.amax(1, keepdim=True))
        return scores

    # ---------------------------------------------------------------- prediction

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self._place.device

    def find_task(self, task: TaskLike) -> TaskEntry:
        """The entry of a task that was learned, from its name or index."""
        name = task.name if isinstance(task, Task) else task
        for entry in self.tasks:
            if task is entry or (isinstance(name, str) and name == entry.name):
                return entry
        if isinstance(task, int) and not isinstance(task, bool) and 0 <= task < len(self.tasks):
            return self.tasks[task]
        names = ", ".join(repr(entry.name) for entry in self.tasks)
        given = name.name if isinstance(name, TaskEntry) else name
        expected = f"one of {names}, or an index below {len(self.tasks)}" if names else "none: nothing was learned yet"
        raise ValueError(f"there is no task {given!r}: expected {expected}")

    def pixel_statistics(self, task: TaskEntry) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation, channel by channel, by which the pixels of a task are normalised.

        A frozen stem has its own, for all tasks.
        """
        by_task = self.backbone.stem is None and self.recipe.scaling == "data set"
        if by_task and task.mean is not None and task.std is not None:
            return task.mean, task.std
        return (0.5,), (0.25,)

    def normalise(self, images: Tensor, task: TaskEntry) -> Tensor:
        """Pixels, uint8 or from 0 to 1, as the encoder takes them; with a frozen stem, its maps."""
        if isinstance(images, Maps):
            return images.as_subclass(Tensor).to(self.device, self._place.dtype)
        if self.backbone.stem is not None:
            return self._stem_maps(images)
        place = self._place.dtype, self.device
        mean, std = (_per_channel(tuple(part), *place) for part in self.pixel_statistics(task))
        whole = not images.is_floating_point()
        images = images.to(self.device, self._place.dtype)
        if whole:
            images = images / 255
        images = (images - mean) / std
        if self.backbone.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return images

    def autocast(self) -> AbstractContextManager[Any]:
        """Layers compute in the precision that the recipe says in this block."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.recipe.autocast else nullcontext()

    def _encoded(self, images: Tensor, task: TaskEntry) -> Tensor:
        """The features of normalised images, in the precision of the weights."""
        with self.autocast():
            return self.features(images, task).to(self._place.dtype)

    def _stem_maps(self, images: Tensor) -> Tensor:
        """The maps of the frozen stem: (n, *input_shape)."""
        assert self.backbone.stem is not None
        images = images.to(self.device)
        pixels = images.float() if images.is_floating_point() else images.float() / 255
        maps: Tensor = self.backbone.stem.to(self.device)(pixels)
        return maps.to(self._place.dtype)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of what the encoder takes: an image, or the maps of a frozen stem."""
        return self.image_shape if self.backbone.stem is None else self.backbone.stem.shape

    def inputs(self, split: Split, task: TaskEntry) -> Split:
        """What is trained on for a split: its images, or the maps of a frozen stem, which are computed once."""
        if self.backbone.stem is None or task.held is None or split not in (task.held.train, task.held.validation):
            return split
        if split not in task.maps:
            compute = partial(distributed.split_rows, self._stem_maps)
            task.maps[split] = keep_maps(split, self.input_shape, compute)
        return task.maps[split]

    @torch.no_grad()
    def feature_count(self) -> int:
        """How many features the encoder gives to the head of the last task."""
        self.eval()
        return self.features(self._place.new_zeros(1, *self.input_shape), self.tasks[-1]).shape[1]

    @torch.no_grad()
    def encode(self, images: ImagesLike, task: TaskLike | None = None) -> Tensor:
        """(n, features) features of images, uint8 or from 0 to 1.

        Without a task, each image is encoded for the task that `predict` assigns it to.
        """
        self._check_learned()
        images = as_images(images)
        if task is None and len({self.feature_key(entry) for entry in self.tasks}) > 1:
            found = self.predict(images).tasks
            features = torch.zeros(len(images), self.feature_count(), dtype=self._place.dtype, device=self.device)
            for index in found.unique().tolist():
                rows = (found == index).nonzero()[:, 0]
                features[rows] = self.encode(_rows(images, rows), index)
            return features
        entry = self.tasks[0] if task is None else self.find_task(task)
        self._rest()
        whole = _Rows(len(images))
        for part in self._parts(images):
            whole.add(self._encoded(self.normalise(part, entry), entry), len(part))
        return whole.tensor

    @torch.no_grad()
    def logits(self, images: ImagesLike, task: TaskLike) -> Tensor:
        """(n, outputs) what the head of a task gives for images."""
        images = as_images(images)
        entry, most = self.find_task(task), self._recorded_at_once()
        rows = torch.arange(len(images)).split(most) if len(images) > most else [None]
        parts = (images if some is None else _rows(images, some) for some in rows)
        return torch.cat([self._answer(part, entry) for part in parts])

    def _answer(self, images: Tensor | Images, task: TaskEntry) -> Tensor:
        if self.backbone.stem is not None and not isinstance(images, Maps):
            maps = (self._stem_maps(part).as_subclass(Maps) for part in self._parts(images))
            return torch.cat([self._answer(part, task) for part in maps])
        return self.adjusted(self.heads[task.index](self.encode(images, task)), images, task)

    @overload
    def predict(self, images: ImagesLike, task: TaskLike) -> Tensor: ...

    @overload
    def predict(self, images: ImagesLike, task: None = None) -> TaskFree: ...

    def predict(self, images: ImagesLike, task: TaskLike | None = None) -> Tensor | TaskFree:
        """Labels of images of a task, given by name or index; without one, the task and the label of each image.

        Without a task, the class of the highest score answers; see `class_scores`.
        """
        if task is not None:
            return self.logits(images, task).argmax(1)
        images = as_images(images)
        self._check_asked(images)
        rows = torch.arange(len(images)).split(ASKED_AT_ONCE)
        parts = [images] if len(rows) == 1 else (_rows(images, some) for some in rows)
        best = torch.cat([self.class_scores(part).argmax(1) for part in parts])
        tasks = torch.cat([torch.full((self.objective.outputs(entry),), entry.index) for entry in self.tasks])
        labels = torch.cat([torch.arange(self.objective.outputs(entry)) for entry in self.tasks])
        return TaskFree(tasks.to(best.device)[best], labels.to(best.device)[best])

    @torch.no_grad()
    def forward(self, images: ImagesLike, task: TaskLike | None = None) -> Tensor:
        """Outputs of the head of a task; without one, a score for every class of every task: (n, all classes).

        The highest score belongs to the class that `predict` answers.
        """
        if task is not None:
            return self.logits(images, task)
        images = as_images(images)
        self._check_asked(images)
        return self.class_scores(images)

    def _check_asked(self, images: Tensor | Images) -> None:
        self._check_learned()
        check_images(images, self.image_shape)

    def _no_scores(self, prior: Tensor) -> tuple[Tensor, list[slice]]:
        """(n, all classes) of minus infinity, and the columns of each task."""
        ends = [0, *accumulate(self.objective.outputs(entry) for entry in self.tasks)]
        scores = torch.full((len(prior), ends[-1]), -torch.inf, dtype=prior.dtype, device=prior.device)
        return scores, [slice(*pair) for pair in pairwise(ends)]

    @torch.no_grad()
    def _asked(self, images: Tensor | Images, prior: Tensor) -> Iterator[tuple[TaskEntry, Tensor, Tensor]]:
        """Each task that may answer, the rows that it is asked about, and what its head says of them.

        With a frozen stem, the maps of an image are computed once for all tasks.
        """
        if self.backbone.stem is not None and not isinstance(images, Maps):
            for some in torch.arange(len(images)).split(self._batch_size()):
                maps = self._stem_maps(_rows(images, some)[:]).as_subclass(Maps)
                for entry, rows, outputs in self._asked(maps, prior[some.to(prior.device)]):
                    yield entry, rows + int(some[0]), outputs
            return
        self._rest()
        possible = prior.isfinite()
        asked = possible.any(0).tolist()
        alike: dict[Any, list[TaskEntry]] = {}
        for entry in self.tasks:
            if asked[entry.index]:
                alike.setdefault(self.feature_key(entry), []).append(entry)
        few: list[tuple[list[TaskEntry], Tensor]] = []
        for entries in alike.values():
            rows = possible[:, [entry.index for entry in entries]].any(1).nonzero()[:, 0]
            if len(rows) < self._batch_size():
                few.append((entries, rows))
            else:
                yield from self._outputs(images, [(entries, rows)])
            if sum(len(each) for _, each in few) >= self._batch_size():
                yield from self._outputs(images, few)
                few = []
        yield from self._outputs(images, few)

    def _outputs(
        self, images: Tensor | Images, asked: Sequence[tuple[list[TaskEntry], Tensor]]
    ) -> Iterator[tuple[TaskEntry, Tensor, Tensor]]:
        """What heads say. asked: tasks that have the same features, and rows; few rows if there are several."""
        if len(asked) <= 1:
            found = [self.encode(_rows(images, rows), entries[0]) for entries, rows in asked]
        else:
            parts = [(self.normalise(_rows(images, rows)[:], entries[0]), entries[0]) for entries, rows in asked]
            with self.autocast():
                several = self.features_of_several(parts).to(self._place.dtype)
            found = list(several.split([len(rows) for _, rows in asked]))
        for (entries, rows), features in zip(asked, found, strict=True):
            for entry in entries:
                yield entry, rows, self.heads[entry.index](features)

    @torch.no_grad()
    def record(self, split: Split, task: TaskEntry) -> tuple[Tensor, Tensor]:
        """Features of a split and what the objective learns from them: (n, features) and (n,).

        If they would not fit into memory, evenly spaced images stand for all. The random numbers of an objective are
        the same at each call.
        """
        self._rest()
        split, most = self.inputs(split, task), self._recorded_at_once()
        if len(split) > most:
            split = split[torch.linspace(0, len(split) - 1, most).round().long()]
        features, targets = _Rows(len(split)), _Rows(len(split))
        labels = split.labels.split(self._batch_size())
        with isolated_rng(self.seed, self.device):
            for images, some in zip(self._parts(split.images), labels, strict=True):
                batch = Batch(self.normalise(images, task), some.to(self.device), task)
                batch = self.objective.prepare(batch)
                found = distributed.split_rows(lambda part: self._encoded(part, task), batch.images)
                features.add(found, len(images))
                targets.add(batch.targets, len(images))
        return features.tensor, targets.tensor

    @torch.no_grad()
    def scores(self, split: Split, task: TaskEntry) -> Tensor:
        """(n,) how good the answers to a split of a task are, by the objective."""
        most = self._recorded_at_once()
        parts = [split]
        if len(split) > most:
            parts = [split[rows] for rows in torch.arange(len(split)).split(most)]
        found = []
        for part in parts:
            features, targets = self.record(part, task)
            outputs = self.adjusted(self.heads[task.index](features), self.inputs(part, task).images, task)
            found.append(self.objective.scores(outputs, targets))
        return torch.cat(found)

    @torch.no_grad()
    def recorded_scores(self, split: Split, task: TaskEntry) -> Tensor:
        """(n,) the scores of the head alone, for the images that `record` chooses."""
        features, targets = self.record(split, task)
        return self.objective.scores(self.heads[task.index](features), targets)

    def _recorded_at_once(self) -> int:
        """How many images may have their features in memory at once, about."""
        return max(EVALUATION_BATCH, RECORDED_BYTES // (self.recipe.features * self._place.element_size()))

    def _batch_size(self) -> int:
        """Images at a time where nothing is trained."""
        _, height, width = self.image_shape
        return min(EVALUATION_BATCH, max(8, EVALUATION_PIXELS // (height * width)))

    def _rest(self) -> None:
        """Switch to eval mode, unless it is on already."""
        if self.training:
            self.eval()

    def _check_learned(self) -> None:
        if not self.tasks:
            raise ValueError("this learner has learned no task yet: call learn(task) first")

    def _parts(self, images: ImagesLike) -> Iterator[Tensor]:
        images = as_images(images)
        if not isinstance(images, Maps):
            check_images(images, self.image_shape)
        return batches_of(images, self._batch_size())


@lru_cache(maxsize=100)
def _per_channel(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """(channels, 1, 1) numbers on a device, which they reach once."""
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device).view(-1, 1, 1)


class _Rows:
    """Rows of a tensor that come in parts.

    They are written into one tensor at once. If each part stayed as a tensor of its own, it would lie between large
    ones that go, and keep their memory from being used again.

    Args:
        images: how many images there will be; each gives the same number of rows.
    """

    tensor: Tensor

    def __init__(self, images: int) -> None:
        self.images = images
        self.filled = 0

    def add(self, rows: Tensor, images: int) -> None:
        """Add the rows of this many images."""
        if not self.filled:
            self.tensor = rows.new_empty(len(rows) // images * self.images, *rows.shape[1:])
        self.tensor[self.filled : self.filled + len(rows)] = rows
        self.filled += len(rows)


def _rows(images: Tensor | Images, rows: Tensor) -> Tensor | Images:
    """Some images; those that are not in memory are not read."""
    return images[rows.to(images.device)] if isinstance(images, Tensor) else images.take(rows.cpu())
