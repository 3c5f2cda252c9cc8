"""Recipe: how the learners of a comparison are trained."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from hashroute.nn.backbones import feature_count, small_units
from hashroute.nn.units import UnitSpec
from hashroute.schema import check

Profile = Literal["paper", "default"]
"""paper: the published recipe of a scenario. default: our recommended one."""

MOST_WEIGHTS = 2**27
"""Weights of the hidden layers of a head, at most."""
MOST_LAYERS = 20
"""Hidden layers of a head, at most."""


@dataclass(frozen=True)
class HeadSpec:
    """The head of a task: hidden layers, each with an activation and dropout, then the output layer."""

    widths: tuple[int, ...] = (60,)
    dropout: tuple[float, ...] = (0.2,)
    activation: Literal["leaky_relu", "relu"] = "leaky_relu"

    def __post_init__(self) -> None:
        if len(self.widths) > MOST_LAYERS:
            raise ValueError(f"a head has {len(self.widths):,} hidden layers: expected at most {MOST_LAYERS}")
        if len(self.widths) != len(self.dropout):
            raise ValueError(
                f"a head has {len(self.widths)} hidden layers and {len(self.dropout)} dropout rates: give one per layer"
            )
        if not all(type(each) is int and each >= 1 for each in self.widths):
            raise ValueError(f"widths of a head are {self.widths!r}: expected whole numbers of at least 1")
        if not all(0 <= each < 1 for each in self.dropout):
            raise ValueError(f"dropout of a head is {self.dropout!r}: expected numbers from 0 to below 1")


@dataclass(frozen=True)
class Recipe:
    """The training settings that all learners of a comparison share."""

    epochs: tuple[int, ...]
    """Passes over each task's training images; the last number is used for all later tasks."""
    batch_size: int
    backbone: tuple[UnitSpec, ...] | str
    """The encoder: its units, or a registered name. hash-only and hrn-paper have encoders of their own."""
    features: int
    """Length of a hash vector, s in the paper."""
    pool: int = 0
    """The encoder's last map is average-pooled to this height and width; 0 means no pooling."""
    head: HeadSpec = field(default_factory=HeadSpec)
    feature_scale: float = 0.0
    """Before every head, the features of an image are centred and scaled to this root mean square. With 0 they are left
    as they are, except hash vectors: these have norm 1 and many entries, and are scaled to 1."""
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    one_cycle: bool = False
    """Within a task, raise the learning rate to its peak and lower it to zero. Otherwise it is constant."""
    label_smoothing: float = 0.0
    """Share of a label that is spread evenly over all classes of the task."""
    augment: bool = False
    """Mirror and shift training images where the task allows it."""
    scaling: Literal["fixed", "data set"] = "fixed"
    """fixed: scale all pixels by the same rule. data set: scale each data set to mean 0 and standard deviation 1."""
    autocast: bool = False
    """Compute layers in bfloat16 where torch.autocast does; weights and hashes keep their precision."""
    channels_last: bool = False
    """Lay images out with their channels last, which suits tensor cores."""

    def __post_init__(self) -> None:
        epochs: Any = self.epochs
        if isinstance(epochs, int) or (isinstance(epochs, list) and epochs):
            object.__setattr__(self, "epochs", (epochs,) if isinstance(epochs, int) else tuple(epochs))
        if not self.epochs or not all(type(each) is int and each >= 1 for each in self.epochs):
            raise ValueError(
                f"epochs of a recipe is {epochs!r}: expected whole numbers of at least 1, one for each task"
            )
        for name, least in (("batch_size", 1), ("features", 1), ("pool", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name} of a recipe is {value!r}: expected a whole number of at least {least}")
        sizes = (self.features, *self.head.widths)
        if sum(before * after for before, after in zip(sizes, (*sizes[1:], 1), strict=True)) > MOST_WEIGHTS:
            raise ValueError(
                f"a recipe has {self.features:,} features and a head of {self.head.widths}: "
                f"expected at most {MOST_WEIGHTS:,} weights"
            )
        bounds = {"learning_rate": math.inf, "weight_decay": math.inf, "feature_scale": 1e6, "label_smoothing": 1.0}
        for name, high in bounds.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < high:
                expected = f"from 0 to below {high:g}" if math.isfinite(high) else "of at least 0"
                raise ValueError(f"{name} of a recipe is {value!r}: expected a number {expected}")

    def epochs_of(self, task: int) -> int:
        """Epochs of the task with this index."""
        return self.epochs[min(task, len(self.epochs) - 1)]

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain values, for JSON."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        for name in ("autocast", "channels_last"):  # recipes are older than these
            if not plain[name]:
                del plain[name]
        return plain

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Recipe:
        """The recipe that `to_dict` described."""
        check(values, cls, "recipe")
        head, backbone = values["head"], values["backbone"]
        return cls(
            **{
                **values,
                "epochs": tuple(values["epochs"]),
                "backbone": backbone if isinstance(backbone, str) else tuple(map(UnitSpec.from_dict, backbone)),
                "head": HeadSpec(tuple(head["widths"]), tuple(head["dropout"]), head["activation"]),
            }
        )


SMALL_HEAD = HeadSpec((60, 10), (0.2, 0.0))
LARGE_HEAD = HeadSpec((200, 100), (0.4, 0.4), "relu")


def recipe_for(
    image_shape: Sequence[int], classes: int = 10, backbone: Sequence[UnitSpec] | str | None = None
) -> Recipe:
    """The default recipe for images of this shape and tasks of at most `classes` classes.

    Without a backbone, the size of the images chooses a small one.
    """
    if not isinstance(image_shape, Sequence) or len(image_shape) != 3:
        raise ValueError(f"the image shape is {image_shape}: expected channels, height and width")
    height, width = image_shape[1:]
    side = min(height, width)
    if side < 4:
        raise ValueError(f"images are of {height} x {width} pixels: expected at least 4 x 4")
    if backbone is None:
        backbone = small_units(image_shape)
    pool = 4 if max(height, width) > 32 else 0
    return Recipe(
        epochs=(10,),
        batch_size=32,
        backbone=backbone if isinstance(backbone, str) else tuple(backbone),
        features=feature_count(backbone, image_shape, pool),
        pool=pool,
        head=HeadSpec() if classes <= 2 else LARGE_HEAD,
        feature_scale=0.25,
        learning_rate=2e-3,
        weight_decay=0.01,
        one_cycle=True,
        label_smoothing=0.1,
        augment=True,
    )


def result_name(scenario: str, profile: Profile) -> str:
    """The name of result files of a scenario with this profile."""
    return f"{scenario}-paper" if profile == "paper" else scenario
