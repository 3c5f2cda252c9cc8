"""Learners by name: those that come with hashroute, and those that users register.

A learner that comes with hashroute is imported when it is first used. To add one, write a file and a line in BUILT_IN.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hashroute.registry import BuiltIn, Registry

if TYPE_CHECKING:
    from hashroute.learners.learner import Learner
    from hashroute.learners.objectives import Objective
    from hashroute.nn.backbones import BackboneLike
    from hashroute.recipe import Recipe
    from hashroute.tasks import Scenario


BUILT_IN = {
    "hrn": BuiltIn(
        "hashroute.learners.hrn",
        "hash-routed network: forks the units of earlier tasks, trains and freezes them, so it forgets nothing",
    ),
    "hrn-paper": BuiltIn("hashroute.learners.hrn_paper", "hash-routed network as published (Berjaoui)"),
    "vc": BuiltIn("hashroute.learners.plain", "vanilla convolutional network: nothing protects old tasks"),
    "ewc": BuiltIn(
        "hashroute.learners.ewc", "elastic weight consolidation: holds weights that old tasks need (Kirkpatrick, 2017)"
    ),
    "ell": BuiltIn(
        "hashroute.learners.ell",
        "encoder-based lifelong learning: holds old answers and codes of autoencoders (Rannen, 2017)",
    ),
    "gpm": BuiltIn(
        "hashroute.learners.gpm", "gradient projection memory: updates avoid the inputs of old tasks (Saha, 2021)"
    ),
    "si": BuiltIn(
        "hashroute.learners.si", "synaptic intelligence: holds weights whose changes lowered old losses (Zenke, 2017)"
    ),
    "lwf": BuiltIn("hashroute.learners.lwf", "learning without forgetting: holds old answers (Li and Hoiem, 2016)"),
    "hat": BuiltIn(
        "hashroute.learners.hat",
        "hard attention to the task: gates protect the channels of old tasks (Serra, 2018)",
    ),
    "packnet": BuiltIn(
        "hashroute.learners.packnet",
        "PackNet: each task prunes and freezes a part of the free weights (Mallya and Lazebnik, 2018)",
    ),
    "closed-form": BuiltIn(
        "hashroute.learners.closed_form", "control: one linear head in closed form over fixed features of images"
    ),
    "hash-only": BuiltIn(
        "hashroute.learners.controls", "control: heads on the hash of the image, no encoder is learned"
    ),
    "separate": BuiltIn("hashroute.learners.controls", "control: a fresh network for each task, nothing is shared"),
    "joint": BuiltIn("hashroute.learners.plain", "reference: one plain network learns all tasks at once"),
}
"""In the order in which tables show them."""

LIBRARIES = {"avalanche": "hashroute.integrations.avalanche_learners"}
"""Modules with learners of other libraries, whose names begin with that of the library: `avalanche:er`."""

LEARNERS: Registry[type[Learner]] = Registry("a learner", BUILT_IN)
"""Kinds of learners that are imported, by name."""

Kind = TypeVar("Kind", bound="type[Learner]")


def register_learner(name: str) -> Callable[[Kind], Kind]:
    """Decorate a kind of learner, so that `create_learner` and the commands find it by this name."""

    def register(kind: Kind) -> Kind:
        LEARNERS.add(name, kind, kind.__module__)
        kind.name = name
        return kind

    return register


def learner_names() -> list[str]:
    """The names of all learners, in the order of tables."""
    return LEARNERS.names


def learner_summaries() -> dict[str, str]:
    """What each learner is, in one line, by name."""
    registered = {name: (kind.__doc__ or "").split("\n")[0].strip() for name, kind in LEARNERS.items()}
    return {name: BUILT_IN[name].summary if name in BUILT_IN else registered[name] for name in learner_names()}


def find_learner(learner: str | type[Learner]) -> type[Learner]:
    """The kind of learner with this name; a class is returned as it is."""
    if isinstance(learner, type) and hasattr(learner, "Options"):
        return learner
    if not isinstance(learner, str):
        given = learner if isinstance(learner, type) else type(learner)  # an instance prints as many lines
        raise ValueError(f"the learner is a {given.__name__}: expected a name, or a subclass of Learner")
    library = learner.partition(":")[0]
    if library in LIBRARIES and library != learner:
        kind: type[Learner] = importlib.import_module(LIBRARIES[library]).find(learner)
        return kind
    return LEARNERS.find(learner, ", or one that a module registers which you import first")


def create_learner(
    name: str | type[Learner],
    image_shape: Sequence[int] | Scenario,
    recipe: Recipe | None = None,
    seed: int = 0,
    *,
    backbone: BackboneLike | None = None,
    objective: str | type[Objective] = "classification",
    **options: Any,
) -> Learner:
    """Make a learner.

    Args:
        name: of a registered learner, or its class.
        image_shape: channels, height and width of the images; or a scenario, whose images, recipe and usual options
            are then those of `run`.
        recipe: how it is trained; by default, our recommended recipe for images of this shape and ten classes.
        seed: of weights, batches and hash functions: the same seed gives the same learner.
        backbone: a registered name such as "resnet18x0.25", unit specs, or a module whose children are the levels.
        objective: what is learned from a task.
        options: of the learner, such as max_units=30; and fields of the recipe, such as epochs=5.
    """
    from dataclasses import fields, replace

    from torch import nn

    from hashroute.learners.inputs import check_image_shape
    from hashroute.learners.options import options_from_dict
    from hashroute.recipe import Recipe, recipe_for
    from hashroute.scenarios import scenario_recipe
    from hashroute.tasks import Scenario

    kind, scenario = find_learner(name), image_shape if isinstance(image_shape, Scenario) else None
    shape = check_image_shape(image_shape.image_shape if isinstance(image_shape, Scenario) else image_shape)
    if recipe is not None and not isinstance(recipe, Recipe):
        raise ValueError(f"recipe is {recipe!r}: expected a Recipe, such as recipe_for(image_shape), or none")
    if type(seed) is not int:
        raise ValueError(f"seed is {seed!r}: expected a whole number")
    own = {each.name for each in fields(kind.Options)}
    common = {each.name for each in fields(Recipe)} - own
    if unknown := options.keys() - own - common:
        expected = f"{', '.join(sorted(own))}, or " if own else ""
        raise ValueError(
            f"{kind.name} has no option {sorted(unknown)[0]!r}: expected {expected}a field of the recipe: "
            f"{', '.join(sorted(common - {'backbone'}))}"
        )
    changes = {name: options.pop(name) for name in list(options) if name in common}
    if recipe is None and scenario is not None and backbone is None:
        recipe = scenario_recipe(scenario)
    recipe = recipe or recipe_for(shape, backbone=None if isinstance(backbone, nn.Module) else backbone)
    usual = kind.default_options("" if scenario is None else scenario.name, shape)
    return kind(
        shape,
        replace(recipe, **changes),
        options_from_dict(kind, {**usual, **options}),
        seed,
        backbone=backbone,
        objective=objective,
    )


def load_learner(folder: str | Path, backbone: BackboneLike | None = None) -> Learner:
    """The learner that was saved in a folder. backbone: the module, if it was made with one of your own."""
    from hashroute.learners import files

    description, state = files.read_model(Path(folder))
    kind = find_learner(description["learner"])
    files.check_parts(description, backbone)
    with files.damaged(Path(folder)):
        return files.restore(kind, description, state, backbone).eval()


def import_plugins(modules: Sequence[str]) -> None:
    """Import modules, also from this folder, that register learners, backbones, objectives or scenarios."""
    if modules and "" not in sys.path:
        sys.path.insert(0, "")  # where `python` finds modules, but a program like `hashroute` does not
    for name in modules:
        try:
            importlib.import_module(name.removesuffix(".py"))
        except Exception as error:  # a module of someone else's may raise anything
            what = f"{type(error).__name__}: {error}"
            missing = isinstance(error, ModuleNotFoundError)
            hint = "; expected the name of a module in this folder, or of an installed one" if missing else ""
            raise ValueError(f"plugin {name!r} cannot be imported: {what}{hint}") from None
