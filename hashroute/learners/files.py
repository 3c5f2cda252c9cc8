"""Models on disk: learner.json describes a learner as plain values, model.safetensors holds its tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from hashroute.learners.objectives import OBJECTIVES, Objective, find_objective
from hashroute.learners.options import options_from_dict, options_to_dict
from hashroute.nn.backbones import BackboneLike, find_backbone
from hashroute.nn.pretrained import check_trusted
from hashroute.recipe import Recipe
from hashroute.storage import replace_file, write_json

if TYPE_CHECKING:
    from hashroute.learners.learner import Learner

FORMAT = 4
"""The format of saved models; format 3 is read, too."""

Kind = TypeVar("Kind", bound="Learner")


def describe(learner: Learner) -> dict[str, Any]:
    """What the state does not hold, as plain values: `build` makes the same learner from it, untrained."""
    return {
        "format": FORMAT,
        "learner": learner.name,
        "image_shape": list(learner.image_shape),
        "recipe": learner.recipe.to_dict(),
        "options": options_to_dict(learner.options),
        "seed": learner.seed,
        "own_backbone": learner.own_backbone,
        **({} if learner.backbone.stem is None else {"stem": learner.backbone.stem.describe()}),
        "objective": _objective_name(learner.objective),
        "tasks": [entry.to_dict() for entry in learner.tasks],
        **learner.extra_description(),
    }


def _objective_name(objective: Objective) -> str:
    """The name that an objective is registered by."""
    for name, kind in OBJECTIVES.items():
        if kind is type(objective):
            return name
    raise ValueError(
        f'the objective {type(objective).__name__} has no name to save: register it with @register_objective("a name")'
    )


def check_parts(folder: Path, description: dict[str, Any], backbone: BackboneLike | None) -> None:
    """Raise an error if the model in a folder needs a backbone or an objective that is not here."""
    with damaged(folder):
        own, named = description["own_backbone"], description["recipe"]["backbone"]
        objective, shape = description["objective"], description["image_shape"]
    if own and backbone is None:
        raise ValueError(
            "this model has a backbone of your own: give the same module with load_learner(folder, backbone=...)"
        )
    find_objective(objective)
    if backbone is None:
        check_trusted(named)
        if not isinstance(named, str):
            return
    stem, described = find_backbone(named if backbone is None else backbone, shape).stem, description.get("stem")
    if stem is not None and described is not None:
        stem.check_same(described)
    elif stem is not None or described is not None:
        given = "no frozen stem" if stem is None else f"the frozen stem {stem.name!r}"
        expected = "none" if described is None else repr(described["name"])
        raise ValueError(
            f"the backbone has {given}, this model has {expected}: give the backbone that it was made with"
        )


def build(kind: type[Kind], description: dict[str, Any], backbone: BackboneLike | None = None) -> Kind:
    """A learner with room for the tasks described; its state is still to be loaded."""
    learner = kind(
        description["image_shape"],
        Recipe.from_dict(description["recipe"]),
        options_from_dict(kind, description["options"]),
        description["seed"],
        backbone=backbone,
        objective=description["objective"],
    )
    learner.make_room(description)
    return learner.eval()


def state_of(learner: Learner) -> dict[str, Tensor]:
    """Weights, kept tensors and the state of the random numbers, by name."""
    weights = {f"weights.{name}": tensor for name, tensor in learner.state_dict().items()}
    kept = {f"kept.{name}": tensor for name, tensor in learner.kept.items()}
    return {**weights, **kept, "random": learner.random.state}


def load_state(learner: Learner, state: dict[str, Tensor]) -> None:
    """Give a learner weights, kept tensors and random numbers, and the precision of the weights."""
    learner.to(next(tensor.dtype for tensor in state.values() if tensor.is_floating_point()))
    parts: dict[str, dict[str, Tensor]] = {"weights": {}, "kept": {}}
    for name, tensor in state.items():
        part, _, rest = name.partition(".")
        if part == "random":
            learner.random.state = tensor.cpu()
        else:
            parts[part][rest] = tensor.to(learner.device)
    learner.load_state_dict(parts["weights"])
    learner.kept = parts["kept"]
    learner.on_state_loaded()


def write_model(folder: Path, description: dict[str, Any], state: dict[str, Tensor]) -> None:
    """Write learner.json and model.safetensors; each file is whole or absent."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().contiguous().clone() for name, tensor in state.items()}
    replace_file(folder / "model.safetensors", lambda file: file.write_bytes(save(tensors)))
    write_json(folder / "learner.json", description)


def read_model(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description and the state of the model in a folder."""
    for name in ("learner.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} holds no model, {name} is missing: give the folder of a run that is finished")
    try:
        description = json.loads((folder / "learner.json").read_text())
        found, _ = description["format"], description["learner"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{folder / 'learner.json'} is damaged: expected what Learner.save writes") from None
    if found not in (3, FORMAT):
        raise ValueError(
            f"{folder} holds a learner of format {found}, this version reads 3 and {FORMAT}: "
            "use the version of hashroute that wrote it"
        )
    with damaged(folder):
        state = load_file(folder / "model.safetensors")
        return _from_format_3(description, state) if found == 3 else (description, state)


class damaged:
    """Turns whatever a damaged model provokes into one line that names its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, OSError):
            what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise ValueError(
                f"{self.folder} holds a model that cannot be read: it is damaged, or of another version ({what})"
            ) from None


# -------------------------------------------------------------------- format 3

_RENAMED = {
    "encoder": "backbone",
    "feature_size": "feature_scale",
    "looked_at": "compared_images",
    "trust_in_kinds": "trust_in_domains",
}


def _from_format_3(old: dict[str, Any], state: dict[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description and the state of a model in format 3, in the present format."""
    recipe, options = (
        {_RENAMED.get(name, name): value for name, value in old[part].items()} for part in ("settings", "options")
    )
    description = {
        **old,
        "format": FORMAT,
        "recipe": recipe,
        "options": options,
        "own_backbone": False,
        "objective": "classification",
    }
    del description["settings"]
    description["tasks"] = [
        {"name": task["name"], "class_names": task["class_names"], "mean": task["mean"], "std": task["deviation"]}
        for task in old["tasks"]
    ]
    for index, task in enumerate(description["tasks"] if "ways" in old else ()):
        task |= {"path": old["ways"][index], "domain": old["kinds"][index], "memory": old["known_as"][index]}
        task["decision"] = old["decisions"][index]
    named = {}
    for name, tensor in state.items():
        part, _, rest = name.partition(".")
        rest = rest.replace("encoder.units.", "encoder.levels.") if old["learner"] != "hrn-paper" else rest
        if part == "memory":
            rest = rest.replace("fisher.units.", "fisher.levels.").replace("centre.units.", "centre.levels.")
        if old["learner"] == "separate":  # a list of encoders
            rest = rest.replace(".units.", ".levels.")
        named[f"{'kept' if part == 'memory' else part}.{rest}"] = tensor
    generator = torch.Generator().manual_seed((old["seed"] * 1000 + len(old["tasks"])) % 2**63)
    return description, {**named, "random": generator.get_state()}
