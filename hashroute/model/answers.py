"""Answers: class, task, calibrated probability, and whether an image is like anything that was learned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from hashroute.images import Images, batches_of
from hashroute.learners.hrn import HRN
from hashroute.model.records import TaskRecord

AT_ONCE = 512
"""Images that are read and answered together."""


class Candidate(NamedTuple):
    """A possible answer."""

    class_name: str
    task: str
    probability: float


@dataclass(frozen=True)
class Answer:
    """The answer to one image."""

    class_name: str
    task: str
    probability: float
    """Calibrated on held-out images: of the answers with 0.9, nine in ten are right."""
    familiar: bool
    """False if the image is unlike all data that was learned: then the answer means little."""
    top: tuple[Candidate, ...]
    """The most probable answers, the best one first."""


@torch.no_grad()
def answer(
    learner: HRN, records: Mapping[str, TaskRecord], images: Tensor | Images, task: str | None, top: int
) -> Iterator[Answer]:
    """Answer images, of a task or of any task."""
    asked = learner.tasks if task is None else [learner.find_task(task)]
    names = [(name, entry.name) for entry in asked for name in entry.class_names]
    heat = task_free_temperature(records) if task is None else records[task].temperature
    for part in batches_of(images, AT_ONCE):
        scores = learner(part, task)
        chances = (scores.double() / heat).softmax(1)
        values, places = chances.topk(min(top, len(names)), 1)
        familiar = ~learner.unfamiliar(part)
        for likely, which, known in zip(values.tolist(), places.tolist(), familiar.tolist(), strict=True):
            best = tuple(
                Candidate(names[place][0], names[place][1], chance) for place, chance in zip(which, likely, strict=True)
            )
            yield Answer(*best[0], known, best)


def task_free_temperature(records: Mapping[str, TaskRecord]) -> float:
    """The temperature of scores of all classes: each task has measured one when it was learned."""
    found = [each.task_free_temperature for each in records.values() if each.task_free_temperature is not None]
    return median(found) if found else median(each.temperature for each in records.values())
