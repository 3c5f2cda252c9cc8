"""Images and a server that several tests share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hashroute.cli import main
from kept_models import write_shapes
from served import Server, running


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of image files, and a model that has learned one of them."""
    folder = tmp_path_factory.mktemp("images")
    write_shapes(folder / "round", "circle", "cross", count=12)
    write_shapes(folder / "straight", "square", "stripes", count=8, seed=1)
    assert main(["learn", str(folder / "model"), str(folder / "round"), "--epochs", "3"]) == 0
    return folder


@pytest.fixture(scope="module")
def server(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a model of one task."""
    with running(Path(shutil.copytree(images / "model", tmp_path_factory.mktemp("served") / "model"))) as found:
        yield found
