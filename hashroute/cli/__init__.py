"""The command `hashroute`: one file for each command."""

from hashroute.cli.entry import main

__all__ = ["main"]
