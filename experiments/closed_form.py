"""What a closed-form head over fixed features is worth, alone and together with the heads of `hrn`.

Task by task, the sums of split-cifar100 are added up. The task-free score of a class is log softmax(40 closed form)
+ 2 log softmax(head) + margin of the head / 2 + 20 nats per dimension of the memory. The task-aware score is
log softmax(10 closed form, as solved at the end of the task) + log softmax(head). The weights were chosen on
validation images.

usage: hashroute bench split-cifar100 --learners hrn --learning-rate 0.001
       python experiments/closed_form.py RUN [FEATURES ...]
Writes experiments/results/closed_form.json.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hashroute import load_learner, load_scenario
from hashroute.learners.objectives import logit_margin
from hashroute.nn.closed_form import ClosedForm, Solution
from hashroute.nn.patches import PatchFeatures
from hashroute.tasks import Scenario
from hashroute.training.workers import keep_memory

OUTPUT = Path(__file__).parent / "results" / "closed_form.json"
RIDGE = 1e-3
FROZEN_RIDGE = 3e-3
CLASSES = 10


def heads_and_memories(learner: Any, scenario: Scenario, part: str) -> tuple[Tensor, Tensor]:
    """(n, tasks, classes) the logits of all heads, and (n, tasks) the nats per dimension of all memories."""
    images = torch.cat([getattr(task, part).images for task in scenario.tasks])
    logits = torch.stack([learner.logits(images, task) for task in learner.tasks], 1)
    nats = learner._log_likelihood(images)[:, learner._memory_of_task()] / learner.memory_hash.features
    return logits, nats


def percent(right: Tensor) -> float:
    return round(100 * right.double().mean().item(), 2)


def measure(scenario: Scenario, size: int, known: dict[str, tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Accuracies with this many features. known: logits and nats of the validation and test images."""
    patches, sums = PatchFeatures(scenario.image_shape, size), ClosedForm(size)
    frozen: list[Solution] = []
    features: dict[str, list[Tensor]] = {"validation": [], "test": []}
    start = time.process_time()
    for index, task in enumerate(scenario.tasks):
        sums.add(patches(task.train.images, mirror=True, whole=True), task.train.labels + CLASSES * index)
        frozen.append(sums.solve(FROZEN_RIDGE))
    seconds = time.process_time() - start
    head = sums.solve(RIDGE)
    row: dict[str, Any] = {"features": size, "bytes": sums.gram.numel() * sums.gram.element_size(), "seconds": seconds}
    for part, kept in features.items():
        kept += [patches(getattr(task, part).images, mirror=True) for task in scenario.tasks]
        labels = torch.cat([getattr(task, part).labels + CLASSES * n for n, task in enumerate(scenario.tasks)])
        scores = head(torch.cat(kept))
        logits, nats = known[part]
        closed = (40 * scores).log_softmax(1).unflatten(1, (-1, CLASSES))
        margins = torch.stack([logit_margin(each) for each in logits.unbind(1)], 1)
        fused = closed + 2 * logits.log_softmax(2) + (margins / 2 + 20 * nats)[:, :, None]
        aware, alone = [], []
        for index, own in enumerate(kept):
            columns = slice(CLASSES * index, CLASSES * (index + 1))
            rows, mine = labels // CLASSES == index, frozen[index](own)[:, columns]
            both = (10 * mine).log_softmax(1) + logits[rows, index].log_softmax(1)
            aware.append(both.argmax(1) == labels[rows] % CLASSES)
            alone.append(logits[rows, index].argmax(1) == labels[rows] % CLASSES)
        row[part] = {
            "closed form, task-free": percent(scores.argmax(1) == labels),
            "fused, task-free": percent(fused.flatten(1).argmax(1) == labels),
            "heads, task-aware": percent(torch.cat(alone)),
            "fused, task-aware": percent(torch.cat(aware)),
        }
    return row


if __name__ == "__main__":
    torch.set_num_threads(1)
    keep_memory()
    run, *sizes = sys.argv[1:]
    scenario, learner = load_scenario("split-cifar100"), load_learner(run)
    known = {part: heads_and_memories(learner, scenario, part) for part in ("validation", "test")}
    rows = [measure(scenario, int(size), known) for size in sizes or ["1792"]]
    text = {"command": f"python experiments/closed_form.py RUN {' '.join(sizes)}".strip(), "rows": rows}
    OUTPUT.write_text(json.dumps(text, indent=1) + "\n")
    print(json.dumps(text, indent=1))
