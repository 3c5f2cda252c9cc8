"""Figures show what the files of runs say."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from hashroute.learners import learner_names
from hashroute.reporting.figures import flow, pictures
from hashroute.reporting.figures.forest import forest_paths
from hashroute.reporting.figures.overview import overview
from hashroute.reporting.figures.picture import Picture
from hashroute.reporting.learners import styles
from hashroute.reporting.runs import Group, group_of
from hashroute.training.result import Comparison

Result = Callable[[str], dict[str, Any]]


def curves(picture: Picture) -> dict[Any, list[float]]:
    return {line.get_label(): list(line.get_ydata()) for line in picture.figure.axes[0].lines}


def test_curves_show_the_first_task_and_the_mean(group: Group, shown: dict[str, Picture], result: Result) -> None:
    assert list(group.learners) == ["hrn", "hrn-paper", "vc", "separate", "joint"]
    seeds = [result(f"vc-seed{seed}")["accuracy"] for seed in (0, 1)]
    first = curves(shown["first"])
    assert first["vc"] == pytest.approx([fmean(row[0] for row in rows) for rows in zip(*seeds, strict=True)])
    assert first["hrn"] == pytest.approx([row[0] for row in result("hrn-seed0")["accuracy"]])
    assert first["joint"] == pytest.approx([result("joint-seed0")["accuracy"][-1][0]] * 2), "a line across"
    (band,) = shown["first"].figure.axes[0].collections  # one learner has two seeds
    ends = band.get_paths()[0].vertices[:, 1]
    both = [row[0] for rows in seeds for row in rows]
    assert (ends.min(), ends.max()) == pytest.approx((min(both), max(both)))
    so_far = [[fmean(row[: place + 1]) for place, row in enumerate(matrix)] for matrix in seeds]
    assert so_far[0] != so_far[1], "equal seeds would prove nothing"
    assert curves(shown["mean"])["vc"] == pytest.approx([fmean(both) for both in zip(*so_far, strict=True)])


def test_bars_show_task_aware_and_task_free_accuracy(shown: dict[str, Picture], result: Result) -> None:
    seeds = [result(f"vc-seed{seed}") for seed in (0, 1)]
    expected = {
        "task-aware": fmean(fmean(each["accuracy"][-1]) for each in seeds),
        "task-free": fmean(each["task_free"]["all_classes"] for each in seeds),
    }
    for name, value in expected.items():
        parts = [part for part in shown[name].values.values() if part["learner"] == "vc" and "values" in part]
        assert [part["values"] for part in parts] == [[pytest.approx(value)]]


def test_accuracy_stands_over_storage(shown: dict[str, Picture], result: Result) -> None:
    marks = {line.get_label(): line.get_xydata() for line in shown["cost"].figure.axes[0].lines}
    assert {"hrn", "hrn-paper", "vc", "separate", "joint"} <= marks.keys()
    seeds = [result(f"vc-seed{seed}") for seed in (0, 1)]
    stored, final = (sum(seeds[0]["bytes_kept"].values()) / 1e6, fmean(fmean(each["accuracy"][-1]) for each in seeds))
    assert marks["vc"].tolist() == [pytest.approx([stored, final])]
    parts = [part for part in shown["cost"].values.values() if part["learner"] == "vc" and part.get("labels")]
    assert [part["labels"] for part in parts] == [[f"{stored:.2f} MB stored, accuracy"] * count for count in (1, 2)]


def test_heat_maps_and_bars_show_the_matrix_and_the_units(
    runs: Path, shown: dict[str, Picture], result: Result
) -> None:
    panels: dict[str, Any] = {axes.get_title(loc="left"): axes for axes in shown["matrices"].figure.axes}
    cells = panels["separate"].images[0].get_array()
    for row, values in enumerate(result("separate-seed0")["accuracy"]):
        for column, value in enumerate(values):
            found = cells.data[row, column]
            assert found == pytest.approx(value) if value is not None else math.isnan(found)
    records = [json.loads(line) for line in (runs / "hrn-paper-seed0" / "epochs.jsonl").read_text().splitlines()]
    fill, age = shown["units-hrn-paper"].figure.axes
    assert [bar.get_height() for bar in fill.patches] == pytest.approx([100 * v for v in records[-1]["basis_fill"]])
    assert [bar.get_height() for bar in age.patches] == records[-1]["ages"]
    shares: Any = shown["usage-hrn-paper"].figure.axes[0].images[0].get_array()
    assert shares.T.tolist() == [pytest.approx([100 * share for share in record["usage"]]) for record in records]


def test_steps_that_no_earlier_task_took_are_new(shown: dict[str, Picture]) -> None:
    from matplotlib.colors import to_hex

    first, second = (axes.collections[0] for axes in shown["flow-hrn-paper"].figure.axes[:2])
    colours = [[to_hex(colour[:3]).upper() for colour in lines.get_colors()] for lines in (first, second)]
    assert colours == [[flow.NEW] * 3, [flow.SHARED, flow.NEW]]
    widths = first.get_linewidths()
    assert widths[2] > widths[0] > widths[1]


def test_flow_is_drawn_only_where_images_take_different_paths(group: Group, shown: dict[str, Picture]) -> None:
    (run,) = group.learners["hrn"]
    assert any(record.get("flow") for record in run.epochs)
    assert [name for name in shown if name.startswith("flow")] == ["flow-hrn-paper"]
    assert not flow.differing([(0, 4, 5, 1.0), (1, 5, 6, 1.0)])
    assert flow.differing([(0, 4, 5, 0.5), (0, 4, 6, 0.5)])


def test_a_forest_grows_from_decisions() -> None:
    made = [("a", "fresh", None), ("b", "reuse", "a"), ("c", "fork", "b"), ("d", "reuse", "c"), ("e", "fork", "a")]
    paths = forest_paths([{"task": task, "action": action, "parent": parent} for task, action, parent in made])
    assert [(path.parent, [decision["task"] for decision in path.decisions]) for path in paths] == [
        (None, ["a", "b"]),
        (0, ["c", "d"]),
        (0, ["e"]),
    ]


def test_the_forest_of_a_run_names_its_tasks_and_units(group: Group, shown: dict[str, Picture]) -> None:
    picture = shown["forest-hrn"]
    texts = "\n".join(text.get_text() for text in picture.figure.axes[0].texts)
    assert [task for task in group.tasks if task not in texts] == []
    labels = [label for part in picture.values.values() for label in part["labels"]]
    assert labels[0].startswith("unit 0.0: 0 or 1: gets new units")


def test_units_are_named_as_inspect_names_them(runs: Path, group: Group) -> None:
    from hashroute import load_learner

    for name in ("hrn", "hrn-paper"):
        learner, (run,) = load_learner(runs / f"{name}-seed0"), group.learners[name]
        facts = [str(fact["unit"]) for fact in learner.unit_facts()]
        assert [group.unit_name(run, unit) for unit in range(len(facts))] == facts


def test_captions_are_silent_about_seeds_where_there_is_one(made_up: Callable[..., Comparison]) -> None:
    for seeds in (1, 2):
        drawn = pictures(group_of(made_up(["a", "b"], ["hrn", "vc"], seeds)))
        assert len(drawn) >= 6
        assert any("seed" in picture.caption for picture in drawn) == (seeds > 1)


def test_figures_are_the_same_each_time(made_up: Callable[..., Comparison]) -> None:
    comparison = made_up(["a", "b"], learner_names())
    for form in ("png", "svg", "pdf"):
        assert overview(comparison).save(form) == overview(comparison).save(form)


def test_every_learner_has_a_look_of_its_own() -> None:
    names = [*learner_names(), "someone's own", *(f"hrn(max_units={number})" for number in range(7))]
    looks = styles(names)
    assert list(looks) == [name for name in names if name in looks]
    assert len({look.colour for look in looks.values()}) == len(names)
    many = styles([f"own {number}" for number in range(30)])
    assert len(set(many.values())) == 30
