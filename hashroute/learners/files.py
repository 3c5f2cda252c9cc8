"""Models on disk: learner.json describes a learner as plain values, and names the file that holds its tensors.

The file with the tensors is named by its content, and learner.json is replaced as a whole. A process that is killed
while it saves leaves the old model or the new one, and whoever reads meanwhile gets one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar

import torch
from filelock import FileLock, Timeout
from safetensors.torch import save
from torch import Tensor, nn
from typing_extensions import NotRequired

from hashroute.learners.objectives import OBJECTIVES, Objective, find_objective
from hashroute.learners.options import options_from_dict, options_to_dict
from hashroute.nn.backbones import BackboneLike, find_backbone
from hashroute.nn.pretrained import check_trusted
from hashroute.recipe import Recipe
from hashroute.schema import Range, check, one_line, read_format, shown
from hashroute.storage import (
    check_regular,
    has_its_content,
    is_content_name,
    load_tensors,
    remove_unfinished,
    sync_folder,
    write_content,
    write_json,
)

if TYPE_CHECKING:
    from hashroute.learners.learner import Learner

FORMAT = 5
"""The format of saved models; formats 3 and 4, whose tensors are in model.safetensors, are read, too."""
WAIT = 60
"""Seconds that a writer waits for another one to end."""
MOST_BYTES = 2**34
"""A larger file of tensors is not read."""

MOST_MAPS = 2**26
"""Numbers in the maps of one image, at most, in a model that is loaded."""
ENDING = ".safetensors"
OLD_TENSORS = "model.safetensors"

Kind = TypeVar("Kind", bound="Learner")


class _Task(TypedDict):
    """A task in learner.json. Kinds of learners add their own entries."""

    name: str
    class_names: list[str]
    mean: list[float] | None
    std: list[float] | None


class _Stem(TypedDict):
    name: str
    size: list[int]
    mean: list[float]
    std: list[float]
    sha256: str


class _Recipe(TypedDict):
    backbone: str | list[dict[str, Any]]


class _Model(TypedDict):
    """What learner.json has in all formats."""

    format: int
    learner: str
    image_shape: list[Annotated[int, Range(1, 2**16)]]
    options: dict[str, Any]
    seed: int


class _Described(_Model):
    """Format 4."""

    recipe: _Recipe
    own_backbone: bool
    stem: NotRequired[_Stem]
    objective: str
    tasks: list[_Task]


class _Described5(_Described):
    """Format 5."""

    tensors: str


class _OldTask(TypedDict):
    name: str
    class_names: list[str]
    mean: list[float] | None
    deviation: list[float] | None


class _Described3(_Model):
    """Format 3."""

    settings: dict[str, Any]
    tasks: list[_OldTask]


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


def check_parts(description: dict[str, Any], backbone: BackboneLike | None) -> None:
    """Raise an error if a model needs a backbone or an objective that is not here."""
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
            if "stem" in description:
                raise ValueError("it describes a frozen stem, and units that have none")
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
        options_from_dict(kind, kind.saved_options(description["options"])),
        description["seed"],
        backbone=backbone,
        objective=description["objective"],
    )
    learner.make_room(description)
    return learner.eval()


def restore(
    kind: type[Kind], description: dict[str, Any], state: dict[str, Tensor], backbone: BackboneLike | None = None
) -> Kind:
    """The learner with this description and this state."""
    check_fits(kind, description, state, backbone)
    learner = build(kind, description, backbone)
    load_state(learner, state)
    return learner


def check_fits(
    kind: type[Learner], description: dict[str, Any], state: dict[str, Tensor], backbone: BackboneLike | None = None
) -> None:
    """Raise an error if a description asks for much more memory than its tensors take.

    This builds the learner without memory, on the device "meta". Learners, backbones and objectives of other authors
    may not work there and are not checked; frozen stems have a known size.
    """
    if backbone is not None or "stem" in description or not kind.__module__.startswith("hashroute."):
        return
    check(kind.saved_options(description["options"]), kind.Options, "options")
    check_size(lambda: build(kind, description), sum(tensor.numel() for tensor in state.values()))


def check_size(make: Callable[[], nn.Module], stored: int) -> None:
    """Raise an error if a module would take much more memory than this many stored numbers.

    It is made without memory. Maps count that are computed meanwhile, to see how large they are.
    """
    largest = 0

    def note(module: object, given: object, output: object) -> None:  # noqa: ARG001
        nonlocal largest
        if isinstance(output, Tensor) and output.is_meta:  # not that of another thread
            largest = max(largest, output.numel())

    hook = torch.nn.modules.module.register_module_forward_hook(note)
    try:
        with torch.device("meta"):
            planned = make().state_dict()
    finally:
        hook.remove()
    needed = sum(tensor.numel() for tensor in planned.values() if isinstance(tensor, Tensor))
    if needed > 2 * stored + 2**20 or largest > MOST_MAPS:
        raise ValueError(f"it describes {needed:,} numbers and maps of {largest:,}, its tensors hold {stored:,}")


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
            learner.random.restore(tensor)
        else:
            parts[part][rest] = tensor.to(learner.device)
    learner.load_state_dict(parts["weights"])
    learner.kept = parts["kept"]
    learner.on_state_loaded()


def write_model(folder: Path, description: dict[str, Any], state: dict[str, Tensor]) -> None:
    """Write a model; a folder that holds one keeps it until the new one is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().contiguous().clone() for name, tensor in state.items()}
    lock = FileLock(folder / ".save.lock", timeout=WAIT)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(f"another process saves into {folder}: wait until it has ended, or end it") from None
    try:
        for name in ("learner.json", "*.safetensors"):
            remove_unfinished(folder, name)
        named = write_content(folder, save(tensors), ENDING)
        sync_folder(folder)
        write_json(folder / "learner.json", {**description, "tensors": named})
        sync_folder(folder)
        for path in folder.glob(f"*{ENDING}"):
            if path.name == OLD_TENSORS or (is_content_name(path.name, (ENDING,)) and path.name != named):
                path.unlink(missing_ok=True)
    finally:
        lock.release()


