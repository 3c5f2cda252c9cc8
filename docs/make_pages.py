"""Write the tables and figures of README and docs/scenarios from the result files.

A page has marks such as `<!-- summary svhn-cifar100-paper -->` ... `<!-- end -->`; the text between them is replaced.
usage: python docs/make_pages.py      (make pages)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from hashroute.cli.ablate import PAPER as ABLATION_SIGNS
from hashroute.reporting import results
from hashroute.reporting.decisions import describe
from hashroute.reporting.figures.overview import overview
from hashroute.reporting.table import Column, Number, Row, Table, to_markdown
from hashroute.scenarios import published_results
from hashroute.training.metrics import at_the_end
from hashroute.training.result import Comparison, RunResult

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PAGES = [ROOT / "README.md", *sorted((DOCS / "scenarios").glob("*.md"))]
MARK = re.compile(r"(<!-- (\w+) ([\w.-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def read(name: str) -> Comparison:
    """A committed comparison."""
    return Comparison.read(ROOT / "results" / f"{name}.json")


def made_with(command: str, name: str) -> str:
    """The command, and the file that it wrote."""
    return f"\nMade with `{command}`; every number is in [results/{name}.json](../../results/{name}.json).\n"


def summary(name: str) -> str:
    """All measures, a row per learner."""
    comparison = read(name)
    return to_markdown(results.summary(comparison)) + made_with(comparison.command, name)


def headline(name: str) -> str:
    """The measures that matter most, for README."""
    comparison = read(name)
    return to_markdown(results.headline(comparison)) + (
        f"\n`{comparison.command}`, [results/{name}.json](results/{name}.json)\n"
    )


def tasks(name: str) -> str:
    """Every task, with the published numbers."""
    comparison = read(name)
    return to_markdown(results.per_task(comparison, published_results(comparison.scenario)))


def lead(name: str) -> str:
    """Final accuracy of hrn less that of others."""
    return to_markdown(results.leads(read(name)))


def plasticity(name: str) -> str:
    """Accuracy of hrn right after learning, less that of others."""
    return to_markdown(results.leads(read(name), when="right_after"))


def rows_of(content: dict[str, Any]) -> dict[str, list[RunResult]]:
    """The rows of an ablation file: lists with an entry for each seed."""
    parts = ("accuracy", "seconds", "parameters", "bytes_kept", "task_free", "decisions")
    return {
        name: [
            RunResult(name, seed, **{part: row[part][place] for part in parts if part in row})
            for place, seed in enumerate(row["seeds"])
        ]
        for name, row in content["rows"].items()
    }


def ablation(name: str) -> str:
    """The paper's ablation, with its signs."""
    content = json.loads((ROOT / "results" / f"{name}.json").read_text())
    return to_markdown(results.ablation(rows_of(content), ABLATION_SIGNS)) + made_with(content["command"], name)


def variants(name: str) -> str:
    """Variants of hrn on one scenario."""
    name, scenario = name.split(".")
    content = json.loads((ROOT / "results" / f"{name}.json").read_text())
    table = results.variants(rows_of(content["scenarios"][scenario]))
    return to_markdown(table) + made_with(content["command"], name)


def decisions(name: str) -> str:
    """The decisions of the first run of hrn, and those of other seeds that differ from them."""

    def choice(decision: dict[str, Any]) -> tuple[Any, ...]:
        return decision["action"], decision["parent"]

    first, *others = read(name).learners["hrn"]
    lines = [f"- {describe(decision)}" for decision in first.decisions]
    for run in others:
        lines += [
            f"- seed {run.seed}: {describe(there)}"
            for here, there in zip(first.decisions, run.decisions, strict=True)
            if choice(here) != choice(there)
        ]
    return "\n".join(lines) + "\n"


def distances(name: str) -> str:
    """What protection costs: the best accuracy of protected plain networks below that of the unprotected one."""
    learners = read(name).learners
    best = {
        name: fmean(results.best_ever_mean(run.accuracy) for run in learners[name])
        for name in ("vc", "ewc", "ell", "gpm")
    }
    less = ", ".join(f"`{name}` {round(best['vc'] - best[name], 1) + 0.0:.1f}" for name in ("ewc", "ell", "gpm"))
    return f"Best-ever accuracy below that of `vc`, in points: {less}.\n"


