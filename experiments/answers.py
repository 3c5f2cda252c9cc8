"""What each part of the answers of `hrn` is worth: memory, heads and shared head, with and without the task.

For a finished run, the answers to validation and test images are computed again with some parts left out, and with
shared heads of other sizes. Units and heads stay as they are: the shared head has no part in their training.

usage: hashroute bench mixed --learners hrn
       python experiments/answers.py runs/mixed/hrn-seed0 [RUN ...] [--sizes 256 1024 ...] [--write FILE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hashroute import Scenario, create_learner, load_learner, load_scenario
from hashroute.learners.entries import TaskFree
from hashroute.learners.hrn import HEAD_WEIGHT, HRN, SHARED_WEIGHT
from hashroute.learners.objectives import logit_margin
from hashroute.storage import write_json
from hashroute.tasks import Split, Task
from hashroute.training.evaluate import share_right
from hashroute.training.workers import keep_memory

PARTS = {
    "all": (1, 1, 1, 1),
    "no shared head": (1, 1, 1, 0),
    "no memory": (0, 1, 1, 1),
    "no margin": (1, 0, 1, 1),
    "no log-probability of heads": (1, 1, 0, 1),
    "margin and memory": (1, 1, 0, 0),
    "shared head alone": (0, 0, 0, 1),
    "shared head and memory": (1, 0, 0, 1),
}
"""Weights of memory, margin, log-probability of heads, and shared head, relative to those of `hrn`."""

MOST = 2000
"""Images of a task, at most."""


class Asked:
    """What every part says about images of one task."""

    def __init__(self, learner: HRN, scenario: Scenario, index: int, part: str) -> None:
        split = getattr(scenario.tasks[index], part)
        self.split: Split = split[torch.arange(min(MOST, len(split)))]
        images = self.split.images
        self.prior = learner.task_prior(images)
        features: dict[Any, Tensor] = {}
        self.logits = []
        for entry in learner.tasks:
            key = learner.feature_key(entry)
            if key not in features:
                features[key] = learner.encode(images, entry)
            self.logits.append(learner.heads[entry.index](features[key]))
        self.shared = learner.shared_scores(images, learner.entries)
        own = learner.entries[index]
        self.columns = learner.task_columns[index](learner.fixed(images[:], own.mirror))

    @torch.no_grad()
    def task_free(self, memory: float, margin: float, head: float, shared: float) -> TaskFree:
        prior = self.prior if memory else torch.zeros_like(self.prior)
        scores = torch.cat(
            [
                prior[:, task, None] + margin * logit_margin(each)[:, None] + head * HEAD_WEIGHT * each.log_softmax(1)
                if head
                else prior[:, task, None] + margin * (logit_margin(each)[:, None] + each - each.amax(1, keepdim=True))
                for task, each in enumerate(self.logits)
            ],
            1,
        )
        best = (scores + shared * SHARED_WEIGHT * self.shared).argmax(1)
        widths = torch.tensor([each.shape[1] for each in self.logits])
        tasks = torch.arange(len(widths)).repeat_interleave(widths)
        return TaskFree(tasks[best], best - (widths.cumsum(0) - widths)[tasks[best]])


def mean(shares: list[Tensor]) -> float:
    return round(100 * torch.stack([each.double().mean() for each in shares]).mean().item(), 2)


def measure(learner: HRN, scenario: Scenario, rows: dict[str, tuple[float, ...]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in ("validation", "test"):
        asked = [Asked(learner, scenario, index, part) for index in range(len(scenario.tasks))]
        data: list[tuple[Task, Split]] = [(task, each.split) for task, each in zip(scenario.tasks, asked, strict=True)]
        labels = [each.split.labels for each in asked]
        heads = [each.logits[index] for index, each in enumerate(asked)]
        both = [one.log_softmax(1) + each.columns for one, each in zip(heads, asked, strict=True)]
        aware = {"head": heads, "columns": [each.columns for each in asked], "both": both}
        found[part] = {
            "task-free": {
                name: round(share_right([each.task_free(*row) for each in asked], data)["all_classes"], 2)
                for name, row in rows.items()
            },
            "task-aware": {
                name: mean([each.argmax(1) == own for each, own in zip(outputs, labels, strict=True)])
                for name, outputs in aware.items()
            },
        }
    return found


def with_shared_head(learner: HRN, scenario: Scenario, size: int) -> HRN:
    """The same learner, with a shared head of another size."""
    fresh: Any = create_learner("hrn", learner.image_shape, learner.recipe, learner.seed, fixed_features=size)
    learner.shared = fresh.shared
    for entry, task in zip(learner.entries, scenario.tasks, strict=True):
        entry.columns, entry.held = (), task
    for entry in learner.entries:
        lesson = learner.study(entry)
        learner.shared.take(lesson)  # type: ignore[union-attr]
        if entry.index < len(learner.task_columns):
            learner.task_columns[entry.index] = lesson.columns
        else:
            learner.task_columns.append(lesson.columns)
        entry.held = None
    return learner


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--sizes", nargs="*", type=int, default=[])
    parser.add_argument("--write", type=Path, default=Path(__file__).parent / "results" / "answers.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    result: dict[str, Any] = json.loads(arguments.write.read_text()) if arguments.write.exists() else {}
    for run in arguments.runs:
        settings = json.loads((run / "settings.json").read_text())
        scenario, learner = load_scenario(settings["scenario"]), load_learner(run)
        assert isinstance(learner, HRN)
        name = f"{settings['scenario']}, seed {settings['seed']}"
        result.setdefault(name, {})
        for size in [0, *arguments.sizes]:
            if size or learner.shared is None:
                with_shared_head(learner, scenario, size or 1792)
            assert learner.shared is not None
            kept = learner.shared.sums.features
            rows = PARTS if not size else {"all": PARTS["all"], "shared head alone": PARTS["shared head alone"]}
            result[name][f"{kept} features"] = {
                "bytes": sum(each.numel() * each.element_size() for each in learner.shared.sums.buffers()),
                **measure(learner, scenario, rows),
            }
            write_json(arguments.write, result)
            print(name, kept, json.dumps(result[name][f"{kept} features"], indent=1), flush=True)


if __name__ == "__main__":
    main()
