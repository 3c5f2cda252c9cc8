"""Task-free accuracy on validation images: which confidence of heads to compare, and what memories add.

usage: python experiments/task_free.py RUN ...      RUN: folders of finished runs, such as runs/mixed/hrn-seed0
Writes experiments/results/task_free.json: what is in it of other runs stays.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from hashroute import load_learner, load_scenario
from hashroute.learners.entries import TaskFree
from hashroute.learners.hrn import HRN
from hashroute.learners.learner import Learner
from hashroute.learners.objectives import logit_margin
from hashroute.learners.randomness import evenly_spaced_indices
from hashroute.storage import write_json
from hashroute.tasks import Scenario, Split
from hashroute.training.evaluate import share_right
from hashroute.training.run_folder import RunFolder

OUTPUT = Path(__file__).parent / "results" / "task_free.json"
IMAGES = 500
TRUST = ((60, 60), (40, 120), (60, 120), (80, 120), (60, 80), (60, 200), (20, 40), (30, 60), (40, 80))
"""In nats between tasks of one kind, and between kinds."""
TRUST_BESIDE_SOFTMAX = ((5, 10), (10, 20), (20, 40), (30, 60))
"""The same, beside the logarithm of a softmax, which varies less than logits do."""


def measure(learner: Learner, scenario: Scenario) -> dict[str, dict[str, float]]:
    """Each rule's share of right answers among all classes, and of images taken for the right data set."""
    chosen = [(task, evenly_spaced_indices(len(task.validation), IMAGES)) for task in scenario.tasks]
    data = [(task, Split(task.validation.images[rows], task.validation.labels[rows])) for task, rows in chosen]
    images = torch.cat([split.images for _, split in data])
    logits = [learner.logits(images, index) for index in range(len(data))]
    labels = torch.stack([each.argmax(1) for each in logits], 1)

    def percent(score: Tensor) -> dict[str, float]:
        """score: (n, tasks)."""
        found = score.argmax(1)
        parts = [
            each.split([len(split) for _, split in data]) for each in (found, labels.gather(1, found[:, None])[:, 0])
        ]
        right = share_right([TaskFree(*answer) for answer in zip(*parts, strict=True)], data)
        return {name: round(value, 2) for name, value in right.items()}

    soft = torch.stack([each.softmax(1).amax(1) for each in logits], 1)
    highest = torch.stack([each.amax(1) for each in logits], 1)
    above = torch.stack([logit_margin(each) for each in logits], 1)
    rules = {"softmax": soft, "highest logit": highest, "highest logit above the others": above}
    if isinstance(learner, HRN):
        kept = learner.task_prior(images)
        kept = torch.zeros_like(kept).masked_fill(kept.isinf(), -torch.inf)
        rules |= {f"{name}, of those asked": score + kept for name, score in rules.items()}
        for inside, between in TRUST:
            learner.options = replace(learner.options, trust=inside, trust_in_domains=between)
            rules[f"and {inside} nats, {between} between kinds"] = above + learner.task_prior(images)
        for inside, between in TRUST_BESIDE_SOFTMAX:
            learner.options = replace(learner.options, trust=inside, trust_in_domains=between)
            rules[f"log softmax and {inside} nats, {between} between kinds"] = soft.log() + learner.task_prior(images)
        for entry in learner.entries:
            entry.domain = 0
        for trust in (40, 60):
            learner.options = replace(learner.options, trust=trust)
            rules[f"and {trust} nats, all of one kind"] = above + learner.task_prior(images)
    return {name: percent(score) for name, score in rules.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {"command": "python experiments/task_free.py RUN..."}
    for folder in map(Path, sys.argv[1:]):
        name = f"{folder.parent.name}/{folder.name}"
        found[name] = measure(load_learner(folder), load_scenario(RunFolder(folder).read().settings.scenario))
        write_json(OUTPUT, found)
        print(name, json.dumps(found[name], indent=1), flush=True)
