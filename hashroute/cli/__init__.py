"""The command `hashroute`: one file for each command."""

from hashroute.cli.app import main

__all__ = ["main"]
