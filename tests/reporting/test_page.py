"""The page holds what the files say, and names what is missing in them."""

from __future__ import annotations

import json
import math
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from hashroute.learners import learner_names
from hashroute.reporting import html
from hashroute.reporting.figures import pictures
from hashroute.reporting.learners import INK, sentence
from hashroute.reporting.page import write_report
from hashroute.reporting.runs import Group, collect
from hashroute.training.result import Comparison
from programs import succeeded

Result = Callable[[str], dict[str, Any]]
Report = Callable[..., str]


def embedded(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="values">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    values: dict[str, Any] = json.loads(found[1])
    return values


def text_of(page: str) -> str:
    return re.sub("<[^>]*>", " ", page)


# ---------------------------------------------------------------------- what it holds


def test_the_page_opens_with_what_was_asked_and_a_legend(written: Path, group: Group) -> None:
    page = written.read_text(encoding="utf-8")
    head = page[: page.index("</header>")]
    assert "Scikit-learn's handwritten digits in five pairs" in text_of(head).replace("&#x27;", "'")
    assert f"Tasks in order: {', '.join(group.tasks)}" in head
    assert "30 % of the images were used" in head
    legend = page[page.index("<dl") : page.index("</dl>")]
    for name in group.learners:
        assert html.escape(sentence(name)) in legend
    assert page.index("</dl>") < page.index("<figure") < page.index("<table"), "then both accuracies"
    headers = re.findall(r'<th scope="col"[^>]*><button type="button"([^>]*)>(.*?)</button>', page)
    summary = [name for _, name in headers].index("task-aware")
    assert headers[summary + 1][1] == "task-free"
    assert all("data-tip" in tip for tip, _ in headers), "every column is explained"


def test_the_page_embeds_what_is_drawn(written: Path, result: Result) -> None:
    page = written.read_text(encoding="utf-8")
    values = embedded(page)
    grids = {part["learner"]: part["values"] for part in values.values() if part.get("rows")}
    assert grids["separate"] == result("separate-seed0")["accuracy"]
    ids: list[str] = []
    shown = set()
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    for drawing in drawings:
        for element in ET.fromstring(drawing).iter():
            if element.get("id") is not None:
                ids.append(element.attrib["id"])
            if element.get("data-part") is not None:
                part = values[element.attrib["id"]]
                shown.add(element.attrib["id"])
                marks = list(element.iter("{http://www.w3.org/2000/svg}use"))
                assert not marks or part.get("rows") or len(marks) == len(part["values"]), part
    assert len(ids) == len(set(ids))
    assert shown == {name for name, part in values.items() if "values" in part}, "every value belongs to a drawing"
    assert INK not in "".join(drawings), "ink is the page's own"


def test_tables_hold_the_numbers_of_the_result(written: Path, result: Result) -> None:
    after = [row[place] for place, row in enumerate(result("separate-seed0")["accuracy"])]
    summary, tasks = (
        [re.sub("<.*?>", "", cell) for cell in re.findall(r"<td.*?</td>", row)]
        for row in re.findall(r'<tr data-learner="separate">(.*?)</tr>', written.read_text(encoding="utf-8"))[:2]
    )
    assert summary[:3] == ["separate", "1", f"{fmean(after):.1f}"]
    assert tasks[1:-1] == [f"{value:.1f} / {value:.1f}" for value in after], "separate networks forget nothing"


def test_published_numbers_stand_beside_ours(report: Report) -> None:
    path = Path(__file__).parents[2] / "results" / "fashion-mnist-paper.json"
    page = report(path)
    (paper,) = re.findall(r'<tr class="published" data-learner="hrn-paper">(.*?)</tr>', page)
    assert "86.0 / 84.0" in paper
    assert Comparison.read(path).command in page


def test_figures_and_tables_come_for_papers_too(written: Path) -> None:
    page, folder = written.read_text(encoding="utf-8"), written.parent
    names = {path.stem for path in (folder / "figures").iterdir()}
    common = {"task-aware", "task-free", "first", "mean", "tradeoff", "cost", "matrices", "forest-hrn"}
    assert names == {f"digits-{name}" for name in (*common, *(f"{k}-hrn-paper" for k in ("usage", "units", "flow")))}
    for name in names:
        assert (folder / "figures" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert (folder / "figures" / f"{name}.pdf").read_bytes()[:5] == b"%PDF-"
        assert f'href="figures/{name}.pdf"' in page
    tables = {path.name: path.read_text() for path in (folder / "tables").iterdir()}
    assert tables.keys() == {f"digits-{name}.tex" for name in ("summary", "tasks", "decisions-hrn")}
    assert all(r"\toprule" in text and f'href="tables/{name}"' in page for name, text in tables.items())
    assert not list(folder.rglob("*unfinished*"))


def test_one_seed_is_not_mentioned(runs: Path, report: Report) -> None:
    text = text_of(report(runs / "vc-seed0", runs / "separate-seed0"))
    body = text[text.index("digits") : text.index("Recipe: the training settings")]
    assert not re.search(r"\bseeds?\b", body)


def test_a_second_report_is_the_same_and_leaves_nothing_of_an_earlier_one(runs: Path, tmp_path: Path) -> None:
    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*.*")}

    write_report([runs / "vc-seed0"], tmp_path, "hashroute report")
    first = files()
    for name in ("figures/other.png", "figures/other.pdf", "tables/other.tex"):
        (tmp_path / name).touch()
    write_report([runs / "vc-seed0"], tmp_path, "hashroute report")
    assert files() == first


# ---------------------------------------------------------------------- which runs belong together


def change_settings(folder: Path, **changes: Any) -> None:
    path = folder / "settings.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_other_options_make_another_row(copied: Path) -> None:
    change_settings(copied / "vc-seed1", options={"width": 2})
    (group,), _ = collect([copied])
    assert [name for name in group.learners if name.startswith("vc")] == ["vc", "vc(width=2)"]


def test_another_recipe_makes_another_section(copied: Path, report: Report) -> None:
    recipe = json.loads((copied / "vc-seed1" / "settings.json").read_text())["recipe"]
    change_settings(copied / "vc-seed1", recipe={**recipe, "batch_size": 7})
    text = report(copied / "vc-seed0", copied / "vc-seed1")
    assert text.count("<section") == 2
    assert re.findall("<h2>(.*?)</h2>", text) == ["digits; batch size 32", "digits; batch size 7"]


def test_reports_of_different_settings_have_different_titles(copied: Path, report: Report) -> None:
    titles = []
    for name in ("digits-0.3-epochs=2,1", "mine"):
        runs = copied.rename(copied.with_name(name)) / "vc-seed0"
        titles += re.findall("<(?:title|h1)>(.*?)<", report(runs))
        copied = runs.parent
    named = "digits-0.3-epochs=2,1"
    assert titles == [f"{named}: hashroute report", named, "digits: hashroute report", "digits"]


def test_commands_that_differ_in_learners_and_seeds_are_shown_as_one(group: Group) -> None:
    start = "hashroute bench digits --recipe default --learners"
    variant = f"{start} hrn --options hrn.max_units=4"
    given = [f"{start} vc", f"{start} vc --seeds 2", f"{start} hrn", variant, "python mine.py", "python mine.py"]
    runs = [replace(group.runs[0], command=command) for command in given]
    assert replace(group, learners={"any": runs}).commands == [f"{start} vc hrn --seeds 2", variant, "python mine.py"]
    both = f"{start} vc && {variant}"
    assert replace(group, learners={"any": [replace(runs[0], command=both)]}).commands == [both]


def test_a_finished_run_is_read_once_from_folder_and_file(runs: Path, group: Group, tmp_path: Path) -> None:
    comparison = group.comparison()
    comparison.runs, comparison.command = [run for run in comparison.runs if run.name == "vc"][:1], "hashroute bench"
    comparison.write(tmp_path / "result.json")
    (found,), _ = collect([runs / "vc-seed0", tmp_path / "result.json"])
    (run,) = found.runs
    assert run.epochs
    assert run.command == "hashroute bench", "which only the file has"


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


def odd_line(folder: Path) -> None:
    (folder / "result.json").unlink()
    with open(folder / "epochs.jsonl", "a") as file:
        file.write('{"task": "x", "accuracy": 5}\n')


def set_first_accuracy(folder: Path, value: float | None) -> None:
    result = json.loads((folder / "result.json").read_text())
    result["accuracy"][-1][0] = value
    (folder / "result.json").write_text(json.dumps(result))


def not_a_number(folder: Path) -> None:
    set_first_accuracy(folder, math.nan)


def gap(folder: Path) -> None:
    set_first_accuracy(folder, None)


def broken_result(folder: Path) -> None:
    (folder / "result.json").write_text('{"accuracy": [[9')


def odd_result(folder: Path) -> None:
    (folder / "result.json").write_text("[1]")
    (folder / "samples.json").write_text("5")


CASES = {
    unfinished: "is not finished: 3 of 5 tasks learned",
    not_a_number: "accuracies that are not numbers",
    no_epochs: "0 of 5 tasks learned",
    no_log: "epochs.jsonl is missing",
    broken_line: "a line of epochs.jsonl cannot be read",
    odd_line: "a line of epochs.jsonl cannot be read",
    gap: "its accuracy matrix has gaps",
    broken_result: "result.json cannot be read",
    odd_result: "result.json cannot be read",
}


@pytest.mark.parametrize("damage", CASES, ids=lambda damage: damage.__name__)
def test_a_report_names_what_is_missing(copied: Path, report: Report, damage: Callable[[Path], None]) -> None:
    damage(copied / "vc-seed0")
    page = report(copied / "vc-seed0", copied / "vc-seed1")
    assert CASES[damage] in page
    assert '<tr data-learner="vc">' in page, "the other run is shown"
    embedded(page)


def test_missing_seeds_and_learners_are_named(runs: Path, group: Group) -> None:
    (found,), _ = collect([runs / "hrn-seed0", runs / "vc-seed1"])
    text = "\n".join(found.missing())
    assert "hrn has no run with seed 1" in text
    assert "vc has no run with seed 0" in text
    assert "separate was not run" in text
    assert not any("was not run" in line for line in group.missing())


def test_curves_end_where_a_run_has_come_to(copied: Path) -> None:
    unfinished(copied / "hrn-seed0")
    (group,), _ = collect([copied])
    axes = {picture.name: picture for picture in pictures(group)}["first"].figure.axes[0]
    lines = {line.get_label(): list(line.get_xdata()) for line in axes.lines}
    assert (lines["hrn"], lines["vc"]) == ([0, 1, 2], [0, 1, 2, 3, 4])


def test_a_folder_that_is_no_run_is_named(copied: Path, report: Report) -> None:
    for name in ("hrn", "hrn-paper", "separate", "joint"):
        shutil.rmtree(copied / f"{name}-seed0")
    (copied / "editor").mkdir()
    (copied / "editor" / "settings.json").write_text("{}")
    assert "editor is not the folder of a run" in report(copied)


def test_what_is_no_run_gets_one_line_and_no_report(
    runs: Path, tmp_path: Path, made_up: Callable[..., Comparison]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.json").write_text('{"rows": {}}')
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "text.json").write_text("no JSON")
    made_up(["a"], []).write(tmp_path / "none.json")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "settings.json").write_text("{}")
    for name in ("empty", "missing", "other.json", "list.json", "text.json", "none.json", "damaged"):
        with pytest.raises(ValueError, match=re.escape(name)) as error:
            write_report([tmp_path / name, runs], tmp_path / "report", "")
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="no run is given"):
        write_report([], tmp_path / "report", "")
    assert not (tmp_path / "report").exists()


