"""Write the tables, figures and examples of README and docs, from the files in results and examples.

A page has marks such as `<!-- summary svhn-cifar100-paper -->` ... `<!-- end -->`; the text between them is replaced.
usage: python docs/make_pages.py [reliability.md ...]      (make pages: all pages)
"""

from __future__ import annotations

import importlib
import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hashroute.learners.options import options_from_dict, options_to_dict
from hashroute.learners.registry import find_learner, learner_summaries
from hashroute.reporting import results
from hashroute.reporting.figures.overview import overview
from hashroute.reporting.games import game_table, return_table
from hashroute.reporting.table import Column, Number, Row, Table, to_markdown
from hashroute.rl.result import GameResults
from hashroute.scenarios import published_results
from hashroute.training.ablation import PAPER_SIGNS
from hashroute.training.result import Comparison

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PAGES = [
    ROOT / "README.md",
    DOCS / "reliability.md",
    DOCS / "scale.md",
    *sorted(DOCS.glob("guide/*.md")),
    *sorted(DOCS.glob("results/*.md")),
]
MARK = re.compile(r"(<!-- (\w+) ([\w.-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
SUMMARY = (
    *("learner", "seeds", "task-aware", "task-free", "data set found", "right after", "forgetting", "images/s"),
    *("encoder", "heads", "kept, kB"),
)
VARIANTS = ("variant", "seeds", "task-aware", "change", "task-free", "paths", "kept, kB")


def read(name: str) -> Comparison:
    """A committed comparison."""
    return Comparison.read(ROOT / "results" / f"{name}.json")


def made_with(comparison: Comparison, name: str, root: str = "../../") -> str:
    """The command that wrote a result file, with the options that differ from the usual ones, and the file."""
    command = f"{comparison.command}{changed_options(comparison)}"
    return f"\n`{command}`, [results/{name}.json]({root}results/{name}.json)\n"


def changed_options(comparison: Comparison) -> str:
    """The options of a comparison that differ from the usual ones, for its command."""
    changed: dict[str, Any] = {}
    shape = (1, 28, 28) if "mnist" in comparison.scenario else (3, 32, 32)
    for run in comparison.runs if comparison.command and "bench" in comparison.command else ():
        kind = find_learner(run.learner)
        usual = kind.default_options(comparison.scenario, shape, comparison.profile)  # type: ignore[arg-type]
        used = kind.saved_options(run.options)
        for option, value in options_to_dict(options_from_dict(kind, usual)).items():
            if used[option] != value:
                changed[f"{run.learner}.{option}"] = used[option]
    given = " ".join(f"{name}={value:g}" for name, value in changed.items())
    return f" --options {given}" if given else ""


def headline(name: str) -> str:
    """The measures that matter most, for README."""
    comparison = read(name)
    return to_markdown(results.headline(comparison)) + made_with(comparison, name, "")


def summary(name: str) -> str:
    """The most important measures, a row for each learner."""
    comparison = read(name)
    table = results.with_images_kept(results.summary(comparison), SUMMARY)
    return to_markdown(table) + made_with(comparison, name)


def tasks(name: str) -> str:
    """Every task's final accuracy; with the published recipe also that right after learning, and the paper's."""
    comparison = read(name)
    if comparison.profile == "paper":
        return to_markdown(results.per_task(comparison, published_results(comparison.scenario)))
    table = results.per_task(comparison, {})
    cells = [tuple(cell[-1:] if isinstance(cell, tuple) else cell for cell in row.cells) for row in table.rows]
    rows = [replace(row, cells=final) for row, final in zip(table.rows, cells, strict=True)]
    return to_markdown(replace(table, rows=rows))


def lead(name: str) -> str:
    """How far `hrn` is ahead of each other learner, at the end and right after learning."""
    comparison = read(name)
    final, right_after = results.leads(comparison), results.leads(comparison, when="right_after")
    others = {row.cells[0]: row.cells[1:3] for row in right_after.rows}
    learner, ahead, interval, seeds = final.columns
    columns = [replace(learner, name="`hrn` ahead of"), replace(ahead, name="at the end by"), interval]
    columns += [replace(ahead, name="right after by"), interval, seeds]
    rows = [
        replace(row, cells=(*row.cells[:3], *others.get(row.cells[0], (None, None)), row.cells[3]))
        for row in final.rows
    ]
    return to_markdown(Table(final.title, columns, rows))


def decisions(name: str) -> str:
    """The decisions of the first run of `hrn`, and those of other seeds that differ from them."""

    def row(decision: dict[str, Any], seed: int) -> Row:
        numbers = [
            None if decision[part] is None else Number(decision[part])
            for part in ("distance", "forked", "reused", "error")
        ]
        verb = "forked" if decision["action"] == "fork" else "reused"
        units = "new" if decision["parent"] is None else f"{decision['parent']}, {verb}"
        return Row((str(seed), decision["task"], decision["looks_like"], numbers[0], units, *numbers[1:]))

    first, *others = read(name).learners["hrn"]
    rows = [row(decision, first.seed) for decision in first.decisions]
    for run in others:
        for here, there in zip(first.decisions, run.decisions, strict=True):
            if (here["action"], here["parent"]) != (there["action"], there["parent"]):
                rows.append(row(there, run.seed))
    words = ("seed", "task", "resembles", "units")
    columns = ("seed", "task", "resembles", "nats", "units", "with a fork", "with frozen units", "±")
    return to_markdown(Table("", [Column(column, words=column in words) for column in columns], rows))


def ablation(name: str) -> str:
    """The paper's ablation, with its signs."""
    comparison = read(name)
    return to_markdown(results.ablation(comparison.learners, PAPER_SIGNS)) + made_with(comparison, name)


def variants(name: str) -> str:
    """Variants of `hrn` on one scenario."""
    comparison = read(name)
    return to_markdown(results.variants(comparison.learners).pick(*VARIANTS)) + made_with(comparison, name)


def options(_: str) -> str:
    """The options that searches chose, by the name of the result file."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted((ROOT / "results" / "search").glob("*.json")):
        for learner, chosen in json.loads(path.read_text())["chosen"].items():
            text = ", ".join(f"{key} {value:g}" for key, value in chosen.items())
            found.setdefault(path.name.partition(".")[0], {})[learner] = text
    searched = dict.fromkeys(name for chosen in found.values() for name in chosen)
    names = sorted(searched, key=[*learner_summaries(), *searched].index)
    rows = [Row((name, *map(chosen.get, names))) for name, chosen in found.items()]
    return to_markdown(Table("", [Column(column, words=True) for column in ("results", *names)], rows))


def learners(_: str) -> str:
    """What each learner is."""
    rows = [Row((f"`{name}`", text)) for name, text in learner_summaries().items()]
    return to_markdown(Table("", [Column("learner", words=True), Column("what it is", words=True)], rows))


def example(name: str) -> str:
    """The code of an example, without its main part."""
    code = (ROOT / "examples" / f"{name}.py").read_text().partition("import annotations\n\n")[2]
    return f"```python\n{code.partition('if __name__')[0].strip()}\n```\n"


def chaos(name: str) -> str:
    """Tries and failures of the last campaign of kills and hostile files."""
    found = json.loads((ROOT / "tests" / "chaos" / f"{name}.json").read_text())
    rows = [
        Row((f"{part['name']}{_measured(part)}", Number(part["tries"]), Number(part["failures"])))
        for part in found["parts"]
    ]
    columns = [Column("what was done", words=True), Column("tries", digits=0), Column("failures", digits=0)]
    kills, files = (sum(part["tries"] for part in found["parts"] if part["kind"] == kind) for kind in ("kill", "file"))
    failures = sum(part["failures"] for part in found["parts"])
    total = f"In all: {kills:,} kills, {files:,} mutated files, {failures:,} failures. {found.get('remark', '')}"
    made = f"{found['minutes']:g} minutes, {found['jobs']} processes, seed {found['seed']}, {found['machine']}"
    return to_markdown(Table("", columns, rows)) + f"\n{total.strip()}\n\n`make chaos`: {made}.\n"


def _measured(part: dict[str, Any]) -> str:
    """What a part of a campaign has measured beside tries and failures."""
    if part["grown"]:
        return f" (at most {part['slowest']:.1f} s of the processor and {part['grown'] / 2**20:,.0f} MB for one)"
    return f": {part['note']}" if part["note"] else ""


def frozen(name: str) -> str:
    """Heads over the features of a frozen backbone, beside each other."""
    path = f"experiments/results/{name}.json"
    found = json.loads((ROOT / path).read_text())
    rows = [Row((each["head"], Number(each["task_free"]), Number(each["task_known"]))) for each in found["rows"]]
    columns = [Column("head", words=True), Column("task-free"), Column("task-aware")]
    return to_markdown(Table("", columns, rows)) + f"\n`{found['command']}`, [{path}](../../{path})\n"


def scale(name: str) -> str:
    """What numbers of tasks cost, and a million of them: the line through the two largest numbers."""
    path, found = _benchmark(name)
    sums = {"files of tasks, MB": ("path", "head", "memory", "columns", "statistics"), "records, MB": ("record",)}
    sums |= {"manifest, MB": ("manifest",), "shared head, MB": ("shared head",)}
    rest = {"opening for one answer, s": "open_s", "answer to one image, ms": "answer_ms"}
    rest |= {"answers to 100 images, ms": "answer_100_ms", "learning one more task, s": "learn_s"}
    rest |= {"of this, the shared head, s": "shared_head_s", "peak memory, MB": "peak_mb"}
    known = {int(count): cost for count, cost in found["tasks"].items()}
    measures = {
        text: {n: sum(map(cost["bytes"].get, parts)) / 1e6 for n, cost in known.items()} for text, parts in sums.items()
    }
    measures |= {text: {n: cost[key] for n, cost in known.items()} for text, key in rest.items()}
    *_, less, more = sorted(known)
    rows = [
        Row(
            (
                text,
                *map(_rounded, cost.values()),
                _rounded(cost[more] + (10**6 - more) * (cost[more] - cost[less]) / (more - less)),
            )
        )
        for text, cost in measures.items()
    ]
    names = ["tasks", *(f"{count:,}" for count in known), "a million, extrapolated"]
    columns = [Column(each, words=not place) for place, each in enumerate(names)]
    return to_markdown(Table("", columns, rows)) + f"\n`python benchmarks/scale.py tasks`, [{path}](../{path})\n"


def index(name: str) -> str:
    """Shortlists of an approximate index beside the exact product over all memories."""
    path, found = _benchmark(name)
    cost = found["index"]
    rows = [Row(("all", "", "", "", _rounded(cost["image_ms"]), "", _rounded(cost["batch_ms"])))]
    for each in cost["shortlists"]:
        shares = (f"{100 * each[key]:.0f} %" for key in ("image_best", "image_best_16"))
        loss = f"{each['image_loss']:.4f}"
        times = (_rounded(each["image_ms"]), f"{100 * each['batch_best']:.0f} %", _rounded(each["batch_ms"]))
        rows.append(Row((str(each["shortlist"]), *shares, loss, *times)))
    names = (
        "shortlist",
        "best memory found",
        "of the best 16",
        "nats lost",
        "one image, ms",
        "nearest of a batch",
        "a batch, ms",
    )
    columns = [Column(each, words=not place) for place, each in enumerate(names)]
    return to_markdown(Table("", columns, rows)) + f"\n`python benchmarks/scale.py index`, [{path}](../{path})\n"


def heads(name: str) -> str:
    """What solving the shared head costs, by the number of classes."""
    path, found = _benchmark(name)
    rows = [Row((f"{int(classes):,}", _rounded(5 * seconds))) for classes, seconds in found["head"].items()]
    columns = [Column("classes"), Column("five penalties, s")]
    return to_markdown(Table("", columns, rows)) + f"\n`python benchmarks/scale.py head`, [{path}](../{path})\n"


def compiled(name: str) -> str:
    """What torch.compile gives."""
    path, found = _benchmark(name)
    ratio = found["eager_ms"] / found["compiled_ms"]
    text = f"{found['images']} images of 32 x 32 pixels take {_rounded(found['compiled_ms'])} ms instead of "
    text += (
        f"{_rounded(found['eager_ms'])}, {ratio:.1f} times as fast. Compiling takes {_rounded(found['compile_s'])} s. "
    )
    text += "All is processor time."
    return f"{text} `python benchmarks/compiled.py`, [{path}](../../{path})\n"


def _benchmark(name: str) -> tuple[str, Any]:
    """The path and the content of a result of a benchmark."""
    path = f"benchmarks/results/{name}.json"
    return path, json.loads((ROOT / path).read_text())


def _rounded(value: float) -> str:
    """A number with two digits that count."""
    digits = max(0, 1 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{round(value, 1 - math.floor(math.log10(abs(value)))):,.{digits}f}" if value else "0"


def recognition(name: str) -> str:
    """How far looks at the same game and at others are from memories, by the description of images."""
    path = f"experiments/results/{name}.json"
    found = json.loads((ROOT / path).read_text())
    rows = [Row((each["description"], Number(each["same"]), Number(each["others"]))) for each in found["rows"]]
    columns = [Column("described by", words=True), Column("same game, at most", digits=3)]
    columns.append(Column("another game, at least", digits=3))
    looks = f"{len(found['games'])} games of MinAtar, {found['looks']} looks of {found['steps']:,} steps at each"
    text = f"Nats per dimension; {looks}. The limit is {found['limit']:g}."
    return to_markdown(Table("", columns, rows)) + f"\n{text} `{found['command']}`, [{path}](../../{path})\n"


def rlspeed(name: str) -> str:
    """Steps per second on a game, and the ratio to the plain network."""
    path = f"benchmarks/results/{name}.json"
    found = json.loads((ROOT / path).read_text())
    rows = [
        Row((each["agent"], each["learner"], Number(each["steps_per_second"]), Number(each["ratio"])))
        for each in found["rows"]
    ]
    columns = [Column("agent", words=True), Column("learner", words=True), Column("steps/s", digits=0)]
    columns.append(Column("beside `vc`", digits=2))
    return to_markdown(Table("", columns, rows)) + f"\n`{found['command']}`, [{path}](../../{path})\n"


def unsupervised(stream: str) -> str:
    """What features of an unlabelled stream are worth, beside published results."""
    path = "experiments/results/unsupervised.json"
    found = json.loads((ROOT / path).read_text())
    measured: dict[str, list[dict[str, Any]]] = {}
    for each in found["rows"]:
        if each["stream"] == stream:
            measured.setdefault(each["features"], []).append(each)
    parts = ("neighbours", "linear", "purity", "information")
    rows = [
        Row((kind, Number(len(runs)), *(Number.over_seeds([run[part] for run in runs]) for part in parts)))
        for kind, runs in measured.items()
    ]
    for name, published in published_features(stream).items():
        classified, purity = (Number(published[part][-1]) for part in ("classified", "purity"))
        rows.append(Row((f"{name}, published", None, classified, None, purity, None)))
    table = Table("", [Column("features", words=True), Column("seeds", digits=0), *map(Column, parts)], rows)
    return to_markdown(table) + f"\n`{found['command']} {stream}`, [{path}](../../{path})\n"


def published_features(scenario: str) -> dict[str, dict[str, Any]]:
    """What was published about features in a scenario without labels."""
    module = importlib.import_module(f"hashroute.scenarios.{scenario.replace('-', '_')}")
    return getattr(module, "PUBLISHED", {})


def games(name: str) -> str:
    """Learners on a sequence of games, in shares of separate agents, and the final return of every game."""
    path = f"results/games/{name}.json"
    found = GameResults.read(ROOT / path)
    tables = (game_table(found), return_table(found))
    return "\n".join(map(to_markdown, tables)) + f"\n`{found.command}`, [{path}](../../{path})\n"


def figure(name: str) -> str:
    """The figure of a comparison."""
    text = "accuracy of the first task and mean over tasks after each task, and final accuracy against storage"
    return f"![{text}](../images/{name}.png)\n"


BLOCKS: dict[str, Callable[[str], str]] = {
    block.__name__: block
    for block in (
        *(headline, summary, tasks, lead, decisions, ablation, variants),
        *(options, learners, example, chaos, frozen, scale, heads, index, compiled, figure),
        *(recognition, rlspeed, unsupervised, games),
    )
}


def fill(text: str) -> str:
    """A page with everything between its marks written again."""
    return MARK.sub(lambda mark: mark[1] + BLOCKS[mark[2]](mark[3]) + mark[4], text)


if __name__ == "__main__":
    for page in [DOCS / name for name in sys.argv[1:]] or PAGES:
        text = page.read_text()
        page.write_text(fill(text))
        for _, kind, name, _ in MARK.findall(text):
            if kind == "figure":
                (DOCS / "images" / f"{name}.png").write_bytes(overview(read(name)).save("png"))
