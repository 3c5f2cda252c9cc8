"""A run that was stopped goes on to the same numbers, bit for bit, as one that never was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hashroute import load_scenario
from hashroute.learners import LEARNERS, load_learner
from hashroute.recipe import Recipe, recipe_for
from hashroute.tasks import Scenario
from hashroute.training.run import run

TIMES = ("seconds", "images_per_second")


def three_tasks() -> Scenario:
    return Scenario("digits", load_scenario("digits").tasks[:3])


def short(scenario: Scenario, epochs: int = 2) -> Recipe:
    return replace(recipe_for(scenario.image_shape, classes=2), epochs=(epochs,))


def numbers(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What a run wrote down, without how long it took."""
    result = json.loads((folder / "result.json").read_text())
    epochs = [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]
    return (
        {name: value for name, value in result.items() if name not in TIMES},
        [{name: value for name, value in epoch.items() if name not in TIMES} for epoch in epochs],
    )


class Stop(Exception):
    pass


OPTIONS: dict[str, dict[str, Any]] = {"hrn-paper": {"units_added": (0, 2)}}
RUNS = [*((learner, OPTIONS.get(learner)) for learner in LEARNERS), ("hrn", {"rank": 1, "max_units": 4})]


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
    one, other = (load_learner(tmp_path / part).state() for part in ("whole", "parts"))
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name
    assert not (tmp_path / "parts" / "checkpoint.pt").exists()

    log = (tmp_path / "whole" / "epochs.jsonl").read_bytes()
    outcome, model = run(scenario, learner, settings, 3, folder=tmp_path / "whole", resume=True, options=options)
    assert (tmp_path / "whole" / "epochs.jsonl").read_bytes() == log, "a finished run was done again"
    assert outcome.to_dict() == json.loads((tmp_path / "whole" / "result.json").read_text())
    assert torch.equal(model.state()[name], tensor)
