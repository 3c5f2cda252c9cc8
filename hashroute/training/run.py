"""One run: a learner learns the tasks of a scenario in order. A run that was stopped can be resumed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch

from hashroute import distributed
from hashroute.learners import files, find_learner
from hashroute.learners.checkpoints import RAW
from hashroute.learners.entries import EpochLog
from hashroute.learners.learner import Learner
from hashroute.learners.options import options_from_dict, options_to_dict, searched_options
from hashroute.learners.trainer import Trainer, clock
from hashroute.nn.backbones import Backbone
from hashroute.recipe import Profile, Recipe
from hashroute.scenarios import load_scenario, scenario_recipe
from hashroute.tasks import Scenario
from hashroute.training.evaluate import EvaluateOn, Evaluation
from hashroute.training.result import RunResult, Score
from hashroute.training.run_folder import RunFolder, RunSettings, usable
from hashroute.training.samples import samples

AnyLearner = str | type[Learner] | Learner
"""A learner's name, its class, or an untrained instance."""


def learner_options(
    learner: str | type[Learner],
    scenario: str,
    profile: Profile,
    image_shape: tuple[int, ...],
    tuned: Path | None = None,
) -> dict[str, Any]:
    """The options of a learner in a comparison: the usual ones of the scenario, then those that a search found.

    tuned: a file of `hashroute search`; None stands for the learner's own `tuned` values.
    """
    kind = _kind(learner)
    if tuned is None:
        return kind.default_options(scenario, image_shape, profile)
    return {**kind.usual_options(scenario, image_shape), **searched_options(tuned).get(kind.name, {})}


def describe(
    scenario: Scenario,
    learner: AnyLearner,
    recipe: Recipe,
    seed: int,
    options: dict[str, Any],
    fraction: float = 1.0,
    evaluate_on: EvaluateOn = "test",
    name: str = "",
    objective: str = "classification",
) -> RunSettings:
    """Everything that the numbers of a run depend on, as settings.json holds it."""
    kind = _kind(learner)
    all_options = learner.options if isinstance(learner, Learner) else options_from_dict(kind, options)
    return RunSettings(
        scenario=scenario.name,
        tasks=[task.name for task in scenario.tasks],
        images=scenario.images,
        data=scenario.digest,
        learner=kind.name,
        name=name or kind.name,
        version=kind.version,
        at_once=kind.at_once,
        options=options_to_dict(all_options),
        recipe=recipe.to_dict(),
        seed=seed,
        fraction=fraction,
        evaluate_on=evaluate_on,
        objective=learner.objective.name if isinstance(learner, Learner) else objective,
        backbone=_structure(learner.backbone) if isinstance(learner, Learner) and learner.own_backbone else None,
    )


def _structure(backbone: Backbone) -> str:
    """Digits that tell modules of different structure apart; weights do not matter."""
    return hashlib.sha256(repr(backbone.new_levels()).encode()).hexdigest()[:12]


