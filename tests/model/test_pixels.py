"""Images of any kind get the shape that a model takes, or one line says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hashroute.model.pixels import as_images, fit_images, open_files, prediction_images
from support import assert_one_clear_line

RED = torch.tensor([200, 0, 0], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 8, 8)


def test_channels_are_those_of_the_model() -> None:
    half = torch.cat([RED, torch.full((1, 1, 8, 8), 51, dtype=torch.uint8)], 1)  # a fifth of it is opaque
    assert fit_images(half, (3, 8, 8))[0, :, 0, 0].tolist() == [244, 204, 204]
    assert fit_images(RED, (1, 8, 8))[0, :, 0, 0].tolist() == [60], "as bright as red looks"
    assert fit_images(RED[:, :1], (3, 8, 8))[0, :, 0, 0].tolist() == [200] * 3
    assert_one_clear_line(lambda: fit_images(RED[:, :2], (3, 8, 8)), "images have 2 channels: the model takes 3")


def test_images_are_resized() -> None:
    image = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8)
    assert fit_images(image, (1, 4, 4)).shape == (1, 1, 4, 4)
    assert fit_images(image, (1, 8, 8)) is image
    assert fit_images(image, (1, 1, 1)).item() == pytest.approx(31.5, abs=1)


def test_arrays_of_every_layout_are_the_same_images() -> None:
    expected = torch.randint(0, 256, (2, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    last = expected.movedim(1, -1)
    for given in (expected, last, last.numpy(), expected.long(), expected.double() / 255):
        assert torch.equal(as_images(given), expected)
    assert torch.equal(as_images(expected[:, 0]), expected[:, :1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros((2, 8, 8), bool), "images are torch.bool: expected a plain tensor of uint8"),
        (np.zeros((0, 3, 8, 8)), r"images have the shape \(0, 3, 8, 8\): expected at least one with pixels"),
        (np.zeros((8, 8)), r"images have the shape \(8, 8\): expected \(number, channels"),
        (np.zeros((2, 3, 8, 3)), "which can be read in two ways"),
        (np.full((2, 8, 8), 300), "pixels range from 300 to 300: expected 0 to 255"),
    ],
)
def test_what_is_no_image_is_one_line(given: Any, message: str) -> None:
    assert_one_clear_line(lambda: as_images(given), message)


def test_predict_takes_one_image_or_several(tmp_path: Path) -> None:
    picture = Image.fromarray(np.full((8, 8, 3), 7, np.uint8))
    picture.save(tmp_path / "seven.png")
    array = np.asarray(picture)
    path = tmp_path / "seven.png"
    for given in (path, str(path), [path, path], picture, [picture, picture], array.transpose(2, 0, 1), [array, array]):
        found = prediction_images(given, (3, 8, 8))
        assert len(found) == (2 if isinstance(given, list) else 1)
        assert bool((found[:] == 7).all())
    for wrong, message in ((5, "images are a int: expected paths"), ([], "there are no images to predict")):
        assert_one_clear_line(lambda wrong=wrong: prediction_images(wrong, (3, 8, 8)), message)
    assert_one_clear_line(lambda: open_files([path], (2, 8, 8)), r"takes images of the shape \(2, 8, 8\)")
