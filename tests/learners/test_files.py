"""A model saved is the model loaded: this format, the format before it, and files that are damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hashroute import create_learner, load_learner
from hashroute.learners import learner_names
from hashroute.learners.entries import EpochLog
from programs import run_script
from support import assert_one_clear_line, assert_same, digits, learned, short_recipe, tensors_of

FORMAT_3 = sorted((Path(__file__).parents[1] / "fixtures" / "format3").iterdir())
YOUNGER = {"closed-form", "si", "lwf", "hat", "packnet"}
"""Learners that there were not yet."""
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
    assert {path.name for path in tmp_path.iterdir()} == {"learner.json", ".save.lock", tensors_of(tmp_path).name}


# ------------------------------------------------------------------------ format 3


def test_there_is_a_model_in_format_3_of_every_learner() -> None:
    assert {folder.name for folder in FORMAT_3} >= set(learner_names()) - YOUNGER


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
    assert json.loads((tmp_path / "learner.json").read_text())["format"] == 5


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
    "no model": (lambda folder: tensors_of(folder).unlink(), "holds no model, .*safetensors is missing"),
    "no description": (lambda folder: (folder / "learner.json").unlink(), "holds no model, learner.json is missing"),
    "other text": (lambda folder: (folder / "learner.json").write_text("{"), "learner.json is damaged: it is not JSON"),
    "no learner": (lambda folder: edit(folder, lambda plain: plain.pop("learner")), "its content lacks 'learner'"),
    "cut off": (lambda folder: truncate(tensors_of(folder)), "is damaged, its content has changed"),
    "no recipe": (lambda folder: edit(folder, lambda plain: plain.pop("recipe")), "its content lacks 'recipe'"),
    "fewer tasks": (lambda folder: edit(folder, lambda plain: plain["tasks"].pop()), "a model that cannot be read"),
    "other options": (
        lambda folder: edit(folder, lambda plain: plain["options"].update(wait=1)),
        "holds a model that cannot be read: .*options has the unknown entry 'wait'",
    ),
    "a later format": (
        lambda folder: edit(folder, lambda plain: plain.update(format=99)),
        "learner.json has format 99, this version reads 3 and 4 and 5: use the version of hashroute that wrote it",
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
    with pytest.raises(ValueError, match=r"nothing does not exist: expected a folder that Learner.save"):
        load_learner(tmp_path / "nothing")


# ------------------------------------------------------------------------ one whole model at any moment


def test_what_a_killed_save_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    learner = learned("vc", tasks=1)
    learner.save(tmp_path)
    complete, half = tmp_path / f"{'0' * 64}.safetensors", tmp_path / ".learner.json.1234.unfinished"
    mine = tmp_path / "mine.safetensors"
    for leftover in (complete, half, mine):
        leftover.write_bytes(b"left")
    assert_same(load_learner(tmp_path), learner)
    learner.save(tmp_path)
    assert not complete.exists()
    assert not half.exists()
    assert mine.exists(), "only files that save() wrote are removed"


def test_threads_that_save_and_load_meanwhile_see_whole_models(tmp_path: Path) -> None:
    models = [learned("vc", tasks=count) for count in (1, 2)]
    models[0].save(tmp_path)
    expected = {len(model.tasks): model.state_dict() for model in models}

    def save(model: Any) -> None:
        for _ in range(20):
            model.save(tmp_path)

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(save, model) for model in models]
        while not all(writer.done() for writer in writers):
            found = load_learner(tmp_path)
            torch.testing.assert_close(found.state_dict(), expected[len(found.tasks)], rtol=0, atol=0)
        for writer in writers:
            writer.result()
    assert len(list(tmp_path.iterdir())) == 3


def test_tensors_whose_content_has_changed_are_refused(tmp_path: Path) -> None:
    learned("vc").save(tmp_path)
    content = bytearray(tensors_of(tmp_path).read_bytes())
    content[-1] ^= 1
    tensors_of(tmp_path).write_bytes(content)
    with pytest.raises(ValueError, match="is damaged, its content has changed"):
        load_learner(tmp_path)


# ------------------------------------------------------------------------ a stranger's description

STRANGE: dict[str, tuple[str, dict[str, Any], str]] = {
    "a list of names": ("vc", {"tasks": [{"name": ["a"]}]}, "tasks.0. lacks 'class_names', 'mean', 'std'"),
    "a name that is no text": (
        "vc",
        {"tasks": [{"name": 5, "class_names": ["a"], "mean": None, "std": None}]},
        "tasks.0..name is 5, expected text",
    ),
    "no classes": ("vc", {"tasks": [{"name": "a", "class_names": [], "mean": None, "std": None}]}, "has no classes"),
    "null for a recipe": ("vc", {"recipe": None}, "recipe is None, expected an object"),
    "a list for options": ("hrn", {"options": []}, r"options is \[\], expected an object"),
    "a path outside": ("vc", {"tensors": "../../secret.safetensors"}, "expected the name of a file of tensors"),
    "a shape without bounds": ("vc", {"image_shape": [1, 10**9, 8]}, "from 1 to 65,536"),
    "a shape of many numbers": ("vc", {"image_shape": [1, 8, 8] * 100}, "image_shape"),
    "maps without bounds": ("vc", {"image_shape": [1, 60000, 60000]}, "cannot be read"),
    "memories without bounds": ("hrn", {"memories": 24_000_000}, "names 24000000 memories"),
    "paths that are not there": ("hrn", {"forest": {"parents": [None], "ranks": [0]}}, "cannot be read"),
}


@pytest.mark.parametrize("case", STRANGE)
def test_a_strange_description_is_one_line(case: str, tmp_path: Path) -> None:
    name, changes, message = STRANGE[case]
    learned(name).save(tmp_path)
    edit(tmp_path, lambda described: described.update(changes))
    assert_one_clear_line(lambda: load_learner(tmp_path), message)


@pytest.mark.parametrize("depth", [1000, 100_000])
def test_a_nested_description_is_one_line(depth: int, tmp_path: Path) -> None:
    learned("vc").save(tmp_path)
    (tmp_path / "learner.json").write_text('{"format": 5, "recipe": ' + "[" * depth + "]" * depth + "}")
    assert_one_clear_line(lambda: load_learner(tmp_path), "is nested deeper than 40 levels")


LARGE: list[tuple[str, str, dict[str, Any]]] = [
    ("hrn", "options", {"directions": 10**12}),
    ("hrn", "options", {"directions": 24_000_000}),
    ("hrn", "options", {"memory_features": 10**12}),
    ("vc", "recipe", {"backbone": [{"out_channels": 16, "kernel_size": 3, "padding": 10_000}]}),
    ("vc", "recipe", {"features": 10**12}),
    ("vc", "recipe", {"head": {"widths": [10**9], "dropout": [0.1], "activation": "relu"}}),
    ("hrn-paper", "options", {"units_added": [10**9]}),
    ("hash-only", "recipe", {"features": 10**12}),
    ("vc", "recipe", {"feature_scale": 10**30}),
    ("vc", "recipe", {"backbone": [{"out_channels": 4_000_000, "kernel_size": 3}]}),
    ("vc", "recipe", {"backbone": "resnet18x8"}),
]


def test_large_numbers_are_refused_or_harmless(tmp_path: Path) -> None:
    for place, (name, part, changes) in enumerate(LARGE):
        learned(name).save(tmp_path / str(place))
        edit(tmp_path / str(place), lambda described, part=part, changes=changes: described[part].update(changes))
    script = tmp_path / "script.py"
    script.write_text(f"""
import resource
import torch
import hashroute.learners.hrn, hashroute.learners.hrn_paper, hashroute.learners.plain, hashroute.learners.controls
from hashroute import load_learner
used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for place in range({len(LARGE)}):
    try:
        load_learner(f"{tmp_path}/{{place}}").predict(torch.zeros(1, 1, 8, 8), 0)
    except ValueError as error:
        print(error)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used < 300_000, place
""")
    lines = run_script(script, tmp_path).splitlines()
    assert len(lines) >= len(LARGE) - 3, "most are refused"
    assert max(map(len, lines)) < 300
