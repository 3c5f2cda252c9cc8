"""A model that people keep, from the shell."""

from __future__ import annotations

import csv
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from hashroute import Model
from hashroute.cli import main
from kept_models import COMMAND, ENVIRONMENT, content, hashroute, succeeded, write_cifar, write_shapes
from support import run_together

Command = Callable[..., tuple[int, str, str]]
EPOCHS = 60
"""Of a lesson that is long enough to be killed."""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of image files: `round`, `straight`, `grey` and `more`, each with classes inside."""
    folder = tmp_path_factory.mktemp("images")
    write_shapes(folder / "round", "circle", "cross")
    write_shapes(folder / "straight", "square", "stripes", seed=1)
    write_shapes(folder / "grey", "circle", "stripes", seed=2, colour=False)
    write_shapes(folder / "more" / "straight", "cross", seed=3)
    return folder


@pytest.fixture(scope="module")
def model(images: Path) -> Path:
    """A model of two tasks; not to be changed."""
    assert main(["learn", *(str(images / name) for name in ("model", "round", "straight")), "--epochs", "3"]) == 0
    return images / "model"


@pytest.fixture
def copied(model: Path, tmp_path: Path) -> Path:
    """A model of two tasks, to be changed."""
    return Path(shutil.copytree(model, tmp_path / "model"))


Here = Callable[..., str]


@pytest.fixture
def here(hashroute_command: Command) -> Here:
    """Runs a command that works in this process, to be fast; gives what it printed."""

    def call(*arguments: object) -> str:
        code, printed, errors = hashroute_command(*arguments)
        assert (code, errors) == (0, "")
        return printed

    return call


# -------------------------------------------------------------------- the story


def test_a_story_of_weeks(tmp_path: Path, here: Here) -> None:
    """Learn three tasks in three processes, ask, add a class, forget a private task, undo, verify."""
    first = write_cifar(tmp_path / "animals", 3, 42, count=40) or write_shapes(tmp_path / "animals", "circle", "cross")
    write_shapes(tmp_path / "shapes", "square", "stripes", seed=1)
    write_shapes(tmp_path / "faces", "circle", "cross", seed=4, colour=False)
    told = run_together(tmp_path, ["learn", "kept", str(first), "--epochs", "2"])
    assert "animals: 2 classes" in told
    assert "held-out images are right" in told
    assert "animals: gets new units" in told
    run_together(tmp_path, ["learn", "kept", "shapes", "--epochs", "2"])
    shutil.copytree(tmp_path / "kept", tmp_path / "never")
    told = run_together(tmp_path, ["learn", "kept", "faces", "--private", "--epochs", "2"])
    assert "faces: resembles" in told

    answers = here("predict", "kept", "shapes/square", "--format", "json", "--top", 3)
    lines = [json.loads(line) for line in answers.splitlines()]
    assert len(lines) == 24
    assert {len(line["top"]) for line in lines} == {3}
    table = here("tasks", "kept")
    assert [name in table for name in ("animals", "shapes", "faces (private)")] == [True] * 3

    write_shapes(tmp_path / "later", "cross", seed=5)
    for name in ("kept", "never"):
        told = here("learn", name, "later", "--task", "shapes", "--epochs", 2)
        assert "shapes: new class cross; 3 classes" in told
    assert "no other task has learned from it" in here("forget", "kept", "faces", "--yes")
    compared = subprocess.run(["diff", "-r", "kept", "never"], cwd=tmp_path, capture_output=True, text=True)
    assert (compared.returncode, compared.stdout) == (0, "")

    assert "shapes is as it was" in here("undo", "kept")
    here("rename", "kept", "shapes", "signs")
    assert "signs" in here("tasks", "kept")
    assert "every file is as it was written" in here("verify", "kept")


def test_answers_of_old_tasks_are_the_same_text(copied: Path, images: Path, here: Here) -> None:
    ask = ("predict", copied, images / "round", "--task", "round", "--format", "json", "--top", 9)
    before = here(*ask)
    here("learn", copied, images / "grey", "--epochs", 2)
    here("learn", copied, images / "more" / "straight", "--epochs", 2)
    answers = [json.loads(line) for line in here(*ask).splitlines()]
    for line, old in zip(answers, map(json.loads, before.splitlines()), strict=True):
        assert {**line, "familiar": None} == {**old, "familiar": None}


# -------------------------------------------------------------------- predict


def test_predict_takes_files_folders_and_a_list(
    model: Path, images: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sorted((images / "round" / "circle").iterdir())[:3]
    one = here("predict", model, *files, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(one)))
    assert [row["image"] for row in rows] == list(map(str, files))
    assert all(row["class"] in ("circle", "cross", "square", "stripes") for row in rows)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(map(str, files))))
    listed = here("predict", model, "-", "--format", "csv")
    assert listed == one
    folder = here("predict", model, images / "round", "--format", "csv")
    assert len(folder.splitlines()) == 1 + 48


def test_a_table_is_whole_in_a_pipe(model: Path, images: Path) -> None:
    told = succeeded("predict", model, "round/circle/0.png", folder=images)
    header, row = told.splitlines()
    assert header.split() == ["image", "class", "task", "probability", "familiar"]
    assert row.startswith("round/circle/0.png ")
    assert " %" in row
    assert row.rstrip().endswith(("yes", "no: unlike anything known"))


def test_no_header_stands_above_an_error(model: Path, tmp_path: Path, hashroute_command: Command) -> None:
    (tmp_path / "bad.png").write_bytes(b"bad")
    code, printed, errors = hashroute_command("predict", model, tmp_path)
    assert (code, printed) == (1, "")
    assert errors.count("\n") == 1


def test_files_that_cannot_be_read_are_named_and_the_others_answered(
    model: Path, images: Path, tmp_path: Path, hashroute_command: Command
) -> None:
    shutil.copy(images / "round" / "circle" / "0.png", tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"bad")
    code, printed, errors = hashroute_command("predict", model, tmp_path, "--format", "csv")
    assert code == 1
    assert len(printed.splitlines()) == 2
    assert errors.count("\n") == 1
    assert "bad.png cannot be read" in errors


# -------------------------------------------------------------------- interruptions


def started(*arguments: object, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_a_checkpoint(folder: Path, process: subprocess.Popen[str]) -> None:
    while not list(folder.glob("unfinished/*.pt")):
        assert process.poll() is None, "it ended before it could be stopped: give it more to do"
        time.sleep(0.005)


def kill_once(model: Path, images: Path, random: Random) -> None:
    """Begin to learn a task and be killed; the model is the one before and is whole."""
    before = Model(model).store.read()
    process = started("learn", model, images / "grey", "--epochs", EPOCHS, folder=images)
    try:
        wait_for_a_checkpoint(model, process)
        time.sleep(random.uniform(0, 0.3))
    finally:
        process.kill()
        process.communicate()
    assert Model(model).store.read() == before
    assert Model(model).verify() == []


def test_a_killed_lesson_continues_and_ends_in_the_same_model(
    copied: Path, images: Path, tmp_path: Path, here: Here
) -> None:
    whole = Path(shutil.copytree(copied, tmp_path / "whole"))
    here("learn", whole, images / "grey", "--epochs", EPOCHS)
    kill_once(copied, images, Random(0))
    told = here("learn", copied, images / "grey", "--epochs", EPOCHS)
    assert "continued after" in told
    assert content(copied) == content(whole)
    told = here("learn", copied, images / "grey", "--epochs", EPOCHS)
    assert "learned before" in told
    assert content(copied) == content(whole)


@pytest.mark.slow
def test_a_lesson_killed_fifty_times_ends_in_the_same_model(copied: Path, images: Path, tmp_path: Path) -> None:
    whole = Path(shutil.copytree(copied, tmp_path / "whole"))
    succeeded("learn", whole, images / "grey", "--epochs", EPOCHS, folder=images)
    random = Random(1)
    for _ in range(50):  # at any moment, the start of the program and the end of the lesson included
        process = started("learn", copied, images / "grey", "--epochs", EPOCHS, folder=images)
        try:
            process.wait(random.uniform(0.5, 10))
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
        assert Model(copied).verify() == []
    succeeded("learn", copied, images / "grey", "--epochs", EPOCHS, folder=images)
    assert content(copied) == content(whole)


@pytest.mark.slow
def test_ctrl_c_is_one_line_with_the_command_that_continues(copied: Path, images: Path, here: Here) -> None:
    before = content(copied)
    process = started("learn", copied, images / "grey", "--epochs", 2000, folder=images)
    wait_for_a_checkpoint(copied, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130
    assert errors.startswith("hashroute: stopped; every finished epoch is kept: continue with hashroute learn ")
    assert errors.count("\n") == 1
    assert "1 unfinished" in here("tasks", copied)
    here("forget", copied, "grey", "--yes")
    assert content(copied) == before


@pytest.mark.slow
def test_a_second_writer_is_told_so_and_readers_are_not_disturbed(
    copied: Path, images: Path, hashroute_command: Command
) -> None:
    process = started("learn", copied, images / "grey", "--epochs", 2000, folder=images)
    try:
        wait_for_a_checkpoint(copied, process)
        code, _, errors = hashroute_command("rename", copied, "round", "other")
        assert code == 2
        assert "is being changed by another process" in errors
        assert errors.count("\n") == 1
        code, printed, _ = hashroute_command("predict", copied, images / "round" / "circle" / "0.png")
        assert code == 0
        assert "0.png" in printed
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_nothing_is_lost(copied: Path, images: Path) -> None:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))

    before = content(copied)
    done = hashroute("learn", copied, images / "grey", "--epochs", 1, folder=images, preexec_fn=limit)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "File too large" in done.stderr
    assert Model(copied).verify() == []
    assert {name: text for name, text in content(copied).items() if name in before} == before


def test_a_read_only_model_answers(copied: Path, images: Path, hashroute_command: Command) -> None:
    for path in (copied, copied / "objects", *copied.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    code, printed, _ = hashroute_command("predict", copied, images / "round" / "circle" / "0.png")
    assert code == 0
    assert "0.png" in printed
    if os.geteuid() != 0:
        code, _, errors = hashroute_command("undo", copied)
        assert (code, errors.count("\n")) == (2, 1)
    for path in (copied, copied / "objects"):
        path.chmod(0o755)


# -------------------------------------------------------------------- backbones of one's own

CODE = """
from torch import nn

