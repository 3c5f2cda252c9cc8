"""The tables of a comparison hold what its runs hold."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest

from hashroute.reporting import results
from hashroute.reporting.table import Number, Table
from hashroute.scenarios import published_results
from hashroute.training import metrics
from hashroute.training.result import Comparison, RunResult

RESULTS = Path(__file__).parents[2] / "results"


def run(name: str, seed: int, rows: list[list[float | None]], **other: object) -> RunResult:
    measured = dict(parameters={"encoder": 10, "heads": 20}, bytes_kept={"weights": 3000}, seconds=2.0, images=100)
    return RunResult(name, seed, accuracy=rows, **{**measured, **other})  # type: ignore[arg-type]


def comparison() -> Comparison:
    """Two seeds that forget, one of separate networks, and one that learns all at once."""
    free = {"all_classes": 50.0, "dataset": 75.0}
    return Comparison(
        "fashion-mnist",
        ["a", "b"],
        [],
        {},
        runs=[
            run("vc", 0, [[90.0, None], [60.0, 80.0]], task_free=free),
            run("vc", 1, [[92.0, None], [66.0, 84.0]], task_free={"all_classes": 52.0, "dataset": 75.0}, images=300),
            run("separate", 1, [[93.0, None], [93.0, 85.0]]),
            run("joint", 0, [[None, None], [95.0, 85.0]], at_once=True),
        ],
    )


def row(table: Table, name: str) -> dict[str, object]:
    (found,) = [each for each in table.rows if each.cells[0] == name]
    return dict(zip([column.name for column in table.columns], found.cells, strict=True))


def test_the_summary_has_means_and_spreads_over_seeds() -> None:
    table = results.summary(comparison(), "x.json")
    found = row(table, "vc")
    assert found["task-aware"] == Number(fmean([70.0, 75.0]), stdev([70.0, 75.0]), 2, "x.json")
    assert found["task-free"] == Number(51.0, stdev([50.0, 52.0]), 2, "x.json")
    assert found["forgetting"] == Number(28.0, stdev([30.0, 26.0]), 2, "x.json")
    assert found["backward transfer"] == Number(-28.0, stdev([30.0, 26.0]), 2, "x.json")
    assert found["intransigence"] == Number(89.0 - 88.0, None, 1, "x.json"), "of the seed that separate has"
    assert found["images/s"] == Number(100.0, None, 2, "x.json")
    assert found["kept, kB"] == Number(3.0, None, 2, "x.json")


def test_a_learner_of_all_tasks_at_once_has_no_forgetting() -> None:
    found = row(results.summary(comparison()), "joint")
    assert found["task-aware"] == Number(90.0)
    assert {found[name] for name in ("right after", "best-ever", "forgetting", "intransigence", "task-free")} == {None}
    assert row(results.per_task(comparison(), {}), "joint")["a"] == (None, Number(95.0))


def test_published_numbers_stand_below_the_learner_they_are_about() -> None:
    table = results.per_task(comparison(), published_results("fashion-mnist"))
    assert [each.cells[0] for each in table.rows] == ["vc", "vc, paper", "separate", "joint"]
    ours, paper = table.rows[:2]
    assert ours.cells[1] == (Number(91.0, stdev([90, 92]), 2), Number(63.0, stdev([60, 66]), 2))
    assert (paper.learner, paper.published) == ("vc", True)
    assert [[number.value for number in cell] for cell in paper.cells[1:]] == [  # type: ignore[union-attr]
        [88.79, 61.53],
        [98.0, 98.0],
        pytest.approx([93.395, 79.765]),
    ]


def test_a_lead_counts_the_seeds_that_both_have() -> None:
    found = comparison()
    right = [metrics.pack(np.array([True] * count + [False] * (10 - count))) for count in (9, 6, 3)]
    for each, answers in zip(found.runs, (right[1], right[2], right[0], right[0]), strict=True):
        each.right = each.right_after = [answers, answers]
    table = results.leads(found, "separate")
    assert [each.cells[0] for each in table.rows] == ["vc"], "joint has no seed that separate has"
    _, lead, interval, seeds = table.rows[0].cells
    assert isinstance(lead, Number)
    assert lead.value == pytest.approx(60.0)
    assert isinstance(interval, tuple)
    low, high = (number.value for number in interval if number is not None)
    assert low < 60 < high
    assert seeds == Number(1)
    assert not results.leads(found, "hrn").rows
    after = results.leads(found, "vc", "right_after")
    assert [each.cells[0] for each in after.rows] == ["separate"], "joint knows no moment right after a task"


def rows_of_ablation(changes: list[float], slower: float = 2.0) -> dict[str, list[RunResult]]:
    base = [90.0, 91.0, 92.0]
    return {
        "baseline": [run("vc", seed, [[value]], seconds=2.0) for seed, value in enumerate(base)],
        "change": [run("vc", seed, [[base[seed] + by]], seconds=slower) for seed, by in enumerate(changes)],
    }


@pytest.mark.parametrize(
    ("changes", "sign"), [([1.0, 1.1, 0.9], "+"), ([-1.0, -1.1, -0.9], "-"), ([3.0, -2.0, 0.5], ""), ([5.0], "")]
)
def test_an_ablation_has_a_sign_only_beyond_two_standard_errors(changes: list[float], sign: str) -> None:
    table = results.ablation(rows_of_ablation(changes), {"change": ("++", "=", "--")})
    _, long_term, found, paper, *_ = table.rows[1].cells
    assert isinstance(long_term, Number)
    assert long_term.value == pytest.approx(fmean(changes))
    assert (found, paper) == (sign, "++")
    if len(changes) > 1:
        assert long_term.spread == pytest.approx(stdev(changes) / len(changes) ** 0.5)


def test_more_training_time_is_worse() -> None:
    rows = rows_of_ablation([0.0, 0.0, 0.0], slower=3.0)
    table = results.ablation(rows, {"change": ("=", "=", "--")})
    *_, time, sign, paper = table.rows[1].cells
    assert time == Number(pytest.approx(50.0), 0.0, 3, unit="%", change=True)  # type: ignore[arg-type]
    assert (sign, paper) == ("-", "--")


def test_variants_stand_beside_the_first() -> None:
    made = [{"action": "fresh"}, {"action": "reuse"}]
    rows = {
        "hrn": [run("hrn", seed, [[80.0 + seed]], decisions=made) for seed in (0, 1)],
        "other": [run("hrn", 1, [[78.0]], decisions=made)],
        "waiting": [],
    }
    table = results.variants(rows)
    assert [each.cells[0] for each in table.rows] == ["hrn", "other"]
    assert table.column("change") == [None, Number(-3.0)]
    assert [cell.value for cell in table.column("paths") if isinstance(cell, Number)] == [1.0, 1.0]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*-paper.json")), ids=lambda path: path.stem)
def test_published_tables_cover_every_task(path: Path) -> None:
    found = Comparison.read(path)
    for pairs in published_results(found.scenario).values():
        assert len(pairs) == len(found.tasks)
