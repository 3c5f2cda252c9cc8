"""README's quick start, command by command, each in a process of its own: photographs, letters and digits."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from exported import assert_same_answers, session
from hashroute import Model
from hashroute.model.answers import Answer
from hashroute.model.pixels import open_files
from kept_models import write_cifar
from programs import run_script, run_together
from served import running

ROOT = Path(__file__).parents[2]
QUICK = ("--epochs", "2")
"""Lessons are short here."""
KNOWN = {"photos": ("china", "flower"), "letters": ("A", "B", "C"), "digits": ("0", "1", "2")}
"""What the model knows at the end."""


def story() -> list[str]:
    """The commands of the quick start, without comments."""
    section = (ROOT / "README.md").read_text().partition("## Keep a model\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    return [shlex.join(line) for line in lines]


def tell(folder: Path, command: str) -> str:
    """Run one command; what it printed."""
    program, *arguments = shlex.split(command)
    if program == "python":
        return run_script(ROOT / arguments[0], folder, *arguments[1:])
    if program == "hashroute":
        return run_together(folder, [*arguments, *(QUICK if arguments[0] == "learn" else ())])
    done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), command
    return done.stdout


def photographs(folder: Path) -> None:
    """Photographs of CIFAR-100 in the place of the pieces of two photographs, if they are on this machine."""
    if write_cifar(folder / "cifar", 3, 42, count=40):
        shutil.rmtree(folder / "images" / "photos")
        (folder / "images" / "photos").mkdir()
        for number, name in ((3, "china"), (42, "flower")):
            (folder / "cifar" / f"class {number}").rename(folder / "images" / "photos" / name)


def answers(folder: Path, task: str | None = None) -> list[Answer]:
    """What the model says about some photographs and letters."""
    files = [folder / "images" / name / f"{number}.png" for name in ("photos/flower", "letters/A") for number in (0, 1)]
    return Model(folder / "kept").predict(files, task, top=99)


def test_the_quick_start_of_readme(tmp_path: Path) -> None:
    install, write, *lines = story()
    assert install.startswith("pip install")
    tell(tmp_path, write)
    photographs(tmp_path)
    learn, *lines = lines
    told = {learn: tell(tmp_path, learn)}
    assert "photos: 2 classes (china, flower), 72 images" in told[learn]
    before = [each.top for each in answers(tmp_path, "photos")]
    *lines, verify, export, serve, curl = lines
    told |= {line: tell(tmp_path, line) for line in lines}

    table = told["hashroute predict kept images/photos/flower/0.png images/letters/A/0.png"]
    assert re.search(r"^images/letters/A/0.png +[ABC] +letters .* %", table, re.MULTILINE)
    assert "digits: new class 3; 4 classes" in told["hashroute learn kept images/more-digits --task digits"]
    assert re.search(r"^digits +0, 1, 2, 3 ", told["hashroute tasks kept"], re.MULTILINE)
    assert "digits is as it was before it was last learned" in told["hashroute undo kept"]
    assert "no other task has learned from it" in told["hashroute forget kept secret --yes"]
    assert told["diff -r kept never"] == ""
    assert tell(tmp_path, verify) == "every file is as it was written\n"
    assert {each.name: each.classes for each in Model(tmp_path / "kept").tasks()} == KNOWN
    after = [each.top for each in answers(tmp_path, "photos")]  # later tasks may make an image familiar
    assert after == before, "of the first task, after all that was learned since"

    if all(map(find_spec, ("onnx", "onnxscript", "onnxruntime"))):
        tell(tmp_path, export)
        assert_exported(tmp_path)
    assert serve == "hashroute serve kept"
    with running(tmp_path / "kept") as server:
        assert b"<title>hashroute</title>" in server.get("").content
        asked = tell(tmp_path, curl.replace("curl", "curl -s").replace("http://127.0.0.1:8000/", server.address))
        (flower,) = json.loads(asked)["answers"]
        expected = answers(tmp_path)[0]
        assert (flower["class_name"], flower["probability"]) == (expected.class_name, expected.probability)
        assert server.stop() == 0


def assert_exported(folder: Path) -> None:
    """onnxruntime gives the answers of the model, with the task given and with none."""
    import onnxruntime

    model, file = Model(folder / "kept"), session(onnxruntime, folder / "kept.onnx")
    files = sorted((folder / "images").glob("*/*/[0-4].png"))
    assert_same_answers(model.learner(), file, open_files(files, model.image_shape)[:])
    tasks = json.loads(file.get_modelmeta().custom_metadata_map["tasks"])
    assert {each["name"]: tuple(each["classes"]) for each in tasks} == KNOWN
