"""tyro's message about a command that it cannot read, as one line."""

from __future__ import annotations

import re


def one_line(box: str, help_command: str) -> str:
    """The text of tyro's box: what was given, what was expected, and the command that explains more."""
    message, *more = _blocks(box)
    text = " ".join(message).removesuffix(".").replace("'settings.", "'")
    text = re.sub(r"^Error parsing (\S+): Could not find valid parse for arguments: ", r"\1 cannot be ", text)
    for title, *lines in more:
        if title.startswith("Argument helptext") and lines:
            text += f": expected {lines[0]}"
        elif title.startswith("Perhaps you meant") and lines:
            text += f": expected perhaps {lines[0].split(' ')[0].rstrip(',')}"
        elif title.startswith("Available subcommands"):
            text += f": expected one of {' '.join([title, *lines]).partition(': ')[2]}"
    return f"{text[:1].lower()}{text[1:]}; see {help_command}"


def _blocks(box: str) -> list[list[str]]:
    """The lines inside a box, in the parts between its rules. Without Unicode, a box is drawn with - and |."""
    blocks: list[list[str]] = [[]]
    for line in box.splitlines()[1:-1]:
        inside = line.strip("│| ")
        if inside and not inside.strip("─-"):
            blocks.append([])
        elif inside:
            blocks[-1].append(inside)
    return [block for block in blocks if block] or [[" ".join(box.split())]]
