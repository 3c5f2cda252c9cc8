"""Names of tasks: text that people can read in a table and type in a command."""

from __future__ import annotations

import re

_UNSEEN = r"\x00-\x1f\x7f-\xa0\xad\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff\ufff0-\uffff"
"""Control characters, spaces other than the usual one, and what changes the direction of text."""

NAME = f"^[^ {_UNSEEN}]([^{_UNSEEN}]*[^ {_UNSEEN}])?$"
"""A regular expression for JSON schemas, too."""


def is_name(text: object) -> bool:
    """Whether a task can be called this."""
    return isinstance(text, str) and re.fullmatch(NAME, text) is not None and not re.search("[\ud800-\udfff]", text)