def options(name: str) -> str:
    """What a search tried and chose."""
    found = json.loads((ROOT / "hashroute" / "learners" / "tuned" / f"{name}.json").read_text())
    table = Table("", [Column(name, words=True) for name in ("learner", "tried", "chosen")], [])
    for learner, chosen in found["chosen"].items():
        trials = [trial for trial in found["trials"] if trial["learner"] == learner]
        tried = {key: sorted({trial["options"][key] for trial in trials}) for key in chosen}
        values = "; ".join(f"{key} {', '.join(f'{value:g}' for value in values)}" for key, values in tried.items())
        table.rows.append(Row((learner, values, "; ".join(f"{key} {value:g}" for key, value in chosen.items()))))
    file = f"[{name}.json](../../hashroute/learners/tuned/{name}.json)"
    return to_markdown(table) + f"\nMade with `{found['command']}`; the trials are in {file}.\n"


def figure(name: str) -> str:
    """The figure of a comparison."""
    text = "accuracy of the first task and mean over tasks after each task, and final accuracy against stored bytes"
    return f"![{text}](../images/{name}.png)\n"


def aims(_: str) -> str:
    """What `hrn` was to reach with the default recipe, and what it reaches."""
    found = {
        name: read(name).learners
        for name in ("pairwise-mnist", "fashion-mnist", "svhn-cifar100", "split-cifar100", "mixed")
    }
    ends = {
        name: [fmean(each) for each in zip(*(at_the_end(run.accuracy) for run in learners["hrn"]), strict=True)]
        for name, learners in found.items()
    }

    def free(name: str, part: str) -> float:
        return fmean(run.task_free[part] for run in found[name]["hrn"])

    def larger(name: str) -> float:
        """Number of weights of `hrn` at the end, over that of `vc`."""
        ours, plain = (fmean(sum(run.parameters.values()) for run in found[name][learner]) for learner in ("hrn", "vc"))
        return ours / plain

    speed = json.loads((ROOT / "benchmarks" / "results" / "speed.json").read_text())
    ratios = [row["value"] for row in speed if row["name"].startswith("speed of the learner hrn over vc")]
    rows: list[tuple[str, str, float, float]] = [
        ("pairwise-mnist", "task-aware", 99.95, fmean(ends["pairwise-mnist"])),
        ("fashion-mnist", "Fashion after MNIST", 91.5, ends["fashion-mnist"][0]),
        ("fashion-mnist", "MNIST", 99.4, ends["fashion-mnist"][1]),
        ("svhn-cifar100", "SVHN after ten CIFAR tasks", 92, ends["svhn-cifar100"][0]),
        ("svhn-cifar100", "mean of the ten CIFAR tasks", 80, fmean(ends["svhn-cifar100"][1:])),
        ("split-cifar100", "task-aware", 81, fmean(ends["split-cifar100"])),
        ("mixed", "task-free", 65, free("mixed", "all_classes")),
        ("svhn-cifar100", "data set found, task-free", 98, free("svhn-cifar100", "dataset")),
        ("mixed", "data set found, task-free", 98, free("mixed", "dataset")),
        ("the slowest measured", "speed of training over that of `vc`, at least", 0.8, min(ratios)),
        *(
            (name, "weights at the end over those of `vc`, at most", 1.25, larger(name))
            for name in ("svhn-cifar100", "split-cifar100", "mixed")
        ),
    ]
    columns = [Column("scenario", words=True), Column("`hrn`", words=True), Column("aim", digits=None)]
    columns += [Column("has", digits=2), Column("reached", words=True)]
    table = Table("", columns, [])
    for name, what, aim, value in rows:
        reached = value <= aim if "at most" in what else value >= aim
        table.rows.append(Row((name, what, Number(aim), Number(value), "yes" if reached else "no")))
    return to_markdown(table)


BLOCKS: dict[str, Callable[[str], str]] = {
    block.__name__: block
    for block in (
        *(summary, headline, tasks, lead, plasticity, ablation, variants),
        *(decisions, distances, options, figure, aims),
    )
}


def fill(text: str) -> str:
    """A page with everything between its marks written again."""
    return MARK.sub(lambda mark: mark[1] + BLOCKS[mark[2]](mark[3]) + mark[4], text)


if __name__ == "__main__":
    for page in PAGES:
        text = page.read_text()
        page.write_text(fill(text))
        for _, kind, name, _ in MARK.findall(text):
            if kind == "figure":
                (DOCS / "images" / f"{name}.png").write_bytes(overview(read(name)).save("png"))
