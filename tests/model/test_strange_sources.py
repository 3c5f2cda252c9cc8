"""What lies among images, or in a list of them, never stops or hurts a command: it is left out, or one clear line."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hashroute import Task
from hashroute.data.photos import read_photo
from hashroute.model.sources import open_sources
from support import assert_one_clear_line


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of four images each."""
    for place in range(8):
        (tmp_path / "task" / "ab"[place % 2]).mkdir(parents=True, exist_ok=True)
        pixels = np.full((8, 8, 3), 10 * place, np.uint8)
        Image.fromarray(pixels).save(tmp_path / "task" / "ab"[place % 2] / f"{place}.png")
    return tmp_path / "task"


def test_a_pipe_in_a_list_is_left_out(folder: Path, tmp_path: Path) -> None:
    os.mkfifo(folder / "pipe")
    os.symlink("/dev/zero", folder / "device")
    images = [*folder.glob("*/*.png")]
    lines = [f"{file.relative_to(tmp_path)},{file.parent.name}" for file in images]
    (tmp_path / "list.csv").write_text("\n".join(["path,label", "task/pipe,a", "task/device,b", *lines]))
    (source,) = open_sources(tmp_path / "list.csv")
    assert source.size() == 8
    task, problems = source.task("t", (3, 8, 8))
    assert len(task.train) + len(task.validation) == len(images)
    assert len(problems) == 2
    assert all("it is not a file" in problem for problem in problems)


def test_links_that_lead_back_are_not_followed(folder: Path) -> None:
    for name in ("one", "two", "three"):
        os.symlink(folder, folder / "a" / name)
        os.symlink(folder / "b", folder / "b" / name)
    (source,) = open_sources(folder)
    assert len(source.labels) == 8


NONSENSE = [b"path,label\n" + b"x" * 200_000, b"[" * 100_000, b"\xff\xfe\x00", b'path,label\na,"b\0\n', b"", b"\n\n"]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_list_of_nonsense_is_one_line(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"list.{ending}"
    for content in NONSENSE:
        path.write_bytes(content)
        assert_one_clear_line(lambda: open_sources(path)[0].size(), str(tmp_path))
    with open(path, "wb") as file:
        file.truncate(2**30)
    assert_one_clear_line(lambda: open_sources(path), "has 1,073,741,824 bytes: expected at most")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"path": "a.png", "label": "one", "split": "y" * 5000}, "has the split 'yyy"),
        ({"y" * 5000: "a.png", "\n" * 50: "one"}, "has the columns yyy"),
        ({"path": "y" * 5000, "label": "one"}, "and other files cannot be read as images"),
    ],
)
def test_a_list_with_long_entries_is_one_line(line: dict[str, str], message: str, tmp_path: Path) -> None:
    (tmp_path / "list.jsonl").write_text(json.dumps(line))
    assert_one_clear_line(lambda: open_sources(tmp_path / "list.jsonl")[0].size(), message)


def png(path: Path, side: int) -> Path:
    """A PNG file with so many pixels, all white, in few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    head = side.to_bytes(4, "big") * 2 + b"\1\0\0\0\0"
    rows = zlib.compress(b"\0" * ((side + 7) // 8 + 1) * side, 9)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))
    return path


def test_an_image_of_too_many_pixels_is_not_decoded(tmp_path: Path) -> None:
    assert read_photo(png(tmp_path / "small.png", 100), 8).shape == (3, 8, 8)
    assert_one_clear_line(lambda: read_photo(png(tmp_path / "large.png", 8000), 8), "8,000 x 8,000 pixels, expected")


def test_formats_that_start_programs_are_not_read(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.eps")
    shutil.copy(tmp_path / "a.eps", tmp_path / "a.png")
    for name in ("a.eps", "a.png"):
        assert_one_clear_line(lambda name=name: read_photo(tmp_path / name, 8), "it is something else")


def test_large_labels_take_no_memory() -> None:
    images = torch.zeros(8, 1, 8, 8, dtype=torch.uint8)
    labels = torch.tensor([0, 10**9] * 4)
    task = Task.from_data("far apart", (images, labels), (images, labels))
    assert task.class_names == ("far apart: 0", "far apart: 1000000000")


def test_a_tilde_that_names_nobody_is_part_of_a_name(tmp_path: Path) -> None:
    listed = tmp_path / "list.csv"
    listed.write_text("path,label\n~nobody.png,one\n~.png,two\n")
    (source,) = open_sources(listed)
    assert [Path(file).name for file in source.images] == ["~nobody.png", "~.png"]
