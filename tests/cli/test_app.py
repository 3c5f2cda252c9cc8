"""The command `hashroute` itself: help, version, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hashroute

Command = Callable[..., tuple[int, str, str]]
COMMANDS = ("demo", "data", "bench", "inspect", "search", "ablate", "report")


def process(*arguments: str, folder: Path) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "hashroute", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout, done.stderr


def test_the_version_and_without_arguments_the_help(tmp_path: Path) -> None:
    assert process("--version", folder=tmp_path) == (0, f"hashroute {hashroute.__version__}\n", "")
    code, printed, errors = process(folder=tmp_path)
    assert (code, errors) == (0, "")
    assert [name for name in COMMANDS if name not in printed] == []


def test_a_reader_that_stops_early_gets_no_complaint(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hashroute", "bench", "--help"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 141


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_every_command_is_explained(
    command: str, hashroute_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, printed, _ = hashroute_command(command, "--help")
    assert code == 0
    assert "(default: )" not in printed
    assert "(default: None)" not in printed
    lines = [line.strip("│ ") for line in printed.splitlines()]
    for place, line in enumerate(lines):
        if line.startswith("--"):  # the explanation follows on this line or on the next
            explained = f"{line}  {lines[place + 1]}".split("  ", 1)[1].strip()
            assert explained, line
            assert not explained.startswith("(default"), line


def test_the_help_of_every_command_imports_nothing_heavy() -> None:
    heavy = ("torch", "numpy", "matplotlib", "scipy", "sklearn", "pooch", "PIL", "joblib", "safetensors")
    script = f"""
import contextlib, io, sys
from hashroute.cli import main
for command in {COMMANDS}:
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main([command, "--help"])
print([name for name in {heavy} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == "[]\n"


def test_every_public_name_is_there() -> None:
    for name in hashroute.__all__:
        assert getattr(hashroute, name) is not None
    assert set(hashroute.__all__) <= set(dir(hashroute))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        hashroute.nothing  # noqa: B018


def test_a_mistake_ends_the_process_with_code_2(tmp_path: Path) -> None:
    message = "hashroute: --epochs is 0: expected at least 1\n"
    assert process("demo", "--epochs", "0", folder=tmp_path) == (2, "", message)


INTERRUPTED = {
    "inside code made from text": 'exec("raise KeyboardInterrupt")',
    "and the interrupt is swallowed": """
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    except KeyboardInterrupt:
        pass
    time.sleep(60)""",
    "and the interrupt leaves something broken": """
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    except KeyboardInterrupt:
        raise AttributeError("a module that is imported in part")""",
    "again while it cleans up": """
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    finally:
        os.kill(os.getpid(), signal.SIGINT)""",
}


@pytest.mark.parametrize("how", INTERRUPTED)
def test_an_interrupted_command_ends_with_our_exit_code(how: str, tmp_path: Path) -> None:
    script = f"""
import os, signal, sys, time, types
from hashroute.cli import app, main

def interrupt(**_):
    {INTERRUPTED[how].strip()}

app.app = types.SimpleNamespace(cli=interrupt)
sys.exit(main())
"""
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, "-m", "script", "demo"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (130, "hashroute: stopped; nothing unfinished was kept\n")


def test_an_interrupt_while_the_program_starts_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tyro.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    command = [sys.executable, "-m", "hashroute", "demo"]
    where = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(hashroute.__file__).parents[1])])}
    done = subprocess.run(command, cwd=tmp_path, env=where, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (130, "hashroute: stopped; nothing unfinished was kept\n")


MISTAKES = {
    "bench digits --epochs x": "--epochs cannot be ['x']: expected --epochs [INT [INT ...]]; see",
    "bench --learner vc": "unrecognized options: --learner, vc: expected perhaps --learners; see",
    "bench --recipe foo": "'foo' for argument '--recipe'. Expected one of ('default', 'paper'); see",
    "bench --seeds": "missing value for argument '--seeds'. Expected 1 values; see hashroute bench --help",
    "inspect": "missing from hashroute inspect: PATH Folder of a run, ",
    "learn --foo": "missing value for argument 'model'",
    "benc": "expected one of learn, predict, tasks, ",
}


@pytest.mark.parametrize("given", MISTAKES)
def test_a_command_that_cannot_be_read_is_one_line_with_the_right_help(given: str, hashroute_command: Command) -> None:
    code, printed, errors = hashroute_command(*given.split())
    assert (code, printed, errors.count("\n")) == (2, "", 1), errors
    assert errors.startswith("hashroute: ")
    assert MISTAKES[given] in errors
    named = given.split()[0] + " " if given != "benc" else ""
    assert errors.endswith(f"; see hashroute {named}--help\n")


def test_data_sets_are_listed(hashroute_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HASHROUTE_DATA", str(tmp_path))
    code, printed, errors = hashroute_command("data")
    assert (code, errors) == (0, "")
    assert "download it with: hashroute data mnist" in " ".join(printed.replace("│", " ").split())
    code, _, errors = hashroute_command("data", "imagenet")
    assert (code, errors.count("\n")) == (2, 1)
    assert "imagenet" in errors
