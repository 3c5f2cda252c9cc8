"""hashroute bench: compare learners on one scenario."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console

from hashroute.cli.options import (
    UNSET,
    check_counts,
    check_folder,
    check_fraction,
    learner_help,
    load_tasks,
    parse_option,
    parse_value,
    say,
    scenario_help,
    scenario_name,
)

if TYPE_CHECKING:
    from hashroute.recipe import Recipe
    from hashroute.tasks import Scenario
    from hashroute.training.result import Comparison, RunResult
    from hashroute.training.sweep_runs import SweepRun


@dataclass(frozen=True)
class BenchSettings:
    """Settings of a comparison."""

    scenario: Annotated[tyro.conf.Positional[str], tyro.conf.arg(help=scenario_help())] = "digits"
    learners: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="(default: all)", help=learner_help())] = ()
    seeds: int = 1
    """Number of runs of each learner, with seeds 0, 1, ..."""
    jobs: Annotated[int | None, tyro.conf.arg(help_behavior_hint="(default: 1, or as many as the engine takes)")] = None
    """Number of runs at the same time, each in a process with one thread."""
    engine: str = "local"
    """Where to run: local, dask:ADDRESS, ray:ADDRESS, or slurm. Only slurm needs a disk that all machines share."""
    recipe: Literal["default", "paper"] = "default"
    """How learners are trained. `paper`: the published settings. `default`: our recommended settings."""
    epochs: Annotated[tuple[int, ...], UNSET] = ()
    """Epochs of each task; the last number also holds for all later tasks."""
    batch_size: Annotated[int | None, UNSET] = None
    """Images in a training batch."""
    learning_rate: Annotated[float | None, UNSET] = None
    """Learning rate, or its peak if the recipe has a schedule."""
    augment: tyro.conf.FlagCreatePairsOff[bool] = False
    """Mirror and shift training images, as each task allows."""
    no_augment: tyro.conf.FlagCreatePairsOff[bool] = False
    """Use training images as they are."""
    autocast: bool = False
    """Compute layers in bfloat16 where torch.autocast does."""
    channels_last: bool = False
    """Lay images out with their channels last."""
    backbone: Annotated[str | None, UNSET] = None
    """Encoder of all learners, by name, for example resnet18x0.25."""
    objective: str = "classification"
    """What is learned from a task, by name. Without labels: rotation. Then features are measured with few labels."""
    fraction: float = 1.0
    """Share of every task's images, for a quick look."""
    folder: Annotated[Path | None, UNSET] = None
    """Images of the scenario `folders`: one folder per task, in it one folder per class."""
    size: Annotated[int | None, UNSET] = None
    """Height and width to which the scenario `folders` scales images, in pixels."""
    options: Annotated[tuple[str, ...], UNSET] = ()
    """Overrides learner options, for example hrn.max_units=30 or gpm.threshold=0.9."""
    tuned: Annotated[Path | None, UNSET] = None
    """File with learner options that `hashroute search` wrote; by default those that come with hashroute."""
    resume: bool = False
    """Continue unfinished runs."""
    replace: bool = False
    """Do all runs again, and replace earlier results and runs of the same name."""
    runs: Path = Path("runs")
    """Folder that gets a folder for each run: its settings, epochs, checkpoint and model."""
    results: Path = Path("results")
    """Folder for the result file."""
    device: str = "auto"
    """Device to compute on: cpu, cuda, cuda:1, mps; auto takes an accelerator if there is one."""
    plugins: Annotated[tuple[str, ...], UNSET] = ()
    """Python modules to import first. They register your own learners, scenarios, backbones or objectives."""
    no_samples: tyro.conf.FlagCreatePairsOff[bool] = False
    """Store no test images. Otherwise the folder of a run gets two of each task, for reports."""
    track: Annotated[tuple[Literal["tensorboard", "mlflow", "wandb"], ...], UNSET] = ()
    """Log every epoch to TensorBoard (files in the folders of the runs), MLflow, or Weights & Biases."""
    json: bool = False
    """Print lines of JSON and nothing else: one for each epoch, for each run, and for the end."""

    @property
    def recipe_changes(self) -> dict[str, Any]:
        """The fields of the recipe that the command sets."""
        changes = {
            "epochs": self.epochs or None,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "augment": True if self.augment else False if self.no_augment else None,
            "autocast": self.autocast or None,
            "channels_last": self.channels_last or None,
            "backbone": self.backbone,
        }
        return {name: value for name, value in changes.items() if value is not None}

    def command(self, learners: Sequence[str], seeds: int, options: Sequence[str] = ()) -> str:
        """The command that runs these learners with this number of seeds."""
        parts = ["hashroute", "bench", self.scenario, "--recipe", self.recipe]
        parts += ["--learners", *learners] if learners else []
        parts += ["--seeds", str(seeds)] if seeds > 1 else []
        for name, value in self.recipe_changes.items():
            flag = "--" + name.replace("_", "-")
            if isinstance(value, bool):
                parts.append(flag if value else "--no-augment")
            else:
                parts += [flag, *(map(str, value) if isinstance(value, tuple) else [f"{value}"])]
        parts += ["--objective", self.objective] if self.objective != "classification" else []
        parts += ["--fraction", f"{self.fraction:g}"] if self.fraction != 1 else []
        parts += ["--folder", str(self.folder)] if self.folder else []
        parts += ["--size", str(self.size)] if self.size else []
        parts += ["--options", *options] if options else []
        parts += ["--plugins", *self.plugins] if self.plugins else []
        return shlex.join(parts)


