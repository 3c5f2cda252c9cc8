"""A learner as an ONNX file: onnxruntime gives the same answers. `make test-extras` installs what this needs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from exported import assert_same_answers, session
from hashroute import Scenario, create_learner, load_scenario
from hashroute.learners.export import export_onnx
from hashroute.learners.registry import learner_names
from hashroute.learners.trainer import Trainer
from hashroute.nn.pretrained import FrozenStem
from support import NEEDS, digits, is_here, learned, short_recipe


@pytest.mark.parametrize("name", [name for name in learner_names() if name not in ("hrn-paper", "closed-form")])
def test_the_file_of_a_learner_gives_its_answers(name: str, runtime: Any, tmp_path: Path) -> None:
    learner = learned(name, 3)
    export_onnx(learner, tmp_path / "model.onnx", {"about": "digits"})
    images = torch.cat([task.test.images for task in digits(3).tasks])
    file = session(runtime, tmp_path / "model.onnx")
    assert_same_answers(learner, file, images)
    assert_same_answers(learner, file, images[:1])
    properties = file.get_modelmeta().custom_metadata_map
    assert properties["about"] == "digits"
    assert json.loads(properties["image_shape"]) == [1, 8, 8]
    assert json.loads(properties["tasks"]) == [
        {"name": entry.name, "classes": list(entry.class_names)} for entry in learner.tasks
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_a_file_asks_the_most_promising_tasks_too(
    runtime: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hashroute.learners.candidates.MOST_ASKED", 2)
    learner = learned("hrn", 3)
    export_onnx(learner, tmp_path / "model.onnx")
    images = torch.cat([task.test.images for task in digits(3).tasks])
    assert learner(images).isinf().any()
    assert_same_answers(learner, session(runtime, tmp_path / "model.onnx"), images)


@pytest.mark.parametrize(
    ("backbone", "options"),
    [("small", {}), ("smallx0.5", {"rank": 2}), ("resnet18x0.125", {})],
)
def test_hrn_on_photographs(backbone: str, options: dict[str, Any], runtime: Any, tmp_path: Path) -> None:
    for data in NEEDS["split-cifar100"]:
        if not is_here(data):
            pytest.skip(f"needs the data set {data}: hashroute data")
    scenario = Scenario("two", load_scenario("split-cifar100").tasks[:2]).part(0.05)
    learner = create_learner("hrn", (3, 32, 32), backbone=backbone, epochs=2, **options)
    learner.learn(scenario, progress=False)
    export_onnx(learner, tmp_path / "model.onnx")
    images = torch.cat([task.test.images for task in load_scenario("split-cifar100").tasks[:3]])[::20]
    assert_same_answers(learner, session(runtime, tmp_path / "model.onnx"), images)


@pytest.mark.parametrize("stem", ["efficientnet-lite0@64", "own"])
def test_hrn_on_a_frozen_stem(stem: str, runtime: Any, tmp_path: Path) -> None:
    backbone: Any = stem
    if stem == "own":
        torch.manual_seed(0)
        backbone = FrozenStem(nn.Sequential(nn.Conv2d(3, 12, 3, 2, 1), nn.ReLU()), (12, 12))
    else:
        pytest.importorskip("efficientnet_lite_pytorch", reason="needs the extra efficientnet: make test-extras")
    learner = create_learner("hrn", (1, 8, 8), backbone=backbone, epochs=1)
    learner.learn(digits(2, 0.3), progress=False)
    export_onnx(learner, tmp_path / "model.onnx")
    images = torch.cat([task.test.images[:20] for task in digits(2).tasks])
    assert_same_answers(learner, session(runtime, tmp_path / "model.onnx"), images)


def test_images_without_any_contrast(runtime: Any, tmp_path: Path) -> None:
    learner = learned("hrn", 3)
    export_onnx(learner, tmp_path / "model.onnx")
    images = torch.stack([torch.full((1, 8, 8), value, dtype=torch.uint8) for value in (0, 1, 128, 255)])
    assert_same_answers(learner, session(runtime, tmp_path / "model.onnx"), images)


def test_a_task_more_adds_its_weights_and_no_second_copy_of_tables(runtime: Any, tmp_path: Path) -> None:  # noqa: ARG001
    sizes = []
    for tasks in (2, 3):
        learner = learned("hrn", tasks)
        export_onnx(learner, tmp_path / "model.onnx")
        sizes.append(((tmp_path / "model.onnx").stat().st_size, sum(learner.bytes_kept().values())))
    added, weights = sizes[1][0] - sizes[0][0], sizes[1][1] - sizes[0][1]
    assert added < weights + 40_000


def test_a_learner_that_cannot_be_exported_is_refused_in_one_line(
    runtime: Any,  # noqa: ARG001
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(ValueError, match="hrn-paper routes every image on its own and cannot be exported: use hrn"):
        export_onnx(learned("hrn-paper"), path)
    with pytest.raises(ValueError, match="closed-form has no heads of its own and cannot be exported: use hrn"):
        export_onnx(learned("closed-form"), path)
    with pytest.raises(ValueError, match="this learner has learned no task yet: export it when a task is learned"):
        export_onnx(create_learner("hrn", (1, 8, 8)), path)
    interrupted = learned("hrn")
    Trainer(interrupted).begin(digits(3).tasks[2])
    with pytest.raises(ValueError, match="this learner is learning a task: export it when"):
        export_onnx(interrupted, path)

    class Branching(nn.Conv2d):
        def forward(self, maps: Tensor) -> Tensor:
            return super().forward(maps) if maps.sum() > 0 else super().forward(-maps)

    learner = create_learner("vc", (1, 8, 8), short_recipe(1), backbone=nn.Sequential(Branching(1, 4, 3, 2)))
    learner.learn(digits().tasks[0])
    with pytest.raises(ValueError, match=r"^this vc cannot be written as ONNX, without branches on data: [^\n]*$"):
        export_onnx(learner, path)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ValueError, match=r"export to ONNX needs onnxscript: pip install 'hashroute\[export\]'"):
        export_onnx(learned("vc"), path)
    assert not path.exists()
