"""A checkpoint from a stranger: refused in one line, before it takes memory or time."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from hashroute.learners.checkpoints import pack, unpack


def repeated(depth: int) -> list[Any]:
    """A list of few lists that has 10**depth values."""
    values: list[Any] = [0]
    for _ in range(depth):
        values = [values] * 10
    return values


@pytest.mark.parametrize(
    "value",
    [repeated(12), torch.zeros(1).expand(2**40), {"a": [torch.zeros(1).expand(2**20)] * 100}],
    ids=["lists of lists", "expanded", "expanded a little, often"],
)
def test_values_that_are_more_than_they_seem_are_refused(value: Any, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({"value": value, "format": 5, "digest": ""}, path)
    with pytest.raises(ValueError, match="is not a checkpoint"):
        unpack(path)


def test_what_would_unpack_to_more_than_it_is_is_refused(tmp_path: Path) -> None:
    path, bomb = tmp_path / "checkpoint.pt", tmp_path / "bomb.pt"
    path.write_bytes(pack({"value": torch.zeros(2**20)}))
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as small:
        for name in whole.namelist():
            small.writestr(name, whole.read(name))
    assert bomb.stat().st_size < path.stat().st_size / 100
    assert unpack(path)["value"].numel() == 2**20
    with pytest.raises(ValueError, match="is not a checkpoint"):
        unpack(bomb)
