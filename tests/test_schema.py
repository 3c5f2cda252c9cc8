"""What a file may hold: an error names the field, what was found and what was expected, in a few words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pytest

from hashroute.schema import Range, parse_json, read_format, read_json
from support import assert_one_clear_line


class Inner(TypedDict):
    count: Annotated[int, Range(1, 9)]
    kind: Literal["a", "b"]


@dataclass
class Outer:
    name: str
    inner: list[Inner]
    share: float | None = None


GOOD: dict[str, Any] = {"name": "x", "inner": [{"count": 3, "kind": "a"}], "share": 1}
LONG = "y" * 10**6

WRONG: dict[str, tuple[Any, str]] = {
    "a list": ([], "its content is [], expected an object"),
    "null": (None, "its content is None, expected an object"),
    "a part is missing": ({"inner": []}, "its content lacks 'name'"),
    "a part too many": ({**GOOD, "other": 1}, "its content has the unknown entry 'other'"),
    "a number for text": ({**GOOD, "name": 5}, "name is 5, expected text"),
    "true for a number": (
        {**GOOD, "inner": [{"count": True, "kind": "a"}]},
        "inner[0].count is True, expected a",
    ),
    "a number out of bounds": ({**GOOD, "inner": [{"count": 10, "kind": "a"}]}, "inner[0].count is 10, expected"),
    "another word": ({**GOOD, "inner": [{"count": 1, "kind": "c"}]}, "inner[0].kind is 'c', expected one of 'a', 'b'"),
    "none of several": ({**GOOD, "share": "half"}, "share is 'half', expected a number or null"),
    "a long text": ({**GOOD, "share": LONG}, "share is 'yyyy"),
    "a long name": ({**GOOD, LONG: 1}, "its content has the unknown entry 'yyyy"),
    "many names": ({**GOOD, **{f"{n}{LONG[:99]}": n for n in range(1000)}}, "its content has the unknown entry '0yyy"),
    "a long number": ({**GOOD, "name": 10**4000}, "name is 1000"),
    "lines": ({**GOOD, "share": "a\nb"}, "share is 'a"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_one_bounded_line(case: str, tmp_path: Path) -> None:
    value, message = WRONG[case]
    path = tmp_path / "file.json"
    path.write_text(json.dumps(value))
    with pytest.raises(ValueError, match="is damaged") as error:
        read_json(path, Outer)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert len(str(error.value)) < 300
    assert "\n" not in str(error.value)
    assert parse_json(json.dumps(GOOD), Outer) == GOOD


@pytest.mark.parametrize("depth", [50, 1000, 10**6])
def test_deep_nesting_is_one_line(depth: int) -> None:
    assert_one_clear_line(lambda: parse_json("[" * depth + "]" * depth), "it is nested deeper than 40 levels")
    assert_one_clear_line(lambda: parse_json('{"a":' * depth + "1" + "}" * depth), "it is nested deeper than 40 levels")


def test_a_file_of_another_version_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(json.dumps({**GOOD, "format": LONG}))
    assert_one_clear_line(lambda: read_format(path, {1: dict}), "format is 'yyy")
    path.write_text(json.dumps({"format": 99}))
    assert_one_clear_line(lambda: read_format(path, {1: dict, 2: dict}), "has format 99, this version reads 1 and 2")
