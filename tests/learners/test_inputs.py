"""What users give to a learner: wrong things get one line that says what was given and what was expected."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hashroute import Learner, Task, create_learner
from hashroute.learners.entries import TaskEntry
from hashroute.recipe import recipe_for
from hashroute.tasks import Split
from support import assert_one_clear_line, digits, fresh, learned

TASK = digits(1).tasks[0]
IMAGES, LABELS = TASK.train.images, TASK.train.labels
HOW = r"expected a Task; make one with Task.from_data\(name, train=\(images, labels\), test=\(images, labels\)\)"

WRONG_TASKS: dict[str, tuple[Callable[[Learner], object], str]] = {
    "nothing": (lambda learner: learner.learn(), r"learn\(\) was given nothing: expected a Task, or a Scenario"),
    "pair": (lambda learner: learner.learn((IMAGES, LABELS)), rf"learn\(\) was given a tuple: {HOW}"),  # type: ignore[arg-type]
    "array": (lambda learner: learner.learn(IMAGES.numpy()), rf"learn\(\) was given a ndarray: {HOW}"),  # type: ignore[arg-type]
    "tensors": (lambda learner: learner.learn(IMAGES, LABELS), rf"learn\(\) was given a Tensor: {HOW}"),  # type: ignore[arg-type]
    "name": (lambda learner: learner.learn("digits"), rf"learn\(\) was given a str: {HOW}"),  # type: ignore[arg-type]
    "list": (lambda learner: learner.learn([TASK]), rf"learn\(\) was given a list: {HOW}"),  # type: ignore[arg-type]
    "both": (lambda learner: learner.learn(TASK, digits()), r"learn\(\) was given a Scenario among 2 things"),
    "again": (lambda learner: learner.learn(TASK), "task '0 or 1' was learned before: give the new one another name"),
    "small": (
        lambda learner: learner.learn(small_task()),
        r"task 'small' has images of shape \(1, 4, 4\): this learner was made for \(1, 8, 8\)",
    ),
}  # fmt: skip


def small_task() -> Task:
    small = Split(IMAGES[:, :, :4, :4], LABELS)
    return Task("small", small, small, small, TASK.class_names)


@pytest.mark.parametrize("case", WRONG_TASKS)
@pytest.mark.parametrize("name", ["vc", "hrn"])
def test_what_cannot_be_learned_is_refused(name: str, case: str) -> None:
    learn, message = WRONG_TASKS[case]
    learner = learned(name, 1)
    with pytest.raises(ValueError, match=message) as error:
        learn(learner)
    assert "\n" not in str(error.value)
    assert len(learner.tasks) == 1
    assert learner.training_state is None


@pytest.mark.parametrize("shape", [32, (32, 32), (3, 32, 32, 1), "cifar", None, (3, 0, 8), (3, 32.5, 32), 3.0])
def test_an_image_shape_that_cannot_be_is_named(shape: Any) -> None:
    with pytest.raises(ValueError, match=r"^image_shape is .*: expected \(channels, height, width\), such as"):
        create_learner("hrn", shape)


def test_an_image_shape_may_be_anything_like_three_whole_numbers() -> None:
    for shape in ([1, 8, 8], torch.zeros(1, 8, 8).shape, np.array([1, 8, 8]), (np.int64(1), 8, 8)):
        assert create_learner("vc", shape).image_shape == (1, 8, 8)


def test_images_that_are_too_small_are_named() -> None:
    with pytest.raises(ValueError, match="images are of 3 x 9 pixels: expected at least 4 x 4"):
        recipe_for((1, 3, 9))


ASK: dict[str, Callable[[Learner, Any], object]] = {
    "predict": lambda learner, images: learner.predict(images),
    "predict with a task": lambda learner, images: learner.predict(images, 0),
    "encode": lambda learner, images: learner.encode(images),
    "forward": lambda learner, images: learner(images),
    "unfamiliar": lambda learner, images: learner.unfamiliar(images),  # type: ignore[operator]
    "familiarity": lambda learner, images: learner.familiarity(images),  # type: ignore[operator]
    "distances": lambda learner, images: learner.distances(images),  # type: ignore[operator]
}


def spoiled(value: float) -> torch.Tensor:
    images = TASK.test.images[:5].float() / 255
    images[3, 0, 2, 2] = value
    return images


WRONG_IMAGES: dict[str, tuple[Any, str]] = {
    "bool": (TASK.test.images > 100, "images are bool: expected a tensor or an array of uint8, or of numbers"),
    "array": (TASK.test.images.numpy() > 100, "images are ndarray: expected a tensor or an array of uint8"),
    "channels": (torch.zeros(2, 3, 8, 8), r"images are of shape \(2, 3, 8, 8\): expected \(number, 1, 8, 8\)"),
    "one image": (TASK.test.images[0], r"images are of shape \(1, 8, 8\): expected \(number, 1, 8, 8\)"),
    "no image": (TASK.test.images[:0], "there are no images: expected at least one"),
    "nan": (spoiled(math.nan), "image 3 has pixels that are not from 0 to 1"),
    "inf": (spoiled(math.inf), "image 3 has pixels that are not from 0 to 1"),
    "too large": (spoiled(255.0), "image 3 has pixels that are not from 0 to 1"),
    "negative": (spoiled(-0.1), "image 3 has pixels that are not from 0 to 1"),
    "uint16": (TASK.test.images[:5].to(torch.uint16), "images are torch.uint16: expected a plain tensor"),
    "complex": (TASK.test.images[:5].to(torch.complex64), "images are torch.complex64: expected a plain tensor"),
    "float8": (spoiled(0).to(torch.float8_e4m3fn), "images are torch.float8_e4m3fn: expected a plain tensor"),
    "sparse": (spoiled(0).to_sparse(), "images are a tensor of the layout torch.sparse_coo: expected a plain tensor"),
    "meta": (TASK.test.images[:5].to("meta"), "images are a meta tensor, without values: expected a plain tensor"),
    "whole numbers": (
        TASK.test.images[:5].long() + torch.tensor([0, 300, 0, 0, 0])[:, None, None, None],
        "image 1 has pixels that are not from 0 to 255",
    ),
}


@pytest.mark.parametrize("case", WRONG_IMAGES)
@pytest.mark.parametrize("ask", ASK)
def test_images_that_cannot_be_are_named(ask: str, case: str) -> None:
    images, message = WRONG_IMAGES[case]
    with pytest.raises(ValueError, match=message):
        ASK[ask](learned("hrn"), images)


@pytest.mark.parametrize("task", ["7 or 8", 2, -1, True, 0.0, None])
def test_a_task_that_is_not_there_is_named(task: Any) -> None:
    with pytest.raises(
        ValueError, match=rf"there is no task {task!r}: expected one of '0 or 1', '2 or 3', or an index below 2"
    ):
        learned("vc").find_task(task)


def test_nothing_is_asked_before_a_task_is_learned() -> None:
    learner = fresh("vc")
    for ask in ("predict", "encode", "forward"):
        with pytest.raises(ValueError, match=r"this learner has learned no task yet: call learn\(task\) first"):
            ASK[ask](learner, TASK.test.images)
    with pytest.raises(ValueError, match="there is no task 0: expected none: nothing was learned yet"):
        learner.predict(TASK.test.images, 0)


def test_images_may_be_bytes_or_numbers_from_0_to_1() -> None:
    learner, images = learned("vc"), TASK.test.images
    expected = learner.logits(images, 0)
    for given in (images / 255, images.long(), images.double() / 255):
        torch.testing.assert_close(learner.logits(given, 0), expected)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_size": 0}, "batch_size of a recipe is 0: expected a whole number of at least 1"),
        ({"epochs": 0}, "epochs of a recipe is 0: expected whole numbers of at least 1, one for each task"),
        ({"epochs": "5"}, "epochs of a recipe is '5': expected whole numbers of at least 1, one for each task"),
        ({"learning_rate": "x"}, "learning_rate of a recipe is 'x': expected a number of at least 0"),
        ({"label_smoothing": 2}, "label_smoothing of a recipe is 2: expected a number from 0 to below 1"),
        ({"features": 0}, "features of a recipe is 0: expected a whole number of at least 1"),
        ({"seed": "x"}, "seed is 'x': expected a whole number"),
        ({"recipe": "paper"}, "recipe is 'paper': expected a Recipe, such as recipe_for(image_shape), or none"),
    ],
)
def test_wrong_settings_are_one_line(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        create_learner("vc", (1, 8, 8), **wrong)


def test_large_images_come_in_small_batches_where_nothing_is_trained() -> None:
    sizes = []
    learner = create_learner("vc", (3, 224, 224), backbone=nn.Sequential(nn.Conv2d(3, 4, 16, 16)))
    learner.add_task(TaskEntry(0, "one", ("a", "b")))
    learner.encoder.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    learner.predict(torch.zeros(30, 3, 224, 224, dtype=torch.uint8), 0)
    assert sizes == [10, 10, 10]


@pytest.mark.parametrize("task", ["0 or 1", None])
@pytest.mark.parametrize("kind", ["uint8", "float64", "strided"])
def test_arrays_are_answered_like_tensors(kind: str, task: str | None) -> None:
    learner, images = learned("hrn"), digits(2).tasks[0].test.images
    arrays = {
        "uint8": images.numpy(),
        "float64": images.double().numpy() / 255,
        "strided": np.repeat(images.numpy(), 2, axis=0)[::2],
    }
    answers = [learner.predict(each, task) for each in (images, arrays[kind])]
    torch.testing.assert_close(*answers)
    torch.testing.assert_close(*(learner(each, task) for each in (images, arrays[kind])))
    assert torch.equal(learner.unfamiliar(arrays[kind]), learner.unfamiliar(images))


def test_one_image_is_a_batch_of_one_or_a_clear_line() -> None:
    learner, images = learned("hrn"), digits(2).tasks[0].test.images
    assert_one_clear_line(
        lambda: learner.predict(images[0]), r"of shape \(1, 8, 8\): .*; give one image as image\[None\]"
    )
    assert_one_clear_line(lambda: learner.distances(images[:1]), r"distances\(\) was given one image: expected a batch")
    assert learner.distances(images[:2]).shape == (2,)
