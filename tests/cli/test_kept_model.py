"""A model that people keep, from the shell."""

from __future__ import annotations

import csv
import io
import json
import os
import re
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
from kept_models import content, write_shapes
from programs import Program, hashroute, succeeded

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
    (folder / "no-labels.csv").write_text("path,size\nround/circle/0.png,16\n")
    (folder / "hole.jsonl").write_text('{"path": "round/circle/0.png", "label": "a"}\n{"path": "x.png"}\n')
    (folder / "gone.csv").write_text("path,label\nnowhere/0.png,a\nnowhere/1.png,b\n")
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


# -------------------------------------------------------------------- learn and rename; tests/docs has the whole story


def test_what_was_decided_is_said_in_plain_words(tmp_path: Path, images: Path, here: Here) -> None:
    shutil.copytree(images / "round", tmp_path / "round")
    (tmp_path / "round" / "empty").mkdir()
    (tmp_path / "round" / "__MACOSX" / "circle").mkdir(parents=True)
    (tmp_path / "round" / "cross" / "notes.txt").write_text("not an image")
    lines = here("learn", "kept", "round", "--epochs", 1).splitlines()
    assert lines[:4] == [
        "round: the class folder 'empty' is left out: no files inside",
        "round: the folder '__MACOSX' is left out: it is no class",
        "round: the model takes images of 16 x 16 pixels, and resizes others",
        "round: its images are in colour: they are mirrored at random while it trains",
    ]
    assert re.fullmatch(
        r"round: 2 classes \(circle, cross\), 44 images, 1 epoch, \d+ s; \d+\.\d % of 4 held-out images are right",
        lines[4],
    )
    assert lines[5].startswith("round: gets new units")
    listed = lines[6].removeprefix("1 file could not be read: see ")
    assert Path(listed).read_text() == "round/cross/notes.txt cannot be read as an image (it is something else)\n"


def test_tasks_are_listed_and_renamed(copied: Path, here: Here) -> None:
    here("rename", copied, "straight", "signs")
    header, *rows = here("tasks", copied).splitlines()
    assert header.split() == ["task", "classes", "images", "held-out", "accuracy", "learned", "size"]
    assert [row.split()[:3] for row in rows[:2]] == [["round", "circle,", "cross"], ["signs", "square,", "stripes"]]
    assert [json.loads(line)["name"] for line in here("tasks", copied, "--json").splitlines()] == ["round", "signs"]


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


def wait_for_a_checkpoint(folder: Path, process: Program) -> None:
    while not list(folder.glob("unfinished/*.pt")):
        assert process.poll() is None, "it ended before it could be stopped: give it more to do"
        time.sleep(0.005)


def kill_once(model: Path, images: Path, random: Random) -> None:
    """Begin to learn a task and be killed; the model is the one before and is whole."""
    before = Model(model).store.read()
    process = Program("learn", model, images / "grey", "--epochs", EPOCHS, folder=images)
    try:
        wait_for_a_checkpoint(model, process)
        time.sleep(random.uniform(0, 0.3))
    finally:
        process.kill()
        process.communicate()
    assert Model(model).store.read() == before
    assert Model(model).verify() == []


@pytest.mark.slow  # tests/chaos kills shorter ones
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
        process = Program("learn", copied, images / "grey", "--epochs", EPOCHS, folder=images)
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
    process = Program("learn", copied, images / "grey", "--epochs", 2000, folder=images)
    wait_for_a_checkpoint(copied, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
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
    process = Program("learn", copied, images / "grey", "--epochs", 2000, folder=images)
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
    before = content(copied)
    done = hashroute("learn", copied, images / "grey", "--epochs", 1, folder=images, largest_file=20_000)
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
        (("learn", "{model}", "round/circle"), "24 files and no class folder"),
        (("learn", "{model}", "round/circle/0.png"), "is not a source"),
        (("learn", "{model}", "no-labels.csv"), "no-labels.csv has the columns path, size: expected one of label"),
        (("learn", "{model}", "hole.jsonl"), "entry 2 of hole.jsonl lacks a path or a label"),
        (("learn", "{model}", "gone.csv", "--task", "x"), "class 'a' of 'x' has no readable image"),
        (("learn", "{model}", "round", "--task", " "), "the task has the name ' '"),
        (("learn", "{model}", "round", "--task", "round", "--private"), "is not private"),
        (("learn", "{model}", "round", "--backbone", "resnet18"), "has the backbone 'small'"),
        (("learn", "{model}", "round", "--device", "tpu"), "tpu"),
        (("learn", "{model}", "round", "--epoch", "3"), "--epochs"),
        (("learn", "new", "more/straight"), "has one class, 'cross'"),
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
        (("predict", "{model}", "round", "--format", "xml"), "table"),
        (("predict", "round", "round/circle/0.png"), "round is not a model"),
        (("tasks", "nowhere"), "there is no model"),
        (("undo", "nowhere"), "there is no model"),
        (("forget", "{model}", "birds", "--yes"), "expected round, straight"),
        (("forget", "{model}", "round"), "add --yes"),
        (("rename", "{model}", "birds", "x"), "expected round, straight"),
        (("rename", "{model}", "round", "straight"), "already"),
        (("verify", "nowhere"), "there is no model"),
        (("rename", "{model}", "round", "a\nb"), "expected text"),
        (("serve", "{model}", "--port", "70000"), "--port is 70000"),
        (("serve", "{model}", "--host", "0.0.0.0"), "give a --token"),
        (("serve", "round"), "round is not a model"),
        (("teach", "{model}"), "expected one of"),
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


class Typed(io.StringIO):
    """What a person types on a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("answer", "left"), [("n\n", ["round", "straight"]), ("", ["round", "straight"]), ("y\n", ["round"])]
)
def test_forget_asks_first(
    answer: str, left: list[str], copied: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Typed(answer))
    told = here("forget", copied, "straight").splitlines()
    assert told[0] == "forget straight? It cannot be brought back, not even with undo. [y/N]"
    assert told[1].startswith("forgotten: straight;" if "y" in answer else "nothing was changed")
    assert [task.name for task in Model(copied).tasks()] == left


@pytest.mark.parametrize(("answer", "left"), [("n\n", ["round", "straight"]), ("y\n", ["round"])])
def test_undo_asks_a_terminal_first(
    answer: str, left: list[str], copied: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Typed(answer))
    told = here("undo", copied).splitlines()
    assert told[0] == "undo the last lesson or renaming, so that straight is not known any more? [y/N]"
    assert told[1] == ("undone: straight is not known any more" if "y" in answer else "nothing was changed")
    assert [task.name for task in Model(copied).tasks()] == left


def test_damage_is_found(copied: Path, hashroute_command: Command) -> None:
    (path, *_) = sorted((copied / "objects").glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    code, printed, _ = hashroute_command("verify", copied)
    assert code == 1
    assert path.name in printed
