"""Names of tasks."""

from __future__ import annotations

import json
import re

import pytest

from hashroute.model.names import NAME, is_name


@pytest.mark.parametrize("name", ["birds", "0 or 1", "Vögel", "鳥", "🐦 birds", "a", "<b>", "../../x"])
def test_what_people_can_read_is_a_name(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize(
    "name", ["", " ", " a", "a ", "a\nb", "a\x00b", "a\x7f", "a\u202eb", "\u200b", "a\u2028", "a\u3000b", "\udc80"]
)
def test_what_they_cannot_see_is_not(name: str) -> None:
    assert not is_name(name)


def test_the_pattern_is_whole_in_json() -> None:
    assert re.fullmatch(json.loads(json.dumps(NAME)), "0 or 1")
