"""A user's own images and labels become a task, and a mistake in them is one clear line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from hashroute import user_data
from hashroute.images import Images
from hashroute.tasks import Scenario, Split, Task
from support import assert_one_clear_line

PIXELS = torch.randint(256, (40, 3, 6, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(40) % 4


class Slides(Dataset[tuple[Any, int]]):
    """A Dataset of Pillow images; `seen` has the rows that were read."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __len__(self) -> int:
        return len(PIXELS)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        self.seen.append(row)
        return Image.fromarray(PIXELS[row].permute(1, 2, 0).numpy()), int(LABELS[row])


class LabelledSlides(Slides):
    """The same, with the labels beside the images."""

    targets = LABELS.tolist()


SOURCES: dict[str, Callable[[], Any]] = {
    "tensors": lambda: (PIXELS, LABELS),
    "floating point": lambda: (PIXELS / 255, LABELS),
    "arrays": lambda: (PIXELS.numpy(), LABELS.numpy().astype(np.uint8)),
    "read-only array": lambda: (np.frombuffer(PIXELS.numpy().tobytes(), np.uint8).reshape(PIXELS.shape), LABELS),
    "lists": lambda: ([image.numpy() for image in PIXELS], LABELS.tolist()),
    "pairs": lambda: list(zip(PIXELS, LABELS.tolist(), strict=True)),
    "iterator": lambda: zip(PIXELS / 255, LABELS, strict=True),
    "TensorDataset": lambda: TensorDataset(PIXELS / 255, LABELS),
    "Pillow": Slides,
    "Subset": lambda: Subset(Slides(), range(40)),
    "split": lambda: Split(PIXELS, LABELS),
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_kind_of_data_gives_the_same_task(source: str) -> None:
    task = Task.from_data("mine", SOURCES[source](), SOURCES[source]())
    expected = Task.from_data("mine", (PIXELS, LABELS), (PIXELS, LABELS))
    for part in ("train", "validation", "test"):
        assert torch.equal(getattr(task, part).images, getattr(expected, part).images)
        assert torch.equal(getattr(task, part).labels, getattr(expected, part).labels)
    assert task.class_names == ("mine: 0", "mine: 1", "mine: 2", "mine: 3")
    assert [len(task.train), len(task.validation), len(task.test)] == [36, 4, 40]


@pytest.mark.parametrize("kind", [Slides, LabelledSlides, lambda: Subset(LabelledSlides(), list(range(40)))])
def test_a_large_dataset_stays_where_it_is(kind: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_data, "IN_MEMORY", PIXELS.numel() - 1)
    dataset = kind()
    task = Task.from_data("mine", dataset, (PIXELS, LABELS))
    slides = getattr(dataset, "dataset", dataset)
    assert slides.seen == ([0] if isinstance(slides, LabelledSlides) else [0, *range(40)]), "labels are stored or read"
    expected = Task.from_data("mine", (PIXELS, LABELS), (PIXELS, LABELS))
    for part in ("train", "validation"):
        found = getattr(task, part)
        assert isinstance(found.images, Images)
        assert torch.equal(found.images[:], getattr(expected, part).images)
        assert torch.equal(found.labels, getattr(expected, part).labels)


def test_stored_labels_are_not_used_where_a_transform_changes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Changed(LabelledSlides):
        targets = [7] * 40
        target_transform = staticmethod(lambda label: label)

    monkeypatch.setattr(user_data, "IN_MEMORY", 0)
    assert Task.from_data("mine", Changed(), (PIXELS, LABELS)).train.labels.unique().tolist() == [0, 1, 2, 3]


def test_an_error_in_a_dataset_names_the_item(monkeypatch: pytest.MonkeyPatch) -> None:
    class Torn(LabelledSlides):
        def __getitem__(self, row: int) -> tuple[Any, int]:
            if row == 7:
                raise KeyError("page 7")
            return super().__getitem__(row)

    monkeypatch.setattr(user_data, "IN_MEMORY", 0)
    task = Task.from_data("mine", Torn(), (PIXELS, LABELS))
    with pytest.raises(ValueError, match=r"item 7 of the Torn cannot be read \(KeyError: 'page 7'\)"):
        task.train.images[:]


def test_any_labels_are_classes() -> None:
    labels = torch.tensor([5, 10**12, 700, 5])[LABELS]
    task = Task.from_data("mine", (PIXELS, labels), (PIXELS[:2], labels[:2]))
    assert task.class_names == ("mine: 5", "mine: 700", "mine: 1000000000000")
    assert task.test.labels.tolist() == [0, 2]


def test_every_class_is_held_out_however_small() -> None:
    labels = torch.tensor([0] * 200 + [1] * 4 + [2] * 2)
    task = Task.from_data("uneven", (torch.rand(206, 1, 4, 4), labels), (torch.rand(206, 1, 4, 4), labels))
    assert task.validation.labels.bincount().tolist() == [20, 1, 1]
    assert task.train.labels.bincount().tolist() == [180, 3, 1]


def test_short_descriptions() -> None:
    tasks = [Task.from_data(name, (PIXELS, LABELS), (PIXELS[:8], LABELS[:8])) for name in ("a", "b")]
    scenario = Scenario("mine", [replace(tasks[0], name="larger", test=tasks[0].train), *tasks])
    assert repr(scenario) == "Scenario('mine': 3 tasks, images of (3, 6, 5))"
    assert repr(tasks[0]) == "Task('a': 4 classes, 36 / 4 / 8 images of (3, 6, 5) to train / validate / test)"
    assert repr(tasks[0].test) == "Split(8 images of (3, 6, 5))"
    assert scenario.images == [[36, 4, 36], [36, 4, 8], [36, 4, 8]]
    assert scenario.sizes() == "images to train on / validate / test: larger 36 / 4 / 36; a to b (each) 36 / 4 / 8"


def own(images: Any, labels: Any, names: Any = ("a", "b")) -> Task:
    return Task.from_data("mine", (images, labels), (images, labels), names)


def some(count: int = 20, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(count, *(shape or (1, 4, 4))), torch.arange(count) % 2


def task(**changes: Any) -> Task:
    return replace(own(*some()), **changes)


USE = "the train data of task 'mine' cannot be used: "
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "no tasks": (lambda: Scenario("mine", ()), "scenario 'mine' has no tasks: expected at least one"),
    "one task": (lambda: Scenario("mine", task()), "the tasks of scenario 'mine' are not a list of Task"),
    "splits": (lambda: Scenario("mine", [task().train]), "the tasks of scenario 'mine' are not a list of Task"),
    "pixels": (lambda: own(torch.rand(20, 1, 4, 4) * 9, LABELS[:20] % 2), USE + "pixels range from .* expected 0 to 1"),
    "nan": (lambda: own(torch.full((20, 1, 4, 4), float("nan")), LABELS[:20] % 2), USE + "pixels range from nan to na"),
    "dtype": (lambda: own(torch.zeros(20, 1, 4, 4).int(), LABELS[:20] % 2), "are torch.int32: expected torch.uint8"),
    "names": (lambda: own(*some(), ["a"]), "train labels of task 'mine' go from 0 to 1: expected 0 to 0"),
    "text as names": (lambda: own(*some(), "ab"), "the class names of task 'mine' are text: expected a list"),
    "few": (lambda: own(*some(3)), "class 1 of 'mine' has one image: expected at least two"),
    "counts": (lambda: own(torch.rand(9, 1, 4, 4), torch.zeros(8)), USE + "it has 9 images and 8 labels"),
    "part labels": (lambda: own(torch.rand(9, 1, 4, 4), torch.arange(9) % 2 + 0.5), "labels .* are torch.float"),
    "one-hot": (lambda: own(torch.rand(9, 1, 4, 4), torch.eye(9)[:, :2].long()), r"torch.int64 of shape \(.*, 2\)"),
    "words": (lambda: own(torch.rand(2, 1, 4, 4), ["cat", "dog"]), USE + "labels are <U3, expected whole numbers"),
    "negative": (lambda: own(PIXELS, LABELS - 1, None), "train labels of task 'mine' contain -1: expected"),
    "new class": (lambda: Task.from_data("mine", (PIXELS, LABELS), (PIXELS, LABELS + 1)), "test .* contain 4, which"),
    "sizes": (lambda: Task.from_data("mine", [(np.zeros((1, n, 4)), 0) for n in (4, 5)], []), USE + "image 1 has the"),
    "nothing": (lambda: Task.from_data("mine", [], []), USE + "it has no images"),
    "none": (lambda: Task.from_data("mine", None, None), USE + "it is a NoneType, expected"),
    "images alone": (lambda: Task.from_data("mine", PIXELS, PIXELS), USE + "it is a Tensor, expected .images, labels."),
    "three": (lambda: Task.from_data("mine", (PIXELS,) * 3, ()), USE + "it is a tuple, expected .images, labels."),
    "a task": (lambda: Task.from_data("mine", task(), task()), USE + "it is a Task, expected"),
    "a loader": (lambda: Task.from_data("mine", DataLoader(Slides()), ()), USE + "it is a DataLoader.*loader.dataset"),
    "dicts": (lambda: Task.from_data("mine", [{"image": 1}], []), USE + "item 0 is a dict, expected a pair"),
    "float label": (lambda: Task.from_data("mine", [(PIXELS[0], 0.5)], []), USE + "the label of item 0 is 0.5"),
    "empty": (lambda: own(torch.zeros(0, 1, 4, 4), torch.zeros(0)), USE + "it has 0 images and 0 labels"),
    "empty split": (lambda: Task.from_data("mine", task().train[:0], task().test), "task 'mine' has no train images"),
    "name": (lambda: task(name=7), "a task has the name 7: expected text, such as '7'"),
    "no name": (lambda: Task.from_data((PIXELS, LABELS), PIXELS, LABELS), "the first argument .* is a tuple: expected"),
    "no split": (lambda: task(train=(PIXELS, LABELS)), "train of task 'mine' is a tuple: expected a Split"),
    "augmentation": (lambda: task(augmentations={"rotate"}), r"\['rotate'\]: expected some of flip, shift"),
    "channels last": (lambda: own(*some(20, 8, 8, 3)), r"shape \(18, 8, 8, 3\), with channels last: move them"),
    "no channels": (lambda: own(*some(20, 8, 8)), r"shape \(18, 8, 8\): add the channel, as in images\[:, None\]"),
    "flat": (lambda: own(*some(20, 64)), r"shape \(18, 64\): expected \(number, channels, height, width\)"),
    "no pixels": (lambda: own(torch.zeros(20, 1, 0, 4).byte(), LABELS[:20] % 2), r"shape \(18, 1, 0, 4\): expected"),
    "test shape": (lambda: task(test=Split(PIXELS, LABELS % 2)), "task 'mine' has images of different shapes"),
    "task shape": (lambda: Scenario("x", (task(), own(PIXELS, LABELS % 2))), r"the tasks before it of \(1, 4, 4\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_clear_line(case: str) -> None:
    assert_one_clear_line(*MISTAKES[case])
