"""Units that the paper's network adds by itself, beside units that are given by hand.

`hrn-paper` learns pairwise-mnist with the published recipe from 5 % of the images. Accuracy is that of validation
images with the task given, mean over tasks after the last one, in percent. Test images are not used.
usage: python experiments/automatic_growth.py      (some minutes; needs MNIST)
Writes experiments/results/automatic_growth.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from hashroute import run
from hashroute.learners.hrn_paper import PUBLISHED
from hashroute.storage import write_json
from hashroute.training import metrics

OUTPUT = Path(__file__).parent / "results" / "automatic_growth.json"
SCENARIO, FRACTION, SEEDS = "pairwise-mnist", 0.05, 3
USUAL = PUBLISHED[SCENARIO]
VARIANTS: dict[str, dict[str, Any]] = {
    "4 units, as published": {},
    "8 units from the start": {"units": USUAL["units"] * 2},
    "a unit by hand before each later task": {"units_added": (0, 1, 1, 1, 1)},
    "growth up to 8 units": {"grow": 8},
}


def measure(options: dict[str, Any], seed: int) -> dict[str, Any]:
    """Final accuracy, forgetting, and the number of units after each task."""
    result, _ = run(
        SCENARIO, "hrn-paper", "paper", seed, options=USUAL | options, fraction=FRACTION, evaluate_on="validation"
    )
    return {
        "seed": seed,
        "final": round(metrics.final(result.accuracy), 2),
        "forgetting": round(metrics.forgetting(result.accuracy), 2),
        "units": [len(after["ages"]) for after in result.routing],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    found: dict[str, Any] = {"command": "python experiments/automatic_growth.py", "fraction": FRACTION}
    for seed in range(SEEDS):
        for name, options in VARIANTS.items():
            found.setdefault(name, []).append(measure(options, seed))
            print(name, found[name][-1], flush=True)
            write_json(OUTPUT, found)
