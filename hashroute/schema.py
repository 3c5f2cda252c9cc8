"""What a file may hold: JSON is read within bounds, and checked against types before anything uses it."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, Union, get_args, get_origin, get_type_hints

from typing_extensions import NotRequired, is_typeddict

from hashroute.storage import read_bounded

MOST_BYTES = 2**26
"""A JSON file that is larger is not read."""
MOST_VALUES = 2**22
"""Values in a JSON text, at most: the smallest of them take a hundred times the memory of their text."""
DEEPEST = 40
"""Lists and objects inside each other, at most."""
LONGEST = 80
"""Characters of a value or a field in a message, at most."""


class Range(NamedTuple):
    """The bounds of a number, as in `Annotated[int, Range(1, 100)]`."""

    least: float
    most: float


def read_json(path: Path, kind: Any = Any, most: int = MOST_BYTES, advice: str = "restore it from a copy") -> Any:
    """The content of a JSON file, which must be of this kind; an error names the file, the field and what is wrong."""
    content = read_bounded(path, most)
    with _named(path, advice):
        return parse_json(content, kind)


def read_format(path: Path, kinds: Mapping[int, Any], most: int = MOST_BYTES) -> Any:
    """The content of a JSON file that names its format. kinds: of each format that can be read."""
    content = read_bounded(path, most)
    with _named(path, "restore it from a copy"):
        value = parse_json(content, _Format)
    if value["format"] not in kinds:
        known = " and ".join(map(str, kinds))
        raise ValueError(
            f"{one_line(path, 100)} has format {shown(value['format'])}, this version reads {known}: "
            "use the version of hashroute that wrote it"
        )
    with _named(path, "restore it from a copy"):
        return check(value, kinds[value["format"]])


class _Format(TypedDict):
    format: int


@contextmanager
def _named(path: Path, advice: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{one_line(path, 100)} is damaged: {one_line(error, 150)}; {advice}") from None


def parse_json(text: str | bytes, kind: Any = Any) -> Any:
    """The value of a JSON text, which must be of this kind."""
    marks: Any = (b",", b"[", b"{") if isinstance(text, bytes) else (",", "[", "{")
    if sum(map(text.count, marks)) > MOST_VALUES:
        raise ValueError(f"it has more than {MOST_VALUES:,} values")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels") from None
    except ValueError as error:  # bytes that are not text, or text that is not JSON
        raise ValueError(f"it is not JSON ({one_line(error)})") from None
    return check(value, kind)


def check(value: Any, kind: Any, field: str = "") -> Any:
    """The value, if it is plain and of this kind; otherwise an error that says which part is not.

    kind: a type as in annotations: int, float, str, bool, None, list[...], tuple[..., ...], dict[str, ...], unions,
    literals, Annotated with a Range, a TypedDict, or a dataclass, whose fields an object must have.
    """
    _check_depth(value)
    _check(value, kind, field)
    return value


def shown(value: Any) -> str:
    """A value as a message shows it."""
    return one_line(_REPR.repr(value))


def one_line(text: object, most: int = LONGEST) -> str:
    """A text as one line of bounded length, for a message."""
    plain = " ".join(str(text)[: 10 * most].split())
    plain = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in plain)
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 40


def _check(value: Any, kind: Any, field: str) -> None:
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return
    if origin is Annotated:
        _check(value, parts[0], field)
        least, most = parts[1]
        if value is not None and not least <= value <= most:
            raise _wrong(value, f"{_name(parts[0])} from {least:,} to {most:,}", field)
    elif origin in (Union, UnionType):
        _check_union(value, parts, field)
    elif origin is Literal:
        if not any(type(value) is type(each) and value == each for each in parts):
            raise _wrong(value, _name(kind), field)
    elif origin in (list, tuple):
        if not isinstance(value, list | tuple):
            raise _wrong(value, "a list", field)
        for place, each in enumerate(value):
            _check(each, parts[0], f"{field}[{place}]")
    elif origin is dict or kind is dict:
        if not isinstance(value, dict):
            raise _wrong(value, "an object", field)
        for name, each in value.items() if parts else ():
            _check(each, parts[1], f"{field}.{name}" if field else str(name))
    elif is_typeddict(kind) or is_dataclass(kind):
        _check_object(value, kind, field)
    elif kind is float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise _wrong(value, "a number", field)
    elif not isinstance(value, NoneType if kind is None else kind) or (kind is int and isinstance(value, bool)):
        raise _wrong(value, _name(kind), field)


def _check_union(value: Any, kinds: tuple[Any, ...], field: str) -> None:
    problems = []
    for kind in kinds:
        try:
            return _check(value, kind, field)
        except ValueError as error:
            problems.append(error)
    inside = [each for each in problems if not str(each).startswith(f"{_place(field)} is ")]
    raise inside[0] if inside else _wrong(value, " or ".join(map(_name, kinds)), field)


def _check_object(value: Any, kind: Any, field: str) -> None:
    if not isinstance(value, dict):
        raise _wrong(value, "an object", field)
    hints, required, closed = _parts(kind)
    if missing := required - value.keys():
        raise ValueError(f"{_place(field)} lacks {_listed(missing)}")
    if closed and (unknown := value.keys() - hints.keys()):
        raise ValueError(f"{_place(field)} has the unknown entry {_listed(unknown)}")
    for name, hint in hints.items():
        if name in value:
            _check(value[name], hint, f"{field}.{name}" if field else name)


@cache
def _parts(kind: Any) -> tuple[dict[str, Any], frozenset[str], bool]:
    """The types of an object's entries, the names of those that it must have, and whether it may have no others."""
    hints = get_type_hints(kind, include_extras=True)
    if not is_dataclass(kind):
        optional = {name for name, hint in hints.items() if get_origin(hint) is NotRequired}
        plain = {name: get_args(hint)[0] if name in optional else hint for name, hint in hints.items()}
        return plain, frozenset(kind.__required_keys__ - optional), False
    items = [each for each in fields(kind) if each.init]
    needed = (each.name for each in items if each.default is MISSING and each.default_factory is MISSING)
    return {each.name: hints[each.name] for each in items}, frozenset(needed), True


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [
            child
            for each in level
            for child in (each.values() if isinstance(each, dict) else each if isinstance(each, list | tuple) else ())
            if isinstance(child, dict | list | tuple)
        ]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {DEEPEST} levels")


def _wrong(value: Any, expected: str, field: str) -> ValueError:
    return ValueError(f"{_place(field)} is {shown(value)}, expected {one_line(expected)}")


def _place(field: str) -> str:
    return one_line(field) if field else "its content"


def _listed(names: Iterable[str]) -> str:
    return one_line(", ".join(repr(one_line(name, 40)) for name in sorted(names)[:5]))


_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false", NoneType: "null", None: "null"}


def _name(kind: Any) -> str:
    """A type in words."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _name(parts[0])
    if origin is Literal:
        return f"one of {', '.join(map(repr, parts))}" if len(parts) > 1 else repr(parts[0])
    if origin in (list, tuple):
        return "a list"
    if origin in (Union, UnionType):
        return " or ".join(map(_name, parts))
    return _NAMES.get(kind, f"a {kind.__name__}" if kind.__name__ == "Tensor" else "an object")
