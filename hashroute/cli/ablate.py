"""hashroute ablate: the paper's ablation of the hash-routed network, with spreads beside its signs."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.console import Console
from rich.table import Table

from hashroute.learners import find_learner
from hashroute.learners.hrn_paper import PUBLISHED
from hashroute.learners.options import options_from_dict, options_to_dict
from hashroute.recipe import with_defaults
from hashroute.scenarios import load_scenario, scenario_recipe
from hashroute.storage import insert_seed, write_json
from hashroute.tasks import Scenario
from hashroute.training import metrics
from hashroute.training.run import run
from hashroute.training.workers import check_counts, side_by_side

SCENARIO = "pairwise-mnist"

ROWS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "no gradient regularisation": {"gradient_regularisation": False},
    "no residue constraint": {"residue_weight": 0.0},
    "no basis update": {"max_age": None},
    "high aging rate": {"aging_rate": 10.0},
    "low basis size": {"basis_size": 2},
    "high feature size": {"features": 500},
    "high depth": {"depth": 4},
}
"""What each row changes of the published settings."""

MEASURES = {"long_term": "long-term accuracy", "best_task": "best task accuracy", "seconds": "training time"}

PAPER = {
    "no gradient regularisation": ("-", "++", "="),
    "no residue constraint": ("--", "+", "="),
    "no basis update": ("-", "--", "++"),
    "high aging rate": ("-", "+", "++"),
    "low basis size": ("--", "+", "++"),
    "high feature size": ("++", "++", "--"),
    "high depth": ("+", "++", "--"),
}
"""The paper's signs: a plus is better, so for the training time it means less of it."""


@dataclass(frozen=True)
class AblateSettings:
    """Recipe of the ablation."""

    seeds: int = 5
    """Runs of each row, with seeds 0, 1, ..."""
    jobs: int = 1
    """Runs at the same time, each a process with one thread."""
    fraction: float = 1.0
    """Share of every task's images, for a quick look."""
    output: Path = Path("results/ablation.json")
    """File to write; one that is there is gone on with."""


def run_ablation(settings: AblateSettings, console: Console) -> Path:
    """Run what the file does not hold yet, and show the differences from the baseline."""
    check_counts(seeds=settings.seeds, jobs=settings.jobs)
    path = settings.output
    scenario = _load(settings.fraction)
    found: dict[str, Any] = {
        "scenario": SCENARIO,
        "tasks": [task.name for task in scenario.tasks],
        "fraction": settings.fraction,
        "recipe": scenario_recipe(scenario, "paper").to_dict(),
        "command": "",
        "rows": {name: {"change": change, "options": _options(name), "seeds": []} for name, change in ROWS.items()},
    }
    if path.exists():
        kept = json.loads(path.read_text())
        for part in ("scenario", "tasks", "fraction", "recipe"):
            if with_defaults(kept.get(part)) != found[part]:
                raise ValueError(f"{path} was made with other {part}: choose another --output, or move it away")
        for name, row in found["rows"].items():
            if kept["rows"].get(name, {}).get("options") != row["options"]:
                raise ValueError(
                    f"{path} has other options in the row {name!r}: choose another --output, or move it away"
                )
        found["rows"] = kept["rows"]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, found)  # before the work: an unwritable folder should not cost the runs
    left = [(n, s) for s in range(settings.seeds) for n in ROWS if s not in found["rows"][n]["seeds"]]
    work = ((settings.fraction, name, seed) for name, seed in left)
    for number, (name, seed, values) in enumerate(side_by_side(settings.jobs, _work, work), 1):
        insert_seed(found["rows"][name], seed, values)
        found["command"] = _command(found)
        write_json(path, found)
        console.print(f"{number} of {len(left)}: {name}, seed {seed}", highlight=False, soft_wrap=True)
    console.print(ablation_table(found))
    console.print(f"saved in {path}", markup=False, highlight=False, soft_wrap=True)
    return path


