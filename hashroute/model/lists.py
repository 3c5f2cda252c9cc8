"""Lists of image files with labels: CSV, JSON lines and Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hashroute.schema import one_line, parse_json
from hashroute.storage import read_bounded

MOST_BYTES = 2**28
"""A larger list is not read."""
LISTS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
"""Endings of lists."""
PATHS = ("path", "file", "file_name", "filename", "image", "image_path")
LABELS = ("label", "class", "class_name", "target", "category")
SPLITS = ("split", "subset", "set")


class Listed(NamedTuple):
    """One line of a list."""

    path: str
    label: str
    split: str
    """In lower case; "" if the list has no splits."""


def read_list(path: Path) -> list[Listed]:
    """The files of a list, with their labels. Columns are found by name, whatever their order."""
    readers = {".csv": _csv, ".tsv": _csv, ".parquet": _parquet}
    try:
        rows = list(readers.get(path.suffix.lower(), _json_lines)(path))
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8: expected a list of files with labels") from None
    except csv.Error as error:
        raise ValueError(f"{path} is not a list of files with labels ({error}): expected CSV") from None
    if not rows:
        raise ValueError(f"{path} lists no files: expected a path and a label on every line")
    where, what = _column(rows[0], PATHS, path), _column(rows[0], LABELS, path)
    split = next((name for name in SPLITS if name in rows[0]), None)
    listed = []
    for number, row in enumerate(rows, 1):
        file, label = row.get(where), row.get(what)
        if file in (None, "") or label in (None, ""):
            raise ValueError(f"entry {number} of {path} lacks a path or a label: expected both")
        listed.append(Listed(str(file), str(label), str(row.get(split) or "").strip().lower() if split else ""))
    return listed


def _column(row: dict[str, Any], names: tuple[str, ...], path: Path) -> str:
    found = next((name for name in names if name in row), None)
    if found is None:
        columns = one_line(", ".join(map(str, row)), 100)
        raise ValueError(f"{path} has the columns {columns}: expected one of {', '.join(names)}")
    return found


def _csv(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of a CSV file. Without a header, paths come first and labels second."""
    text = read_bounded(path, MOST_BYTES).decode("utf-8-sig")
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    lines = [line for line in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if line]
    if not lines:
        return
    header = [name.strip().lower() for name in lines[0]]
    if not set(header) & {*PATHS, *LABELS}:
        header, lines = ["path", "label", "split"][: len(lines[0])], [[], *lines]
    for line in lines[1:]:
        yield dict(zip(header, (cell.strip() for cell in line), strict=False))


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(read_bounded(path, MOST_BYTES).decode("utf-8").splitlines(), 1):
        if line.strip():
            try:
                yield parse_json(line, dict)
            except ValueError:
                raise ValueError(f"line {number} of {path} is not a JSON object: expected a path and a label") from None


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ValueError(
            f"{path} needs pyarrow: pip install 'hashroute[parquet]', or convert the list to CSV"
        ) from None
    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except Exception as error:
        raise ValueError(f"{path} cannot be read as Parquet ({' '.join(str(error).split())[:100]})") from None
    yield from rows
