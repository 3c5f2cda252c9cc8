"""Training from files gives the numbers of training from memory, and takes no more memory for more files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hashroute import Task, create_learner
from hashroute.data.photos import Photos
from hashroute.recipe import recipe_for
from hashroute.tasks import Split
from programs import succeeded


def write_photos(folder: Path, count: int, side: int, ending: str) -> tuple[list[Path], torch.Tensor]:
    """Noise with a bright left half (class 0) or right half (class 1), in folders named by their class."""
    rng = np.random.default_rng(0)
    files = []
    for number in range(count):
        pixels = rng.integers(0, 120, (12, 12, 3), np.uint8)
        pixels[:, 6 * (number % 2) : 6 * (number % 2 + 1)] += 100
        files.append(folder / str(number % 2) / f"{number}.{ending}")
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize((side, side)).save(files[-1])
    return files, torch.arange(count) % 2


@pytest.mark.parametrize("name", ["vc", "hrn"])
def test_files_and_memory_give_the_same_weights_bit_for_bit(name: str, tmp_path: Path) -> None:
    files, labels = write_photos(tmp_path, 120, 12, "png")
    photos = Photos(files, 8)
    recipe = replace(recipe_for((3, 8, 8), 2), epochs=(2,))
    learners = []
    for images in (photos, photos[:]):
        task = Task.from_data("halves", (images, labels), Split(images, labels))
        torch.manual_seed(0)
        learners.append(create_learner(name, (3, 8, 8), recipe))
        learners[-1].learn(task)
    there, here = (learner.state_dict() for learner in learners)
    assert there.keys() == here.keys()
    for key, weights in there.items():
        assert not isinstance(weights, torch.Tensor) or torch.equal(weights, here[key]), key
    answers = [learner.predict(images, "halves") for learner in learners for images in (photos, photos[:])]
    assert all(torch.equal(answer, answers[0]) for answer in answers)
    assert (answers[0] == labels).float().mean() > 0.9
    assert torch.equal(learners[0].predict(photos).labels, answers[0])


TRAIN = """
import resource, sys
from dataclasses import replace
import torch
from hashroute import UnitSpec, create_learner, load_scenario
from hashroute.images import Images
from hashroute.recipe import recipe_for

torch.set_num_threads(1)
shape = (3, 224, 224)
recipe = recipe_for(shape, 2, (UnitSpec(8, 8, 8), UnitSpec(8, 3, 3)))
learner = create_learner("vc", shape, replace(recipe, epochs=(1,)))
warm = torch.zeros(128, *shape, dtype=torch.uint8)
learner.encoder(warm / 255)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(task,) = load_scenario("folders", folder=sys.argv[1], size=224).tasks
assert isinstance(task.train.images, Images)
learner.learn(task)
right = learner.predict(task.test.images).labels == task.test.labels
assert right.float().mean() > 0.9, right.float().mean()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("count", [2000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_number_of_photographs(count: int, tmp_path: Path) -> None:
    """2,000 photographs of 224 x 224 pixels are 287 MB, 20,000 are 2.9 GB."""
    folder = tmp_path / "tasks" / "halves"
    files, _ = write_photos(tmp_path / "few", 20, 224, "jpg")
    for number in range(count):
        file = files[number % len(files)]
        (folder / file.parent.name).mkdir(parents=True, exist_ok=True)
        os.link(file, folder / file.parent.name / f"{number}.jpg")
    printed = succeeded(folder.parent, folder=tmp_path, script=TRAIN)
    assert int(printed) < 400, "megabytes beyond those that the program has anyway"
