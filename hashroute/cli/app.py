"""The command `hashroute`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

import hashroute
from hashroute.cli.ablate import AblateSettings, run_ablation
from hashroute.cli.bench import BenchSettings, run_bench
from hashroute.cli.demo import DemoSettings, run_demo
from hashroute.cli.inspect import InspectSettings, run_inspect
from hashroute.cli.search import SearchSettings, run_search
from hashroute.data import DATASETS, check_name, data_folder, dataset_status, load_dataset
from hashroute.data.files import VARIABLE
from hashroute.reporting.page import ReportSettings, run_report

DESCRIPTION = """Continual learning with hash-routed networks: one model that learns task after task.

Start with `hashroute demo`: it needs no data and takes seconds. `hashroute COMMAND --help` lists a command's options,
`hashroute --version` prints the version."""

app = tyro.extras.SubcommandApp()


@app.command
def demo(settings: tyro.conf.OmitArgPrefixes[DemoSettings]) -> None:
    """Learn five pairs of handwritten digits, one after the other, and see what is still known after each.

    Takes seconds, downloads nothing, and saves the run.
    """
    run_demo(settings, shlex.join(["hashroute", *sys.argv[1:]]), Console())


@app.command
def data(download: tyro.conf.Positional[tuple[str, ...]] = ()) -> None:
    """List the image data sets: what is there, what is missing and how to get it.

    Args:
        download: Data sets to download first if they are missing, by name; `all` for all of them.
    """
    console = Console()
    names = tuple(DATASETS) if "all" in download else download
    for name in names:
        check_name(name)
    for name in names:
        load_dataset(name)
    table = Table("data set", "what is there", header_style="")
    for name in DATASETS:
        status = dataset_status(name)
        if status.sizes:
            said = "{:,} images to train on, {:,} to test on".format(*status.sizes)
        else:
            said = status.problem or f"missing: {', '.join(status.missing)}; get it with: hashroute data {name}"
        table.add_row(name, Text(said))
    console.print(table)
    console.print(f"folder: {data_folder()} (set {VARIABLE} to use another)", markup=False, soft_wrap=True)


@app.command
def bench(settings: tyro.conf.OmitArgPrefixes[BenchSettings]) -> None:
    """Compare learners on a scenario: learners and seeds side by side, every finished run kept at once.

    Finished runs are skipped next time; a run that was stopped goes on with --resume, to the same numbers.
    """
    try:
        failed = run_bench(settings, Console())
    except KeyboardInterrupt:
        arguments = [part for part in sys.argv[1:] if part != "--resume"]
        again = shlex.join(["hashroute", *arguments, "--resume"])
        raise KeyboardInterrupt(f"stopped; every finished epoch was kept: go on with {again}") from None
    if failed:
        raise SystemExit(1)


@app.command
def inspect(settings: tyro.conf.OmitArgPrefixes[InspectSettings]) -> None:
    """Look into a model: its units and how they are used, the tasks it knows, what it weighs, what it decided."""
    run_inspect(settings, shlex.join(["hashroute", *sys.argv[1:]]), Console())


@app.command
def search(settings: tyro.conf.OmitArgPrefixes[SearchSettings]) -> None:
    """Search for learners' options on validation images of a scenario; test images are never looked at."""
    run_search(settings, Console())


@app.command
def ablate(settings: tyro.conf.OmitArgPrefixes[AblateSettings]) -> None:
    """Change one part of the published hash-routed network at a time, on pairwise-mnist, as the paper's appendix does.

    Differences from the baseline get a sign only where they exceed two standard errors.
    """
    run_ablation(settings, Console())


@app.command
def report(settings: tyro.conf.OmitArgPrefixes[ReportSettings]) -> None:
    """Make a page about runs, that opens from the disk, and its figures for papers.

    Takes runs' folders, folders of them and result files, also while runs are still going.
    """
    run_report(settings, shlex.join(["hashroute", *sys.argv[1:]]), Console())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code. A user's mistake is one line on standard error, and code 2."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments == ["--version"]:
        print(f"hashroute {hashroute.__version__}")
        return 0
    try:
        app.cli(prog="hashroute", description=DESCRIPTION, args=arguments or ["--help"])
    except (ValueError, OSError) as error:
        message = str(error)
        if isinstance(error, OSError) and error.filename:
            message = f"{error.filename}: {error.strerror}"
        print(f"hashroute: {' '.join(message.split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        # An interrupt within code made from text, as imports of others have it, is noted by Python, which would end
        # with the signal instead of our code; running any such code strikes that note out.
        exec("")
        print(f"hashroute: {str(error) or 'stopped; nothing unfinished was kept'}", file=sys.stderr)
        return 130
    return 0
