"""A resumed run reaches the same numbers, bit for bit, as one that was never stopped."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hashroute import load_scenario
from hashroute.learners import learner_names, load_learner
from hashroute.learners.checkpoints import pack, unpack
from hashroute.learners.files import state_of
from hashroute.recipe import Recipe, recipe_for
from hashroute.tasks import Scenario
from hashroute.training.run import run
from hashroute.training.run_folder import RunFolder
from programs import hashroute
from run_files import epochs, read_json, timeless
from support import assert_one_clear_line


def three_tasks() -> Scenario:
    return Scenario("digits", load_scenario("digits").tasks[:3]).part(0.5)


def short(scenario: Scenario, epochs: int = 2) -> Recipe:
    return replace(recipe_for(scenario.image_shape, classes=2), epochs=(epochs,))


def numbers(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result and the log of a run, without how long it took."""
    return timeless(read_json(folder / "result.json")), epochs(folder)


class Stop(Exception):
    pass


OPTIONS: dict[str, dict[str, Any]] = {"hrn-paper": {"units_added": (0, 2)}}
RUNS = [*((learner, OPTIONS.get(learner)) for learner in learner_names()), ("hrn", {"rank": 1, "max_units": 4})]
RUNS += [("hrn-paper", {"grow": 12, "tau_empty": 0.9})]


@pytest.mark.parametrize(("learner", "options"), RUNS)
def test_a_stopped_run_ends_like_an_undisturbed_one(
    learner: str, options: dict[str, Any] | None, tmp_path: Path
) -> None:
    scenario = three_tasks()
    settings = short(scenario)
    run(scenario, learner, settings, 3, folder=tmp_path / "whole", options=options)

    for epoch in range(100):  # stopped after every single epoch, with other random numbers drawn in between

        def stop(_: dict[str, Any]) -> None:
            raise Stop

        torch.manual_seed(1000 + epoch)
        try:
            run(scenario, learner, settings, 3, folder=tmp_path / "parts", resume=True, options=options, on_epoch=stop)
            break
        except Stop:
            continue
    whole, parts = numbers(tmp_path / "whole"), numbers(tmp_path / "parts")
    assert whole == parts
    for file in ("samples.json", "settings.json"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes()
    assert len(whole[1]) == {"joint": 2, "closed-form": 3}.get(learner, 6)
    one, other = (state_of(load_learner(tmp_path / part)) for part in ("whole", "parts"))
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name
    assert not (tmp_path / "parts" / "checkpoint.pt").exists()

    log = (tmp_path / "whole" / "epochs.jsonl").read_bytes()
    result, model = run(scenario, learner, settings, 3, folder=tmp_path / "whole", resume=True, options=options)
    assert (tmp_path / "whole" / "epochs.jsonl").read_bytes() == log, "a finished run was done again"
    assert result.to_dict() == read_json(tmp_path / "whole" / "result.json")
    assert torch.equal(state_of(model)[name], tensor)


def stopped(folder: Path, learner: str) -> Any:
    """A run that was stopped after its third epoch, in the middle of its second task; returns how to resume it."""
    scenario = three_tasks().part(0.3)

    def resume(on_epoch: Any = None) -> Any:
        return run(scenario, learner, short(scenario), folder=folder, resume=True, on_epoch=on_epoch)

    def stop(record: dict[str, Any]) -> None:
        if (record["task_index"], record["epoch"]) == (1, 1):
            raise Stop

    with pytest.raises(Stop):
        resume(stop)
    return resume


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every part of nested dicts, and to the first part of lists."""
    parts = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for name, part in parts:
        yield (*way, name)
        yield from places(part, (*way, name))


def test_a_checkpoint_with_missing_or_wrong_parts_is_one_line(tmp_path: Path) -> None:
    resume = stopped(tmp_path, "hrn")
    path = tmp_path / "checkpoint.pt"
    content = path.read_bytes()
    whole = torch.load(path, weights_only=True)
    ways = list(places(whole))
    for number, way in enumerate(ways[:: len(ways) // 20]):
        damaged = copy.deepcopy(whole)
        inside = damaged
        for name in way[:-1]:
            inside = inside[name]
        if number % 2:
            del inside[way[-1]]
        else:
            inside[way[-1]] = [None, "text", {"a": []}][number % 3]
        torch.save(damaged, path)
        assert_one_clear_line(resume, r"checkpoint\.pt .*: delete the folder to start again")
    path.write_bytes(content)
    resume()


@pytest.mark.parametrize(
    "change",
    [
        lambda optimizer: optimizer["state"][0].update(exp_avg=torch.tensor([])),
        lambda optimizer: optimizer["state"][0].update(step="text"),
        lambda optimizer: optimizer["param_groups"][0].update(lr=None),
        lambda optimizer: optimizer["param_groups"][0].pop("betas"),
    ],
)
def test_a_sealed_checkpoint_with_a_foreign_optimiser_is_one_line(change: Any, tmp_path: Path) -> None:
    resume = stopped(tmp_path, "vc")
    path = tmp_path / "checkpoint.pt"
    values = unpack(path)
    change(values["training"]["optimizer"])
    path.write_bytes(pack(values))
    assert_one_clear_line(resume, r"checkpoint\.pt cannot be used .*: delete the folder to start again")


def test_a_log_that_is_shorter_than_its_checkpoint_is_refused(tmp_path: Path) -> None:
    resume = stopped(tmp_path, "vc")
    log = tmp_path / "epochs.jsonl"
    whole = log.read_bytes()
    for content in (whole[:-10], b""):
        log.write_bytes(content)
        with pytest.raises(ValueError, match=r"epochs\.jsonl lacks epochs of its checkpoint: delete the folder"):
            resume()
        assert log.read_bytes() == content
    log.write_bytes(whole)
    resume()


def test_two_runs_of_one_folder_are_not_mixed(tmp_path: Path) -> None:
    resume = stopped(tmp_path, "vc")
    with RunFolder(tmp_path).writing():
        script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import hashroute.training.run_folder
from test_resume import run, short, three_tasks
hashroute.training.run_folder.WAIT = 0
scenario = three_tasks().part(0.3)
run(scenario, "vc", short(scenario), folder={str(tmp_path)!r}, resume=True)
"""
        done = hashroute(folder=tmp_path, script=script)
    assert "is being written by another process" in done.stderr.splitlines()[-1]
    resume()
    assert [record["epoch"] for record in RunFolder(tmp_path).read_epochs()] == [1, 2] * 3