def _command(found: dict[str, Any]) -> str:
    seeds = max(len(row["seeds"]) for row in found["rows"].values())
    return f"hashroute ablate --seeds {seeds} --fraction {found['fraction']:g}"


def _options(name: str) -> dict[str, Any]:
    """All options of a row, as plain values."""
    options = {**PUBLISHED[SCENARIO], **ROWS[name]}
    return options_to_dict(options_from_dict(find_learner("hrn-paper").Options, options))


@lru_cache(maxsize=1)  # a worker does several runs
def _load(fraction: float) -> Scenario:
    return load_scenario(SCENARIO, fraction)


def _work(fraction: float, name: str, seed: int) -> tuple[str, int, dict[str, Any]]:
    scenario = _load(fraction)
    outcome, _ = run(scenario, "hrn-paper", "paper", seed, options={**PUBLISHED[SCENARIO], **ROWS[name]})
    measures = {
        "long_term": metrics.at_the_end(outcome.accuracy)[0],
        "best_task": fmean(metrics.best_ever(outcome.accuracy)),
        "seconds": outcome.seconds,
    }
    return name, seed, {**measures, "final": metrics.final(outcome.accuracy), "accuracy": outcome.accuracy}


def difference(row: dict[str, Any], baseline: dict[str, Any], measure: str) -> tuple[float, float, str]:
    """Mean difference from the baseline over the seeds that both have, its standard error, and its sign.

    The time's difference is in percent of the baseline's. There is a sign, plus for better, only where the difference
    exceeds two standard errors.
    """
    theirs = dict(zip(baseline["seeds"], baseline[measure], strict=True))
    pairs = [(own, theirs[seed]) for seed, own in zip(row["seeds"], row[measure], strict=True) if seed in theirs]
    if measure == "seconds":
        changes = [100 * (own / other - 1) for own, other in pairs]
    else:
        changes = [own - other for own, other in pairs]
    mean = fmean(changes)
    error = stdev(changes) / len(changes) ** 0.5 if len(changes) > 1 else float("nan")
    better = -mean if measure == "seconds" else mean
    sign = "" if not abs(mean) > 2 * error else "+" if better > 0 else "-"
    return mean, error, sign


def ablation_rows(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headers, and a row for each change: the difference with its standard error, our sign, the paper's."""
    headers = ["change", *(part for name in MEASURES.values() for part in (name, "sign", "paper"))]
    baseline = found["rows"]["baseline"]
    rows = [["baseline", *_baseline_cells(baseline)]]
    for name, signs in PAPER.items():
        cells: list[str] = []
        for measure, paper in zip(MEASURES, signs, strict=True):
            mean, error, sign = difference(found["rows"][name], baseline, measure)
            unit = " %" if measure == "seconds" else ""
            cells += [f"{mean:+.1f}{unit}" + ("" if math.isnan(error) else f" ± {error:.1f}"), sign, paper]
        rows.append([name, *cells])
    return headers, rows


def _baseline_cells(baseline: dict[str, Any]) -> list[str]:
    cells = []
    for measure in MEASURES:
        unit = " s" if measure == "seconds" else ""
        cells += [f"{fmean(baseline[measure]):.1f}{unit}", "", ""]
    return cells


def ablation_table(found: dict[str, Any]) -> Table:
    """The differences from the baseline, for a terminal: each with its sign, and the paper's in brackets."""
    title = "difference from the baseline, ± its standard error, its sign (the paper's)"
    table = Table("change", title=title, title_justify="left", header_style="")
    for name in MEASURES.values():
        table.add_column(name, justify="right")
    for name, *cells in ablation_rows(found)[1]:
        groups = [cells[place : place + 3] for place in range(0, len(cells), 3)]
        shown = [f"{value} {sign or ' '} ({paper:>2})" if paper else value for value, sign, paper in groups]
        table.add_row(name, *shown)
    return table