def run(
    scenario: Scenario | str,
    learner: AnyLearner = "hrn",
    recipe: Recipe | Profile = "default",
    seed: int = 0,
    *,
    options: dict[str, Any] | None = None,
    objective: str = "classification",
    folder: str | Path | None = None,
    resume: bool = False,
    checkpoints: bool = True,
    device: str | torch.device = "cpu",
    fraction: float = 1.0,
    evaluate_on: EvaluateOn = "test",
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
    command: str | None = None,
    name: str = "",
    keep_samples: bool = True,
) -> tuple[RunResult, Learner]:
    """Train a learner on the tasks of a scenario, one after another, and measure it after each.

    In a group of processes (`torch.distributed`), all of them call this with the same arguments and share the work.
    Rank 0 measures, calls `on_epoch` and has the folder.

    Args:
        scenario: the tasks, or the name of a registered scenario.
        learner: the name of a registered learner, a learner class, or an instance that has learned nothing yet.
        recipe: how the learner is trained. "default" and "paper" are the recipes of the scenario. An instance has its
            own recipe.
        seed: seed of weights, batches and hash functions. The same seed gives the same numbers.
        options: options of the learner; by default the usual ones of the scenario. An instance has its own options.
        objective: what is learned from a task, by its registered name. An instance has its own.
        folder: folder for settings.json, epochs.jsonl, the model, samples.json and result.json. None writes nothing.
        resume: continue from the folder's checkpoint. A finished run is read and not repeated.
        checkpoints: write a checkpoint after every epoch.
        device: device to compute on.
        fraction: share of every task's images, where the scenario is given by name. Otherwise it is only recorded.
        evaluate_on: images that accuracy is measured on.
        on_epoch: called with the record of each epoch.
        command: command that repeats the run, to be recorded.
        name: row of the table that the run belongs to; by default the learner's name.
        keep_samples: store two test images of each task in samples.json, for reports. Nothing else stores images.

    Returns:
        The result, and the trained learner.
    """
    scenario = _scenario(scenario, fraction)
    kind = _kind(learner)
    if isinstance(learner, Learner):
        if learner.tasks:
            raise ValueError("the learner has learned tasks already: expected an instance that has learned nothing yet")
        if options is not None:
            raise ValueError("options are given with an instance of a learner: give them when you create the learner")
        recipe, seed, options = learner.recipe, learner.seed, {}
    profile: Profile = "default"
    if not isinstance(recipe, Recipe):
        if recipe not in get_args(Profile):
            raise ValueError(f"recipe is {recipe!r}: expected a Recipe, or one of {', '.join(get_args(Profile))}")
        profile = recipe
        recipe = scenario_recipe(scenario, profile)
    if options is None:
        options = learner_options(kind, scenario.name, profile, scenario.image_shape)
    settings = describe(scenario, learner, recipe, seed, options, fraction, evaluate_on, name, objective)
    kept = None if folder is None else RunFolder(folder)
    with ExitStack() as stack:
        result, checkpoint = None, None
        if kept is not None:
            result, checkpoint = distributed.first(partial(_open, kept, stack, settings, resume, command))
            if result is not None:
                return result, _load_finished(learner, kind, kept.path)
        if kept is None or checkpoint is None:
            model = (
                learner if isinstance(learner, Learner) else _create(kind, scenario, recipe, seed, options, objective)
            )
            progress = _Progress(scenario, model.to(device), settings)
        else:
            with usable(kept.checkpoint):
                model = _rebuild(learner, kind, checkpoint["description"], checkpoint["state"])
                progress = _Progress(scenario, model.to(device), settings)
                progress.load_state(checkpoint)
                progress.resumed_from = kept.checkpoint
        for record in progress.epochs():
            distributed.first(partial(_keep, kept, record, progress, checkpoints, on_epoch))
        distributed.first(partial(_finish, kept, progress, keep_samples))
        return distributed.first(lambda: progress.evaluation.result), model


def _open(
    folder: RunFolder, stack: ExitStack, settings: RunSettings, resume: bool, command: str | None
) -> tuple[RunResult | None, dict[str, Any] | None]:
    """Lock the folder until the end of a stack; its result if the run is finished, or else its checkpoint, if any."""
    stack.enter_context(folder.writing())
    if resume and folder.finished:
        return folder.read_result(settings), None
    return None, folder.begin(settings, resume, command)


def _keep(
    folder: RunFolder | None,
    record: dict[str, Any],
    progress: _Progress,
    checkpoints: bool,
    on_epoch: Callable[[dict[str, Any]], None] | None,
) -> None:
    """Write down an epoch, and tell others about it."""
    if folder is not None:
        length = folder.add_epoch(record)
        if checkpoints:
            folder.write_checkpoint(progress.state(), length)
    if on_epoch is not None:
        on_epoch(record)


def _finish(folder: RunFolder | None, progress: _Progress, keep_samples: bool) -> None:
    """Write the model and the result of a run."""
    if folder is not None:
        model, evaluation = progress.learner, progress.evaluation
        wanted = keep_samples and model.objective.names_classes
        folder.finish(model, samples(model, evaluation.data) if wanted else [], evaluation.result)


def _load_finished(learner: AnyLearner, kind: type[Learner], folder: Path) -> Learner:
    """The model of a finished run."""
    description, state = distributed.first(lambda: files.read_model(folder))
    with files.damaged(folder):
        return _rebuild(learner, kind, description, state).eval()


