"""`hashroute rl`: real agents on tiny games, killed and resumed; the result file, its table and its page."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hashroute.rl.names import LEARNERS, SEQUENCES
from hashroute.rl.result import FORMAT, GameResults, GameRun
from programs import Program, hashroute, succeeded
from support import assert_one_clear_line

QUICK = ("--steps", 512, "--episodes", 8)
"""One update of PPO for each task."""


def run(learner: str, seed: int = 0, scale: float = 1.0, seconds: float = 4.0) -> GameRun:
    """A made-up run of the games a, b, a."""
    found = GameRun(learner, seed)
    found.returns = [[4 * scale, 0.0], [3 * scale, 8 * scale], [6 * scale, 6 * scale]]
    found.curves = [[1 * scale, 3 * scale], [None, 2 * scale], [5 * scale, 5 * scale]]
    known = {"task": 0, "known": True, "distance": 0.02, "parent": None}
    new = {"task": 1, "known": False, "distance": 1.5, "parent": 0}
    hrn = learner == "hrn"
    found.entered = [{**known, "known": False}, new, {**known}] if hrn else [{}, {}, {}]  # type: ignore[list-item]
    found.played = [[known, {**new, "task": 0}], [known, {**new, "known": True}], [known, {**new, "known": True}]]  # type: ignore[list-item]
    found.played = found.played if hrn else [[{}, {}]] * 3
    found.seconds = [seconds] * 3
    return found


@pytest.fixture
def results() -> GameResults:
    """Made-up results of three learners."""
    games = ["x/a-v1", "x/b-v0"]
    made = GameResults(FORMAT, "own", [*games, games[0]], games, "ppo", 1000, 8, {"envs": 8}, {}, "hashroute rl own")
    for each in (run("separate"), run("vc", scale=0.5), run("hrn", seconds=5.0)):
        made.add(each)
    return made


def test_measures_are_shares_of_the_returns_of_separate_agents(results: GameResults) -> None:
    from hashroute.rl import metrics

    vc, hrn = results.learners["vc"][0], results.learners["hrn"][0]
    assert metrics.references(results) == [6, 6]
    assert metrics.normalised(results, vc) == 0.5
    assert metrics.forgetting(results, vc) == pytest.approx((4 - 3) / 6)  # of b alone: a was trained last
    assert metrics.lost_on_return(results, vc) == pytest.approx((2 - 1.5) / 6)
    assert metrics.transfer(results, vc) == pytest.approx((1 - 2) / 6)
    assert metrics.recognised(results, hrn) == 1
    assert metrics.recognised(results, vc) is None
    assert metrics.steps_per_second(results, hrn) == 200
    hrn.entered[2]["known"] = False
    assert metrics.recognised(results, hrn) == pytest.approx(8 / 9)


def test_a_game_without_any_return_has_no_share(results: GameResults) -> None:
    from hashroute.rl import metrics

    for each in results.runs:
        each.returns[-1][1] = 0.0
    assert metrics.references(results) == [6, None]
    assert metrics.normalised(results, results.learners["vc"][0]) == 0.5


def test_a_report_has_tables_figures_and_decisions(results: GameResults, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from hashroute.reporting.page import write_report

    results.write(tmp_path / "games.json")
    page = write_report([tmp_path / "games.json"], tmp_path / "report", "hashroute report games.json").read_text()
    for text in ("final, %", "forked from", "Return over steps", "hashroute rl own", "1.500"):
        assert text in page, text
    assert len(list((tmp_path / "report" / "figures").glob("*.png"))) == 2
    other = tmp_path / "other.json"
    other.write_text("{}")
    assert_one_clear_line(
        lambda: write_report([tmp_path / "games.json", other], tmp_path / "two", ""), "make a report of each kind"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.update(steps="many"), "steps is 'many', expected a whole number"),
        (lambda values: values["runs"][0].update(returns=[]), "has gaps"),
        (lambda values: values["runs"][0].update(learner="x" * 500), "there is no learner"),
        (lambda values: values.update(format="hashroute games 99"), "format is"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(results: GameResults, change: Any, message: str, tmp_path: Path) -> None:
    values = json.loads(json.dumps(asdict(results)))
    change(values)
    path = tmp_path / "games.json"
    path.write_text(json.dumps(values))
    assert_one_clear_line(lambda: GameResults.read(path), f"is not a result of games .*{message}")


def test_every_learner_and_sequence_is_explained() -> None:
    assert list(LEARNERS) == ["hrn", "vc", "separate", "reset", "hrn-paper"]
    assert len(SEQUENCES["minatar"].tasks) == 7
    assert len(set(SEQUENCES["minatar"].tasks)) == 3


# ------------------------------------------------------------------------ with the library


@pytest.fixture(scope="module")
def library() -> None:
    """Needs the extra."""
    pytest.importorskip("stable_baselines3", reason="needs the extra sb3: make test-rl")


@pytest.fixture(scope="module")
def finished(library: None, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001
    """A folder with a comparison of the catch games."""
    folder = tmp_path_factory.mktemp("games")
    succeeded("rl", "catch", *QUICK, "--learners", "hrn", "separate", folder=folder)
    return folder


def read(folder: Path) -> GameResults:
    return GameResults.read(folder / "results" / "rl-catch-ppo-512.json")


def test_games_that_come_back_are_recognised(finished: Path) -> None:
    from hashroute.rl import metrics

    hrn = read(finished).learners["hrn"][0]
    assert [each["task"] for each in hrn.entered] == [0, 1, 0]
    assert [each["known"] for each in hrn.entered] == [False, False, True]
    assert hrn.entered[2]["distance"] > 0, "a look sees other episodes than the one before"
    assert metrics.recognised(read(finished), hrn) == 1


def test_a_run_that_is_killed_continues_to_the_same_numbers(finished: Path, tmp_path: Path) -> None:
    program = Program("rl", "catch", *QUICK, "--learners", "hrn", folder=tmp_path)
    for line in program.stdout:
        if "task 1 of 3" in line:
            program.kill()
            break
    program.communicate()
    again = hashroute("rl", "catch", *QUICK, "--learners", "hrn", folder=tmp_path)
    assert (again.returncode, "add --resume" in again.stderr) == (2, True)
    said = succeeded("rl", "catch", *QUICK, "--learners", "hrn", "--resume", folder=tmp_path)
    assert "task 1 of 3" not in said
    (ours,), theirs = read(tmp_path).runs, read(finished).learners["hrn"][0]
    assert (ours.returns, ours.curves, ours.entered) == (theirs.returns, theirs.curves, theirs.entered)


def test_finished_runs_are_not_done_again(finished: Path) -> None:
    before = (finished / "results" / "rl-catch-ppo-512.json").read_bytes()
    said = succeeded("rl", "catch", *QUICK, "--learners", "hrn", "separate", folder=finished)
    assert "2 of 2 runs are already there" in said
    assert (finished / "results" / "rl-catch-ppo-512.json").read_bytes() == before


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "there is no environment 'nothing'"),
        (("CartPole-v1",), "observations of CartPole-v1 are .* expected images"),
        (("catch", "--learners", "ewc"), "there is no learner 'ewc' of games: expected one of hrn, "),
        (("catch", "--steps", "0"), "--steps is 0: expected at least 1"),
    ],
)
def test_mistakes_get_one_line(arguments: tuple[str, ...], message: str, tmp_path: Path, capsys: Any) -> None:
    import re

    from hashroute.cli import main

    assert main(["rl", *arguments, "--runs", str(tmp_path), "--results", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line)


@pytest.mark.slow
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("agent", ["dqn", "ppo"])
def test_every_learner_runs_with_every_agent(agent: str, tmp_path: Path) -> None:
    succeeded("rl", "catch", *QUICK, "--agent", agent, folder=tmp_path)
    (path,) = (tmp_path / "results").glob("*.json")
    assert list(GameResults.read(path).learners) == list(LEARNERS)


@pytest.mark.usefixtures("library")
def test_minatar_has_one_shape_for_all_games() -> None:
    pytest.importorskip("minatar", reason="needs the package minatar: make test-rl")
    from hashroute.rl.sequences import Games

    games = Games("minatar")
    assert (games.channels, games.actions) == (7, 4)
    for name in games.games:
        env = games.open(name, 2)
        assert env.reset().shape == (2, 10, 10, 7)
        assert env.step([3, 0])[0].dtype == bool
