"""What a model keeps about each task, and the settings that all its tasks share."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, TypedDict

from hashroute.learners.hrn import HRN, HRNOptions
from hashroute.learners.options import options_from_dict, options_to_dict
from hashroute.nn.backbones import find_backbone
from hashroute.nn.pretrained import check_trusted, is_file
from hashroute.recipe import Recipe, recipe_for
from hashroute.schema import Range, check, one_line

MOST_PIXELS = 2**24
"""Numbers in an image, at most."""
SMALL = "small"
"""The backbone that is built for the size of the images."""


class _Settings(TypedDict):
    """The settings in manifest.json."""

    image_shape: list[Annotated[int, Range(1, 4096)]]
    backbone: str
    seed: int
    recipe: dict[str, Any]
    options: dict[str, Any]


@dataclass(frozen=True)
class ModelSettings:
    """What all tasks of a model share. The first task chooses it."""

    image_shape: tuple[int, ...]
    backbone: str
    seed: int
    recipe: Recipe
    options: HRNOptions = field(default_factory=HRNOptions)
    stem: dict[str, Any] | None = None
    """Name, preprocessing and digest of the frozen weights of a pre-trained backbone."""
    code: str | None = field(default=None, compare=False)
    """FILE.py:FUNCTION that the caller trusts to build the backbone. It is not stored."""

    @classmethod
    def new(cls, image_shape: Sequence[int], backbone: str = SMALL, seed: int = 0) -> ModelSettings:
        """The settings of a new model. They depend on nothing else, so that they tell nothing about the first task."""
        shape = tuple(image_shape)
        stem = find_backbone(backbone, shape).stem
        name = backbone if stem is None or is_file(backbone) else stem.name
        recipe = recipe_for(shape, backbone=None if name == SMALL else name)
        described = None if stem is None else stem.describe()
        return cls(shape, name, seed, recipe, stem=described, code=name if is_file(name) else None)

    def trusting(self, backbone: str) -> ModelSettings:
        """The settings with code that the caller names; an error if the model needs code and none was named."""
        if not is_file(self.backbone):
            return self
        if not is_file(backbone):
            check_trusted(self.backbone)
        return replace(self, code=backbone)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values, for JSON."""
        return {
            "image_shape": list(self.image_shape),
            "backbone": self.backbone,
            "seed": self.seed,
            "recipe": self.recipe.to_dict(),
            "options": options_to_dict(self.options),
            "stem": self.stem,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelSettings:
        """The settings that `to_dict` described."""
        try:
            check(values, _Settings)
            if math.prod(values["image_shape"]) > MOST_PIXELS:
                raise ValueError(f"images of {values['image_shape']}: expected at most {MOST_PIXELS:,} numbers")
            shape, options = tuple(values["image_shape"]), options_from_dict(HRN, HRN.saved_options(values["options"]))
            recipe, stem = Recipe.from_dict(values["recipe"]), values.get("stem")
            return cls(shape, str(values["backbone"]), values["seed"], recipe, options, stem and dict(stem))
        except (KeyError, TypeError, ValueError) as error:
            what = one_line(error, 150)
            raise ValueError(f"the settings of the model are damaged ({what}): restore manifest.json") from None

    def task_seed(self, task: str) -> int:
        """The seed of all random numbers of a task. It depends on its name, and on no other task."""
        return int.from_bytes(hashlib.sha256(f"{self.seed} {task}".encode()).digest()[:7], "big")


@dataclass(frozen=True)
class TaskRecord:
    """What a model keeps about one task. Tensors are objects of the store, by their names."""

    classes: tuple[str, ...]
    images: int
    """Images that it was trained on."""
    held_out: int
    """Images that it was measured on."""
    accuracy: float | None
    """Share of right answers to held-out images, the task given; None if it was imported."""
    private: bool
    temperature: Annotated[float, Range(1e-9, 1e9)]
    """Divides the logits of its head, so that its probabilities are right on held-out images."""
    task_free_temperature: Annotated[float | None, Range(1e-9, 1e9)]
    """Divides the scores of all classes, if no task is given; None if there was no other task to tell it from."""
    domain: str
    """The kind of its data, by the memory of the first task of this kind."""
    objects: dict[str, str]
    """path: its units. head. memory: of its data. statistics: of its features, by class, if it can learn further.
    columns: its part of the shared head, as it was when the task was learned. sums: what a private task would add to
    the shared head."""
    parent: str | None = None
    """The path from which its path was forked."""
    earlier: tuple[str, ...] = ()
    """Paths that it had before it was learned further: other tasks may have forked them."""
    decision: dict[str, Any] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    """Digests of what it was learned from: the same images are not learned twice."""
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    columns: tuple[int, ...] = ()
    """The columns of its classes in the shared head; in its own sums, if it is private."""
    mirror: bool = False
    """Whether the shared head sees an image together with its mirror image."""

    def to_dict(self) -> dict[str, Any]:
        """The record as plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TaskRecord:
        """The record that `to_dict` described."""
        try:
            check(values, cls)
            if missing := {"path", "head", "memory"} - values["objects"].keys():
                raise ValueError(f"objects lacks {min(missing)!r}")
        except ValueError as error:
            raise ValueError(f"a record of the model is damaged ({error}): run hashroute verify") from None
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**plain)
