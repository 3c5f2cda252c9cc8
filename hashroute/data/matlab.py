"""A reader of MATLAB 5 files: plain arrays of numbers, within bounds. scipy's reader can crash on a damaged file."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hashroute.storage import read_bounded

COMPRESSED, MATRIX = 15, 14
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
"""How numbers are stored, by the type of their element."""
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
"""What an array holds, by its class. Others (text, structures, objects, sparse arrays) are not read."""
HEADER = 128
MOST_ELEMENTS = 1000


def read_matlab(path: Path, most: int) -> dict[str, NDArray[Any]]:
    """The arrays of a file by name; of the file and of what is compressed inside, at most this many bytes are read."""
    content = memoryview(read_bounded(path, most))
    order = {b"IM": "<", b"MI": ">"}.get(bytes(content[126:HEADER]))
    if order is None or content[125 if order == "<" else 124] != 1:
        raise ValueError("it is not a MATLAB 5 file")
    found = {}
    for kind, data in _elements(content[HEADER:], order):
        if kind == COMPRESSED:
            kind, data = next(_elements(memoryview(_decompressed(data, most)), order))
        if kind == MATRIX and (named := _array(data, order)) is not None:
            found[named[0]] = named[1]
    return found


def _elements(content: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Type and data of each element. An element of up to four bytes has its size and its data in its tag."""
    place, count = 0, 0
    while place < len(content):
        count += 1
        if count > MOST_ELEMENTS:
            raise ValueError(f"it has more than {MOST_ELEMENTS} elements")
        if place + 8 > len(content):
            raise ValueError("an element has no end")
        kind, size = struct.unpack_from(f"{order}2I", content, place)
        if kind >> 16:
            kind, size, start, end = kind & 0xFFFF, kind >> 16, place + 4, place + 8
            if size > 4:
                raise ValueError("a small element is too long")
        else:
            start, end = place + 8, place + 8 + size
            if kind != COMPRESSED:
                end = start + -(-size // 8) * 8
        if start + size > len(content):
            raise ValueError(f"an element of {size:,} bytes is cut off")
        yield kind, content[start : start + size]
        place = end


def _decompressed(data: memoryview, most: int) -> bytes:
    inflate = zlib.decompressobj()
    content = inflate.decompress(data, most)
    if not inflate.eof:
        raise ValueError("compressed data is cut off" if len(content) < most else f"it holds more than {most:,} bytes")
    return content


def _array(data: memoryview, order: str) -> tuple[str, NDArray[Any]] | None:
    """Name and values of an array; None if it is not one of plain numbers."""
    parts = _elements(data, order)
    (_, flags), (_, sizes), (_, name) = (next(parts, (0, memoryview(b""))) for _ in range(3))
    if len(flags) != 8:
        raise ValueError("an array has no flags")
    flag = struct.unpack_from(f"{order}I", flags)[0]
    wanted = CLASSES.get(flag & 0xFF)
    if wanted is None or flag & 0x800:  # complex
        return None
    kind, stored = next(parts, (0, memoryview(b"")))
    shape = np.frombuffer(sizes, f"{order}i4").tolist()
    if not 2 <= len(shape) <= 8 or min(shape) < 0:
        raise ValueError(f"an array has the shape {shape[:8]}")
    if kind not in NUMBERS:
        raise ValueError(f"an array has values of the type {kind}")
    values = np.frombuffer(stored, order + NUMBERS[kind])
    if len(values) != math.prod(shape):
        raise ValueError(f"an array of the shape {shape} has {len(values):,} values")
    return bytes(name).decode("latin-1"), values.astype(wanted, copy=False).reshape(shape, order="F")
