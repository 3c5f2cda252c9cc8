"""The folder of a model is always the one before a change or the one after it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hashroute.model.store import Manifest, Store
from hashroute.storage import check_regular, replace_file
from programs import Program

WRITES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")


def teach(folder: Path, task: str, value: float) -> None:
    """A change as `learn` makes it: two objects, a record, a commit."""
    store = Store(folder)
    with store.writing() as manifest:
        head = store.put_tensors({"weight": torch.full((3,), value)})
        shared = store.put_tensors({"path": torch.zeros(2)})
        record = store.put_json({"objects": {"head": head, "path": shared}, "task": task})
        store.commit(Manifest({"seed": 0}, manifest.tasks, manifest.history).learned(task, record))


def forget(folder: Path, task: str) -> None:
    store = Store(folder)
    with store.writing() as manifest:
        store.commit(manifest.without(task))


def undo(folder: Path) -> None:
    store = Store(folder)
    with store.writing() as manifest:
        store.commit(manifest.undone())


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def what_counts(folder: Path) -> tuple[Manifest, dict[str, Any]]:
    """The manifest, and the tensors of each task."""
    store = Store(folder)
    assert store.verify() == []
    manifest = store.read()
    heads = {task: store.tensors(store.json(record)["objects"]["head"]) for task, record in manifest.tasks.items()}
    return manifest, {task: head["weight"].tolist() for task, head in heads.items()}


def killed_at(step: int, action: Callable[[], None]) -> bool:
    """Run an action in a process that kills itself before its file operation number `step`; whether it came so far."""
    child = os.fork()
    if child == 0:
        count = 0

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if event in WRITES or writes:
                count += 1
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(hook)
            action()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.filterwarnings("ignore:This process.*fork")
@pytest.mark.parametrize(
    "change",
    [
        lambda folder: teach(folder, "third", 3.0),
        lambda folder: teach(folder, "second", 4.0),
        lambda folder: forget(folder, "first"),
        lambda folder: undo(folder),
    ],
    ids=["learn", "learn further", "forget", "undo"],
)
def test_a_process_killed_at_any_file_operation_leaves_the_model_before_or_after(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    begin, end = tmp_path / "begin", tmp_path / "end"
    teach(begin, "first", 1.0)
    teach(begin, "second", 2.0)
    shutil.copytree(begin, end)
    change(end)
    before, after = what_counts(begin), what_counts(end)
    assert before != after
    seen = []
    for step in range(1, 100):
        folder = tmp_path / str(step)
        shutil.copytree(begin, folder)
        if not killed_at(step, lambda folder=folder: change(folder)):  # type: ignore[misc]
            break
        found = what_counts(folder)
        assert found in (before, after)
        seen.append(found == after)
        if found == before:
            change(folder)
        else:
            with Store(folder).writing():
                pass  # the next writer removes what is left over
        assert content(folder) == content(end)
    assert seen == sorted(seen)  # one moment separates the two
    assert len(seen) >= 4
    assert False in seen


@pytest.mark.filterwarnings("ignore:This process.*fork")
def test_a_process_killed_at_its_first_change_leaves_no_model_or_the_whole(tmp_path: Path) -> None:
    teach(tmp_path / "whole", "first", 1.0)
    for step in range(1, 100):
        folder = tmp_path / str(step)
        if not killed_at(step, lambda folder=folder: teach(folder, "first", 1.0)):  # type: ignore[misc]
            break
        assert list(Store(folder).read().tasks) in ([], ["first"])
        if not Store(folder).exists:
            teach(folder, "first", 1.0)
        with Store(folder).writing():
            pass
        assert content(folder) == content(tmp_path / "whole")
    assert step > 4


def test_what_is_learned_last_is_undone_first(tmp_path: Path) -> None:
    teach(tmp_path, "first", 1.0)
    states = [content(tmp_path)]
    teach(tmp_path, "second", 2.0)
    states.append(content(tmp_path))
    teach(tmp_path, "second", 3.0)
    with Store(tmp_path).writing() as manifest:
        Store(tmp_path).commit(manifest.renamed("second", "other"))
    assert what_counts(tmp_path)[1] == {"first": [1.0] * 3, "other": [3.0] * 3}
    undo(tmp_path)
    assert what_counts(tmp_path)[1] == {"first": [1.0] * 3, "second": [3.0] * 3}
    undo(tmp_path)
    assert content(tmp_path) == states[1]
    undo(tmp_path)
    assert content(tmp_path) == states[0]


def test_what_is_forgotten_leaves_no_file_and_no_history(tmp_path: Path) -> None:
    never, forgot = tmp_path / "never", tmp_path / "forgot"
    for folder in (never, forgot):
        teach(folder, "first", 1.0)
    teach(forgot, "secret", 5.0)
    teach(forgot, "secret", 6.0)
    with Store(forgot).writing() as manifest:
        Store(forgot).commit(manifest.renamed("secret", "secrets"))
    for folder in (never, forgot):
        teach(folder, "second", 2.0)
    forget(forgot, "secrets")
    assert content(forgot) == content(never)


def test_objects_that_two_tasks_share_are_stored_once_and_outlive_one_of_them(tmp_path: Path) -> None:
    teach(tmp_path, "first", 1.0)
    teach(tmp_path, "second", 2.0)
    assert len(list((tmp_path / "objects").glob("*.safetensors"))) == 3
    forget(tmp_path, "first")
    assert what_counts(tmp_path)[1] == {"second": [2.0] * 3}


def test_a_second_writer_is_told_so_and_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    script = f"""
import time
from hashroute.model.store import Store
with Store({str(tmp_path)!r}).writing():
    print("holds", flush=True)
    time.sleep(600)