def test_without_matplotlib_the_error_says_what_to_install(runs: Path, tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
sys.modules["matplotlib"] = None
from hashroute.reporting.page import write_report
try:
    write_report([Path(sys.argv[1])], Path(sys.argv[2]), "")
except ValueError as error:
    print(error)
"""
    printed = succeeded(runs, tmp_path / "report", folder=tmp_path, script=code)
    assert printed == "figures need matplotlib: pip install 'hashroute[plots]'\n"
    assert not (tmp_path / "report").exists()


# ---------------------------------------------------------------------- many, and odd ones


@pytest.mark.parametrize("tasks", [1, 50])
def test_one_task_or_fifty(tmp_path: Path, report: Report, made_up: Callable[..., Comparison], tasks: int) -> None:
    made_up([f"task {place}" for place in range(tasks)], learner_names()).write(tmp_path / "result.json")
    page = report(tmp_path / "result.json")
    assert len(page) < 5_000_000
    assert f"{len(learner_names())} learners, {tasks} task" in page


def test_more_seeds_make_no_more_figures(tmp_path: Path, report: Report, made_up: Callable[..., Comparison]) -> None:
    """The work and the size of a page hardly grow with seeds: figures show means, or one run."""
    sizes, counts = [], []
    for seeds in (2, 10):
        made_up(["a", "b", "c"], ["hrn", "vc", "ewc"], seeds).write(tmp_path / "result.json")
        page = report(tmp_path / "result.json")
        sizes.append(len(page.encode()))
        counts.append(page.count("<figure"))
    assert counts[0] == counts[1]
    assert sizes[1] < 1.5 * sizes[0]


def test_names_that_cannot_be_shown_are_replaced(
    tmp_path: Path, report: Report, made_up: Callable[..., Comparison]
) -> None:
    made_up(["a\x1bb", "c\udcffd", "n" * 300], ["vc"]).write(tmp_path / "result.json")
    page = report(tmp_path / "result.json")
    assert "a\N{REPLACEMENT CHARACTER}b" in page
    assert "c\N{REPLACEMENT CHARACTER}d" in page
