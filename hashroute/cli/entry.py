"""Where the command `hashroute` begins and ends: exit codes, and one line for a mistake or for Ctrl-C.

Nothing but the standard library is imported before Ctrl-C is handled.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import hashroute
from hashroute.cli.interrupts import Interrupts

LEAST_MEMORY = 2**30
"""Bytes of address space that torch takes to load. With less it ends the process without a word."""

NO_MEMORY = ("can't allocate memory", "failed to map segment")
"""What torch says, and what the loader of its libraries says."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code. A user's mistake is one line on standard error, and code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(f"hashroute {hashroute.__version__}")
        return 0
    with Interrupts(last=arguments is None) as interrupts:
        try:
            try:
                from hashroute.cli.app import parse

                command = parse(given)
                _check_memory()
                command()
            finally:
                sys.stdout.flush()
        except BrokenPipeError:  # whoever read the output has seen enough, for example `head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except KeyboardInterrupt as error:
            interrupts.calm()
            return _stopped(str(error))
        except Exception as error:
            if interrupts.seen:  # the interrupt was swallowed, and left something half-done
                return _stopped("")
            message = str(error)
            if isinstance(error, MemoryError) or any(sign in message for sign in NO_MEMORY):
                message = "there is not enough memory: use smaller images, smaller batches, or fewer runs at a time"
            elif not isinstance(error, (ValueError, OSError)):
                raise
            if isinstance(error, OSError) and error.filename:
                message = f"{error.filename}: {error.strerror}"
            print(f"hashroute: {' '.join(message.split())}", file=sys.stderr)
            return 2
    return 0


def _check_memory() -> None:
    """Raise an error if a limit of the system leaves too little memory to load torch."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < LEAST_MEMORY:
        raise MemoryError


def _stopped(message: str) -> int:
    """Say that the command was stopped; returns the exit code."""
    # Python notes an interrupt inside code that was made from text (imports of some packages are), and would end
    # with the signal instead of our code. Running any such code removes the note.
    exec("")  # nosec B102
    print(f"hashroute: {message or 'stopped; nothing unfinished was kept'}", file=sys.stderr)
    return 130
