"""A report: what it draws is what the files say, whatever is missing in them, and the page works in a real browser."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from rich.console import Console

import hashroute
from hashroute.cli.app import main
from hashroute.learners import LEARNERS
from hashroute.reporting import figures
from hashroute.reporting.gather import Group, gather
from hashroute.reporting.page import ReportSettings, run_report
from hashroute.scenarios import scenario_recipe
from hashroute.storage import insert_seed

FRACTION = 0.3
RUNS = (("hrn", 0), ("hrn-paper", 0), ("vc", 0), ("vc", 1), ("separate", 0), ("joint", 0))
FLOW = {"0 or 1": [[0, 0, 1, 0.75], [0, 2, 1, 0.25], [1, 1, 3, 1.0]], "2 or 3": [[0, 0, 1, 0.5], [0, 3, 0, 0.5]]}
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
SAMPLE = {
    "task": "2 or 3",
    "image": PIXEL,
    "label": "2",
    "predicted": "3",
    "task_free": {"task": "0 or 1", "label": "1"},
    "path": [0, 1, 3],
    "known_by": "units",
    "projections": [0.9, 0.8, 0.1, 0.7],
}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of real runs, short ones."""
    folder = tmp_path_factory.mktemp("runs")
    scenario = hashroute.load_scenario("digits", FRACTION)
    settings = replace(scenario_recipe(scenario, "default"), epochs=(2, 1))
    for name, seed in RUNS:
        hashroute.run(scenario, name, settings, seed, folder=folder / f"{name}-seed{seed}", fraction=FRACTION)
    log = (
        folder / "hrn-paper-seed0" / "epochs.jsonl"
    )  # what newer runs write down of units and paths, known to the digit
    records = [json.loads(line) for line in log.read_text().splitlines()]
    records[-1] |= {"flow": FLOW, "ages": [float(unit) for unit in range(len(records[-1]["usage"]))]}
    log.write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "hrn-paper-seed0" / "samples.json").write_text(json.dumps([SAMPLE]))
    return folder


@pytest.fixture(scope="session")
def shown(runs: Path) -> dict[str, figures.Picture]:
    """All figures of these runs."""
    return {picture.name: picture for picture in figures.pictures(only(runs))}


