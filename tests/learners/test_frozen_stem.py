"""Learners on a frozen pre-trained stem: its maps are computed once, its weights are never changed and never stored."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hashroute import create_learner, load_learner
from hashroute.learners import maps
from hashroute.learners.learner import Learner
from hashroute.learners.registry import learner_names
from hashroute.nn.backbones import feature_count
from hashroute.nn.fixed_features import SYNTHETIC_IMAGES
from hashroute.nn.pretrained import BackboneError, FrozenStem
from hashroute.recipe import Recipe
from support import accuracy, assert_same, digits, short_recipe


class Counting(nn.Sequential):
    """A small network that counts the images it has seen."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        super().__init__(nn.Conv2d(3, 12, 3, 2, 1), nn.BatchNorm2d(12), nn.ReLU())
        self.images = 0

    def forward(self, images: Tensor) -> Tensor:
        self.images += len(images)
        maps: Tensor = super().forward(images)
        return maps


def new_stem(seed: int = 0, **preprocessing: Any) -> FrozenStem:
    return FrozenStem(Counting(seed), (12, 12), **{"mean": (0.5,) * 3, "std": (0.25,) * 3, **preprocessing})


def learn(name: str, stem: FrozenStem, tasks: int = 2, epochs: int = 2, **changes: Any) -> Learner:
    recipe = short_recipe(epochs, features=feature_count(stem, (1, 8, 8), 0), **changes)
    learner = create_learner(name, (1, 8, 8), recipe, backbone=stem)
    for task in digits(tasks).tasks:
        learner.learn(task)
    return learner


@pytest.mark.parametrize("name", [name for name in learner_names() if name != "hrn-paper"])
def test_every_learner_works_on_a_stem_and_leaves_it_as_it_is(name: str, tmp_path: Path) -> None:
    stem = new_stem()
    before = stem.digest, copy.deepcopy(stem.state_dict())
    learner = learn(name, stem)
    assert all(torch.equal(tensor, before[1][key]) for key, tensor in stem.state_dict().items())
    assert accuracy(learner, digits().tasks[1]) > 0.8
    images = torch.cat([task.test.images[:150] for task in digits().tasks])
    found = learner.predict(images)
    assert torch.equal(learner(images).argmax(1), 2 * found.tasks + found.labels)
    learner.save(tmp_path)
    stored = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert stored < sum(learner.bytes_kept().values()) + 60_000
    loaded = load_learner(tmp_path, backbone=new_stem())
    assert_same(learner, loaded)
    assert torch.equal(loaded(images), learner(images))


@pytest.mark.parametrize("name", ["vc", "hrn", "separate"])
def test_maps_are_computed_once_and_not_in_every_epoch(name: str) -> None:
    seen = []
    for epochs in (1, 4):
        stem = new_stem()
        network: Any = stem.network
        network.images = 0
        learn(name, stem, epochs=epochs)
        seen.append(network.images)
    assert seen[0] == seen[1]
    train, validation = (sum(len(getattr(task, part)) for task in digits().tasks) for part in ("train", "validation"))
    assert seen[0] <= train + validation + SYNTHETIC_IMAGES


def test_task_free_answers_compute_the_maps_of_an_image_once() -> None:
    stem = new_stem()
    learner = learn("separate", stem)
    network: Any = stem.network
    network.images = 0
    images = digits().tasks[0].test.images
    learner.predict(images)
    assert network.images == len(images)


def test_the_order_of_tasks_does_not_matter_on_a_stem_with_no_task_given() -> None:
    recipe, stem = short_recipe(1, features=feature_count(new_stem(), (1, 8, 8), 0)), new_stem()
    same = [replace(task, class_names=("one", "other")) for task in digits(3).tasks]
    images = torch.cat([task.test.images for task in same])
    found = []
    for tasks in (same, same[::-1]):
        learner = create_learner("hrn", (1, 8, 8), recipe, backbone=stem).learn(tasks[0]).learn(tasks[1])
        learner.learn(tasks[2])
        answers, scores = learner.predict(images), learner(images)
        places = [learner.find_task(task).index for task in same]
        chances = scores.softmax(1).view(-1, 3, 2)[:, places]
        found.append((torch.tensor(places).argsort()[answers.tasks], answers.labels, chances))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert torch.allclose(found[0][2], found[1][2], atol=1e-6)
    assert accuracy(learner, same[0]) > 0.8
    right = (found[0][0] == torch.arange(3).repeat_interleave(torch.tensor([len(task.test) for task in same]))).double()
    assert right.mean() > 0.8


@pytest.mark.parametrize(("bound", "kept"), [("IN_MEMORY", True), ("IN_FILE", False)])
def test_maps_that_do_not_fit_into_memory_give_the_same_learner(
    bound: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = learn("vc", new_stem())
    monkeypatch.setattr(maps, bound, 0)
    other = learn("vc", new_stem(), augment=False)
    for ours, theirs in zip(usual.parameters(), other.parameters(), strict=True):
        if kept:
            assert torch.equal(ours, theirs)
        else:  # computed again in every epoch, and not rounded
            torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.1)


