"""The command `hashroute`. Each command has a file of its own, which imports torch only when the command runs."""

from __future__ import annotations

import io
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from functools import partial, wraps
from typing import Any

import tyro
from rich.console import Console

from hashroute.cli.ablate import AblateSettings, run_ablation
from hashroute.cli.bench import BenchSettings, run_bench
from hashroute.cli.data import DataSettings, run_data
from hashroute.cli.demo import DemoSettings, run_demo
from hashroute.cli.export import ExportSettings, run_export
from hashroute.cli.forget import ForgetSettings, run_forget
from hashroute.cli.inspect import InspectSettings, run_inspect
from hashroute.cli.learn import LearnSettings, run_learn
from hashroute.cli.mistakes import one_line
from hashroute.cli.predict import PredictSettings, run_predict
from hashroute.cli.rename import RenameSettings, run_rename
from hashroute.cli.report import ReportSettings, run_report
from hashroute.cli.rl import RLSettings, run_rl
from hashroute.cli.search import SearchSettings, run_search
from hashroute.cli.serve import ServeSettings, run_serve
from hashroute.cli.tasks import TasksSettings, run_tasks
from hashroute.cli.undo import UndoSettings, run_undo
from hashroute.cli.verify import VerifySettings, run_verify

DESCRIPTION = """Continual learning with hash-routed networks: one model that learns task after task.

Start with `hashroute demo`: it needs no data and takes seconds. `hashroute COMMAND --help` lists the options of a
command, `hashroute --version` prints the version."""

app = tyro.extras.SubcommandApp()
COMMANDS: list[str] = []
"""The names of all commands."""


def command(function: Callable[[Any], None]) -> Callable[[Any], Callable[[], None]]:
    """Add a command. It runs after its settings were read, not while they are."""

    @wraps(function)
    def later(settings: Any) -> Callable[[], None]:
        return partial(function, settings)

    COMMANDS.append(function.__name__)
    return app.command(later)


@command
def learn(settings: tyro.conf.OmitArgPrefixes[LearnSettings]) -> None:
    """Teach a model your own images, task after task. The model is a folder that keeps everything it has learned.

    If this is interrupted, the same command continues it. A task that exists gets more images or new classes.
    """
    try:
        run_learn(settings, Console())
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; every finished epoch is kept: continue with {_command()}") from None


@command
def predict(settings: tyro.conf.OmitArgPrefixes[PredictSettings]) -> None:
    """Ask a model for the class of images, with a calibrated probability."""
    _end(run_predict(settings, Console()))


@command
def tasks(settings: tyro.conf.OmitArgPrefixes[TasksSettings]) -> None:
    """List the tasks of a model, and what was decided about each."""
    run_tasks(settings, Console())


@command
def undo(settings: tyro.conf.OmitArgPrefixes[UndoSettings]) -> None:
    """Take back the last lesson or renaming of a model. What was forgotten does not come back."""
    run_undo(settings, Console())


@command
def forget(settings: tyro.conf.OmitArgPrefixes[ForgetSettings]) -> None:
    """Remove a task from a model for good. A private task leaves no trace."""
    run_forget(settings, Console())


@command
def rename(settings: tyro.conf.OmitArgPrefixes[RenameSettings]) -> None:
    """Give a task of a model another name."""
    run_rename(settings, Console())


@command
def verify(settings: tyro.conf.OmitArgPrefixes[VerifySettings]) -> None:
    """Check every file of a model."""
    _end(run_verify(settings, Console()))


@command
def export(settings: tyro.conf.OmitArgPrefixes[ExportSettings]) -> None:
    """Write a model as one ONNX file that answers with a task given, and with none."""
    run_export(settings, Console())


@command
def serve(settings: tyro.conf.OmitArgPrefixes[ServeSettings]) -> None:
    """Serve a model over HTTP, with a page to ask and teach it. By default only this computer can reach it."""
    run_serve(settings, Console())


