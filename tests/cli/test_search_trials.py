"""What `hashroute search --trials` suggests, stops, keeps and continues."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hashroute.learners import find_learner, learner_names
from hashroute.learners.options import Span, options_from_dict
from hashroute.training.run import learner_options
from programs import succeeded

pytest.importorskip("optuna", reason="needs the extra search")

Command = Callable[..., tuple[int, str, str]]
SEARCH = ("search", "digits", "--learners", "gpm", "--fraction", "0.2", "--tasks", "2")


def found(path: Path) -> dict[str, Any]:
    """The file with the best options."""
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def states(path: Path) -> list[str]:
    """The states of all trials in an SQLite file, none while it is being written."""
    with closing(sqlite3.connect(path, timeout=0)) as database, suppress(sqlite3.OperationalError):
        return [state for (state,) in database.execute("SELECT state FROM trials")]
    return []


@pytest.mark.parametrize("name", learner_names())
def test_every_value_in_the_space_of_a_learner_is_an_option_of_it(name: str) -> None:
    kind = find_learner(name)
    for option, values in (kind.space or kind.grid).items():
        for value in (values.low, values.high) if isinstance(values, Span) else values:
            assert getattr(options_from_dict(kind, {option: value}), option) == value


@pytest.mark.slow
def test_a_search_that_is_killed_continues_to_the_same_trials(hashroute_command: Command, tmp_path: Path) -> None:
    command = (*SEARCH, "--trials", "3", "--output")
    assert hashroute_command(*command, "whole-search.db")[0] == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "hashroute", *command, "killed-search.db"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    with process:
        while b"1 of 3" not in process.stdout.readline():
            assert process.poll() is None
        while "RUNNING" not in states(tmp_path / "killed-search.db"):
            process.send_signal(signal.SIGCONT)
            time.sleep(0.02)
            process.send_signal(signal.SIGSTOP)
        process.kill()  # in a trial
    code, printed, _ = hashroute_command(*command, "killed-search.db")
    assert code == 0
    assert "of 3 trials are already there" in printed
    whole, killed = found(tmp_path / "whole-tuned.json"), found(tmp_path / "killed-tuned.json")
    assert len(whole["trials"]) + len(whole["pruned"]) == 3
    assert killed == whole
    assert hashroute_command(*command, "killed-search.db")[0] == 0  # nothing is left to do
    assert found(tmp_path / "killed-tuned.json") == whole
    best = max(trial["final"] for trial in whole["trials"])
    assert whole["chosen"]["gpm"] in [trial["options"] for trial in whole["trials"] if trial["final"] == best]
    tuned = learner_options("gpm", "digits", "default", (1, 8, 8), tmp_path / "whole-tuned.json")
    assert whole["chosen"]["gpm"].items() <= tuned.items()
    assert sorted(states(tmp_path / "killed-search.db")) == ["COMPLETE"] * 3 + ["FAIL"]  # the killed one is repeated


@pytest.mark.slow
def test_hrn_is_searched_on_images_of_a_folder_in_two_processes(hashroute_command: Command, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 120, (2, 2, 12, 8, 8), dtype=np.uint8)
    for task, label in np.ndindex(2, 2):
        folder = tmp_path / "mine" / f"task {task}" / f"class {label}"
        folder.mkdir(parents=True)
        for place, image in enumerate(pixels[task, label] + np.uint8(100 * label)):
            Image.fromarray(image).save(folder / f"{place}.png")
    command = ("search", "folders", "--folder", "mine", "--size", "8", "--learners", "hrn", "--fraction", "1")
    code, printed, _ = hashroute_command(*command, "--trials", "2", "--jobs", "2", "--measure", "task-free")
    assert code == 0, printed
    tuned = found(tmp_path / "folders-mine-tuned.json")
    assert (tmp_path / "folders-mine-search.db").exists()
    assert [set(trial["options"]) for trial in tuned["trials"]] == [set(find_learner("hrn").space)] * 2
    assert tuned["chosen"]["hrn"].keys() == find_learner("hrn").space.keys()
    assert "--measure task-free --folder mine --size 8" in tuned["command"]


LAZY = """
from dataclasses import dataclass
from hashroute.learners.plain import Vanilla
from hashroute.learners.registry import register_learner

@dataclass(frozen=True)
class LazyOptions:
    effort: float = 1.0

@register_learner("lazy")
class Lazy(Vanilla):
    "Learns as much as its effort."

    Options = LazyOptions

    def loss(self, batch):
        loss, outputs = super().loss(batch)
        return loss * self.options.effort, outputs
"""


def test_a_trial_that_is_behind_after_a_task_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "lazy_learner.py").write_text(LAZY)
    line = ["search", "digits", "--learners", "lazy", "--plugins", "lazy_learner", "--fraction", "0.2", "--tasks", "2"]
    line += ["--trials", "9", "--values", "lazy.effort=0,1"]
    printed = succeeded(*line, folder=tmp_path)  # in its own process: a learner that is registered stays
    tuned = found(tmp_path / "digits-tuned.json")
    assert tuned["pruned"]
    assert all(trial["options"] == {"effort": 0.0} for trial in tuned["pruned"])
    assert printed.count("stopped, behind most others") == len(tuned["pruned"])
    assert tuned["chosen"] == {"lazy": {"effort": 1.0}}


def test_mistakes_are_one_line(hashroute_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = (*SEARCH, "--trials", "1")
    values = ("--values", "gpm.threshold=0.9:0.95", "gpm.increase=0")
    assert hashroute_command(*trials, *values)[0] == 0
    assert 0.9 <= found(tmp_path / "digits-tuned.json")["chosen"]["gpm"]["threshold"] <= 0.95
    (tmp_path / "text.db").write_text("no database" * 100)
    for wrong, message in (
        ((*SEARCH, "--values", "gpm.threshold=0.5:0.9"), "a range needs --trials"),
        ((*trials, "--values", "gpm.threshold=0.9:0.5"), "the span is 0.9 to 0.5: expected a lower number first"),
        ((*trials, "--values", "gpm.threshold=0:0.5:log"), "expected a lower number above 0 first"),
        ((*trials, "--values", "gpm.threshold=0.5:0.9:much"), "separated by commas, or LOW:HIGH, or LOW:HIGH:log"),
        ((*trials, "--output", "text.db"), "text.db holds no search"),
        (trials, "digits-search.db holds a search of gpm with other settings (space"),
        ((*SEARCH, "--trials", "0"), "--trials is 0: expected at least 1"),
        (("search", "digits", "--learners", "vc", "--trials", "1"), "learner 'vc' has no options to search"),
        (("search", "folders", "--trials", "1"), "the scenario folders has no folder"),
    ):
        code, _, errors = hashroute_command(*wrong)
        assert (code, errors.count("\n")) == (2, 1), errors
        assert message in errors
    from hashroute.integrations.optuna import writing

    with writing(tmp_path / "digits-search.db"):
        assert "is being written by another search" in hashroute_command(*trials, *values)[2]
    monkeypatch.setitem(sys.modules, "optuna", None)
    code, _, errors = hashroute_command(*trials, *values)
    assert (code, errors) == (
        2,
        "hashroute: a search with trials needs the package optuna: pip install 'hashroute[search]'\n",
    )
