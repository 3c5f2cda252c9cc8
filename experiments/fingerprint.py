"""Fingerprints of every learner: what a refactoring must not change.

For each learner, on `digits` and on a fraction of `pairwise-mnist` and `split-cifar100`, with one thread and seed 0:
the accuracy matrix, a checksum of the task-free answers, and a checksum of the final weights and of the kept state.

usage: python experiments/fingerprint.py record FILE [SCENARIO ...]
       python experiments/fingerprint.py compare FILE [SCENARIO ...]

`compare` runs everything again and exits with 1 if anything that was recorded differs.
Bit identity holds on one kind of processor only.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hashroute import load_scenario, run
from hashroute.learners import learner_names
from hashroute.learners.hrn import NO_SHARED_HEAD

CASES: dict[str, dict[str, Any]] = {
    "digits": {"scenario": "digits", "fraction": 1.0, "recipe": "default"},
    "pairwise-mnist": {"scenario": "pairwise-mnist", "fraction": 0.01, "recipe": "default"},
    "pairwise-mnist-paper": {"scenario": "pairwise-mnist", "fraction": 0.01, "recipe": "paper"},
    "split-cifar100": {"scenario": "split-cifar100", "fraction": 0.02, "recipe": "default"},
}


def checksum(tensors: Iterable[Tensor]) -> str:
    """A digest that depends on the values of tensors, not on their names, layout or order."""
    parts = sorted(hashlib.sha256(each.detach().cpu().contiguous().numpy().tobytes()).digest() for each in tensors)
    return hashlib.sha256(b"".join(parts)).hexdigest()


def fingerprint(case: str, learner: str) -> dict[str, Any]:
    """Train one learner on one case, and describe what came out."""
    how = CASES[case]
    scenario = load_scenario(how["scenario"], how["fraction"])
    name, options = ("hrn", NO_SHARED_HEAD) if learner == "hrn, no shared head" else (learner, None)
    outcome, model = run(scenario, name, how["recipe"], 0, options=options)
    answers = [part for task in scenario.tasks for part in model.predict(task.test.images)]
    given = [model.predict(task.test.images, index) for index, task in enumerate(scenario.tasks)]
    return {
        "accuracy": outcome.accuracy,
        "task_free": outcome.task_free,
        "answers": checksum([torch.cat([*answers, *given])]),
        "weights": checksum(model.parameters()),
        "state": checksum(model.kept.values()),
    }


def verdict(known: dict[str, Any] | None, found: dict[str, Any]) -> str:
    """What a comparison says about one learner."""
    if known is None:
        return "not recorded"
    return "same" if known == json.loads(json.dumps(found)) else "DIFFERENT"


def main() -> int:
    mode, path, *wanted = sys.argv[1:]
    torch.set_num_threads(1)
    kept = json.loads(Path(path).read_text()) if mode == "compare" or Path(path).exists() else {}
    different = []
    for case in wanted or CASES:
        for learner in (*learner_names(), "hrn, no shared head"):
            found = fingerprint(case, learner)
            said = "recorded" if mode == "record" else verdict(kept[case].get(learner), found)
            print(case, learner, said, flush=True)
            if mode == "record":
                kept.setdefault(case, {})[learner] = found
                Path(path).write_text(json.dumps(kept, indent=1) + "\n")
            elif said == "DIFFERENT":
                different.append(f"{case} {learner}")
    if different:
        print("different:", ", ".join(different))
    return len(different) > 0


if __name__ == "__main__":
    sys.exit(main())
