"""A result file gives back what was written, and a wrong one is one clear line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hashroute.training.result import Comparison, RunResult

RESULTS = sorted(path for path in (Path(__file__).parents[2] / "results").glob("*.json") if "ablation" not in path.name)


def comparison() -> Comparison:
    found = Comparison("two", ["a", "b"], [[6, 2, 2], [6, 2, 2]], {"epochs": [1]})
    for seed in (1, 0):
        for name, at_once in (("joint", True), ("vc", False)):
            first = None if at_once else 90.0
            found.add(
                RunResult(name, seed, at_once=at_once, accuracy=[[first, None], [80.0, 70.0]], seconds=2, images=8)
            )
    return found


def test_a_comparison_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = comparison()
    written.write(tmp_path / "two.json")
    read = Comparison.read(tmp_path / "two.json")
    assert read == written
    assert [(run.name, run.seed) for run in read.runs] == [("joint", 0), ("joint", 1), ("vc", 0), ("vc", 1)]
    assert [run.at_once for run in read.learners["joint"]] == [True, True]
    assert read.runs[0].images_per_second == 4


def test_rows_keep_the_order_that_is_asked_for() -> None:
    found = comparison()
    found.add(RunResult("vc", 0, name="vc(rank=2)"), ["vc", "vc(rank=2)"])
    assert list(found.learners) == ["vc", "vc(rank=2)", "joint"]
    found.add(RunResult("vc", 0, seconds=9), ["vc"])
    assert [run.seconds for run in found.learners["vc"]] == [9, 2], "the same name and seed are replaced"


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_committed_files_are_results(path: Path, tmp_path: Path) -> None:
    found = Comparison.read(path)
    assert all(run.images > 0 and run.parameters and run.task_free for run in found.runs)
    found.write(tmp_path / path.name)
    assert (tmp_path / path.name).read_text() == path.read_text()


def change(run: bool = False, **values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda content: (content["runs"][0] if run else content).update(values)


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a part is missing": (lambda content: content.pop("tasks"), "its content lacks 'tasks'"),
    "a part of a run is missing": (lambda content: content["runs"][0].pop("seed"), "runs[0] lacks 'seed'"),
    "an unknown part": (change(learners={}), "its content has the unknown entry 'learners'"),
    "a word for a number": (change(fraction="half"), "fraction is 'half', expected a number"),
    "a word for an accuracy": (
        change(run=True, accuracy=[["?"]]),
        "accuracy[0][0] is '?', expected a number",
    ),
    "a run that is a number": (lambda content: content["runs"].append(5), "runs[4] is 5, expected an object"),
    "a gap": (
        change(run=True, accuracy=[[None, None], [80.0, None]]),
        "the accuracy matrix of joint, seed 0, has gaps",
    ),
    "a task too many": (change(tasks=["a", "b", "c"]), "has gaps"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_wrong_file_is_one_clear_line(case: str, tmp_path: Path) -> None:
    damage, message = DAMAGE[case]
    content = json.loads(json.dumps(comparison().to_dict()))
    damage(content)
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"wrong\.json is not a result file") as error:
        Comparison.read(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_what_is_no_result_at_all_is_one_clear_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_text(text)
    with pytest.raises(ValueError, match="is not a result file"):
        Comparison.read(tmp_path / "wrong.json")