@command
def demo(settings: tyro.conf.OmitArgPrefixes[DemoSettings]) -> None:
    """Learn five pairs of handwritten digits, one after the other, and compare what five learners still know.

    Takes seconds, downloads nothing, and saves the runs.
    """
    run_demo(settings, _command(), Console())


@command
def data(settings: tyro.conf.OmitArgPrefixes[DataSettings]) -> None:
    """List the image data sets, and download missing ones."""
    run_data(settings, Console())


@command
def bench(settings: tyro.conf.OmitArgPrefixes[BenchSettings]) -> None:
    """Compare learners on a scenario. Every finished run is kept.

    Finished runs are skipped next time. An unfinished run is continued with --resume and reaches the same numbers.
    """
    try:
        failed = run_bench(settings, Console())
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; every finished epoch is kept: continue with {_resuming()}") from None
    _end(failed)


@command
def rl(settings: tyro.conf.OmitArgPrefixes[RLSettings]) -> None:
    """Compare learners on a sequence of games, with agents of stable-baselines3. Needs the extra sb3.

    Finished runs are skipped next time. An unfinished run continues with --resume after its last finished task.
    """
    try:
        run_rl(settings, Console())
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; every finished task is kept: continue with {_resuming()}") from None


@command
def inspect(settings: tyro.conf.OmitArgPrefixes[InspectSettings]) -> None:
    """Show the units, tasks, size and decisions of a saved model."""
    run_inspect(settings, _command(), Console())


@command
def search(settings: tyro.conf.OmitArgPrefixes[SearchSettings]) -> None:
    """Search for learner options on the validation images of a scenario. Test images are not used.

    By default a grid of values is tried. With --trials, Optuna chooses values in ranges. The same command continues a
    search that was stopped.
    """
    try:
        failed = run_search(settings, Console())
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; every finished run is kept: continue with {_command()}") from None
    _end(failed)


@command
def ablate(settings: tyro.conf.OmitArgPrefixes[AblateSettings]) -> None:
    """Repeat the paper's ablation: change one part of the published network at a time, on pairwise-mnist.

    A difference from the baseline gets a sign only if it exceeds two standard errors.
    """
    _end(run_ablation(settings, Console()))


@command
def report(settings: tyro.conf.OmitArgPrefixes[ReportSettings]) -> None:
    """Make an HTML page about runs, with figures for papers.

    Takes folders of runs and result files, also while runs are in progress.
    """
    run_report(settings, _command(), Console())


def parse(arguments: Sequence[str]) -> Callable[[], None]:
    """The command that these arguments ask for, ready to run; a mistake in them is an error of one line."""
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            run: Callable[[], None] = app.cli(prog="hashroute", description=DESCRIPTION, args=arguments or ["--help"])
    except SystemExit as end:
        if not end.code:
            raise
        raise ValueError(one_line(said.getvalue(), help_command(arguments))) from None
    if "TORCHELASTIC_RUN_ID" in os.environ and arguments[0] != learn.__name__:
        _check_alone(arguments[0])
    return run


def _check_alone(name: str) -> None:
    """Refuse to run a command in several processes that know nothing of each other."""
    from hashroute import distributed

    if distributed.is_launched():
        raise ValueError(
            f"torchrun has started several processes of hashroute {name}: expected hashroute learn, the command that "
            "processes share; start others without torchrun"
        )


def help_command(arguments: Sequence[str]) -> str:
    """The command that explains what these arguments ask for."""
    named = [*arguments[:1]] if arguments and arguments[0] in COMMANDS else []
    return " ".join(["hashroute", *named, "--help"])


def _command() -> str:
    """The command as it was typed."""
    return shlex.join(["hashroute", *sys.argv[1:]])


def _resuming() -> str:
    """The command that continues what was typed."""
    arguments = [part for part in sys.argv[1:] if part not in ("--resume", "--replace")]
    return shlex.join(["hashroute", *arguments, "--resume"])


def _end(failed: int) -> None:
    """Exit with code 1 if runs failed."""
    if failed:
        raise SystemExit(1)
