"""What `hashroute search` tries and chooses, and that it never sees test images."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hashroute.cli.search import choose, combinations
from hashroute.learners import find_learner
from hashroute.scenarios import load_scenario, registry
from hashroute.tasks import Scenario, Split
from hashroute.training.result import Comparison, RunResult
from hashroute.training.run import learner_options
from run_files import comparison

Command = Callable[..., tuple[int, str, str]]
SEARCH = ("search", "digits", "--learners", "gpm", "--fraction", "0.2", "--tasks", "2")


def test_a_search_never_sees_test_images(
    hashroute_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scenario = load_scenario("digits")
    noise = torch.randint(256, (50, 1, 8, 8), dtype=torch.uint8)
    blind = Split(noise, torch.zeros(50, dtype=torch.int64))
    monkeypatch.setattr(registry, "SCENARIOS", copy(registry.SCENARIOS))

    @registry.register_scenario("blind")
    def blind_scenario() -> Scenario:
        return Scenario("digits", tuple(replace(task, test=blind) for task in scenario.tasks))

    found = []
    for name in ("digits", "blind"):
        given = ("--values", "gpm.threshold=0.9", "--output", tmp_path / f"{name}.json")
        assert hashroute_command("search", name, *SEARCH[2:], *given)[0] == 0
        found.append(comparison(tmp_path / f"{name}.json"))
    assert found[0]["runs"] == found[1]["runs"]
    assert found[0]["evaluate_on"] == "validation"


def test_a_search_tries_all_combinations_and_takes_the_best_mean() -> None:
    assert combinations({"a": (1, 2), "b": (3,)}) == [{"a": 1, "b": 3}, {"a": 2, "b": 3}]
    found = Comparison("one", ["a"], [[1, 1, 1]], {}, evaluate_on="validation")
    for weight, finals in ((1.0, (90.0, 70.0)), (10.0, (82.0, 81.0))):
        for seed, final in enumerate(finals):
            options = {"weight": weight, "samples": 5}
            found.add(RunResult("ewc", seed, options, f"ewc(weight={weight})", accuracy=[[final]]))
    assert choose(found, {"ewc": {"weight": (1.0, 10.0)}}) == {"ewc": {"weight": 10.0}}


def test_a_search_is_kept_and_continued(hashroute_command: Command, tmp_path: Path) -> None:
    output, tuned = tmp_path / "deep" / "found-search.json", tmp_path / "deep" / "found-tuned.json"
    assert hashroute_command(*SEARCH, "--output", output)[0] == 0
    found = Comparison.read(output)
    grid = find_learner("gpm").grid["threshold"]
    assert [run.options["threshold"] for run in found.runs] == list(grid)
    assert json.loads(tuned.read_text())["chosen"]["gpm"]["threshold"] in grid
    assert found.tasks == ["0 or 1", "2 or 3"]
    found.runs[0].accuracy = [[1000.0, None], [1000.0, 1000.0]]  # a run that is kept, not done again, is chosen now
    found.write(output)
    code, printed, _ = hashroute_command(*SEARCH, "--output", output)
    assert code == 0
    assert f"hashroute bench --tuned {tuned}" in printed
    assert json.loads(tuned.read_text())["chosen"] == {"gpm": {"threshold": grid[0]}}
    assert learner_options("gpm", "digits", "default", (1, 8, 8), tuned) == {"threshold": grid[0]}
    other = tmp_path / "other.json"
    other.write_text("[1]")
    for wrong, message in (
        ((*SEARCH, "--output", output, "--seeds", "0"), "--seeds is 0"),
        (("search", "digits", "--learners", "vc"), "learner 'vc' has no options to search"),
        ((*SEARCH[:-1], "3", "--output", output), "holds results with other settings (tasks"),
        ((*SEARCH, "--output", other), "is not a result file"),
        (("bench", "digits", "--learners", "gpm", "--tuned", other), "give a file that hashroute search wrote"),
    ):
        code, _, errors = hashroute_command(*wrong)
        assert (code, errors.count("\n")) == (2, 1)
        assert message in errors


def test_a_comparison_names_the_options_that_a_search_found(hashroute_command: Command, tmp_path: Path) -> None:
    tuned = tmp_path / "tuned.json"
    tuned.write_text(json.dumps({"chosen": {"gpm": {"threshold": 0.5}}}))
    bench = ("bench", "digits", "--learners", "gpm", "vc", "--epochs", "1", "--fraction", "0.3", "--tuned", tuned)
    assert hashroute_command(*bench)[0] == 0
    found = comparison(tmp_path / "results" / "digits-0.3-epochs=1.json")
    assert list(found["runs"]) == ["vc 0", "gpm(threshold=0.5) 0"]
    assert found["command"].endswith("--options gpm.threshold=0.5")


def test_a_search_tries_the_values_that_are_given(hashroute_command: Command, tmp_path: Path) -> None:
    command = (*SEARCH, "--output", output := tmp_path / "found.json")
    assert hashroute_command(*command, "--values", "gpm.threshold=0.5,0.85")[0] == 0
    found = comparison(output)
    assert list(found["runs"]) == ["gpm(threshold=0.5) 0", "gpm(threshold=0.85) 0"]
    assert "--learners gpm --values gpm.threshold=0.5,0.85" in found["command"]
    for _ in range(2):  # more values are added to those tried before, and so is the command
        assert hashroute_command(*command, "--values", "gpm.threshold=0.6,0.85")[0] == 0
    more = comparison(output)
    assert sorted(more["runs"]) == [f"gpm(threshold={value}) 0" for value in (0.5, 0.6, 0.85)]
    assert found["runs"].items() <= more["runs"].items()
    first, second = more["command"].split(" && ")
    assert first == found["command"]
    assert second == first.replace("0.5,0.85", "0.6,0.85")
    output.unlink()
    assert hashroute_command(*command, "--values", "gpm.threshold=0.5", "gpm.samples=20,40")[0] == 0
    whole = [run["options"]["samples"] for run in comparison(output)["runs"].values()]
    assert whole == [20, 40]
    assert all(isinstance(value, int) for value in whole)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("0.5", "--values has '0.5': expected LEARNER.OPTION=VALUE, for example gpm.threshold=0.9"),
        ("ewc.weight=1", "--values has 'ewc.weight=1', for a learner that is not used: expected one of gpm"),
        ("gpm.threshold=much", "'gpm.threshold=much': expected numbers after the =, separated by commas"),
        ("gpm.samples=1.5", "'gpm.samples=1.5': expected whole numbers after the =, separated by commas"),
        ("gpm.weight=1", "gpm has no option 'weight': expected one of threshold, increase, samples"),
    ],
)
def test_wrong_values_are_one_line(values: str, message: str, hashroute_command: Command) -> None:
    code, printed, errors = hashroute_command(*SEARCH, "--values", values)
    assert (code, printed, errors.count("\n")) == (2, "", 1)
    assert message in errors
