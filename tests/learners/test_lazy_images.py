"""Images that are read while training give the same learner as images in memory, bit for bit."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

from hashroute import Scenario, Task
from hashroute.learners import learner_names
from hashroute.tasks import Split
from support import Stored, assert_same, digits, fresh


def lazy(task: Task) -> Task:
    """The same task with images that are not in memory."""
    splits = {part: getattr(task, part) for part in ("train", "validation", "test")}
    return replace(task, **{part: Split(Stored(split.images), split.labels) for part, split in splits.items()})


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("hashroute-reader")]


@pytest.mark.parametrize("name", learner_names())
def test_images_that_are_read_give_the_same_learner(name: str) -> None:
    scenario = digits(share=0.3)
    here = fresh(name).learn(scenario)
    files = Scenario("files", tuple(map(lazy, scenario.tasks)))
    there = fresh(name).learn(files)
    assert_same(here, there)
    for index, (task, read) in enumerate(zip(scenario.tasks, files.tasks, strict=True)):
        images, lazily = task.test.images, read.test.images
        assert torch.equal(here.logits(images, index), there.logits(lazily, index))
        assert torch.equal(here(images), there(lazily))
        assert torch.equal(here.encode(images), there.encode(lazily))
        for ours, theirs in zip(here.predict(images), there.predict(lazily), strict=True):
            assert torch.equal(ours, theirs)
    assert not readers()


def test_every_training_image_is_read_once_in_an_epoch() -> None:
    task = lazy(digits().tasks[0])
    images: Any = task.train.images
    fresh("vc", 3).learn(task)
    assert images.reads == [3 * len(task.train)]


def test_an_image_that_cannot_be_read_ends_the_epoch_and_its_threads() -> None:
    task = lazy(digits().tasks[0])
    images: Any = task.train.images
    images.broken = 100
    learner = fresh("vc")
    with pytest.raises(OSError, match="image 100 cannot be read"):
        learner.learn(task)
    assert not readers()
    images.broken = -1
    assert learner.learn(task).training_state is None


def test_an_interrupted_epoch_ends_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    task, learner = lazy(digits().tasks[0]), fresh("vc")

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(learner, "after_step", interrupt)
    with pytest.raises(KeyboardInterrupt) as kept:
        learner.learn(task)
    assert kept.tb is not None, "the traceback, with all its frames, is still there"
    assert not readers()
