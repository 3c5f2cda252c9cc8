"""A sweep does what is left, keeps what is finished, and collects what fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hashroute import Comparison, Scenario, create_learner, load_scenario
from hashroute.data import DATASETS, DatasetSpec
from hashroute.data.files import Source
from hashroute.learners.entries import Batch
from hashroute.learners.plain import Vanilla
from hashroute.recipe import recipe_for
from hashroute.scenarios import ScenarioSpec
from hashroute.scenarios.registry import SCENARIOS
from hashroute.storage import digest_of
from hashroute.tasks import Split
from hashroute.training.sweep import OtherSettingsError, Sweep
from hashroute.training.sweep_runs import SweepRun, SweepSettings, folder_name, row_name
from programs import succeeded

RECIPE = replace(recipe_for((1, 8, 8), classes=2), epochs=(1,))


def two_tasks() -> Scenario:
    scenario = load_scenario("digits", 0.3)
    return replace(scenario, tasks=scenario.tasks[:2])


class Failing(Vanilla):
    """A learner that cannot learn a second task, until it is mended."""

    mended = False

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        if batch.task.index and not self.mended:
            raise RuntimeError("one task\nis enough")
        return super().loss(batch)


@pytest.fixture
def settings() -> SweepSettings:
    return SweepSettings(two_tasks(), RECIPE, fraction=0.3)


def noise(scenario: Scenario) -> Scenario:
    """As many images with the same labels, all pixels at random."""
    random = torch.Generator().manual_seed(0)

    def spoil(split: Split) -> Split:
        return Split(torch.randint(256, split.images.shape, generator=random, dtype=torch.uint8), split.labels)

    parts = ("train", "validation", "test")
    return replace(
        scenario,
        tasks=tuple(replace(t, **{part: spoil(getattr(t, part)) for part in parts}) for t in scenario.tasks),
    )


def test_results_of_other_images_are_not_mixed(settings: SweepSettings, tmp_path: Path) -> None:
    first = replace(settings, runs=tmp_path / "runs")
    other = replace(first, scenario=noise(two_tasks()))
    assert Sweep(first, [SweepRun("vc", "vc")], tmp_path / "results.json").run() == []
    for runs in ([SweepRun("vc", "vc")], [SweepRun("ewc", "ewc")]):
        with pytest.raises(OtherSettingsError, match=r"other settings \(data: \w{16} there, \w{16} here\)"):
            Sweep(other, runs, tmp_path / "results.json")
    with pytest.raises(ValueError, match=r"holds a run with other settings \(data: "):
        Sweep(replace(other, resume=True), [SweepRun("vc", "vc")], tmp_path / "others.json").run()


def without_data(path: Path) -> None:
    """Make a file one of an earlier version, which does not tell from which images it is."""
    values = json.loads(path.read_text())
    assert len(values.pop("data")) == 16
    path.write_text(json.dumps(values))


def test_results_that_do_not_tell_their_images_are_not_mixed(settings: SweepSettings, tmp_path: Path) -> None:
    path, runs = tmp_path / "results.json", [SweepRun("two", "vc")]
    first = replace(settings, runs=tmp_path / "runs")
    assert Sweep(first, [SweepRun("vc", "vc")], path).run() == []
    without_data(path)
    with pytest.raises(OtherSettingsError, match="data: unknown there"):
        Sweep(first, runs, path)
    assert [run.name for run in Sweep(first, runs, path, replace=True).comparison.runs] == []
    assert len(json.loads(path.read_text())["data"]) == 16
    without_data(tmp_path / "runs" / "vc-seed0" / "settings.json")
    with pytest.raises(ValueError, match="does not say from which images it is: delete the folder"):
        Sweep(first, [SweepRun("vc", "vc")], tmp_path / "others.json").run()


def test_results_of_published_images_need_not_tell_them(
    settings: SweepSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HASHROUTE_DATA", str(tmp_path))
    (tmp_path / "published").mkdir()
    file, path = tmp_path / "published" / "file", tmp_path / "results.json"
    file.write_bytes(b"published")
    source = Source("https://example.org/file", digest_of(file), ("file",))
    published = DatasetSpec("published", (source,), lambda _: pytest.fail("it is not read"), (0.0,), (1.0,), ())
    monkeypatch.setitem(DATASETS, "published", published)
    scenario = replace(two_tasks(), name="of published images")
    registered = ScenarioSpec(scenario.name, "", lambda: scenario, datasets=("published",))
    monkeypatch.setitem(SCENARIOS, scenario.name, registered)
    whole = replace(settings, scenario=scenario, fraction=1.0)
    assert Sweep(whole, [SweepRun("vc", "vc")], path).run() == []
    without_data(path)
    more = [SweepRun("vc", "vc"), SweepRun("two", "vc")]
    assert Sweep(whole, more, path).run() == []
    assert "data" not in json.loads(path.read_text())
    with pytest.raises(OtherSettingsError, match="data: unknown there"):  # others of the same name
        Sweep(replace(whole, scenario=noise(scenario)), more, path)
    file.write_bytes(b"replaced")
    with pytest.raises(OtherSettingsError, match="data: unknown there"):
        Sweep(whole, more, path)


def test_rows_may_hold_names_classes_and_instances(settings: SweepSettings, tmp_path: Path) -> None:
    instance = create_learner("vc", (1, 8, 8), RECIPE)
    rows = [("name", "vc"), ("class", Vanilla), ("instance", instance)]
    sweep = Sweep(settings, [SweepRun(name, learner) for name, learner in rows], tmp_path / "results.json")
    done: list[str] = []
    assert sweep.run(on_result=lambda each, _: done.append(each.name)) == []
    assert done == [name for name, _ in rows]
    found = Comparison.read(tmp_path / "results.json")
    assert list(found.learners) == done
    assert len({str(run.accuracy) for run in found.runs}) == 1, "the same learner, given in three ways"
    assert len(instance.tasks) == 2, "the instance itself was trained"


def test_what_is_recorded_of_an_instance_is_its_own(settings: SweepSettings, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    rows = [SweepRun("mine", create_learner("vc", (1, 8, 8), RECIPE, seed)) for seed in (3, 4)]
    assert Sweep(settings, [*rows, SweepRun("vc", "vc", 3)], path).run() == []
    found = Comparison.read(path)
    assert [(run.name, run.seed) for run in found.runs] == [("mine", 3), ("mine", 4), ("vc", 3)]
    assert found.runs[0].accuracy == found.runs[2].accuracy
    instance = create_learner("ewc", (1, 8, 8), replace(RECIPE, learning_rate=1e-4), 3)
    with pytest.raises(ValueError, match="mine: the run has seed 2, the instance of its learner 3: give the seed"):
        SweepRun("mine", instance, 2)
    with pytest.raises(ValueError, match="mine: options are given with an instance of a learner: give them when"):
        SweepRun("mine", instance, options={"weight": 1.0})
    with pytest.raises(ValueError, match=r"another recipe .* \(learning_rate: 0\.0001 there, 0\.002 here\)"):
        Sweep(settings, [SweepRun("mine", instance)], tmp_path / "others.json")


@pytest.mark.parametrize("runs", [True, False], ids=["with folders", "without"])
def test_failures_are_collected_and_tried_again(
    settings: SweepSettings, tmp_path: Path, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(settings, runs=tmp_path / "runs" if runs else None, resume=True)
    rows = [SweepRun("bad", Failing), SweepRun("good", "vc")]
    sweep = Sweep(settings, rows, tmp_path / "results.json")
    told: list[tuple[str, str]] = []
    (failure,) = sweep.run(on_failure=lambda each, problem: told.append((each.name, problem)))
    assert failure.startswith("bad, seed 0, failed: RuntimeError: one task is enough")
    assert told == [("bad", failure.removeprefix("bad, seed 0, failed: "))]
    assert [each.name for each in sweep.left] == ["bad"]
    assert (tmp_path / "runs" / "bad-seed0" / "error.txt").exists() == runs
    monkeypatch.setattr(Failing, "mended", True)
    again = Sweep(settings, rows, tmp_path / "results.json")
    assert again.run() == []
    assert list(Comparison.read(tmp_path / "results.json").learners) == ["good", "bad"], "registered learners first"


def test_two_sweeps_add_to_one_file(settings: SweepSettings, tmp_path: Path) -> None:
    one = Sweep(settings, [SweepRun("joint", "joint")], path := tmp_path / "results.json")
    other = Sweep(settings, [SweepRun("vc", "vc", 1), SweepRun("vc", "vc", 0)], path)
    assert one.run() == other.run() == []
    assert [(run.name, run.seed) for run in Comparison.read(path).runs] == [("vc", 0), ("vc", 1), ("joint", 0)]
    assert Sweep(settings, one.runs, path).left == []


def test_other_settings_are_refused_or_replaced(settings: SweepSettings, tmp_path: Path) -> None:
    rows, path = [SweepRun("hrn", "hrn")], tmp_path / "results.json"
    assert Sweep(settings, [*rows, SweepRun("vc", "vc")], path).run() == []
    slower = replace(settings, recipe=replace(RECIPE, learning_rate=1e-4))
    with pytest.raises(ValueError, match=r"other settings \(recipe learning_rate: 0\.002 there, 0\.0001 here\)"):
        Sweep(slower, rows, path)
    other = [SweepRun("hrn", "hrn", options={"rank": 1})]
    with pytest.raises(ValueError, match=r"other settings \(hrn: options rank: 0 there, 1 here\)"):
        Sweep(settings, other, path)
    assert Sweep(settings, other, path, replace=True).left == other
    assert list(Comparison.read(path).learners) == ["vc"], "what does not belong to the sweep stays"
    assert Sweep(slower, rows, path, replace=True).left == rows
    assert Comparison.read(path).runs == [], "runs with another recipe cannot be compared"


def test_a_run_is_watched_in_its_own_process(settings: SweepSettings, tmp_path: Path) -> None:
    watch = partial(write_lines, tmp_path)
    rows = [SweepRun("vc", "vc", seed) for seed in range(2)]
    assert Sweep(replace(settings, watch=watch), rows, tmp_path / "results.json").run() == []
    assert (tmp_path / "lines").read_text() == "vc 0: 0 or 1\nvc 0: 2 or 3\nvc 0: end\n" + (
        "vc 1: 0 or 1\nvc 1: 2 or 3\nvc 1: end\n"
    )


@contextmanager
def write_lines(folder: Path, each: SweepRun) -> Iterator[Any]:
    with open(folder / "lines", "a") as file:
        yield lambda record: file.write(f"{each.name} {each.seed}: {record['task']}\n")
        file.write(f"{each.name} {each.seed}: end\n")


def test_names_say_what_is_unusual() -> None:
    assert row_name("hrn", {}) == "hrn"
    assert row_name("hrn", {"max_units": 6, "rank": None}) == "hrn(max_units=6, rank=null)"
    assert folder_name("hrn(max_units=6, rank=4)", 0) == "hrn-max_units=6,rank=4-seed0"
    assert folder_name("no residue/constraint", 3) == "no_residue_constraint-seed3"
    long = row_name("hrn-paper", {"units": list(range(100))})
    assert len(long) < 30
    assert long != row_name("hrn-paper", {"units": list(range(101))})


def test_workers_use_one_thread_each(tmp_path: Path) -> None:
    script = """
import torch
from hashroute.training.workers import side_by_side

torch.set_num_threads(3)
for jobs in (2, 1):
    print(*side_by_side(jobs, torch.get_num_threads, [()] * 2))
"""
    three = {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"}  # what they would use by themselves
    assert succeeded(folder=tmp_path, script=script, variables=three) == "1 1\n1 1\n"