def run_bench(settings: BenchSettings, console: Console) -> int:
    """Do every run that the result file does not hold yet; returns how many failed."""
    from hashroute.integrations.engines import open_engine
    from hashroute.reporting.live import Job, live_table
    from hashroute.reporting.results import features, headline
    from hashroute.reporting.table import to_terminal
    from hashroute.training.sweep import OtherSettingsError, Sweep
    from hashroute.training.sweep_runs import SweepSettings

    _check(settings)
    console.quiet = settings.json
    load = partial(load_tasks, settings.scenario, settings.folder, settings.size, settings.fraction)
    scenario = load()
    recipe, changes = _recipe(settings, scenario)
    name = _name(settings, changes)
    options = _Options(settings, scenario)
    path = settings.results / f"{name}.json"
    shared = SweepSettings(
        load,
        recipe,
        settings.recipe,
        settings.fraction,
        None if settings.folder is None else str(settings.folder.resolve()),
        runs=settings.runs / name,
        resume=settings.resume,
        samples=not settings.no_samples,
        objective=settings.objective,
        device=settings.device,
        plugins=settings.plugins,
        watch=partial(_watch, settings, settings.runs / name) if settings.json or settings.track else None,
    )
    try:
        sweep = Sweep(shared, options.runs(), path, options.command, settings.replace)
    except OtherSettingsError as error:
        raise ValueError(f"{error}, or add --replace") from None
    jobs = {}
    images = sum(recipe.epochs_of(index) * len(task.train) for index, task in enumerate(scenario.tasks))
    once = sum(len(task.train) for task in scenario.tasks)
    for each in sweep.left:
        folder = shared.folder(each)
        assert folder is not None
        if folder.begun and not folder.finished and not settings.resume:
            raise ValueError(
                f"{folder.path} holds an unfinished run: add --resume to continue it, or --replace to start it again"
            )
        jobs[each.name, each.seed] = Job(each.name, each.seed, folder.path, images if each.kind.trained else once)
    say(console, f"{settings.scenario}, {scenario.sizes()}")
    if len(sweep.left) < len(sweep.runs):
        say(console, f"{len(sweep.runs) - len(sweep.left)} of {len(sweep.runs)} runs are already there")

    def on_result(each: SweepRun, result: RunResult) -> None:
        jobs[each.name, each.seed].update()
        jobs[each.name, each.seed].state = "done"
        _show_run(result, console)
        _tell(settings, learner=each.name, seed=each.seed, result=result.to_dict())

    def on_failure(each: SweepRun, problem: str) -> None:
        jobs[each.name, each.seed].state = "failed"
        _tell(settings, learner=each.name, seed=each.seed, error=problem)

    with open_engine(settings.engine, settings.runs / name) as engine:
        at_once = settings.jobs or (1 if engine is None else max(1, engine.slots()))
        with live_table(list(jobs.values()), at_once, console):
            failures = sweep.run(settings.jobs, on_result, on_failure, engine)
    if sweep.comparison.runs:
        console.print(to_terminal(features(sweep.comparison) or headline(sweep.comparison)))
    kept = f" of {len(sweep.runs) - len(sweep.left)} of {len(sweep.runs)} runs" if failures else ""
    there = f"results{kept} in {path}" if path.exists() else f"{path} is missing: it was removed, or the disk is full"
    say(console, there)
    for failure in failures:
        say(console, failure)
    if failures:
        say(console, "add --resume to the command to continue what failed")
    _tell(settings, results=str(path))
    return len(failures)