def levels(image_shape):
    return [nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU())]

def frozen(image_shape):
    return nn.Conv2d(3, 12, 5, 4, bias=False).apply(lambda layer: nn.init.ones_(layer.weight))
"""


@pytest.mark.parametrize("function", ["levels", "frozen"])
def test_code_of_a_model_runs_only_if_it_is_named_again(
    function: str,
    images: Path,
    tmp_path: Path,
    here: Here,
    hashroute_command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(CODE)
    code = ("--backbone", f"net.py:{function}")
    here("learn", "kept", images / "round", *code, "--epochs", 1)
    ask = ("predict", "kept", images / "round" / "circle", "--format", "json")
    assert len(here(*ask, *code).splitlines()) == 24
    assert "every file is" in here("verify", "kept", *code)
    exit_code, _, errors = hashroute_command(*ask)
    assert (exit_code, errors.count("\n")) == (2, 1)
    assert f"this model has a backbone of your own: give it with backbone='net.py:{function}'" in errors


# -------------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("learn", "{model}"), "nothing to learn"),
        (("learn", "{model}", "nowhere"), "nowhere does not exist"),
        (("learn", "{model}", "round", "straight", "--task", "x"), "--task names one task"),
        (("learn", "{model}", "round", "--epochs", "0"), "--epochs is 0"),
        (("learn", "{model}", "round", "--size", "64"), "16 pixels"),
        (("learn", "new", "round", "--size", "3"), "size is 3"),
        (("learn", "new", "round", "--backbone", "vast"), "there is no backbone 'vast'"),
        (("learn", "new", "round", "--private"), "private"),
        (("learn", "round", "straight"), "is not a model"),
        (("predict", "nowhere", "a.png"), "there is no model nowhere"),
        (("predict", "{model}", "round", "--task", "birds"), "expected one of 'round', 'straight'"),
        (("predict", "{model}", "round", "--top", "0"), "--top is 0"),
        (("predict", "{model}"), "no images were given"),
        (("tasks", "nowhere"), "there is no model"),
        (("undo", "nowhere"), "there is no model"),
        (("forget", "{model}", "birds", "--yes"), "expected round, straight"),
        (("forget", "{model}", "round"), "add --yes"),
        (("rename", "{model}", "birds", "x"), "expected round, straight"),
        (("rename", "{model}", "round", "straight"), "already"),
        (("verify", "nowhere"), "there is no model"),
        (("export", "nowhere", "x.onnx"), "there is no model"),
        (("export", "{model}", "x.txt"), "expected a name that ends with .onnx"),
    ],
)
def test_wrong_input_is_one_line(
    arguments: tuple[str, ...],
    told: str,
    model: Path,
    images: Path,
    hashroute_command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(images)
    before = content(model)
    code, printed, errors = hashroute_command(*(part.format(model=model) for part in arguments))
    assert code == 2
    assert told in errors
    assert errors.count("\n") == 1
    assert "Traceback" not in printed + errors
    assert content(model) == before


def test_damage_is_found(copied: Path, hashroute_command: Command) -> None:
    (path, *_) = sorted((copied / "objects").glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    code, printed, _ = hashroute_command("verify", copied)
    assert code == 1
    assert path.name in printed
