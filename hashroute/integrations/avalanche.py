"""Avalanche: our learners as a strategy, and our scenarios as benchmarks.

Its strategies as learners of ours are in `avalanche_learners`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from avalanche.benchmarks import benchmark_from_datasets, with_classes_timeline, with_task_labels
from avalanche.benchmarks.utils import _make_taskaware_tensor_classification_dataset as as_dataset
from avalanche.models import MultiTaskModule
from avalanche.training.plugins.evaluation import default_evaluator
from avalanche.training.templates import SupervisedTemplate
from avalanche.training.templates.base import BaseTemplate
from torch import Tensor

from hashroute.learners.learner import Learner
from hashroute.learners.prediction import EVALUATION_BATCH
from hashroute.tasks import Scenario, Split, Task

UNKNOWN = -1e4
"""The score of a class that was not learned."""


class LearnerStrategy(SupervisedTemplate):  # type: ignore[misc]
    """A learner of ours as a strategy: `train` on experiences, then `eval` with the metrics of Avalanche.

    Each experience is a task of the learner. If an experience has a task label of its own, this task answers images
    with the label. If experiences share a label, as in class-incremental benchmarks, the learner finds the task.

    Images must be uint8, or floating point from 0 to 1: give the benchmark transforms that do not normalise. The
    recipe of the learner says how it is trained. Metrics of training batches are not computed.

    Args:
        learner: that has learned nothing yet, or experiences of this strategy.
        eval_mb_size: images at a time in `eval`.
        plugins: called before and after experiences, and in `eval`. Those that change how a strategy trains do nothing.
        evaluator: the metrics and loggers of Avalanche.
    """

    def __init__(
        self,
        *,
        learner: Learner,
        eval_mb_size: int = EVALUATION_BATCH,
        plugins: Sequence[Any] | None = None,
        evaluator: Any = default_evaluator,
    ) -> None:
        super().__init__(
            model=LearnerModule(learner),
            optimizer=torch.optim.SGD([torch.zeros(1)], 0.0),  # the learner has its own
            eval_mb_size=eval_mb_size,
            device=learner.device,
            plugins=plugins,
            evaluator=evaluator,
        )
        self.learner = learner

    def _before_training_exp(self, **settings: Any) -> None:
        BaseTemplate._before_training_exp(self, **settings)  # the learner loads its data itself

    def _train_exp(self, experience: Any, eval_streams: Any = None, **settings: Any) -> None:  # noqa: ARG002
        classes = sorted(int(each) for each in experience.dataset.targets.uniques)
        name = f"experience {len(self.learner.tasks) + 1}"
        data = _split(experience.dataset.eval(), classes, name)
        self.learner.learn(Task.without_test(name, data, [str(label) for label in classes]))
        self.model.add(classes, getattr(experience, "task_labels", [0]))


class LearnerModule(MultiTaskModule):  # type: ignore[misc]
    """A learner as a module of Avalanche: from images and task labels to a score of each class, by its number."""

    def __init__(self, learner: Learner) -> None:
        super().__init__()
        self.learner = learner
        self.classes: list[list[int]] = []
        """The numbers of the classes of each task."""
        self.labels: list[set[int]] = []
        """The labels of each task."""

    def add(self, classes: list[int], labels: Sequence[int]) -> None:
        """Note what a task that was learned is about."""
        self.classes.append(classes)
        self.labels.append(set(labels))

    def forward(self, x: Tensor, task_labels: Tensor) -> Tensor:
        """(n, classes) for images (n, channels, height, width) and labels (n,)."""
        scores = torch.full((len(x), self.max_class_label), UNKNOWN, device=self.learner.device)
        for label in task_labels.unique().tolist() if self.classes else ():
            rows = (task_labels == label).nonzero()[:, 0]
            scores[rows] = self.forward_single_task(x[rows], label)
        return scores

    def forward_single_task(self, x: Tensor, task_label: int) -> Tensor:
        """(n, classes) for images of a label."""
        known = [task for task, labels in enumerate(self.labels) if task_label in labels]
        tasks = known or list(range(len(self.labels)))  # a label that never came
        if len(tasks) == 1:
            found = {tasks[0]: self.learner(x, tasks[0])}
        else:
            widths = [len(classes) for classes in self.classes]
            every = self.learner(x).split(widths, 1)
            found = {task: every[task] for task in tasks}
        scores = torch.full((len(x), self.max_class_label), UNKNOWN, device=self.learner.device)
        for task, part in found.items():
            places = self.classes[task]
            scores[:, places] = torch.maximum(scores[:, places], part.clamp_min(UNKNOWN).to(scores))
        return scores


def _split(dataset: Any, classes: list[int], name: str) -> Split:
    """The images of an experience as uint8, with labels as places in `classes`."""
    images = torch.stack([torch.as_tensor(each[0]) for each in dataset])
    if images.is_floating_point():
        low, high = images.min().item(), images.max().item()
        if low < 0 or high > 1:
            raise ValueError(
                f"the images of {name} go from {low:.3g} to {high:.3g}: expected 0 to 1; give the benchmark transforms "
                "that do not normalise, such as train_transform=ToTensor(), eval_transform=ToTensor()"
            )
        images = (images * 255).round().to(torch.uint8)
    labels = torch.tensor([int(each) for each in dataset.targets])
    return Split(images, torch.searchsorted(torch.tensor(classes), labels))


def as_benchmark(scenario: Scenario, task_labels: bool = True) -> Any:
    """A scenario as a benchmark with the streams train, valid and test: an experience for each task.

    Images are floating point from 0 to 1. Classes of two tasks that have the same name have the same number.

    Args:
        scenario: its images are read into memory.
        task_labels: give each task a label of its own (task-incremental). Otherwise all have the label 0
            (class-incremental).
    """
    names = dict.fromkeys(name for task in scenario.tasks for name in task.class_names)
    numbers = {name: number for number, name in enumerate(names)}
    streams: dict[str, list[Any]] = {"train": [], "valid": [], "test": []}
    for index, task in enumerate(scenario.tasks):
        own = torch.tensor([numbers[name] for name in task.class_names])
        for stream, split in zip(streams.values(), (task.train, task.validation, task.test), strict=True):
            images, labels = split.read(torch.arange(len(split)))
            label = index if task_labels else 0
            stream.append(as_dataset(images, own[labels], transform=_from_bytes, task_labels=label))
    return with_classes_timeline(with_task_labels(benchmark_from_datasets(**streams)))


def _from_bytes(image: Tensor) -> Tensor:
    return image.float() / 255