"""
    other = Program(folder=tmp_path, script=script)
    try:
        assert other.stdout.readline() == "holds\n"
        with pytest.raises(ValueError, match="is being changed by another process"):
            teach(tmp_path, "first", 1.0)
        assert Store(tmp_path).read().tasks == {}  # a reader does not wait
    finally:
        other.kill()
        other.communicate()
    teach(tmp_path, "first", 1.0)


def test_readers_see_the_model_before_or_after_every_change(tmp_path: Path) -> None:
    teach(tmp_path, "kept", 0.0)
    done = threading.Event()
    wrong: list[str] = []

    def look() -> None:
        store = Store(tmp_path)
        while not done.is_set():
            manifest = store.read()
            if "kept" not in manifest.tasks or len(manifest.tasks) > 2:
                wrong.append(str(manifest))

    reader = threading.Thread(target=look)
    reader.start()
    for value in range(20):
        teach(tmp_path, "other", value)
        forget(tmp_path, "other")
    done.set()
    reader.join()
    assert wrong == []


@pytest.mark.parametrize("when", ["while it is written", "when it is written"])
def test_an_error_names_the_file_and_not_the_unfinished_one(when: str, tmp_path: Path) -> None:
    def write(path: Path) -> None:
        if when == "when it is written":
            path.write_bytes(b"content")
        shutil.rmtree(tmp_path / "folder")
        if when == "while it is written":
            path.write_bytes(b"content")

    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotFoundError) as error:
        replace_file(tmp_path / "folder" / "file", write)
    assert str(error.value) == f"[Errno 2] No such file or directory: '{tmp_path}/folder/file'"


def test_what_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    for name, value in (("a", 1.0), ("b", 2.0)):
        teach(tmp_path, name, value)
    store, tries = Store(tmp_path), []

    def read() -> list[float]:
        manifest = store.read()
        if not tries:
            forget(tmp_path, "b")  # as another process does
        tries.append(len(manifest.tasks))
        heads = [store.json(record)["objects"]["head"] for record in manifest.tasks.values()]
        return [store.tensors(head)["weight"][0].item() for head in heads]

    assert store.consistently(read) == [1.0]
    assert tries == [2, 1]
    next(store.objects.glob("*.safetensors")).unlink()
    next(store.objects.glob("*.safetensors")).unlink()
    with pytest.raises(FileNotFoundError):
        store.consistently(read)


@pytest.mark.parametrize("damage", ["flip a bit", "cut", "remove"])
def test_verify_names_every_damaged_object(damage: str, tmp_path: Path) -> None:
    teach(tmp_path, "first", 1.0)
    for path in sorted((tmp_path / "objects").iterdir()):
        whole = path.read_bytes()
        if damage == "remove":
            path.unlink()
        else:
            path.write_bytes(whole[:-1] if damage == "cut" else whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
        problems = Store(tmp_path).verify()
        assert any(path.name in problem for problem in problems)
        assert all("\n" not in problem for problem in problems)
        path.write_bytes(whole)
    assert Store(tmp_path).verify() == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "damaged"),
        ("[]", "damaged"),
        ('{"format": 1}', "damaged"),
        ('{"format": 99, "settings": {}, "tasks": {}, "history": []}', "format 99"),
        (
            '{"format": 1, "settings": {}, "tasks": {"a": "../../etc/passwd"}, "history": []}',
            "not the name of an object",
        ),
        ('{"format": 1, "settings": {}, "tasks": {}, "history": [{"what": 1}]}', "damaged"),
        ('{"format": 1, "settings": {}, "tasks": {"%s": []}, "history": []}' % ("x" * 1000), "damaged"),
    ],
)
def test_a_manifest_that_is_not_ours_is_one_line(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=told) as error:
        Store(tmp_path).read()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) <= 300
    assert Store(tmp_path).verify() == [str(error.value)]


def test_a_folder_of_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="is not a model"):
        teach(tmp_path, "first", 1.0)
    assert content(tmp_path) == {"thesis.tex": b"years of work"}


def test_an_object_that_is_removed_while_it_is_opened_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teach(tmp_path, "first", 1.0)
    (path, *_) = (tmp_path / "objects").glob("*.safetensors")
    store, name = Store(tmp_path), path.name

    def removed_after(path: Path, most: int) -> None:
        check_regular(path, most)
        path.unlink()

    monkeypatch.setattr("hashroute.model.store.check_regular", removed_after)
    with pytest.raises(FileNotFoundError):
        store.tensors(name)