def _check(settings: BenchSettings) -> None:
    """Find mistakes in the command before any work."""
    from hashroute.devices import find_device
    from hashroute.integrations.tracking import check_tracker
    from hashroute.learners import find_learner
    from hashroute.learners.objectives import find_objective
    from hashroute.learners.registry import import_plugins

    check_counts(
        seeds=settings.seeds,
        jobs=settings.jobs,
        epochs=min(settings.epochs, default=1),
        batch_size=settings.batch_size,
        size=settings.size,
    )
    check_fraction(settings.fraction)
    if settings.learning_rate is not None and not 0 < settings.learning_rate < float("inf"):
        raise ValueError(f"--learning-rate is {settings.learning_rate}: expected a number above 0")
    if settings.augment and settings.no_augment:
        raise ValueError("--augment and --no-augment are both given: expected one of them")
    check_folder(settings.scenario, settings.folder, settings.size)
    for tracker in settings.track:
        check_tracker(tracker)
    import_plugins(settings.plugins)
    for name in settings.learners:
        find_learner(name)
    find_objective(settings.objective)
    if settings.engine == "local":
        find_device(settings.device)


def _recipe(settings: BenchSettings, scenario: Scenario) -> tuple[Recipe, dict[str, Any]]:
    """The recipe, and the fields that differ from the recipe of the scenario."""
    from hashroute.nn.backbones import feature_count
    from hashroute.scenarios import scenario_recipe

    usual = scenario_recipe(scenario, settings.recipe)
    changes = {name: value for name, value in settings.recipe_changes.items() if getattr(usual, name) != value}
    recipe = replace(usual, **changes)
    if "backbone" in changes:
        recipe = replace(recipe, features=feature_count(recipe.backbone, scenario.image_shape, recipe.pool))
    return recipe, changes


def _name(settings: BenchSettings, changes: Mapping[str, Any]) -> str:
    """The name of the result file and of the folder of the runs: what differs from the defaults is part of it."""
    from hashroute.training.sweep_runs import changed

    parts = [scenario_name(settings.scenario, settings.folder)]
    parts += ["paper"] if settings.recipe == "paper" else []
    parts += [settings.objective] if settings.objective != "classification" else []
    parts += [f"{settings.fraction:g}"] if settings.fraction != 1 else []
    named = {name: ",".join(map(str, value)) if isinstance(value, tuple) else value for name, value in changes.items()}
    parts += changed({**({} if settings.size is None else {"size": settings.size}), **named})
    return "-".join(parts)


