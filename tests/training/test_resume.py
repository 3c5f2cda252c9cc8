"""A resumed run reaches the same numbers, bit for bit, as one that was never stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hashroute import load_scenario
from hashroute.learners import learner_names, load_learner
from hashroute.learners.files import state_of
from hashroute.recipe import Recipe, recipe_for
from hashroute.tasks import Scenario
from hashroute.training.run import run
from run_files import epochs, read_json, timeless


def three_tasks() -> Scenario:
    return Scenario("digits", load_scenario("digits").tasks[:3])


def short(scenario: Scenario, epochs: int = 2) -> Recipe:
    return replace(recipe_for(scenario.image_shape, classes=2), epochs=(epochs,))


def numbers(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result and the log of a run, without how long it took."""
    return timeless(read_json(folder / "result.json")), epochs(folder)


class Stop(Exception):
    pass


OPTIONS: dict[str, dict[str, Any]] = {"hrn-paper": {"units_added": (0, 2)}}
RUNS = [*((learner, OPTIONS.get(learner)) for learner in learner_names()), ("hrn", {"rank": 1, "max_units": 4})]


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
    assert len(whole[1]) == (2 if learner == "joint" else 6)
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
