"""How the learners of a comparison are trained: the published settings of each scenario, and our own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from hashroute.nn.units import UnitSpec

Profile = Literal["paper", "default"]


@dataclass(frozen=True)
class HeadSpec:
    """A task's classifier: hidden layers, each with an activation and dropout, and the output."""

    widths: tuple[int, ...] = (60,)
    dropout: tuple[float, ...] = (0.2,)
    activation: Literal["leaky_relu", "relu"] = "leaky_relu"

    def __post_init__(self) -> None:
        if len(self.widths) != len(self.dropout):
            raise ValueError(f"a head has {len(self.widths)} hidden layers and {len(self.dropout)} rates of dropout")


@dataclass(frozen=True)
class Recipe:
    """What is the same for every learner of a comparison."""

    epochs: tuple[int, ...]
    """Passes over each task's training images; the last number holds for all tasks after it."""
    batch_size: int
    backbone: tuple[UnitSpec, ...]
    """The plain encoder, block after block, of all learners but the hash-routed ones."""
    features: int
    """s, the length of a hash vector."""
    pool: int = 0
    """Side to which the plain encoder's last map is average-pooled: 0 for not at all."""
    head: HeadSpec = field(default_factory=HeadSpec)
    feature_scale: float = 0.0
    """Root mean square to which an image's features, less their mean, are scaled in front of every head: 0 for features
    as they are, but hash vectors of norm 1, many small numbers, are scaled to 1."""
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    one_cycle: bool = False
    """Raise the learning rate to its peak and lower it to nothing within a task, or keep it constant."""
    label_smoothing: float = 0.0
    """Share of a label that is spread evenly over all classes of its task."""
    augment: bool = False
    """Mirror and shift training images as each task allows."""
    scaling: Literal["fixed", "data set"] = "fixed"
    """Scale pixels by one rule for all, or each data set to mean 0 and deviation 1 as published."""

    def epochs_of(self, task: int) -> int:
        """Epochs of the task with this number."""
        return self.epochs[min(task, len(self.epochs) - 1)]

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values, for JSON."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Recipe:
        """The settings that `to_dict` described."""
        head = values["head"]
        return cls(
            **{
                **values,
                "epochs": tuple(values["epochs"]),
                "backbone": tuple(UnitSpec.from_dict(spec) for spec in values["backbone"]),
                "head": HeadSpec(tuple(head["widths"]), tuple(head["dropout"]), head["activation"]),
            }
        )


def with_defaults(kept: Any) -> Any:
    """Recipe as a file has them, with the defaults of those that came later; anything else as it is."""
    if not isinstance(kept, dict):
        return kept
    return {each.name: each.default for each in fields(Recipe) if each.default is not MISSING} | kept


def _blocks(*widths: int) -> tuple[UnitSpec, ...]:
    """3 x 3 blocks with group norm, each followed by 2 x 2 max-pooling."""
    return tuple(UnitSpec(width, 3, 1, 1, norm_groups=8, max_pool=2) for width in widths)


SMALL_HEAD = HeadSpec((60, 10), (0.2, 0.0))
LARGE_HEAD = HeadSpec((200, 100), (0.4, 0.4), "relu")

PUBLISHED = {
    "pairwise-mnist": Recipe(
        epochs=(5,),
        batch_size=16,
        backbone=(UnitSpec(16, 5, 3, 2, norm_groups=1), UnitSpec(32, 2, 3, norm_groups=1)),
        features=300,
        head=SMALL_HEAD,
        scaling="data set",
    ),
    "fashion-mnist": Recipe(
        epochs=(20, 10),
        batch_size=32,
        backbone=(UnitSpec(32, 5, 2, 2, max_pool=2), UnitSpec(32, 3, 1, 1)),
        pool=3,
        features=300,
        head=SMALL_HEAD,
        scaling="data set",
    ),
    "svhn-cifar100": Recipe(
        epochs=(8, 15),
        batch_size=16,
        backbone=(UnitSpec(36, 3, 2, 2), UnitSpec(99, 2, 1, 1)),
        pool=4,
        features=2800,
        head=LARGE_HEAD,
        scaling="data set",
    ),
}
"""The paper's settings, and plain encoders that give about as many features as its units do."""

_EPOCHS = {
    "digits": (10,),
    "pairwise-mnist": (5,),
    "fashion-mnist": (10, 5),
    "svhn-cifar100": (5, 10),
    "split-cifar100": (15,),
    "mixed": (8,),
}


def recipe_for(scenario: str, image_shape: Sequence[int], profile: Profile = "default", classes: int = 10) -> Recipe:
    """The settings of a scenario by name; for a scenario of one's own, by the size of its images and tasks."""
    if profile == "paper":
        if scenario not in PUBLISHED:
            known = ", ".join(PUBLISHED)
            raise ValueError(f"there are no published settings for {scenario!r}: expected one of {known}")
        return PUBLISHED[scenario]
    height, width = image_shape[1:]
    side = min(height, width)
    if side < 4:
        raise ValueError(f"images are of {height} x {width} pixels: expected at least 4 x 4")
    encoder = _blocks(32, 64, 128) if side >= 32 else _blocks(16, 32, 64) if side >= 16 else _blocks(16, 32)
    pool = 4 if max(height, width) > 32 else 0
    levels = len(encoder)
    return Recipe(
        epochs=_EPOCHS.get(scenario, (10,)),
        batch_size=32,
        backbone=encoder,
        features=encoder[-1].channels_out * (pool**2 or (height >> levels) * (width >> levels)),  # as a plain one's
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
    """What results of a scenario with these settings are called."""
    return f"{scenario}-paper" if profile == "paper" else scenario


def tuned_options(name: str, path: Path | None = None) -> dict[str, dict[str, Any]]:
    """Options by learner that `hashroute search` chose: from its file, or what came with hashroute for this name.

    What came with hashroute is in tuned/NAME.json, and in tuned/NAME.LEARNER.json where a learner had its own search.
    """
    if path is not None:
        return _chosen(path.read_text(), path)
    files = sorted(resources.files("hashroute").joinpath("learners", "tuned").iterdir(), key=lambda file: file.name)
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        if file.name.startswith(f"{name}."):
            found |= _chosen(file.read_text(), file)
    return found


def _chosen(text: str, file: object) -> dict[str, dict[str, Any]]:
    try:
        chosen: dict[str, dict[str, Any]] = json.loads(text)["chosen"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{file} is not what hashroute search writes: give the file that it named") from None
    return chosen