def read_model(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description and the state of the model in a folder."""
    while True:
        described, tensors = read_description(folder)
        try:
            check_regular(tensors, MOST_BYTES)
            if described["format"] == FORMAT and not has_its_content(tensors):
                raise ValueError(f"{tensors} is damaged, its content has changed: restore it from a copy")
            with damaged(folder):
                state = load_tensors(tensors)
            break
        except FileNotFoundError:  # unless a newer model has replaced it since
            if read_description(folder)[1] == tensors:
                raise ValueError(
                    f"{folder} holds no model, {tensors.name} is missing: give the folder of a run that is finished"
                ) from None
    with damaged(folder):
        if described["format"] == 3:
            described, state = _from_format_3(described, state)
    return described, state


def read_description(folder: Path) -> tuple[dict[str, Any], Path]:
    """The description of the model in a folder, and the file with its tensors."""
    path = folder / "learner.json"
    if not folder.exists():
        raise ValueError(f"{folder} does not exist: expected a folder that Learner.save or a finished run wrote")
    if not path.is_file():
        raise ValueError(
            f"{folder} holds no model, learner.json is missing: give the folder of a model that was saved, "
            "or of a run that is finished"
        )
    described = read_format(path, {3: _Described3, 4: _Described, FORMAT: _Described5})
    named = described.get("tensors", OLD_TENSORS)
    if named != OLD_TENSORS and not is_content_name(named, (ENDING,)):
        raise ValueError(f"{path} is damaged: tensors is {shown(named)}, expected the name of a file of tensors")
    for place, task in enumerate(described["tasks"]):
        scales = (task["mean"], task.get("std", task.get("deviation")))
        if not task["class_names"] or any(
            each and len(each) not in (1, described["image_shape"][0]) for each in scales
        ):
            raise ValueError(f"{path} is damaged: tasks[{place}] has no classes, or a mean for other images")
    return described, folder / named


class damaged:
    """Turns whatever a damaged model provokes into one line that names its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, OSError):
            what = one_line(f"{type(error).__name__}: {error}", 120)
            folder = one_line(self.folder, 100)
            raise ValueError(
                f"{folder} holds a model that cannot be read: it is damaged, or of another version ({what})"
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
