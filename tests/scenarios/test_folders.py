"""folders: a user's own image files become tasks, as a person sees them, in memory or not."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hashroute.data.photos import LISTED, Photos, open_photos, read_photo
from hashroute.images import Images
from hashroute.model.sources import open_sources
from hashroute.scenarios import folders as folders_module
from hashroute.scenarios import load_scenario


def save_image(path: Path, mode: str, size: tuple[int, int], value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = {"L": (), "RGB": (3,), "RGBA": (4,)}[mode]
    image = Image.fromarray(np.full((*size[::-1], *channels), value, np.uint8))
    if mode == "RGBA":
        image.putalpha(255)
    image.save(path)


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """Two tasks of two classes, in several formats and sizes, with a broken file and a hidden one."""
    for number in range(30):
        mode, ending = [("RGB", "png"), ("L", "jpg"), ("RGBA", "png"), ("RGB", "bmp")][number % 4]
        for task_name, class_name, value in (
            ("1-pets", "cat", 10),
            ("1-pets", "dog", 200),
            ("2-cars", "a", 50),
            ("2-cars", "b", 90),
        ):
            save_image(tmp_path / task_name / class_name / f"{number}.{ending}", mode, (20 + number, 30), value)
    (tmp_path / "1-pets" / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "1-pets" / "cat" / ".hidden").write_text("nor this")
    truncated = tmp_path / "1-pets" / "dog" / "0.png"
    truncated.write_bytes(truncated.read_bytes()[:40])
    (tmp_path / "readme.txt").write_text("beside the tasks")
    return tmp_path


@pytest.mark.parametrize("limit", [2**20, 0], ids=["in memory", "on disk"])
def test_folders_of_images(
    album: Path, limit: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders_module, "IN_MEMORY", limit)
    with caplog.at_level(logging.WARNING):
        scenario = load_scenario("folders", folder=album, size=16)
    assert [task.name for task in scenario.tasks] == ["1-pets", "2-cars"]
    assert scenario.image_shape == (3, 16, 16)
    pets = scenario.tasks[0]
    assert pets.class_names == ("cat", "dog")
    assert [len(pets.train), len(pets.validation), len(pets.test)] == [43, 4, 12]
    (warning,) = (record.getMessage() for record in caplog.records)
    assert warning.startswith("2 of 61 files are left out: ")
    assert "cat/notes.txt cannot be read as an image (it is something else" in warning
    assert "dog/0.png cannot be read as an image (" in warning
    for split in (pets.train, pets.validation, pets.test):
        assert isinstance(split.images, Images) == (limit == 0)
        assert (split.images[:].float().mean((1, 2, 3)) > 100).long().equal(split.labels)


def test_pipes_and_devices_among_images_are_left_out(album: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(album / "1-pets" / "cat" / "pipe.png")
    (album / "1-pets" / "dog" / "device.png").symlink_to("/dev/zero")
    with caplog.at_level(logging.WARNING):
        scenario = load_scenario("folders", folder=album, size=16)
    (warning,) = (record.getMessage() for record in caplog.records)
    assert warning.startswith("4 of 63 files are left out: ")
    assert sum(scenario.images[0]) == 59
    (source,) = open_sources(album / "1-pets")
    assert not {"pipe.png", "device.png"} & {Path(file).name for file in source.images}


def test_on_disk_and_in_memory_are_the_same_images(album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = load_scenario("folders", folder=album, size=16)
    monkeypatch.setattr(folders_module, "IN_MEMORY", 0)
    for there, here in zip(load_scenario("folders", folder=album, size=16).tasks, kept.tasks, strict=True):
        for part in ("train", "validation", "test"):
            assert torch.equal(getattr(there, part).images[:], getattr(here, part).images)
            assert torch.equal(getattr(there, part).labels, getattr(here, part).labels)


def test_a_file_that_disappears_is_named(album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders_module, "IN_MEMORY", 0)
    cars = load_scenario("folders", folder=album, size=16).tasks[1]
    for file in album.glob("2-cars/a/*"):
        file.unlink()
    with pytest.raises(ValueError, match=r"2-cars/a/.* cannot be read as an image \(it is not a file\)"):
        cars.train.images[:]


def test_many_unreadable_files_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = [tmp_path / f"{number}.jpg" for number in range(50)]
    for number, file in enumerate(files):
        file.write_text("no image") if number % 2 else save_image(file, "RGB", (9, 9), number)
    split = open_photos(Photos(files, 4), torch.arange(50), in_memory=True)
    assert split.labels.tolist() == list(range(0, 50, 2))
    assert split.images.float().mean((1, 2, 3)).sub(split.labels).abs().max() < 2
    (warning,) = (record.getMessage() for record in caplog.records)
    assert warning.startswith("25 of 50 files are left out: ")
    assert warning.count("cannot be read") == LISTED
    assert warning.endswith("; and 15 more")


def sideways(path: Path, orientation: int) -> Path:
    ramp = Image.fromarray(np.repeat(np.linspace(0, 255, 32).astype(np.uint8)[None], 32, 0))
    exif = Image.Exif()
    exif[0x0112] = orientation
    ramp.save(path, exif=exif)
    return path


def test_a_camera_s_orientation_is_applied(tmp_path: Path) -> None:
    plain = torch.from_numpy(read_photo(sideways(tmp_path / "plain.png", 1), 32).copy())
    turned = torch.from_numpy(read_photo(sideways(tmp_path / "turned.png", 6), 32).copy())
    assert not torch.equal(plain, turned)
    assert torch.equal(turned, torch.rot90(plain, -1, (1, 2)))


def test_transparent_pixels_are_white_and_sixteen_bits_become_eight(tmp_path: Path) -> None:
    Image.new("RGBA", (32, 32), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert (read_photo(tmp_path / "clear.png", 16) == 255).all()
    ramp = np.linspace(0, 65535, 32 * 32).reshape(32, 32).astype(np.uint16)
    Image.fromarray(ramp).save(tmp_path / "deep.png")
    deep = read_photo(tmp_path / "deep.png", 32)
    assert np.array_equal(deep[0], ramp >> 8)


def test_a_large_photograph_looks_like_itself_when_it_is_small(tmp_path: Path) -> None:
    ramp = np.add.outer(np.linspace(0, 120, 1200), np.linspace(0, 120, 1600)).astype(np.uint8)
    Image.fromarray(ramp).convert("RGB").save(tmp_path / "large.jpg", quality=95)
    small = Image.fromarray(ramp).resize((24, 24), Image.Resampling.BILINEAR)
    difference = read_photo(tmp_path / "large.jpg", 24).astype(int) - np.asarray(small).astype(int)
    assert abs(difference).max() <= 3


def test_folders_in_grey(album: Path) -> None:
    assert load_scenario("folders", folder=str(album), size=8, colour=False).image_shape == (1, 8, 8)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda album: album / "nowhere", "nowhere is not a folder"),
        (lambda album: album / "1-pets" / "cat", "cat contains no folder: expected one for each task"),
        (lambda album: [f.unlink() for f in album.glob("1-pets/cat/*")] and album, "cat contains no image: expected"),
        (lambda album: album.joinpath("3-empty").mkdir() or album, "3-empty has 0 class folders"),
    ],
)  # fmt: skip
def test_folders_that_are_not_a_scenario(album: Path, spoil: object, message: str) -> None:
    folder = spoil(album)
    with pytest.raises(ValueError, match=message):
        load_scenario("folders", folder=folder)


def test_a_size_of_nothing_is_refused(album: Path) -> None:
    with pytest.raises(ValueError, match="size is 0: expected at least 1"):
        load_scenario("folders", folder=album, size=0)


@pytest.mark.parametrize("limit", [2**20, 0], ids=["in memory", "on disk"])
def test_a_digest_tells_other_images_of_the_same_names(
    album: Path, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders_module, "IN_MEMORY", limit)
    before, again = (load_scenario("folders", folder=album, size=16).digest for _ in range(2))
    assert before == again
    save_image(album / "1-pets" / "cat" / "8.png", "RGB", (28, 30), 11)
    assert load_scenario("folders", folder=album, size=16).digest != before