class _Options:
    """The options of each learner, and the runs and commands that follow from them."""

    def __init__(self, settings: BenchSettings, scenario: Scenario) -> None:
        from hashroute.learners import learner_names
        from hashroute.training.run import learner_options

        self.settings = settings
        self.learners = tuple(dict.fromkeys(settings.learners or learner_names()))
        self._usual = partial(learner_options, scenario=scenario.name, profile=settings.recipe)
        self._shape = scenario.image_shape
        given: dict[str, dict[str, Any]] = {}
        for text in settings.options:
            learner, name, value = parse_option("--options", text, self.learners)
            given.setdefault(learner, {})[name] = parse_value(value)
        self.options = {
            learner: {**self._usual(learner, image_shape=self._shape, tuned=settings.tuned), **given.get(learner, {})}
            for learner in self.learners
        }

    def unusual(self, learner: str, options: dict[str, Any]) -> dict[str, Any]:
        """The options that differ from the learner's usual ones."""
        from hashroute.learners import find_learner
        from hashroute.learners.options import options_from_dict, options_to_dict

        kind = find_learner(learner)
        usual = options_to_dict(options_from_dict(kind, self._usual(learner, image_shape=self._shape)))
        found = options_to_dict(options_from_dict(kind, options))
        return {name: value for name, value in found.items() if value != usual[name]}

    def runs(self) -> list[SweepRun]:
        """All runs: seed after seed."""
        from hashroute.training.sweep_runs import SweepRun, row_name

        unusual = {learner: self.unusual(learner, self.options[learner]) for learner in self.learners}
        return [
            SweepRun(
                row_name(learner, unusual[learner]),
                learner,
                seed,
                self.options[learner],
                self.settings.command([learner], seed + 1, _as_text(learner, unusual[learner])),
            )
            for seed in range(self.settings.seeds)
            for learner in self.learners
        ]

    def command(self, comparison: Comparison) -> str:
        """The command, or the commands, that repeat a comparison."""
        from hashroute.learners import learner_names

        seeds = 1 + max(run.seed for run in comparison.runs)
        usual = [name for name, runs in comparison.learners.items() if name == runs[0].learner]
        commands = [self.settings.command([] if set(usual) == set(learner_names()) else usual, seeds)] if usual else []
        for name, runs in comparison.learners.items():
            if name not in usual:
                learner = runs[0].learner
                text = _as_text(learner, self.unusual(learner, runs[0].options))
                commands.append(self.settings.command([learner], 1 + max(run.seed for run in runs), text))
        return " && ".join(commands)


def _as_text(learner: str, options: Mapping[str, Any]) -> list[str]:
    """Options as the command line takes them."""
    return [
        f"{learner}.{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in options.items()
    ]


def _show_run(result: RunResult, console: Console) -> None:
    """The decisions of a run, and, where there is no live table, its accuracy."""
    from hashroute.reporting.decisions import describe
    from hashroute.training import metrics

    for decision in result.decisions:
        say(console, f"{result.name}, seed {result.seed}, {describe(decision, result.score)}")
    if not console.is_terminal:
        final = result.score.text(metrics.final(result.accuracy))
        say(console, f"{result.name}, seed {result.seed}: {final} after the last task")


def _tell(settings: BenchSettings, **values: Any) -> None:
    """Print a line of JSON, if that is asked for. The lock keeps lines of several processes apart."""
    from filelock import FileLock

    if settings.json:
        with FileLock(settings.results / ".lines.lock"):
            print(json.dumps(values), flush=True)


@contextmanager
def _watch(settings: BenchSettings, runs: Path, each: SweepRun) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that prints the record of an epoch as JSON, and sends it to trackers, as settings ask for."""
    from hashroute.integrations.tracking import open_tracker
    from hashroute.training.run_folder import RunFolder
    from hashroute.training.sweep_runs import folder_name

    folder = RunFolder(runs / folder_name(each.name, each.seed))
    with ExitStack() as stack:
        trackers = [
            stack.enter_context(open_tracker(name, folder.path.name, runs.name, folder.path)) for name in settings.track
        ]

        def tell(record: dict[str, Any]) -> None:
            _tell(settings, learner=each.name, seed=each.seed, **record)
            log = folder.read_epochs() if trackers else []
            steps = {(entry["task"], entry["epoch"]): step for step, entry in enumerate(log, 1)}
            for tracker in trackers:
                tracker(record, steps[record["task"], record["epoch"]])

        yield tell
