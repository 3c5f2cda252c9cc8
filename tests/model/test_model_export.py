"""A kept model as an ONNX file: onnxruntime gives the same answers. `make test-extras` installs what this needs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from exported import ask, assert_same_answers, session
from hashroute import Model
from hashroute.model.pixels import open_files
from kept_models import write_cifar, write_shapes
from programs import succeeded


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of three tasks, of which the first got a class later."""
    folder = tmp_path_factory.mktemp("export")
    write_cifar(folder / "first", 3, 42, count=40) or write_shapes(folder / "first", "circle", "cross")
    write_shapes(folder / "straight", "square", "stripes", seed=1)
    write_shapes(folder / "grey", "circle", "stripes", seed=2, colour=False)
    write_shapes(folder / "later", "cross", seed=3)
    model = Model(folder / "model")
    for task in ("first", "straight", "grey"):
        model.learn(folder / task, epochs=3)
    model.learn(folder / "later", "straight", epochs=3)
    return folder


def test_the_file_of_a_model_gives_its_answers(runtime: Any, folder: Path) -> None:
    told = succeeded("export", "model", "model.onnx", folder=folder)
    assert told.startswith("model.onnx: 3 tasks, 7 classes, ")
    model, file = Model(folder / "model"), session(runtime, folder / "model.onnx")
    files = sorted(folder.rglob("*.png"))
    images = open_files(files, model.image_shape)[:]
    assert_same_answers(model.learner(), file, images)

    properties = file.get_modelmeta().custom_metadata_map
    tasks = json.loads(properties["tasks"])
    assert [(each["name"], tuple(each["classes"])) for each in tasks] == [
        (each.name, each.classes) for each in model.tasks()
    ]
    names = [(name, each["name"]) for each in tasks for name in each["classes"]]
    heats = [json.loads(properties["task_free_temperature"]), *json.loads(properties["temperatures"])]
    for index, heat in enumerate(heats):
        scores, answers, _ = ask(file, images, index - 1)
        chances = (scores.double() / heat).softmax(1)
        expected = model.predict(files, tasks[index - 1]["name"] if index else None)
        assert [names[place] for place in answers.tolist()] == [(each.class_name, each.task) for each in expected]
        found = torch.tensor([each.probability for each in expected], dtype=torch.float64)
        torch.testing.assert_close(chances.amax(1), found, rtol=0, atol=1e-4)


def test_what_cannot_be_exported_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(tmp_path / "model")
    with pytest.raises(ValueError, match=r"has learned no task yet: learn one first$"):
        model.export(tmp_path / "model.onnx")
    model.learn(write_shapes(tmp_path / "round", "circle", "cross", count=8), epochs=1)
    with pytest.raises(ValueError, match=r"^the file to export to is model.txt: expected a name that ends with .onnx$"):
        model.export("model.txt")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ValueError, match=r"^export to ONNX needs onnx: pip install 'hashroute\[export\]'$"):
        model.export(tmp_path / "model.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "round"]
