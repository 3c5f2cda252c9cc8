"""Measuring a learner: accuracy of every task after every task, task-free accuracy, and routing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from hashroute.learners.entries import TaskFree
from hashroute.learners.learner import Learner
from hashroute.scenarios import probe_labels
from hashroute.tasks import Scenario, Split, Task, class_indices
from hashroute.training import metrics
from hashroute.training.features import FeatureProbe, measure_features
from hashroute.training.result import RunResult

EvaluateOn = Literal["test", "validation"]
Measure = Literal["task-aware", "task-free"]


class Evaluation:
    """Measures a learner after each task, and fills in the result of its run.

    Args:
        scenario: the tasks, in the order in which they are learned.
        evaluate_on: the images that accuracy is measured on.
        result: the result to fill in.
    """

    def __init__(self, scenario: Scenario, evaluate_on: EvaluateOn, result: RunResult) -> None:
        self.data = [(task, task.test if evaluate_on == "test" else task.validation) for task in scenario.tasks]
        self.probe = FeatureProbe(probe_labels(scenario.name))
        self.result = result
        self.first_paths: list[Tensor] = []
        """The paths of each task's images directly after the task was learned."""

    def after_task(self, learner: Learner) -> dict[str, Any]:
        """Add a row to the accuracy matrix, and complete the result after the last task.

        Returns what the log of the epoch gets.
        """
        known = self.data[: len(learner.tasks)]
        scores = [learner.scores(split, entry).cpu() for entry, (_, split) in zip(learner.tasks, known, strict=True)]
        row: list[float | None] = [learner.objective.score_factor * each.double().mean().item() for each in scores]
        result = self.result
        while len(result.accuracy) < len(known) - 1:  # tasks learned together have no rows of their own
            result.accuracy.append([None] * len(self.data))
        result.accuracy.append(row + [None] * (len(self.data) - len(known)))
        names_classes = learner.objective.names_classes
        packed = [metrics.pack(each.numpy()) for each in scores] if names_classes else []
        result.right_after += packed[len(result.right_after) :]
        record = {"accuracy": result.accuracy[-1], **self._routing(learner, known)}
        if not names_classes:
            tasks, asked = zip(*known, strict=True)
            result.features.append(measure_features(learner, tasks, asked, self.probe))
        if len(learner.decisions) > len(result.decisions):
            result.decisions = [decision.to_dict() for decision in learner.decisions]
            record["decision"] = result.decisions[-1]
        if len(known) == len(self.data):
            result.right = packed
            result.parameters = learner.parameter_counts()
            result.bytes_kept = learner.bytes_kept()
            result.images_kept = learner.images_kept()
            if names_classes:
                result.task_free = task_free_accuracy(learner, self.data)
        return record

    def _routing(self, learner: Learner, known: Sequence[tuple[Task, Split]]) -> dict[str, Any]:
        """The paths of all known tasks' images, and the share of each older task's that is unchanged."""
        found = [learner.paths(split.images, entry) for entry, (_, split) in zip(learner.tasks, known, strict=True)]
        paths = [each.cpu() for each in found if each is not None]
        if not paths:
            return {}
        old, last = len(self.first_paths), len(known) - 1
        unchanged = [percent((now == before).all(1)) for now, before in zip(paths[:old], self.first_paths, strict=True)]
        self.first_paths += paths[old:]
        facts = learner.analyse(known[last][1].images, learner.tasks[last])
        self.result.routing.append({**facts, "unchanged_paths": unchanged})
        return {
            "unchanged_paths": unchanged,
            "flow": {task.name: flow(each) for (task, _), each in zip(known, paths, strict=True)},
        }


def measured(result: RunResult, measure: Measure) -> float:
    """Mean accuracy after the last task, in percent."""
    return metrics.final(result.accuracy) if measure == "task-aware" else result.task_free["all_classes"]


def percent(correct: Tensor) -> float:
    """The share of true values, in percent."""
    return 100 * correct.double().mean().item()


def flow(paths: Tensor) -> list[tuple[int, int, int, float]]:
    """The share of images that take each step: level, unit, unit of the next level (-1 for a stop), share.

    paths: (n, levels).
    """
    found = []
    for level in range(paths.shape[1] - 1):
        steps, counts = paths[:, level : level + 2].unique(dim=0, return_counts=True)
        pairs = zip(steps.tolist(), counts.tolist(), strict=True)
        found += [(level, unit, then, count / len(paths)) for (unit, then), count in pairs if unit >= 0]
    return found


def task_free_accuracy(learner: Learner, data: Sequence[tuple[Task, Split]]) -> dict[str, float]:
    """Task-free accuracy of a learner in percent; see `share_right`."""
    return share_right([learner.predict(split.images) for _, split in data], data)


def share_right(answers: Sequence[TaskFree], data: Sequence[tuple[Task, Split]]) -> dict[str, float]:
    """Percent of correct task-free answers.

    `all_classes`: the class among the classes of all tasks, mean over tasks. `dataset`: the data set, over all images.

    Args:
        answers: for each task, the answers to its images.
        data: the tasks, each with these images.
    """
    right, found = [], []
    sets = {name: index for index, name in enumerate(dict.fromkeys(task.dataset for task, _ in data))}
    classes = class_indices([task for task, _ in data])
    width = max(len(each) for each in classes)
    table = torch.stack([torch.nn.functional.pad(each, (0, width - len(each)), value=-1) for each in classes])
    origin = torch.tensor([sets[task.dataset] for task, _ in data])
    for index, (answer, (_, split)) in enumerate(zip(answers, data, strict=True)):
        tasks, labels = answer.tasks.cpu(), answer.labels.cpu()
        right.append((table[tasks, labels] == table[index, split.labels]).double().mean())
        found.append(origin[tasks] == origin[index])
    shares = {"all_classes": torch.stack(right).mean(), "dataset": torch.cat(found).double().mean()}
    return {name: share.item() * 100 for name, share in shares.items()}
