"""Units that the paper's network adds by itself, beside units that are given by hand.

`hrn-paper` learns the paper's three scenarios with the published recipes from a small share of the images. Accuracy is
that of validation images with the task given, mean over tasks after the last one, in percent. Test images are not used.
usage: python experiments/automatic_growth.py      (half an hour on one core; needs all data sets)
Writes experiments/results/automatic_growth.json after each run, and skips what the file has.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from hashroute import run
from hashroute.learners.hrn_paper import PUBLISHED
from hashroute.storage import write_json
from hashroute.training import metrics

OUTPUT = Path(__file__).parent / "results" / "automatic_growth.json"
SEEDS = 3
FRACTIONS = {"pairwise-mnist": 0.05, "fashion-mnist": 0.05, "svhn-cifar100": 0.02}
BY_HAND = {"pairwise-mnist": (0, 1, 1, 1, 1), "fashion-mnist": (0, 2), "svhn-cifar100": (0, 2)}
"""Units that are added before each task. The paper adds none in its first scenario."""


def variants(scenario: str) -> dict[str, dict[str, Any]]:
    """Options of the published network: fewer units, and three ways to have as many units in the end."""
    units, added = PUBLISHED[scenario]["units"], BY_HAND[scenario]
    most = len(units) + sum(added)
    return {
        "none added": {"units_added": ()},
        "all from the start": {"units_added": (), "units": (units * 2)[:most]},
        "added by hand": {"units_added": added},
        "added by itself": {"units_added": (), "grow": most},
    }


def measure(scenario: str, options: dict[str, Any], seed: int) -> dict[str, Any]:
    """Final accuracy, forgetting, and the number of units after each task."""
    result, _ = run(
        *(scenario, "hrn-paper", "paper", seed),
        options=PUBLISHED[scenario] | options,
        fraction=FRACTIONS[scenario],
        evaluate_on="validation",
    )
    return {
        "seed": seed,
        "final": round(metrics.final(result.accuracy), 2),
        "forgetting": round(metrics.forgetting(result.accuracy), 2),
        "units": [len(after["ages"]) for after in result.routing],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {}
    found["command"] = "python experiments/automatic_growth.py"
    for scenario, fraction in FRACTIONS.items():
        results = found.setdefault(scenario, {"fraction": fraction})
        for seed in range(SEEDS):
            for name, options in variants(scenario).items():
                done = results.setdefault(name, [])
                if len(done) <= seed:
                    done.append(measure(scenario, options, seed))
                    print(scenario, name, done[-1], flush=True)
                    write_json(OUTPUT, found)
