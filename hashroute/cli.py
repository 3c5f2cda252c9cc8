"""The command `hashroute`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

import tyro
from rich.console import Console

import hashroute
from hashroute.demo import DemoSettings, run_demo

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code. A user's mistake is one line on standard error, and code 2."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments == ["--version"]:
        print(f"hashroute {hashroute.__version__}")
        return 0
    try:
        app.cli(prog="hashroute", description=DESCRIPTION, args=arguments or ["--help"])
    except (ValueError, OSError) as error:
        message = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        print(f"hashroute: {' '.join(message.split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("hashroute: stopped; nothing was saved", file=sys.stderr)
        return 130
    return 0
