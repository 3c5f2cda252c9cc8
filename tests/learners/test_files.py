"""A model saved is the model loaded: this format, the format before it, and files that are damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hashroute import create_learner, load_learner
from hashroute.learners import learner_names
from hashroute.learners.entries import EpochLog
from support import assert_same, digits, learned, short_recipe

FORMAT_3 = sorted((Path(__file__).parents[1] / "fixtures" / "format3").iterdir())
ONE_BY_ONE = [name for name in learner_names() if name != "joint"]


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_a_saved_learner_continues_as_if_it_had_never_been_saved(name: str, tmp_path: Path) -> None:
    learner = learned(name)
    learner.save(tmp_path)
    again = load_learner(tmp_path)
    assert_same(learner, again)
    for each in (learner, again):
        each.learn(digits(3).tasks[2])
    assert_same(learner, again)


def test_what_is_loaded_is_ready_to_answer(tmp_path: Path) -> None:
    learned("vc").train().save(tmp_path)
    assert not load_learner(tmp_path).training


def test_a_model_is_replaced_by_one_that_is_saved_later(tmp_path: Path) -> None:
    learner = learned("ewc")
    learner.save(tmp_path)
    learner.learn(digits(3).tasks[2])
    learner.save(tmp_path)
    assert_same(load_learner(tmp_path), learner)
    assert {path.name for path in tmp_path.iterdir()} == {"learner.json", "model.safetensors"}


# ------------------------------------------------------------------------ format 3


def test_there_is_a_model_in_format_3_of_every_learner() -> None:
    assert {folder.name for folder in FORMAT_3} >= set(learner_names())


@pytest.mark.parametrize("folder", FORMAT_3, ids=lambda folder: folder.name)
def test_models_in_format_3_answer_as_they_did_and_learn_more(folder: Path, tmp_path: Path) -> None:
    """Logits are the same bit for bit on one kind of processor, and nearly the same on others."""
    learner, known = load_learner(folder), load_file(folder / "answers.safetensors")
    answer = learner.predict(known["images"])
    assert torch.equal(answer.tasks, known["tasks"])
    assert torch.equal(answer.labels, known["labels"])
    count = len(learner.tasks)
    for index in range(count):
        torch.testing.assert_close(learner.logits(known["images"], index), known[f"logits.{index}"], rtol=0, atol=1e-5)
    more = replace(digits().tasks[0], name="more", class_names=("zero", "one"))
    logs: list[EpochLog] = []
    learner.learn(more, on_epoch=logs.append)
    assert len(learner.tasks) == count + 1
    assert logs[-1].loss < logs[0].loss
    learner.save(tmp_path)
    assert_same(load_learner(tmp_path), learner)
    assert json.loads((tmp_path / "learner.json").read_text())["format"] == 4


def test_models_from_before_features_were_scaled_answer_as_they_did(tmp_path: Path) -> None:
    task = digits().tasks[0]
    for name in ("vc", "hrn"):
        recipe = short_recipe(feature_scale=0.0, label_smoothing=0.0)
        learner = create_learner(name, (1, 8, 8), recipe).learn(task)
        learner.save(tmp_path / name)
        edit(
            tmp_path / name,
            lambda described: [described["recipe"].pop(key) for key in ("feature_scale", "label_smoothing")],
        )
        again = load_learner(tmp_path / name)
        assert torch.equal(again.logits(task.test.images, 0), learner.logits(task.test.images, 0))


# ------------------------------------------------------------------------ damage


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the description of a saved model."""
    described = json.loads((folder / "learner.json").read_text())
    change(described)
    (folder / "learner.json").write_text(json.dumps(described))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no model": (lambda folder: (folder / "model.safetensors").unlink(), "no model, model.safetensors is missing"),
    "no description": (lambda folder: (folder / "learner.json").unlink(), "holds no model, learner.json is missing"),
    "other text": (lambda folder: (folder / "learner.json").write_text("{"), "learner.json is damaged: expected what"),
    "no learner": (lambda folder: edit(folder, lambda plain: plain.pop("learner")), "learner.json is damaged"),
    "cut off": (lambda folder: truncate(folder / "model.safetensors"), "holds a model that cannot be read"),
    "no recipe": (lambda folder: edit(folder, lambda plain: plain.pop("recipe")), "holds a model that cannot be read"),
    "fewer tasks": (lambda folder: edit(folder, lambda plain: plain["tasks"].pop()), "a model that cannot be read"),
    "other options": (
        lambda folder: edit(folder, lambda plain: plain["options"].update(wait=1)),
        "holds a model that cannot be read: .*ewc has no option 'wait'",
    ),
    "a later format": (
        lambda folder: edit(folder, lambda plain: plain.update(format=99)),
        "holds a learner of format 99, this version reads 3 and 4: use the version of hashroute that wrote it",
    ),
    "unknown learner": (
        lambda folder: edit(folder, lambda plain: plain.update(learner="nobody")),
        "there is no learner 'nobody': expected one of hrn",
    ),
    "unknown objective": (
        lambda folder: edit(folder, lambda plain: plain.update(objective="poetry")),
        "^there is no objective 'poetry': expected one of classification",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
def test_what_cannot_be_loaded_gets_one_line(case: str, tmp_path: Path) -> None:
    damage, message = DAMAGE[case]
    learned("ewc").save(tmp_path)
    damage(tmp_path)
    with pytest.raises(ValueError, match=message) as error:
        load_learner(tmp_path)
    assert "\n" not in str(error.value)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing holds no model, learner\.json is missing"):
        load_learner(tmp_path / "nothing")
