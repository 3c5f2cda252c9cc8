"""Tables and figures of README and docs/scenarios, from the files in results.

A page holds places such as `<!-- summary svhn-cifar100-paper -->` ... `<!-- end -->`: what stands between is written
anew. usage: python docs/make_pages.py      (make pages)
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

from hashroute.cli.ablate import ablation_rows
from hashroute.reporting.figures import accuracy_figure
from hashroute.reporting.tables import best_mean, lead_rows, markdown, spread, summary, task_rows
from hashroute.training.metrics import at_the_end

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results"
PAGES = [DOCS.parent / "README.md", *sorted((DOCS / "scenarios").glob("*.md"))]
PLACE = re.compile(r"(<!-- (\w+) ([\w.-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def made_with(content: dict[str, Any], name: str) -> str:
    """The command, and the file that it wrote."""
    return f"Made with `{content['command']}`; every number is in [results/{name}.json](../../results/{name}.json).\n"


def block(kind: str, name: str) -> str:
    """What stands in a place of this kind for a result of this name."""
    if kind == "options":
        return options(name)
    if kind == "aims":
        return aims()
    content = json.loads((RESULTS / f"{name.partition('.')[0]}.json").read_text())
    if kind == "summary":
        return markdown(*summary(content)) + "\n" + made_with(content, name)
    if kind == "tasks":
        return markdown(*task_rows(content))
    if kind == "lead":
        return markdown(*lead_rows(content))
    if kind == "plasticity":
        return markdown(*lead_rows(content, when="right_after"))
    if kind == "ablation":
        return markdown(*ablation_rows(content)) + "\n" + made_with(content, name)
    if kind == "variants":
        name, scenario = name.split(".")
        return variants(content["scenarios"][scenario]) + "\n" + made_with(content, name)
    if kind == "distances":
        return distances(content)
    if kind == "decisions":
        return decisions(content["learners"]["hrn"])
    if kind == "headline":
        return headline(content) + f"\n`{content['command']}`, [results/{name}.json](results/{name}.json)\n"
    if kind == "figure":
        shown = "the first task and the mean over tasks after each, and accuracy at the end over what is kept"
        return f"![{shown}](../images/{name}.png)\n"
    raise ValueError(f"there is no kind of place {kind!r}")


def headline(content: dict[str, Any]) -> str:
    """What matters most, for README."""
    headers, rows = summary(content)
    shown = ["learner", "final", "forgetting", "no task given"]
    return markdown(shown, [[row[headers.index(name)] for name in shown] for row in rows])


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
                spread(row["forgetting"]),
                spread([each["all_classes"] for each in row["task_free"]]),
                f"{fmean(sum(made['action'] != 'reuse' for made in each) for each in row['decisions']):g}",
                f"{fmean(each['encoder'] for each in row['parameters']):,.0f}",
                f"{fmean(sum(each.values()) for each in row['bytes_kept']) / 1000:,.0f}",
            ]
        )
    headers = ["", "seeds", "final", "change", "forgetting", "no task given", "paths", "encoder", "kept, kB"]
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


def distances(content: dict[str, Any]) -> str:
    """How far the protected plain networks stay below the unprotected one: what they pay for keeping."""
    best = {name: fmean(map(best_mean, content["learners"][name]["accuracy"])) for name in ("vc", "ewc", "ell", "gpm")}
    less = ", ".join(f"`{name}` {round(best['vc'] - best[name], 1) + 0.0:.1f}" for name in ("ewc", "ell", "gpm"))
    return f"Best-ever accuracy below that of `vc`, in points: {less}.\n"


def options(name: str) -> str:
    """What a search tried, and what it chose."""
    found = json.loads((DOCS.parent / "hashroute" / "learners" / "tuned" / f"{name}.json").read_text())
    rows = []
    for learner, chosen in found["chosen"].items():
        trials = [trial for trial in found["trials"] if trial["learner"] == learner]
        tried = {key: sorted({trial["options"][key] for trial in trials}) for key in chosen}
        said = "; ".join(f"{key} {', '.join(f'{value:g}' for value in values)}" for key, values in tried.items())
        rows.append([learner, said, "; ".join(f"{key} {value:g}" for key, value in chosen.items())])
    made = f"\nMade with `{found['command']}`; the trials are in [{name}.json](../../hashroute/learners/tuned/{name}.json).\n"
    return markdown(["learner", "tried", "chosen"], rows) + made


def aims() -> str:
    """What `hrn` was to reach with our own settings, and what it has."""
    found = {}
    for name in ("pairwise-mnist", "fashion-mnist", "svhn-cifar100", "split-cifar100", "mixed"):
        found[name] = json.loads((RESULTS / f"{name}.json").read_text())["learners"]
    ends = {
        name: [fmean(each) for each in zip(*map(at_the_end, learners["hrn"]["accuracy"]), strict=True)]
        for name, learners in found.items()
    }
    free = {
        (name, what): fmean(each[what] for each in learners["hrn"]["task_free"])
        for name, learners in found.items()
        for what in ("all_classes", "dataset")
    }

    def larger(name: str) -> float:
        """How many weights `hrn` has at the end, over those of `vc`."""
        ours, plain = (
            fmean(sum(each.values()) for each in found[name][learner]["parameters"]) for learner in ("hrn", "vc")
        )
        return ours / plain

    speed = json.loads((DOCS.parent / "benchmarks" / "results" / "speed.json").read_text())
    ratios = [row["value"] for row in speed if row["name"].startswith("speed of the learner hrn over vc")]
    rows: list[tuple[str, str, float, float]] = [
        ("pairwise-mnist", "final", 99.95, fmean(ends["pairwise-mnist"])),
        ("fashion-mnist", "Fashion after MNIST", 91.5, ends["fashion-mnist"][0]),
        ("fashion-mnist", "MNIST", 99.4, ends["fashion-mnist"][1]),
        ("svhn-cifar100", "SVHN after ten CIFAR tasks", 92, ends["svhn-cifar100"][0]),
        ("svhn-cifar100", "mean of the ten CIFAR tasks", 80, fmean(ends["svhn-cifar100"][1:])),
        ("split-cifar100", "final", 81, fmean(ends["split-cifar100"])),
        ("mixed", "no task given", 65, free["mixed", "all_classes"]),
        ("svhn-cifar100", "data set found, no task given", 98, free["svhn-cifar100", "dataset"]),
        ("mixed", "data set found, no task given", 98, free["mixed", "dataset"]),
        ("the slowest measured", "speed of training over that of `vc`, at least", 0.8, min(ratios)),
        *(
            (name, "weights at the end over those of `vc`, at most", 1.25, larger(name))
            for name in ("svhn-cifar100", "split-cifar100", "mixed")
        ),
    ]
    shown = [
        [
            name,
            what,
            f"{aim:g}",
            f"{value:.2f}",
            "yes" if (value <= aim if "at most" in what else value >= aim) else "no",
        ]
        for name, what, aim, value in rows
    ]
    return markdown(["scenario", "`hrn`", "aim", "has", "reached"], shown)


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