def test_images_of_any_size_and_grey_images_become_what_the_stem_takes() -> None:
    stem = new_stem()
    colour = torch.rand(5, 3, 12, 12)
    assert torch.allclose(stem.prepare(colour), (colour - 0.5) / 0.25)
    grey = torch.rand(5, 1, 8, 10)
    assert torch.equal(stem.prepare(grey), stem.prepare(grey.expand(-1, 3, -1, -1)))
    for shape in ((5, 3, 31, 9), (5, 3, 6, 40)):
        images = torch.rand(shape)
        expected = nn.functional.interpolate(images, size=(12, 12), mode="bilinear", antialias=True)
        torch.testing.assert_close(stem.prepare(images), (expected - 0.5) / 0.25)
    with pytest.raises(ValueError, match=r"images have 2 channels, backbone 'Counting' takes 1 or 3"):
        create_learner("vc", (2, 8, 8), backbone=stem)


def test_a_model_refuses_another_stem_in_one_line(tmp_path: Path) -> None:
    learn("vc", new_stem(), tasks=1).save(tmp_path)
    for other, what in ((new_stem(1), "weights"), (new_stem(std=(0.5,) * 3), "std")):
        with pytest.raises(BackboneError, match=f"^the backbone 'Counting' has other {what} than [^\n]*$"):
            load_learner(tmp_path, backbone=other)
    with pytest.raises(ValueError, match="the backbone has no frozen stem, this model has 'Counting': give"):
        load_learner(tmp_path, backbone="small")
    with pytest.raises(ValueError, match="this model has a backbone of your own"):
        load_learner(tmp_path)


def test_the_published_network_takes_no_stem() -> None:
    with pytest.raises(ValueError, match="hrn-paper has units of its own and takes no backbone: use hrn"):
        learn("hrn-paper", new_stem())


def test_a_stem_stays_in_eval_mode_without_gradients() -> None:
    stem = new_stem().train()
    assert not any(module.training for module in stem.modules())
    assert not any(weight.requires_grad for weight in stem.parameters())
    assert copy.deepcopy(stem) is stem
    images = torch.rand(2, 3, 12, 12)
    assert torch.equal(pickle.loads(pickle.dumps(stem))(images), stem(images))


# ------------------------------------------------------------------------ functions in files

FILE = """
import torch
from torch import nn

def frozen(image_shape):
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU())

def levels(image_shape):
    return [nn.Conv2d(image_shape[0], 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)]

def broken(image_shape):
    raise RuntimeError("no weights here")

def text(image_shape):
    return "a backbone"

ready = 3
"""


@pytest.mark.parametrize("function", ["frozen", "levels"])
def test_a_function_in_a_file_is_a_backbone_that_is_named_again_to_load(function: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    name = f"{tmp_path / 'mine.py'}:{function}"
    learner = create_learner("hrn", (1, 8, 8), short_recipe(1), backbone=name).learn(digits().tasks[0])
    assert (learner.backbone.stem is not None) == (function == "frozen")
    learner.save(tmp_path / "model")
    with pytest.raises(ValueError, match="this model has a backbone of your own"):
        load_learner(tmp_path / "model")  # code is never run because a file of a model says so
    assert_same(load_learner(tmp_path / "model", backbone=name), learner)


def test_a_model_that_names_code_does_not_run_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'was run')!r}, 'w')")
    learn("vc", new_stem(), tasks=1).save(tmp_path / "model")
    described = json.loads((tmp_path / "model" / "learner.json").read_text())
    described["own_backbone"] = False
    described["recipe"]["backbone"] = f"{tmp_path / 'mine.py'}:levels"
    (tmp_path / "model" / "learner.json").write_text(json.dumps(described))
    with pytest.raises(BackboneError, match="this model has a backbone of your own: give it with backbone="):
        load_learner(tmp_path / "model")
    with pytest.raises(BackboneError, match="this model has a backbone of your own"):
        create_learner("vc", (1, 8, 8), Recipe.from_dict(described["recipe"]))
    assert not (tmp_path / "was run").exists()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("broken", "cannot be built: RuntimeError: no weights here"),
        ("text", "returned a str: expected a list of levels, or a module that stays frozen"),
        ("ready", "mine.py has no function 'ready'"),
        ("missing", "mine.py has no function 'missing'"),
    ],
)
def test_a_function_in_a_file_that_cannot_be_used_is_named(function: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    with pytest.raises(BackboneError, match=message):
        create_learner("vc", (1, 8, 8), short_recipe(1), backbone=f"{tmp_path / 'mine.py'}:{function}")
    with pytest.raises(BackboneError, match="there is no file"):
        create_learner("vc", (1, 8, 8), short_recipe(1), backbone=f"{tmp_path / 'other.py'}:levels")
