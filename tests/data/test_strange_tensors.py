"""Tensors that torch can hardly compute with are one clear line, wherever images and labels are given."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from torch import Tensor

from hashroute import Model, Task
from hashroute.tasks import Split
from support import assert_one_clear_line, digits, learned

TASK = digits(1).tasks[0]
IMAGES, LABELS = TASK.train.images[:20], TASK.train.labels[:20]

STRANGE: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "sparse": (lambda tensor: tensor.to_sparse(), "a tensor of the layout torch.sparse_coo"),
    "meta": (lambda tensor: tensor.to("meta"), "a meta tensor, without values"),
    "complex": (lambda tensor: tensor.to(torch.complex64), "torch.complex64"),
    "float8": (lambda tensor: tensor.float().to(torch.float8_e4m3fn), "torch.float8_e4m3fn"),
}
STRANGE_IMAGES = {
    **STRANGE,
    "uint16": (lambda tensor: tensor.to(torch.uint16), "torch.uint16"),
    "uint32": (lambda tensor: tensor.to(torch.uint32), "torch.uint32"),
    "bool": (lambda tensor: tensor > 9, "(torch.)?bool"),
}


@cache
def kept() -> Model:
    model = Model(Path(mkdtemp(prefix="strange-")) / "kept")
    model.learn(TASK, epochs=1, progress=False)
    return model


def pairs(images: Any, labels: Any) -> list[tuple[Any, Any]]:
    return list(zip(images, labels, strict=True))


GIVE_IMAGES: dict[str, Callable[[Any], object]] = {
    "Task.from_data": lambda images: Task.from_data("x", (images, LABELS), (IMAGES, LABELS)),
    "Task.from_data of pairs": lambda images: Task.from_data("x", pairs(images, LABELS.tolist()), (IMAGES, LABELS)),
    "Task.from_data of a split": lambda images: Task.from_data("x", Split(images, LABELS), (IMAGES, LABELS)),
    "Task": lambda images: Task("x", Split(images, LABELS), TASK.validation, TASK.test, TASK.class_names),
    "Learner.predict": lambda images: learned("vc").predict(images, 0),
    "Learner.predict with no task": lambda images: learned("vc").predict(images),
    "Model.predict": lambda images: kept().predict(images),
    "Model.predict of a list": lambda images: kept().predict(list(images)),
    "Model.learn": lambda images: kept().learn((images, LABELS), "new"),
    "Model.learn of pairs": lambda images: kept().learn(pairs(images, LABELS.tolist()), "new"),
}
GIVE_LABELS: dict[str, Callable[[Any], object]] = {
    "Task.from_data": lambda labels: Task.from_data("x", (IMAGES, labels), (IMAGES, LABELS)),
    "Task.from_data of a split": lambda labels: Task.from_data("x", Split(IMAGES, labels), (IMAGES, LABELS)),
    "Model.learn": lambda labels: kept().learn((IMAGES, labels), "new"),
}


@pytest.mark.parametrize("kind", STRANGE_IMAGES)
@pytest.mark.parametrize("given", GIVE_IMAGES)
def test_images(given: str, kind: str) -> None:
    change, name = STRANGE_IMAGES[kind]
    assert_one_clear_line(lambda: GIVE_IMAGES[given](change(IMAGES)), rf"are {name}: expected a (plain )?tensor")
    assert [task.name for task in kept().tasks()] == [TASK.name]


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("given", GIVE_LABELS)
def test_labels(given: str, kind: str) -> None:
    change, name = STRANGE[kind]
    assert_one_clear_line(lambda: GIVE_LABELS[given](change(LABELS)), f"are {name}: expected a plain tensor of whole")


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
def test_every_usual_precision_is_read(kind: str) -> None:
    images = (IMAGES / 255).to(getattr(torch, kind))
    for given in ((images, LABELS), pairs(images, LABELS.tolist())):
        assert Task.from_data("x", given, given).classes == 2
    assert len(kept().predict(images[:2])) == len(kept().predict(list(images[:2]))) == 2


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_images_of_several_sizes_in_one_tensor() -> None:
    nested = torch.nested.nested_tensor([IMAGES[0] / 255, IMAGES[1, :, :4] / 255])
    for task in (0, None):
        assert_one_clear_line(lambda task=task: learned("vc").predict(nested, task), "a tensor of the layout nested")