class _Progress:
    """The loop over tasks and epochs. It can be stopped after any epoch and continued from its state."""

    def __init__(self, scenario: Scenario, learner: Learner, settings: RunSettings) -> None:
        self.tasks = scenario.tasks
        self.learner = learner
        evaluate_on: Any = settings.evaluate_on
        result = settings.new_result()
        result.score_name, result.score_percent = self.score
        self.evaluation = Evaluation(scenario, evaluate_on, result)
        self.resumed_from: Path | None = None
        """The checkpoint that it was continued from."""

    @property
    def score(self) -> Score:
        """What the learner's objective measures."""
        return Score(self.learner.objective.score_name, self.learner.objective.score_factor == 100)

    def epochs(self) -> Iterator[dict[str, Any]]:
        """Train everything that is left; yields the record of each epoch."""
        learner, trainer, result = self.learner, Trainer(self.learner), self.evaluation.result
        torch.optim.Adam([torch.zeros(1)])  # the first one in a process imports for seconds, which is not training
        while len(learner.tasks) < len(self.tasks) or learner.training_state is not None:
            # Only what uses the parts of a checkpoint shows whether all of them fit.
            with nullcontext() if self.resumed_from is None else usable(self.resumed_from, *RAW):
                record = self._epoch(trainer, result)
            yield record

    def _epoch(self, trainer: Trainer, result: RunResult) -> dict[str, Any]:
        """Train for an epoch, and measure after the last one of a task; returns its record."""
        learner = self.learner
        if learner.training_state is None:
            start = clock(learner.device)
            trainer.begin(*(self.tasks if learner.at_once else self.tasks[len(learner.tasks) :][:1]))
            result.seconds += clock(learner.device) - start
        log = trainer.run_epoch()
        result.seconds += log.seconds
        result.images += log.images
        record = distributed.first(partial(self._record, trainer, log))
        if trainer.done:
            start = clock(learner.device)
            trainer.finish()
            result.seconds += clock(learner.device) - start
            record |= distributed.first(lambda: self.evaluation.after_task(learner))
        return record

    def _record(self, trainer: Trainer, log: EpochLog) -> dict[str, Any]:
        """What the log of the run gets after an epoch."""
        learner, entries, factor = self.learner, trainer.state.tasks, self.learner.objective.score_factor
        scores = [learner.scores(entry.data.validation, entry).double().mean().item() for entry in entries]
        return {
            "task": entries[0].name if len(entries) == 1 else "all",
            "task_index": entries[0].index,
            "epoch": trainer.state.epoch,
            "epochs": trainer.epochs,
            "loss": log.loss,
            "train_accuracy": None if log.score is None else factor * log.score,
            "validation_accuracy": sum(factor * score for score in scores) / len(scores),
            "score": self.score,
            "images": log.images,
            "seconds": log.seconds,
            **learner.analyse(entries[0].data.validation[:1000].images, entries[0]),
        }

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs to reach the same numbers, bit for bit."""
        return {
            "description": files.describe(self.learner),
            "state": files.state_of(self.learner),
            "training": Trainer(self.learner).checkpoint(),
            "result": self.evaluation.result.to_dict(),
            "paths": self.evaluation.first_paths,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave, with a learner that has its description and its tensors."""
        self.evaluation.result = RunResult.from_dict(state["result"])
        self.evaluation.first_paths = state["paths"]
        training = state["training"]
        known, under_way = len(self.learner.tasks), [] if training is None else training["tasks"]
        learned = known - len(under_way)
        rows = len(self.evaluation.result.accuracy)
        if known > len(self.tasks) or rows != learned or under_way != list(range(learned, known)):
            raise ValueError("its parts do not belong together")
        if training is not None:
            Trainer(self.learner).restore(training, [self.tasks[index] for index in training["tasks"]])


def _scenario(scenario: Scenario | str, fraction: float) -> Scenario:
    if isinstance(scenario, str):
        return load_scenario(scenario, fraction)
    if not isinstance(scenario, Scenario):
        raise ValueError(f"scenario is of type {type(scenario).__name__}: expected a Scenario, or the name of one")
    return scenario


def _kind(learner: AnyLearner) -> type[Learner]:
    """The class of a learner."""
    if isinstance(learner, Learner):
        return type(learner)
    if isinstance(learner, type) and issubclass(learner, Learner):
        return learner
    if isinstance(learner, str):
        return find_learner(learner)
    raise ValueError(f"learner is of type {type(learner).__name__}: expected a name, a Learner class, or an instance")


def _rebuild(
    learner: AnyLearner, kind: type[Learner], description: dict[str, Any], state: dict[str, torch.Tensor]
) -> Learner:
    """The learner of an earlier run, with the tasks that it knew."""
    if not isinstance(learner, Learner):
        return files.restore(kind, description, state)
    learner.make_room(description)
    files.load_state(learner, state)
    return learner


def _create(
    kind: type[Learner], scenario: Scenario, recipe: Recipe, seed: int, options: dict[str, Any], objective: str
) -> Learner:
    return kind(scenario.image_shape, recipe, options_from_dict(kind, options), seed, objective=objective)
