"""The live table shows the progress that the folders of runs hold."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from hashroute.reporting.live import Job, duration, overview, time_left


def epoch(task: int, images: int = 10, **more: object) -> str:
    record = {"task": f"a task with a long name {task}", "images": images, "seconds": 0.1, "epoch": 1, "epochs": 1}
    return json.dumps({**record, "loss": 123.456, "validation_accuracy": 100.0, **more}) + "\n"


def lines_of(jobs: list[Job], width: int = 100) -> list[str]:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(overview(jobs, 1, width))
    return [line.rstrip() for line in console.export_text().splitlines()]


@pytest.mark.parametrize("width", [80, 100, 130])
def test_matrices_of_the_two_latest_runs_fit_the_screen(width: int, tmp_path: Path) -> None:
    jobs = []
    for seed in range(3):
        jobs.append(Job("a-learner", seed, tmp_path / str(seed), 4000, clock=lambda: 0.0))
        jobs[-1].folder.mkdir()
        with open(jobs[-1].folder / "epochs.jsonl", "w") as log:
            for known in range(1, 31):
                row = [90.0 if task else 100.0 - known for task in range(known)] + [None] * (40 - known)
                decision = {"task": f"task {known}", "action": "fork", "parent": f"task {known - 1}"}
                log.write(epoch(known, accuracy=row, decision=decision))
        jobs[-1].update()
    lines = lines_of(jobs, width)
    assert max(map(len, lines)) <= width
    headers = ["learner", "seed", "task", "epoch", "loss", "val., %", "images/s", "left"]
    whole = [name for name in headers if width >= 100 or name not in ("loss", "images/s")]
    assert [name.strip() for name in lines[1].strip("┃").split("┃") if name.strip()] == whole
    assert "│ a task with" in lines[3]
    assert lines[3].endswith("0:37 │")
    assert len(lines) < 40
    assert re.findall(r"a-learner, seed \d, %", "".join(lines)) == ["a-learner, seed 1, %", "a-learner, seed 2, %"]
    assert [line for line in lines if "forks" in line] == [
        f"a-learner, seed {seed}: task 30: forks the units of task 29" for seed in (1, 2)
    ]
    jobs[2].state = "done"
    assert "a-learner, seed 0, %" in "".join(lines_of(jobs))


def test_a_line_that_is_being_written_waits(tmp_path: Path) -> None:
    (tmp_path / "epochs.jsonl").write_text(epoch(0) + epoch(0)[:30])
    assert Job("vc", 0, tmp_path, 100).trained == 10


def test_time_left_follows_from_the_pace(tmp_path: Path) -> None:
    """Ten epochs of 10 images each; a made-up clock."""
    now = [1000.0]
    jobs = [Job("vc", seed, tmp_path / str(seed), 100, clock=lambda: now[0]) for seed in range(3)]
    assert time_left(jobs, 1) is None
    jobs[0].folder.mkdir()
    for count, passed in ((2, 0.0), (5, 6.0)):  # three epochs in six seconds
        now[0] += passed
        (jobs[0].folder / "epochs.jsonl").write_text(epoch(0) * count)
        jobs[0].update()
    assert jobs[0].state == "running"
    assert jobs[0].left(jobs[0].pace) == pytest.approx(10.0)
    assert time_left(jobs, 1) == pytest.approx(10.0 + 20.0 + 20.0)
    assert time_left(jobs, 2) == pytest.approx(25.0)
    assert time_left(jobs, 9) == pytest.approx(20.0), "the longest"
    now[0] += 4.0
    assert jobs[0].left(jobs[0].pace) == pytest.approx(6.0)
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "epochs.jsonl").write_text(epoch(0) * 5)
    stopped = Job("vc", 3, tmp_path / "3", 100)
    stopped.update()
    assert (stopped.state, stopped.pace) == ("waiting", None), "its epochs are of another day"
    assert stopped.left(0.2) == pytest.approx(10.0)


@pytest.mark.parametrize(("seconds", "text"), [(None, ""), (59.6, "1:00"), (3599, "59:59"), (7260, "2 h 01")])
def test_durations_are_short(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
