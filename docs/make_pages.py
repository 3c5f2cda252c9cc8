"""Tables and figures of README and docs/results, from the files in results.

A page holds places such as `<!-- summary svhn-cifar100-paper -->` ... `<!-- end -->`: what stands between is written
anew. usage: python docs/make_pages.py      (make pages)
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from hashroute.cli.ablate import ablation_rows
from hashroute.reporting.figures import accuracy_figure
from hashroute.reporting.tables import lead_rows, markdown, spread, summary, task_rows

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results"
PAGES = [DOCS.parent / "README.md", *sorted((DOCS / "results").glob("*.md"))]
SUMMARY = (
    *("learner", "seeds", "final", "right after", "forgetting", "no task given", "data set found", "images/s"),
    *("encoder", "heads", "kept, kB"),
)
HEADLINE = ("learner", "final", "forgetting", "no task given")
PLACE = re.compile(r"(<!-- (\w+) ([\w.-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def made_with(content: dict[str, Any], name: str) -> str:
    """The command, and the file that it wrote."""
    return f"`{content['command']}`, [results/{name}.json](../../results/{name}.json)\n"


def block(kind: str, name: str) -> str:
    """What stands in a place of this kind for a result of this name."""
    if kind == "options":
        return options()
    content = json.loads((RESULTS / f"{name.partition('.')[0]}.json").read_text())
    if kind == "summary":
        return columns(*summary(content), SUMMARY) + "\n" + made_with(content, name)
    if kind == "tasks":
        return tasks(content, published=name.endswith("-paper"))
    if kind == "lead":
        return lead(content)
    if kind == "ablation":
        return markdown(*ablation_rows(content)) + "\n" + made_with(content, name)
    if kind == "variants":
        name, scenario = name.split(".")
        return variants(content["scenarios"][scenario])
    if kind == "decisions":
        return decisions(content["learners"]["hrn"])
    if kind == "headline":
        table = columns(*summary(content), HEADLINE)
        return f"{table}\n`{content['command']}`, [results/{name}.json](results/{name}.json)\n"
    if kind == "figure":
        shown = "the first task and the mean over tasks after each task; final accuracy against what is kept"
        return f"![{shown}](../images/{name}.png)\n"
    raise ValueError(f"there is no kind of place {kind!r}")


def columns(headers: list[str], rows: list[list[str]], shown: Sequence[str]) -> str:
    """Some columns of a table."""
    return markdown(list(shown), [[row[headers.index(name)] for name in shown] for row in rows])


def tasks(content: dict[str, Any], published: bool) -> str:
    """The accuracy of every task: at the end; with the published settings also right after it, beside the paper's."""
    headers, rows = task_rows(content)
    if not published:
        rows = [[cell.rpartition(" / ")[2] for cell in row] for row in rows if not row[0].startswith("*")]
    return markdown(headers, rows)


def lead(content: dict[str, Any]) -> str:
    """How far `hrn` is ahead of each other learner, at the end and right after learning."""
    _, final = lead_rows(content)
    right_after = {row[0]: row[1:3] for row in lead_rows(content, when="right_after")[1]}
    headers = ["`hrn` ahead of", "final, by", "95 % interval", "right after, by", "95 % interval", "seeds"]
    rows = [[name, *ahead, *right_after.get(name, ["", ""]), seeds] for name, *ahead, seeds in final]
    return markdown(headers, rows)


def variants(content: dict[str, Any]) -> str:
    """What an ablation of `hrn` gave on one scenario, each row beside the first."""
    first = next(iter(content["rows"].values()))
    whole = dict(zip(first["seeds"], first["final"], strict=True))
    rows = []
    for name, row in content["rows"].items():
        if not row["seeds"]:
            continue
        changes = [final - whole[seed] for seed, final in zip(row["seeds"], row["final"], strict=True) if seed in whole]
        rows.append(
            [
                name,
                str(len(row["seeds"])),
                spread(row["final"]),
                "" if row is first else spread(changes),
                spread([each["all_classes"] for each in row["task_free"]]),
                f"{fmean(sum(made['action'] != 'reuse' for made in each) for each in row['decisions']):g}",
                f"{fmean(sum(each.values()) for each in row['bytes_kept']) / 1000:,.0f}",
            ]
        )
    headers = ["", "seeds", "final", "change", "no task given", "paths", "kept, kB"]
    return markdown(headers, rows)


def decisions(entry: dict[str, Any]) -> str:
    """What hrn decided in its first run, and where it went another way in the others."""

    def way(decision: dict[str, Any]) -> tuple[Any, ...]:
        return decision["action"], decision["parent"]

    first, *others = entry["decisions"]
    lines = [f"- {decision['said']}" for decision in first]
    for seed, decided in zip(entry["seeds"][1:], others, strict=True):
        lines += [
            f"- in seed {seed}, {there['said']}"
            for here, there in zip(first, decided, strict=True)
            if way(here) != way(there)
        ]
    return "\n".join(lines) + "\n"


def options() -> str:
    """The options that searches chose, for every scenario and its settings."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted((DOCS.parent / "hashroute" / "learners" / "tuned").glob("*.json")):
        for learner, chosen in json.loads(path.read_text())["chosen"].items():
            text = ", ".join(f"{key} {value:g}" for key, value in chosen.items())
            found.setdefault(path.name.partition(".")[0], {})[learner] = text
    learners = ("ewc", "ell", "gpm")
    rows = [[name, *(row.get(each, "") for each in learners)] for name, row in found.items()]
    return markdown(["results", *learners], rows)


def fill(text: str) -> str:
    """A page with all its places written anew."""
    return PLACE.sub(lambda place: place[1] + block(place[2], place[3]) + place[4], text)


if __name__ == "__main__":
    for page in PAGES:
        text = page.read_text()
        page.write_text(fill(text))
        for _, kind, name, _ in PLACE.findall(text):
            if kind == "figure":
                content = json.loads((RESULTS / f"{name}.json").read_text())
                accuracy_figure(content, DOCS / "images" / f"{name}.png")
