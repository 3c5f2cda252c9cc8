"""Scenarios: every registered one keeps the promises of a scenario, and a user's own data becomes one."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from hashroute.data import DATASETS, dataset_status
from hashroute.scenarios import (
    load_scenario,
    register_scenario,
    scenario_names,
)
from hashroute.tasks import Scenario, Split, Task
from support import NEEDS

TASKS = {
    "digits": ["0 or 1", "2 or 3", "4 or 5", "6 or 7", "8 or 9"],
    "pairwise-mnist": ["0 or 1", "2 or 3", "4 or 5", "6 or 7", "8 or 9"],
    "fashion-mnist": ["Fashion", "MNIST"],
    "svhn-cifar100": ["SVHN", *(f"CIFAR {first}-{first + 9}" for first in range(0, 100, 10))],
    "split-cifar100": [f"CIFAR {first}-{first + 9}" for first in range(0, 100, 10)],
    "mixed": [
        *("SVHN", "CIFAR 0-9", "MNIST", "CIFAR 10-19", "Fashion"),
        *("CIFAR 20-29", "SVHN, part 2", "CIFAR 30-39", "MNIST, part 2", "CIFAR 40-49"),
    ],
}


def load_or_skip(name: str) -> Scenario:
    for dataset in NEEDS[name]:
        if dataset_status(dataset).missing:
            pytest.skip(f"{dataset} is not in the data folder")
    return load_scenario(name)


@pytest.fixture(scope="module", params=NEEDS)
def scenario(request: pytest.FixtureRequest) -> Scenario:
    """Each registered scenario, loaded once for all tests of it."""
    return load_or_skip(request.param)


def rows(split: Split) -> set[bytes]:
    return {image.numpy().tobytes() for image in split.images}


def test_all_are_known() -> None:
    assert set(scenario_names()) - set(NEEDS) == {"folders"}
    assert {dataset for needed in NEEDS.values() for dataset in needed} == set(DATASETS)


def test_what_a_scenario_promises(scenario: Scenario) -> None:
    assert [task.name for task in scenario.tasks] == TASKS[scenario.name]
    for task in scenario.tasks:
        for split in (task.train, task.validation, task.test):
            assert split.images.dtype == torch.uint8
            assert split.labels.unique().tolist() == list(range(task.classes))
        assert len(task.train) / len(task.validation) == pytest.approx(9, rel=0.05)
        assert len(set(task.class_names)) == task.classes


def test_nothing_is_in_two_splits_and_every_time_the_same(scenario: Scenario) -> None:
    again = load_scenario(scenario.name)
    for task, other in zip(scenario.tasks, again.tasks, strict=True):
        assert torch.equal(task.train.images, other.train.images)
        assert torch.equal(task.validation.labels, other.validation.labels)
    task = scenario.tasks[-1]
    if scenario.name == "digits":  # the large data sets hold a few images twice
        assert not rows(task.train) & rows(task.validation)
        assert not (rows(task.train) | rows(task.validation)) & rows(task.test)
    total = sum(len(part) for part in (task.train, task.validation, task.test))
    known = {"digits": 354, "pairwise-mnist": 13783, "fashion-mnist": 70000}
    assert total == known.get(scenario.name, 6000)  # of a CIFAR task


@pytest.mark.parametrize("scenario", ["split-cifar100"], indirect=True)
def test_cifar_tasks_have_their_classes(scenario: Scenario) -> None:
    assert scenario.tasks[0].class_names[0] == "apple"
    assert scenario.tasks[9].class_names[9] == "worm"
    assert scenario.tasks[3].augmentations == {"flip", "shift"}


@pytest.mark.parametrize("scenario", ["mixed"], indirect=True)
def test_the_mixed_stream_is_made_of_disjoint_parts_that_look_alike(scenario: Scenario) -> None:
    assert scenario.image_shape == (3, 32, 32)
    by_name = {task.name: task for task in scenario.tasks}
    for task in scenario.tasks:
        assert len(task.train) + len(task.validation) == 5000
    for dataset in ("SVHN", "MNIST"):
        first, second = by_name[dataset], by_name[f"{dataset}, part 2"]
        assert first.class_names == second.class_names
        assert torch.equal(first.test.images, second.test.images)
        shares = [part.train.labels.bincount() / len(part.train) for part in (first, second)]
        assert (shares[0] - shares[1]).abs().max() < 0.002
        both = (rows(first.train) | rows(first.validation)) & (rows(second.train) | rows(second.validation))
        assert len(both) <= 2  # SVHN itself holds an image twice
    digit = by_name["MNIST"].train.images
    assert torch.equal(digit[:, 0], digit[:, 2])
    assert not digit[:, :, :2].any()
    assert digit[:, :, 2:30, 2:30].any()


def test_the_digits_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    read = load_scenario("digits")
    monkeypatch.setattr(sys.modules["hashroute.scenarios.digits"], "FILE", "elsewhere")
    for task, other in zip(read.tasks, load_scenario("digits").tasks, strict=True):
        for part in ("train", "validation", "test"):
            ours, theirs = getattr(task, part), getattr(other, part)
            assert torch.equal(ours.images, theirs.images)
            assert torch.equal(ours.labels, theirs.labels)


def test_a_fraction_keeps_every_class_in_proportion() -> None:
    whole, part = load_scenario("digits"), load_scenario("digits", fraction=0.1)
    for task, small in zip(whole.tasks, part.tasks, strict=True):
        expected = [max(1, round(0.1 * int(count))) for count in task.train.labels.bincount()]
        assert small.train.labels.bincount().tolist() == expected
        assert rows(small.train) <= rows(task.train)


def test_ones_own_tensors_and_datasets() -> None:
    images = torch.rand(40, 3, 6, 6)
    labels = torch.arange(40) % 4
    tasks = [
        Task.from_data("tensors", (images, labels), (images[:8], labels[:8])),
        Task.from_data("dataset", TensorDataset(images, labels), TensorDataset(images[:8], labels[:8]), list("abcd")),
        Task.from_data(
            "split", Split((images * 255).round().byte(), labels), Split((images[:8] * 255).byte(), labels[:8])
        ),
    ]
    scenario = Scenario("mine", tuple(tasks))
    assert scenario.image_shape == (3, 6, 6)
    assert torch.equal(tasks[0].train.images, tasks[1].train.images)
    assert torch.equal(tasks[0].train.images, tasks[2].train.images)
    assert tasks[0].class_names == ("tensors: 0", "tensors: 1", "tensors: 2", "tensors: 3")
    assert scenario.images == [[36, 4, 8]] * 3
    assert scenario.sizes() == "images to train on / validate / test: tensors to split (each) 36 / 4 / 8"
    larger = replace(tasks[0], name="larger", test=tasks[0].train)
    assert (
        Scenario("mine", (larger, *tasks)).sizes().endswith(": larger 36 / 4 / 36; tensors to split (each) 36 / 4 / 8")
    )


def test_arrays_and_pillow_images_are_data_too() -> None:
    pixels = np.arange(20 * 6 * 5 * 3).reshape(20, 6, 5, 3).astype(np.uint8)
    labels = np.arange(20) % 2
    arrays = Task.from_data("arrays", (pixels.transpose(0, 3, 1, 2), labels), (pixels.transpose(0, 3, 1, 2), labels))
    pairs = [(Image.fromarray(image), int(label)) for image, label in zip(pixels, labels, strict=True)]
    pictures = Task.from_data("pictures", pairs, pairs)
    assert arrays.train.images.shape[1:] == (3, 6, 5)
    assert torch.equal(arrays.train.images, pictures.train.images)


def test_every_class_is_held_out_however_small() -> None:
    labels = torch.tensor([0] * 200 + [1] * 4 + [2] * 2)
    task = Task.from_data("uneven", (torch.rand(206, 1, 2, 2), labels), (torch.rand(206, 1, 2, 2), labels))
    assert task.validation.labels.bincount().tolist() == [20, 1, 1]
    assert task.train.labels.bincount().tolist() == [180, 3, 1]


BAD = {
    "unknown": (lambda: load_scenario("imagenet"), "there is no scenario 'imagenet': expected one of digits, "),
    "fraction": (lambda: load_scenario("digits", fraction=0), "fraction is 0: expected a number above 0, up to 1"),
    "twice": (lambda: register_scenario("digits")(lambda: None), "there is a scenario 'digits' already"),
    "no tasks": (lambda: Scenario("mine", ()), "scenario 'mine' has no tasks"),
    "range": (lambda: task(images=torch.rand(20, 1, 4, 4) * 9), "of task 'mine' go from .* expected numbers from"),
    "labels": (lambda: task(names=["a"]), "labels of task 'mine' go from 0 to 1: expected 0 to 0"),
    "few": (lambda: task(images=torch.rand(3, 1, 4, 4)), "class 1 of 'mine' has one image: expected at least two"),
    "nan": (lambda: task(images=torch.full((20, 1, 4, 4), float("nan"))), "of task 'mine' go from nan to nan"),
    "counts": (lambda: own(torch.rand(9, 1, 4, 4), torch.zeros(8)), "the data of task 'mine' cannot be used"),
    "part labels": (lambda: own(torch.rand(9, 1, 4, 4), torch.arange(9) % 2 + 0.5), "labels .* are torch.float"),
    "one-hot": (lambda: own(torch.rand(9, 1, 4, 4), torch.eye(9)[:, :2].long()), r"torch.int64 of shape \(.*, 2\)"),
    "words": (lambda: own(torch.rand(2, 1, 4, 4), ["cat", "dog"]), "the data of task 'mine' cannot be used"),
    "sizes": (lambda: Task.from_data("mine", [(np.zeros((1, n, 4)), 0) for n in (4, 5)], []), "cannot be used"),
    "nothing": (lambda: Task.from_data("mine", [], []), "the data of task 'mine' cannot be used"),
    "none": (lambda: Task.from_data("mine", None, None), "the data of task 'mine' cannot be used"),
    "empty": (lambda: own(torch.zeros(0, 1, 4, 4), torch.zeros(0)), "0 images and 0 labels"),
    "number": (lambda: replace(task(), name=7), "a task has the name 7: expected text, such as '7'"),
    "augmentation": (lambda: task(augmentations=["rotate"]), r"\['rotate'\]: expected some of flip, shift"),
    "no folder": (lambda: load_scenario("folders"), "scenario 'folders' cannot be made with no options: missing"),
    "option": (lambda: load_scenario("digits", size=3), "cannot be made with {'size': 3}: got an unexpected"),
    "shapes": (lambda: task(test=torch.rand(4, 1, 5, 5)), "task 'mine' has images of different shapes"),
    "other shape": (lambda: Scenario("x", (task(), task(torch.rand(20, 3, 4, 4)))), "the tasks before it of"),
}  # fmt: skip


def own(images: object, labels: object) -> Task:
    return Task.from_data("mine", (images, labels), (images, labels), ["a", "b"])


def task(
    images: torch.Tensor | None = None,
    test: torch.Tensor | None = None,
    names: list[str] | None = None,
    augmentations: tuple[str, ...] = (),
) -> Task:
    images = torch.rand(20, 1, 4, 4) if images is None else images
    test = images[:4] if test is None else test
    return Task.from_data(
        "mine", (images, torch.arange(len(images)) % 2), (test, torch.arange(len(test)) % 2), names, augmentations
    )


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_one_clear_line(case: str) -> None:
    make, message = BAD[case]
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


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


def test_folders_of_images(album: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        scenario = load_scenario("folders", folder=album, size=16)
    assert [task.name for task in scenario.tasks] == ["1-pets", "2-cars"]
    assert scenario.image_shape == (3, 16, 16)
    pets = scenario.tasks[0]
    assert pets.class_names == ("cat", "dog")
    assert sum(len(split) for split in (pets.train, pets.validation, pets.test)) == 59
    left_out = [record.getMessage() for record in caplog.records]
    assert len(left_out) == 2
    assert any("notes.txt is left out" in line for line in left_out)
    assert any("0.png is left out" in line for line in left_out)
    for split in (pets.train, pets.test):
        assert (split.images.float().mean((1, 2, 3)) > 100).long().equal(split.labels)


def test_folders_read_images_as_a_person_sees_them(tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    ramp = np.linspace(0, 65535, 32 * 32).reshape(32, 32).astype(np.uint16)
    sideways = Image.fromarray(np.repeat(np.linspace(0, 255, 32).astype(np.uint8)[None], 32, 0))
    turned = Image.Exif()
    turned[0x0112] = 6  # rotate by 90 degrees
    for name, other in (("deep", "clear"), ("turned", "plain")):
        for number in range(6):
            for class_name in (name, other):
                (folder / name / class_name).mkdir(parents=True, exist_ok=True)
            if name == "deep":
                Image.fromarray(ramp).save(folder / name / name / f"{number}.png")
                hidden = Image.new("RGBA", (32, 32), (255, 0, 0, 0))
                hidden.save(folder / name / other / f"{number}.png")
            else:
                sideways.save(folder / name / name / f"{number}.png", exif=turned)
                sideways.save(folder / name / other / f"{number}.png")
    deep, exif = load_scenario("folders", folder=folder, size=32).tasks
    clear, ramps = (deep.train.images[deep.train.labels == label].float() for label in (0, 1))
    assert (clear == 255).all()
    assert ramps.mean() == pytest.approx(127, abs=1)
    plain, rotated = (exif.train.images[exif.train.labels == label][0, 0] for label in (0, 1))
    assert torch.equal(rotated, torch.rot90(plain, -1))


def test_folders_in_grey(album: Path) -> None:
    assert load_scenario("folders", folder=str(album), size=8, colour=False).image_shape == (1, 8, 8)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda album: album / "nowhere", "nowhere is not a folder"),
        (lambda album: album / "1-pets" / "cat", "cat holds no folder: expected one for each task"),
        (lambda album: album.joinpath("3-empty", "nothing").mkdir(parents=True) or album, "holds no image"),
        (lambda album: album.joinpath("3-empty").mkdir() or album, "3-empty has 0 class folders"),
    ],
)  # fmt: skip
def test_folders_that_are_not_a_scenario(album: Path, spoil: object, message: str) -> None:
    folder = spoil(album)
    with pytest.raises(ValueError, match=message):
        load_scenario("folders", folder=folder)
