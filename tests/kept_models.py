"""Image files and comparisons for tests of models that people keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from hashroute.data import load_dataset
from support import is_here

SHAPES = ("circle", "cross", "square", "stripes")


def write_shapes(folder: Path, *shapes: str, count: int = 24, seed: int = 0, colour: bool = True) -> Path:
    """Small images of shapes at random places, in folder/SHAPE."""
    random = np.random.default_rng(seed)
    for shape in shapes:
        (folder / shape).mkdir(parents=True, exist_ok=True)
        for place in range(count):
            back, front = random.integers(0, 100, 3), random.integers(150, 255, 3)
            back, front = (back, front) if colour else (back[[0] * 3], front[[0] * 3])
            image = Image.new("RGB", (16, 16), tuple(map(int, back)))
            draw_shape(ImageDraw.Draw(image), shape, random.integers(1, 5, 2), tuple(map(int, front)))
            noisy = np.asarray(image) + random.normal(0, 6, (16, 16, 3)) * (1 if colour else 0)
            Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / shape / f"{place}.png")
    return folder


def draw_shape(draw: ImageDraw.ImageDraw, shape: str, corner: Any, colour: tuple[int, ...]) -> None:
    left, top = map(int, corner)
    box = (left, top, left + 10, top + 10)
    if shape == "circle":
        draw.ellipse(box, outline=colour, width=2)
    elif shape == "square":
        draw.rectangle(box, outline=colour, width=2)
    elif shape == "cross":
        draw.line(box, fill=colour, width=2)
        draw.line((left, top + 10, left + 10, top), fill=colour, width=2)
    else:
        for line in range(0, 12, 3):
            draw.line((left, top + line, left + 10, top + line), fill=colour)


def write_cifar(folder: Path, *labels: int, count: int = 60) -> Path | None:
    """Images of CIFAR-100 as PNG files, in folder/CLASS; None if it is not in the data folder."""
    if not is_here("cifar-100"):
        return None
    data = load_dataset("cifar-100")
    for label in labels:
        (folder / f"class {label}").mkdir(parents=True, exist_ok=True)
        rows = (data.train.labels == label).nonzero()[:count, 0]
        for place, image in enumerate(data.train.images[rows]):
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"class {label}" / f"{place}.png")
    return folder


def content(folder: Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