@pytest.fixture(scope="session")
def written(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a report on them."""
    output = tmp_path_factory.mktemp("report")
    report(runs, output=output)
    return output / "report.html"


@pytest.fixture
def copied(runs: Path, tmp_path: Path) -> Path:
    """The same runs, to be spoiled."""
    return Path(shutil.copytree(runs, tmp_path / "runs"))


def report(*paths: Path, output: Path) -> str:
    """The text of a report's page."""
    settings = ReportSettings(paths, output)
    return run_report(settings, "hashroute report", Console(quiet=True)).read_text(encoding="utf-8")


def embedded(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="values">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    values: dict[str, Any] = json.loads(found[1])
    return values


def drawings(page: str) -> list[ET.Element]:
    return [ET.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def outcome(folder: Path, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / run / "result.json").read_text())
    return found


def only(folder: Path) -> Group:
    (group,) = gather([folder])[0]
    return group


def mean_first(runs: Path) -> list[float]:
    """The first task's accuracy after each task, of vc, mean over its seeds."""
    return [
        fmean(rows)
        for rows in zip(
            *([row[0] for row in outcome(runs, f"vc-seed{seed}")["accuracy"]] for seed in (0, 1)), strict=True
        )
    ]


# ---------------------------------------------------------------------- what is drawn


def test_curves_show_what_the_files_say(runs: Path, shown: dict[str, figures.Picture]) -> None:
    assert list(only(runs).learners) == ["hrn", "hrn-paper", "vc", "separate", "joint"]
    axes = shown["first"].figure.axes[0]
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert lines["vc"] == pytest.approx(mean_first(runs))
    assert lines["hrn"] == pytest.approx([row[0] for row in outcome(runs, "hrn-seed0")["accuracy"]])
    assert lines["joint"] == pytest.approx([outcome(runs, "joint-seed0")["accuracy"][-1][0]] * 2)
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    both = [row[0] for seed in (0, 1) for row in outcome(runs, f"vc-seed{seed}")["accuracy"]]
    assert (band.min(), band.max()) == pytest.approx((min(both), max(both)))
    assert len(axes.collections) == 1, "one seed has no spread"
    lines = {line.get_label(): list(line.get_ydata()) for line in shown["mean"].figure.axes[0].lines}
    seeds = [outcome(runs, f"vc-seed{seed}")["accuracy"] for seed in (0, 1)]
    so_far = [[fmean(row[: place + 1]) for place, row in enumerate(matrix)] for matrix in seeds]
    assert so_far[0] != so_far[1], "seeds that are the same show no mean"
    assert lines["vc"] == pytest.approx([fmean(both) for both in zip(*so_far, strict=True)])


def test_what_is_kept_stands_beside_what_is_known(runs: Path, shown: dict[str, figures.Picture]) -> None:
    picture = shown["cost"]
    marks = {line.get_label(): line.get_xydata() for line in picture.figure.axes[0].lines}
    assert {"hrn", "hrn-paper", "vc", "separate", "joint"} <= marks.keys()
    seeds = [outcome(runs, f"vc-seed{seed}") for seed in (0, 1)]
    kept, final = (sum(seeds[0]["bytes_kept"].values()) / 1e6, fmean(fmean(each["accuracy"][-1]) for each in seeds))
    assert marks["vc"].tolist() == [pytest.approx([kept, final])]
    said = [part for part in picture.values.values() if part["learner"] == "vc" and part.get("labels")]
    assert [part["labels"] for part in said] == [[f"{kept:.2f} MB kept, accuracy"] * count for count in (1, 2)]
    assert said[1]["values"] == [pytest.approx(fmean(each["accuracy"][-1])) for each in seeds]


def test_heat_maps_and_bars_show_what_the_files_say(runs: Path, shown: dict[str, figures.Picture]) -> None:
    panels = {axes.get_title(loc="left"): axes for axes in shown["matrices"].figure.axes}
    cells = panels["separate"].images[0].get_array()
    for row, values in enumerate(outcome(runs, "separate-seed0")["accuracy"]):
        for column, value in enumerate(values):
            assert (
                cells[row, column] == pytest.approx(value) if value is not None else math.isnan(cells.data[row, column])
            )
    log = (runs / "hrn-paper-seed0" / "epochs.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in log]
    fill, age = shown["units-hrn-paper"].figure.axes
    assert [bar.get_height() for bar in fill.patches] == pytest.approx([100 * v for v in records[-1]["basis_fill"]])
    assert [bar.get_height() for bar in age.patches] == records[-1]["ages"]
    shares = shown["usage-hrn-paper"].figure.axes[0].images[0].get_array()
    assert shares.T.tolist() == [pytest.approx([100 * share for share in record["usage"]]) for record in records]


def test_ways_that_no_earlier_task_took_are_new(shown: dict[str, figures.Picture]) -> None:
    first, second = shown["flow-hrn-paper"].figure.axes[:2]
    colours = [[matplotlib_hex(colour) for colour in axes.collections[0].get_colors()] for axes in (first, second)]
    assert colours == [[figures.NEW] * 3, [figures.SHARED, figures.NEW]]
    widths = first.collections[0].get_linewidths()
    assert widths[2] > widths[0] > widths[1]


def matplotlib_hex(colour: Any) -> str:
    from matplotlib.colors import to_hex

    return to_hex(colour[:3]).upper()


def test_a_forest_grows_from_decisions() -> None:
    said = [("a", "fresh", None), ("b", "reuse", "a"), ("c", "fork", "b"), ("d", "reuse", "c"), ("e", "fork", "a")]
    decisions = [{"task": task, "action": action, "parent": parent} for task, action, parent in said]
    paths = figures.forest_paths(decisions)
    assert [(path.parent, [d["task"] for d in path.decisions]) for path in paths] == [
        (None, ["a", "b"]),
        (0, ["c", "d"]),
        (0, ["e"]),
    ]


def test_the_forest_of_a_run_has_its_tasks(runs: Path, shown: dict[str, figures.Picture]) -> None:
    texts = "\n".join(text.get_text() for text in shown["forest-hrn"].figure.axes[0].texts)
    assert [task for task in only(runs).tasks if task not in texts] == []


def test_the_page_embeds_what_is_drawn(runs: Path, written: Path) -> None:
    page = written.read_text(encoding="utf-8")
    values = embedded(page)
    vc = [part for part in values.values() if part["learner"] == "vc" and part.get("labels")]
    assert vc[0]["labels"][0] == "after 0 or 1"
    assert vc[0]["values"] == pytest.approx(mean_first(runs), abs=1e-5)
    grids = {part["learner"]: part["values"] for part in values.values() if part.get("rows")}
    assert grids["separate"] == outcome(runs, "separate-seed0")["accuracy"]
    ids: list[str] = []
    shown = set()
    for drawing in drawings(page):
        for element in drawing.iter():
            if element.get("id") is not None:
                ids.append(element.attrib["id"])
            if element.get("data-part") is not None:
                part = values[element.attrib["id"]]
                shown.add(element.attrib["id"])
                marks = list(element.iter("{http://www.w3.org/2000/svg}use"))
                if marks and not part.get("rows"):
                    assert len(marks) == len(part["values"]), part
    assert len(ids) == len(set(ids))
    assert shown == {name for name, part in values.items() if "values" in part}, (
        "every value belongs to something drawn"
    )
    assert figures.INK not in "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL)), "ink is the page's own"


def test_tables_hold_the_numbers_of_the_result(runs: Path, written: Path) -> None:
    page = written.read_text(encoding="utf-8")
    after = [row[place] for place, row in enumerate(outcome(runs, "separate-seed0")["accuracy"])]
    tasks, short = (
        [re.sub("<.*?>", "", cell) for cell in re.findall(r"<td.*?</td>", row)]
        for row in re.findall(r'<tr data-learner="separate">(.*?)</tr>', page)[:2]
    )
    assert tasks[1:-1] == [f"{value:.1f} / {value:.1f}" for value in after], "separate networks forget nothing"
    assert short[:3] == ["separate", "1", f"{fmean(after):.1f}"]


def test_the_paper_stands_beside_us_and_is_never_the_best(tmp_path: Path) -> None:
    result = Path(__file__).parents[2] / "results" / "fashion-mnist-paper.json"
    page = report(result, output=tmp_path)
    paper = re.findall(r'<tr class="paper" data-learner="hrn-paper">(.*?)</tr>', page)
    assert len(paper) == 1
    assert "86.0 / 84.0" in paper[0]
    assert "<b>" not in "".join(re.findall(r'<tr class="paper".*?</tr>', page))
    assert json.loads(result.read_text())["command"] in page


def test_figures_come_for_papers_too(written: Path) -> None:
    page = written.read_text(encoding="utf-8")
    names = {path.stem for path in (written.parent / "figures").iterdir()}
    expected = {"first", "mean", "tradeoff", "cost", "matrices", "usage-hrn-paper", "units-hrn-paper", "flow-hrn-paper"}
    assert names == {f"digits-{name}" for name in (*expected, "flow-hrn", "forest-hrn")}
    for name in names:
        assert (written.parent / "figures" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert (written.parent / "figures" / f"{name}.pdf").read_bytes()[:5] == b"%PDF-"
        assert f'href="figures/{name}.pdf"' in page
    assert not list(written.parent.rglob("*unfinished*"))


def test_a_report_is_the_same_each_time(runs: Path, tmp_path: Path) -> None:
    for output in ("one", "other"):
        report(runs / "vc-seed0", output=tmp_path / output)
    for path in (tmp_path / "one").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "other" / path.relative_to(tmp_path / "one")).read_bytes(), path.name


def test_other_options_make_another_learner(copied: Path) -> None:
    settings = copied / "vc-seed1" / "settings.json"
    kept = json.loads(settings.read_text())
    settings.write_text(json.dumps({**kept, "options": {"width": 2}}))
    assert [name for name in only(copied).learners if name.startswith("vc")] == ["vc", "vc (width 2)"]


def test_runs_of_other_settings_get_a_section_of_their_own(copied: Path, tmp_path: Path) -> None:
    settings = copied / "vc-seed1" / "settings.json"
    kept = json.loads(settings.read_text())
    settings.write_text(json.dumps({**kept, "recipe": {**kept["recipe"], "batch_size": 7}}))
    assert report(copied / "vc-seed0", copied / "vc-seed1", output=tmp_path / "report").count("<section") == 2


# ---------------------------------------------------------------------- what is missing


def unfinished(folder: Path) -> None:
    (folder / "result.json").unlink()
    log = folder / "epochs.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:4]) + lines[4][: len(lines[4]) // 2])


def no_epochs(folder: Path) -> None:
    (folder / "result.json").unlink()
    (folder / "epochs.jsonl").write_text("")


def no_log(folder: Path) -> None:
    (folder / "result.json").unlink()
    (folder / "epochs.jsonl").unlink()


def broken_line(folder: Path) -> None:
    log = folder / "epochs.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join([lines[0][:20] + "\n", *lines[1:]]))


def not_a_number(folder: Path) -> None:
    result = json.loads((folder / "result.json").read_text())
    result["accuracy"][-1][0] = math.nan
    (folder / "result.json").write_text(json.dumps(result))


def gap(folder: Path) -> None:
    result = json.loads((folder / "result.json").read_text())
    result["accuracy"][-1][0] = None
    (folder / "result.json").write_text(json.dumps(result))


def broken_result(folder: Path) -> None:
    (folder / "result.json").write_text('{"accuracy": [[9')


def odd_result(folder: Path) -> None:
    (folder / "result.json").write_text("[1]")
    (folder / "samples.json").write_text("5")


def bare_result(folder: Path) -> None:
    accuracy = json.loads((folder / "result.json").read_text())["accuracy"]
    (folder / "result.json").write_text(json.dumps({"accuracy": accuracy}))


def odd_line(folder: Path) -> None:
    (folder / "result.json").unlink()
    with open(folder / "epochs.jsonl", "a") as file:
        file.write('{"task": "x", "accuracy": 5}\n')


CASES = {
    unfinished: "is still going or was stopped: 3 of 5 tasks learned",
    not_a_number: "accuracies that are not numbers",
    no_epochs: "0 of 5 tasks learned",
    no_log: "epochs.jsonl is missing",
    broken_line: "a line of epochs.jsonl cannot be read",
    gap: "its accuracy matrix has gaps",
    broken_result: "result.json cannot be read",
    odd_result: "result.json is not what a run writes",
    bare_result: "result.json is not what a run writes",
    odd_line: "a line of epochs.jsonl is not what a run writes",
}


@pytest.mark.parametrize("spoil", CASES, ids=lambda spoil: spoil.__name__)
def test_a_report_comes_and_says_what_is_missing(copied: Path, tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    spoil(copied / "vc-seed0")
    page = report(copied / "vc-seed0", output=tmp_path / "report")
    assert CASES[spoil] in page
    embedded(page)


@pytest.mark.parametrize("spoil", [unfinished, not_a_number, no_epochs], ids=lambda spoil: spoil.__name__)
def test_one_spoiled_run_does_not_spoil_others(copied: Path, tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    spoil(copied / "vc-seed0")
    page = report(copied / "vc-seed0", copied / "vc-seed1", output=tmp_path / "report")
    assert CASES[spoil] in page
    assert "cannot be read" not in page, "a line that is being written is nothing to complain about"
    assert "2 seeds" in page
    assert '<tr data-learner="vc">' in page


def test_seeds_and_learners_that_are_missing_are_named(runs: Path) -> None:
    (group,), _ = gather([runs / "hrn-seed0", runs / "vc-seed1"])
    said = "\n".join(group.missing())
    assert "hrn has no run with seed 1" in said
    assert "vc has no run with seed 0" in said
    assert "separate was not run" in said
    assert not any("was not run" in line for line in only(runs).missing())


def test_curves_go_as_far_as_a_run_has_come(copied: Path) -> None:
    unfinished(copied / "hrn-seed0")
    group = only(copied)
    axes = figures.pictures(group)[0].figure.axes[0]
    lines = {line.get_label(): list(line.get_xdata()) for line in axes.lines}
    assert (lines["hrn"], lines["vc"]) == ([0, 1, 2], [0, 1, 2, 3, 4])


def test_a_finished_run_is_read_once_from_folder_and_file(runs: Path, tmp_path: Path) -> None:
    first = json.loads((runs / "vc-seed0" / "settings.json").read_text())
    content = {part: first[part] for part in ("scenario", "tasks")}
    found = outcome(runs, "vc-seed0")
    entry = {"seeds": [0], "options": first["options"], **{name: [value] for name, value in found.items()}}
    content |= {"recipe": {**first["recipe"], "profile": "default", "fraction": FRACTION}, "command": "hashroute bench"}
    (tmp_path / "result.json").write_text(json.dumps({**content, "learners": {"vc": entry}}))
    (group,), _ = gather([runs / "vc-seed0", tmp_path / "result.json"])
    (run,) = group.runs
    assert run.records
    assert run.command == "hashroute bench", "what only the file has"


@pytest.mark.parametrize("tasks", [1, 50])
def test_one_task_or_fifty(tmp_path: Path, tasks: int) -> None:
    write_result(tmp_path / "result.json", tasks=[f"task {number}" for number in range(tasks)], learners=list(LEARNERS))
    page = report(tmp_path / "result.json", output=tmp_path / "report")
    assert len(page) < 5_000_000
    assert f"9 learners, {tasks} task" in page


def test_what_is_no_run_gets_one_line(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.json").write_text('{"rows": {}}')
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "text.json").write_text("no JSON")
    write_result(tmp_path / "none.json", tasks=["a"], learners=[])
    (tmp_path / "spoiled").mkdir()
    (tmp_path / "spoiled" / "settings.json").write_text("{}")
    names = ["empty", "missing", "other.json", "list.json", "text.json", "none.json", "spoiled"]
    for name in names:
        assert main(["report", str(tmp_path / name), str(runs), "--output", str(tmp_path / "report")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert name in line
    assert main(["report", "--output", str(tmp_path / "report")]) == 2
    assert not (tmp_path / "report").exists()


def test_a_folder_that_is_no_run_among_runs_is_named(copied: Path, tmp_path: Path) -> None:
    for name in ("hrn", "hrn-paper", "separate", "joint"):
        shutil.rmtree(copied / f"{name}-seed0")
    (copied / "editor").mkdir()
    (copied / "editor" / "settings.json").write_text("{}")
    assert "editor is not a run" in report(copied, output=tmp_path / "report")


def test_without_matplotlib_one_line_says_what_to_install(runs: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules['matplotlib'] = None; from hashroute.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "report", str(runs), "--output", str(tmp_path / "report")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == "hashroute: figures need matplotlib: pip install 'hashroute[plots]'\n"
    assert not (tmp_path / "report").exists()


def write_result(path: Path, tasks: list[str], learners: list[str], seeds: int = 1) -> None:
    """A result file of made-up numbers."""
    rows = [[90.0 - 0.1 * row if column <= row else None for column in range(len(tasks))] for row in range(len(tasks))]
    entry = {
        "seeds": list(range(seeds)),
        "options": {},
        "accuracy": [rows] * seeds,
        "seconds": [1.0] * seeds,
        "parameters": [{"encoder": 10, "heads": 20}] * seeds,
        "bytes_kept": [{"weights": 3000, "memory": 1000}] * seeds,
        "images_per_second": [1000.0] * seeds,
        "task_free": [{"all_classes": 50.0, "dataset": 75.0}] * seeds,
    }
    decisions = [{"task": task, "action": "fresh"} for task in tasks]
    entries = {
        name: {**entry, "decisions": [[] if place else decisions] * seeds} for place, name in enumerate(learners)
    }
    content = {"scenario": "mine", "tasks": tasks, "recipe": {}, "command": "", "learners": entries}
    path.write_text(json.dumps(content))


def test_many_runs_make_a_small_page_soon(runs: Path, tmp_path: Path) -> None:
    """Eight learners, five seeds, eleven tasks: under ten seconds of one core, and under 5 MB."""
    names = list(LEARNERS)[:8]
    tasks = [f"CIFAR {number}0-{number}9" for number in range(11)]
    rows = [[90.0 - row + column if column <= row else None for column in range(11)] for row in range(11)]
    kept = json.loads((runs / "vc-seed0" / "settings.json").read_text())
    ended = json.loads((runs / "vc-seed0" / "result.json").read_text())
    flow = {task: [[level, unit, (unit + 1) % 8, 0.125] for level in (0, 1) for unit in range(8)] for task in tasks}
    decisions = [{"task": task, "action": "fork" if n else "fresh", "parent": tasks[0]} for n, task in enumerate(tasks)]
    for name in names:
        for seed in range(5):
            folder = tmp_path / "runs" / f"{name}-seed{seed}"
            folder.mkdir(parents=True)
            (folder / "settings.json").write_text(
                json.dumps({**kept, "learner": name, "seed": seed, "tasks": tasks, "options": {}})
            )
            result = {**ended, "accuracy": rows, "decisions": decisions if name == "hrn" else []}
            (folder / "result.json").write_text(json.dumps(result))
            record: dict[str, Any] = {"epochs": 15, "images": 1, "seconds": 1.0}
            if name == "hrn-paper":
                record |= {"usage": [0.125] * 8, "basis_fill": [1.0] * 8, "ages": [1.0] * 8, "flow": flow}
            epochs = [
                {**record, "task": t, "task_index": n, "epoch": e} for n, t in enumerate(tasks) for e in range(15)
            ]
            (folder / "epochs.jsonl").write_text("".join(json.dumps(epoch) + "\n" for epoch in epochs))
    start = time.process_time()
    page = report(tmp_path / "runs", output=tmp_path / "report")
    assert time.process_time() - start < 10
    assert len(page.encode()) < 5_000_000
    assert "8 learners, 11 tasks, 5 seeds" in page


# ---------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real one, without a window."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        if os.environ.get("CI_BROWSER") == "1":
            pytest.fail("CI_BROWSER is 1, and there is no chromium")
        pytest.skip("there is no chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a page; in the end it must have said nothing in the console, and asked for no other file."""
    problems: list[str] = []
    contexts = []

    def open_page(path: Path, width: int = 1280, scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.on("request", lambda request: requests.append(request.url))
        requests: list[str] = []
        page.goto(path.as_uri())
        assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_and_can_be_read(
    opened: Callable[..., Any], written: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    page = opened(written, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    sizes = page.evaluate(
        "[...document.querySelectorAll('figure svg')].map(e => e.getBoundingClientRect()).map(b => [b.width, b.height])"
    )
    assert len(sizes) == 10
    assert all(across > 250 and down > 30 for across, down in sizes)
    background = brightness(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
    texts = page.evaluate("[...document.querySelectorAll('figure svg')].map(e => getComputedStyle(e).color)")
    letters = page.evaluate("getComputedStyle(document.querySelector('figure svg g[id*=xtick] text')).fill")
    assert all(abs(brightness(text) - background) > 150 for text in [*texts, letters])
    assert (background > 128) == (scheme == "light")
    page.click("#theme")
    assert (brightness(page.evaluate("getComputedStyle(document.documentElement).backgroundColor")) > 128) == (
        scheme == "dark"
    )
    picture = tmp_path / "page.png"
    page.screenshot(path=picture, full_page=True)
    assert picture.stat().st_size > 50_000


def brightness(colour: str) -> float:
    return fmean(map(int, re.findall(r"\d+", colour)[:3]))


def test_a_learner_is_switched_off_and_on(opened: Callable[..., Any], written: Path) -> None:
    page = opened(written)
    plots = [page.locator("figure svg").nth(place) for place in range(5)]  # two of curves, two of points, matrices

    def pictures() -> list[bytes]:
        page.evaluate("scrollTo(0, 0)")  # where a figure lies between two pixels, it is drawn in another way
        return [plot.screenshot() for plot in plots]

    before = pictures()
    parts = page.locator('[data-learner="vc"]:visible')
    assert parts.count() > 10
    page.click('.learners button[data-name="vc"]')
    assert parts.count() == 0
    assert all(now != was for now, was in zip(pictures(), before, strict=True))
    page.click('.learners button[data-name="vc"]')
    page.mouse.move(0, 0)
    assert pictures() == before


def test_tables_are_sorted_by_a_click(opened: Callable[..., Any], written: Path) -> None:
    page = opened(written)
    table = page.locator("table").nth(1)
    headers = table.locator("th").all_inner_texts()
    column = headers.index("final")

    def cells() -> list[float]:
        texts = table.locator(f"tbody td:nth-child({column + 1})").all_inner_texts()
        return [float(text.split("±")[0]) for text in texts]

    unsorted = cells()
    table.locator("th").nth(column).locator("button").click()
    assert cells() == sorted(unsorted, reverse=True)
    table.locator("th").nth(column).locator("button").click()
    assert cells() == sorted(unsorted)
    table.locator("th").nth(0).locator("button").click()
    names = table.locator("tbody td:first-child").all_inner_texts()
    assert names == sorted(names)


def test_a_table_is_copied_as_it_stands(opened: Callable[..., Any], written: Path) -> None:
    page = opened(written)
    page.click('.learners button[data-name="joint"]')
    page.locator(".table").nth(1).locator("button.copy").click()
    page.wait_for_function("[...document.querySelectorAll('button.copy')].some(b => b.textContent === 'copied')")
    lines = [line.split("\t") for line in page.evaluate("navigator.clipboard.readText()").splitlines()]
    assert lines[0][:3] == ["learner", "seeds", "final"]
    assert [line[0] for line in lines[1:]] == ["hrn", "hrn-paper", "vc", "separate"]
    assert len({len(line) for line in lines}) == 1


def test_pointing_says_the_value(opened: Callable[..., Any], written: Path, runs: Path) -> None:
    page = opened(written)
    values = embedded(written.read_text())
    name = next(name for name, part in values.items() if part["learner"] == "vc" and part.get("labels"))
    mark = page.locator(f'[id="{name}"] use').last
    mark.hover(force=True)
    assert f"vc, after 8 or 9: {mean_first(runs)[-1]:.2f}" in page.inner_text("#tip").splitlines()
    grid = next(name for name, part in values.items() if part["learner"] == "separate" and part.get("rows"))
    image = page.locator(f'[id="{grid}"] image')
    image.scroll_into_view_if_needed()
    box = image.bounding_box()
    page.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + 0.9 * box["height"])
    value = outcome(runs, "separate-seed0")["accuracy"][-1][0]
    assert page.inner_text("#tip") == f"separate, after 8 or 9, 0 or 1: {value:.2f}"
    for said in ("unit 3, age", "0 or 1: unit 1 at level 2 → unit 3"):  # a bar, and a way from level to level
        name = next(name for name, part in values.items() if said in part.get("labels", []))
        place = values[name]["labels"].index(said)
        page.locator(f'[id="{name}"] path').nth(place).hover(force=True)
        assert page.inner_text("#tip") == f"hrn-paper, {said}: {values[name]['values'][place]:.2f}"


def test_samples_are_shown_with_their_paths(opened: Callable[..., Any], written: Path) -> None:
    page = opened(written)
    said = page.inner_text('[data-learner="hrn-paper"] .sample')
    assert "2, predicted 3 ✗" in said
    assert "no task given: 1 of 0 or 1" in said
    assert "path 0 → 1 → 3" in said
    assert page.locator('[data-learner="hrn-paper"] .bars i').count() == 4
    assert page.locator('[data-learner="hrn-paper"] .bars i.taken').count() == 3
    assert page.evaluate("document.querySelector('[data-learner=hrn-paper] .sample img').naturalWidth") == 1


def test_names_that_cannot_be_shown_are_no_reason_to_fail(tmp_path: Path) -> None:
    write_result(tmp_path / "result.json", ["a\x1bb", "c\udcffd", "n" * 300], ["vc"])
    page = report(tmp_path / "result.json", output=tmp_path / "report")
    assert "a\N{REPLACEMENT CHARACTER}b" in page
    assert "c\N{REPLACEMENT CHARACTER}d" in page


def test_a_second_report_leaves_no_figure_of_the_first(runs: Path, tmp_path: Path) -> None:
    report(runs, output=tmp_path)
    assert list((tmp_path / "figures").glob("*forest*"))
    report(runs / "vc-seed0", output=tmp_path)
    assert not list((tmp_path / "figures").glob("*forest*"))


def test_a_part_that_older_runs_do_not_have_keeps_its_places() -> None:
    entry: dict[str, Any] = {"seeds": []}
    insert_seed(entry, 0, {"accuracy": "first"})
    insert_seed(entry, 2, {"accuracy": "third", "right": "more"})
    insert_seed(entry, 1, {"accuracy": "second", "right": "more"})
    insert_seed(entry, 3, {"accuracy": "fourth"})
    answers = [None, "more", "more", None]
    assert entry == {"seeds": [0, 1, 2, 3], "accuracy": ["first", "second", "third", "fourth"], "right": answers}


def test_names_are_shown_as_they_are_and_run_nothing(opened: Callable[..., Any], tmp_path: Path) -> None:
    tasks = ["<script>alert(1)</script>", "$x$", '"><img src=x onerror=alert(1)>', "a & b", "数字", "$x"]
    learners = ["</script><script>alert(1)</script>", "vc", "$\\frac{1}$"]
    write_result(tmp_path / "result.json", tasks, learners)
    report(tmp_path / "result.json", output=tmp_path / "report")
    page = opened(tmp_path / "report" / "report.html")
    assert page.locator("table").nth(0).locator("th").all_inner_texts() == ["learner", *tasks, "mean"]
    assert page.locator(".learners button").all_inner_texts() == ["vc", *sorted(set(learners) - {"vc"})]
    labels = [text.strip() for text in page.locator("figure svg text").all_text_contents()]
    assert {"$x$", "a & b", "数字", "$\\frac{1}$", "<script>ale…cript>"} <= set(labels)
    assert page.locator("script").count() == 2
    assert page.locator("img").count() == 0
    page.click(".learners button >> nth=1")
    assert page.locator(f'[data-learner="{sorted(set(learners) - {"vc"})[0]}"]:visible').count() == 0
