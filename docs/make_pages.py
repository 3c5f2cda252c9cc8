"""Write the tables, figures and examples of README and docs, from the files in results and examples.

A page has places such as `<!-- summary svhn-cifar100-paper -->` ... `<!-- end -->`. Everything between is replaced.
usage: python docs/make_pages.py      (make pages)
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from hashroute.cli.ablate import PAPER
from hashroute.learners.registry import learner_summaries
from hashroute.reporting.figures import accuracy_figure
from hashroute.reporting.results import ablation, headline, leads, per_task, summary, variants
from hashroute.reporting.table import Column, Number, Row, Table, to_markdown
from hashroute.scenarios.registry import find_scenario
from hashroute.training.result import Comparison, RunResult

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results"
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.glob("guide/*.md")), *sorted(DOCS.glob("results/*.md"))]
SUMMARY = (
    *("learner", "seeds", "task-aware", "task-free", "data set found", "right after", "forgetting", "images/s"),
    *("encoder", "heads", "kept, kB"),
)
VARIANTS = ("variant", "seeds", "task-aware", "change", "task-free", "paths", "kept, kB")
PLACE = re.compile(r"(<!-- (\w+) ([\w.-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(text: str) -> str:
    """Return a page with new content in all its places."""
    return PLACE.sub(lambda place: place[1] + block(place[2], place[3]) + place[4], text)


def block(kind: str, name: str) -> str:
    """The content of a place: its kind, and the name of a result file."""
    if kind == "options":
        return to_markdown(options())
    if kind == "learners":
        return to_markdown(learners())
    if kind == "example":
        return example(name)
    if kind == "figure":
        shown = "the first task and the mean over tasks after each task; final accuracy against what is kept"
        return f"![{shown}](../images/{name}.png)\n"
    if kind == "ablation":
        content = json.loads((RESULTS / f"{name}.json").read_text())
        rows = {row: runs_of(entry) for row, entry in content["rows"].items()}
        return to_markdown(ablation(rows, PAPER)) + source(content["command"], name)
    if kind == "variants":
        name, _, scenario = name.partition(".")
        content = json.loads((RESULTS / f"{name}.json").read_text())["scenarios"][scenario]
        return to_markdown(variants({row: runs_of(entry) for row, entry in content["rows"].items()}).pick(*VARIANTS))
    comparison = Comparison.read(RESULTS / f"{name}.json")
    if kind == "headline":
        return to_markdown(headline(comparison)) + source(comparison.command, name, "")
    if kind == "summary":
        return to_markdown(summary(comparison).pick(*SUMMARY)) + source(comparison.command, name)
    if kind == "tasks":
        return to_markdown(tasks(comparison))
    if kind == "lead":
        return to_markdown(lead(comparison))
    if kind == "decisions":
        return to_markdown(decisions(comparison.learners["hrn"]))
    raise ValueError(f"there is no kind of place {kind!r}")


def source(command: str | None, name: str, root: str = "../../") -> str:
    """The command that wrote a result file, and the file."""
    return f"\n`{command}`, [results/{name}.json]({root}results/{name}.json)\n"


def runs_of(row: dict[str, Any]) -> list[RunResult]:
    """The runs in a row of an ablation's file."""
    parts = ("accuracy", "seconds", "parameters", "bytes_kept", "task_free", "decisions")
    return [
        RunResult("hrn", seed, **{part: row[part][place] for part in parts if part in row})
        for place, seed in enumerate(row["seeds"])
    ]


def tasks(comparison: Comparison) -> Table:
    """Every task's final accuracy; with the published recipe also that right after learning, and the paper's."""
    if comparison.profile == "paper":
        return per_task(comparison, find_scenario(comparison.scenario).published_results)
    table = per_task(comparison, {})
    rows = [tuple(cell[-1:] if isinstance(cell, tuple) else cell for cell in row.cells) for row in table.rows]
    return replace(table, rows=[replace(row, cells=cells) for row, cells in zip(table.rows, rows, strict=True)])


def lead(comparison: Comparison) -> Table:
    """How far `hrn` is ahead of each other learner, at the end and right after learning."""
    final, right_after = leads(comparison), leads(comparison, when="right_after")
    others = {row.cells[0]: row.cells[1:3] for row in right_after.rows}
    learner, ahead, interval, seeds = final.columns
    columns = [replace(learner, name="`hrn` ahead of"), replace(ahead, name="at the end by"), interval]
    columns += [replace(ahead, name="right after by"), interval, seeds]
    rows = [
        replace(row, cells=(*row.cells[:3], *others.get(row.cells[0], (None, None)), row.cells[3]))
        for row in final.rows
    ]
    return Table(final.title, columns, rows)


def decisions(runs: list[RunResult]) -> Table:
    """The decisions of the first run, and those of other runs that differ."""

    def row(decision: dict[str, Any], seed: int) -> Row:
        scores = [None if decision[key] is None else Number(decision[key]) for key in ("forked", "reused", "error")]
        distance = None if decision["distance"] is None else Number(decision["distance"])
        action, parent = decision["action"], decision["parent"]
        units = "new" if parent is None else f"{parent}, {'forked' if action == 'fork' else 'reused'}"
        return Row((str(seed), decision["task"], decision["looks_like"], distance, units, *scores))

    first, *others = runs
    rows = [row(decision, first.seed) for decision in first.decisions]
    for run in others:
        for here, there in zip(first.decisions, run.decisions, strict=True):
            if (here["action"], here["parent"]) != (there["action"], there["parent"]):
                rows.append(row(there, run.seed))
    names = ("seed", "task", "resembles", "nats", "units", "with a fork", "with frozen units", "±")
    words = {"seed", "task", "resembles", "units"}
    return Table("Decisions of hrn", [Column(name, words=name in words) for name in names], rows)


def options() -> Table:
    """The options that searches chose, by the name of the result file."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted((DOCS.parent / "hashroute" / "learners" / "tuned").glob("*.json")):
        for learner, chosen in json.loads(path.read_text())["chosen"].items():
            text = ", ".join(f"{key} {value:g}" for key, value in chosen.items())
            found.setdefault(path.name.partition(".")[0], {})[learner] = text
    learners = ("ewc", "ell", "gpm")
    columns = [Column(name, words=True) for name in ("results", *learners)]
    rows = [Row((name, *(chosen.get(each) for each in learners))) for name, chosen in found.items()]
    return Table("Options that searches chose", columns, rows)


def learners() -> Table:
    """What each learner is."""
    rows = [Row((f"`{name}`", summary)) for name, summary in learner_summaries().items()]
    return Table("Learners", [Column("learner", words=True), Column("what it is", words=True)], rows)


def example(name: str) -> str:
    """The code of an example, without its main part."""
    code = (DOCS.parent / "examples" / f"{name}.py").read_text().partition("import annotations\n\n")[2]
    return f"```python\n{code.partition('if __name__')[0].strip()}\n```\n"


def draw_figures(text: str) -> None:
    """Draw the figures of a page."""
    for _, kind, name, _ in PLACE.findall(text):
        if kind == "figure":
            content = json.loads((RESULTS / f"{name}.json").read_text())
            accuracy_figure(content, DOCS / "images" / f"{name}.png")


if __name__ == "__main__":
    for page in PAGES:
        text = page.read_text()
        page.write_text(fill(text))
        draw_figures(text)
