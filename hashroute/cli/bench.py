"""hashroute bench: learners and seeds side by side on one scenario, into one result file."""

from __future__ import annotations

import importlib.util
import json
import math
import shlex
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import tyro
from filelock import FileLock, Timeout
from rich.console import Console

from hashroute.devices import find_device
from hashroute.learners import LEARNERS, find_learner, import_plugins
from hashroute.learners.base import options_from_dict, options_to_dict, parse_option
from hashroute.recipe import Profile, Recipe, result_name, tuned_options, with_defaults
from hashroute.reporting.live import Job, live_table
from hashroute.reporting.tables import summary_table
from hashroute.scenarios import load_scenario, scenario_recipe
from hashroute.storage import insert_seed, remove_unfinished, write_json
from hashroute.tasks import Scenario
from hashroute.training import metrics
from hashroute.training.run import check_same, describe, learner_options, run
from hashroute.training.workers import check_counts, side_by_side


@dataclass(frozen=True)
class BenchSettings:
    """Recipe of a comparison."""

    scenario: tyro.conf.Positional[str] = "digits"
    """Which tasks to learn: digits, pairwise-mnist, fashion-mnist, svhn-cifar100, split-cifar100, mixed, folders."""
    learners: tuple[str, ...] = ()
    """Which learners to compare: hrn, hrn-paper, vc, ewc, ell, gpm, hash-only, separate, joint; all, if left out."""
    seeds: int = 1
    """Runs of each learner, with seeds 0, 1, ..."""
    jobs: int = 1
    """Runs at the same time, each a process with one thread."""
    recipe: Profile = "default"
    """How learners are trained: as published, or our own way."""
    epochs: tuple[int, ...] = ()
    """Epochs of each task, the last number for all after it; those of the settings, if left out."""
    fraction: float = 1.0
    """Share of every task's images, for a quick look."""
    resume: bool = False
    """Go on with runs that were stopped."""
    runs: Path = Path("runs")
    """Folder for a folder of every run: its settings, epochs, checkpoint and model."""
    results: Path = Path("results")
    """Folder for the result file."""
    device: str = "auto"
    """Where to compute: cpu, cuda, cuda:1, mps; auto takes an accelerator if there is one."""
    folder: Path | None = None
    """Of the scenario `folders`: one folder per task, in it one per class."""
    tuned: Path | None = None
    """Options of learners as `hashroute search` wrote them; those that come with hashroute, if left out."""
    options: tuple[str, ...] = ()
    """Options of learners that are to be others, such as hrn.max_units=30 or gpm.threshold=0.9."""
    plugins: tuple[str, ...] = ()
    """Python modules to import first, which register learners or scenarios of your own."""
    tensorboard: bool = False
    """Write TensorBoard logs into the runs' folders."""
    json: bool = False
    """Print lines of JSON for programs, and nothing else: one for each epoch, for each run, and for the end."""

    @property
    def name(self) -> str:
        """What the result file and the folder of the runs are called."""
        name = result_name(self.scenario if self.folder is None else f"folders-{self.folder.name}", self.recipe)
        return name if self.fraction == 1 else f"{name}-{self.fraction:g}"

    def run_folder(self, learner: str, seed: int) -> Path:
        """The folder of one run."""
        return self.runs / self.name / f"{learner}-seed{seed}"

    def command(self, learners: Sequence[str], seeds: int) -> str:
        """The command for these learners, with so many seeds."""
        parts = ["hashroute", "bench", self.scenario, "--recipe", self.recipe]
        if set(learners) != set(LEARNERS):
            parts += ["--learners", *learners]
        parts += ["--seeds", str(seeds)]
        parts += ["--epochs", *map(str, self.epochs)] if self.epochs else []
        parts += ["--fraction", f"{self.fraction:g}"] if self.fraction != 1 else []
        parts += ["--folder", str(self.folder)] if self.folder else []
        parts += ["--tuned", str(self.tuned)] if self.tuned else []
        parts += ["--options", *self.options] if self.options else []
        parts += ["--plugins", *self.plugins] if self.plugins else []
        return shlex.join(parts)


def run_bench(settings: BenchSettings, console: Console) -> int:
    """Run every learner with every seed that the result file does not hold yet; returns how many failed."""
    settings = _checked(settings)
    console.quiet = settings.json
    scenario = _load(settings)
    common = _common(settings, scenario)
    for name in settings.learners:  # before anything is written
        options_from_dict(find_learner(name).Options, _options(settings, name, scenario))
    path = settings.results / f"{settings.name}.json"
    results = Results(path, settings, scenario, common)
    jobs = [
        Job(name, seed, settings.run_folder(name, seed), _images(scenario, common))
        for seed in range(settings.seeds)
        for name in settings.learners
        if not results.holds(name, seed)
    ]
    for job in list(jobs):
        finished = job.folder / "result.json"
        if finished.exists():  # stopped between the end of the run and the merge
            options = _options(settings, job.learner, scenario)
            check_same(job.folder, describe(scenario, job.learner, common, job.seed, options, settings.fraction))
            (job.folder / "checkpoint.pt").unlink(missing_ok=True)
            remove_unfinished(job.folder)
            outcome = json.loads(finished.read_text())
            results.merge(job.learner, job.seed, outcome)
            jobs.remove(job)
            _tell(settings, learner=job.learner, seed=job.seed, result=outcome)
        elif (job.folder / "settings.json").exists() and not settings.resume:
            raise ValueError(
                f"{job.folder} holds an unfinished run: add --resume to go on with it, or delete it to start again"
            )
    console.print(f"{settings.scenario}, {scenario.sizes()}", markup=False, highlight=False)
    failures = _work_off(jobs, settings, results, console) if jobs else []
    if results.content["learners"]:
        console.print(summary_table(results.content))
    console.print(f"results in {path}", markup=False, highlight=False, soft_wrap=True)
    for failure in failures:
        console.print(failure, markup=False, highlight=False, soft_wrap=True)
    _tell(settings, results=str(path))
    return len(failures)


def _checked(settings: BenchSettings) -> BenchSettings:
    check_counts(seeds=settings.seeds, jobs=settings.jobs, epochs=min(settings.epochs, default=1))
    import_plugins(settings.plugins)
    for name in settings.learners:
        find_learner(name)
    find_device(settings.device)
    tuned_options(settings.name, settings.tuned)
    if settings.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ValueError("--tensorboard needs the package tensorboard: pip install 'hashroute[tensorboard]'")
    settings = replace(settings, learners=tuple(dict.fromkeys(settings.learners or LEARNERS)))
    _given(settings)
    return settings


def _given(settings: BenchSettings) -> dict[str, dict[str, Any]]:
    """Options as the command gives them, by learner and name."""
    found: dict[str, dict[str, Any]] = {}
    for text in settings.options:
        learner, name, said = parse_option("--options", text, settings.learners)
        try:
            value = json.loads(said)
        except ValueError:  # a word
            value = said
        found.setdefault(learner, {})[name] = value
    return found


@lru_cache(maxsize=1)  # a worker does several runs of one scenario
def _read(name: str, fraction: float, folder: Path | None) -> Scenario:
    return load_scenario(name, fraction, **({} if folder is None else {"folder": folder}))


def _load(settings: BenchSettings) -> Scenario:
    return _read(settings.scenario, settings.fraction, settings.folder)


def _options(settings: BenchSettings, name: str, scenario: Scenario) -> dict[str, Any]:
    usual = learner_options(name, settings.scenario, settings.recipe, scenario.image_shape, settings.tuned)
    return {**usual, **_given(settings).get(name, {})}


def _common(settings: BenchSettings, scenario: Scenario) -> Recipe:
    common = scenario_recipe(scenario, settings.recipe)
    return replace(common, epochs=settings.epochs) if settings.epochs else common


def _images(scenario: Scenario, common: Recipe) -> int:
    return sum(common.epochs_of(number) * len(task.train) for number, task in enumerate(scenario.tasks))


def _work_off(jobs: list[Job], settings: BenchSettings, results: Results, console: Console) -> list[str]:
    """Do all jobs, show how far they are, merge each into the result file as it ends; returns what failed."""
    failures: list[str] = []
    work = ((settings, job.learner, job.seed) for job in jobs)
    with live_table(jobs, settings.jobs, console):
        for name, seed, outcome, problem in side_by_side(settings.jobs, _work, work):
            job = next(job for job in jobs if (job.learner, job.seed) == (name, seed))
            job.look()
            if problem is None:
                results.merge(name, seed, outcome)
                job.state = "done"
                _say(console, name, seed, outcome)
                _tell(settings, learner=name, seed=seed, result=outcome)
            else:
                job.state = "failed"
                _tell(settings, learner=name, seed=seed, error=problem)
                failures.append(f"{name}, seed {seed}, failed: {problem}")
    return failures


def _say(console: Console, name: str, seed: int, outcome: dict[str, Any]) -> None:
    """What a run decided, a line for each task, and, where there is no live table, how it ended."""
    lines = [f"{name}, seed {seed}, {decision['said']}" for decision in outcome["decisions"]]
    if not console.is_terminal:
        lines.append(f"{name}, seed {seed}: {metrics.final(outcome['accuracy']):.2f} % after the last task")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _tell(settings: BenchSettings, **values: Any) -> None:
    """A line of JSON for programs, where they asked for it: whole, though workers write to the same place."""
    if settings.json:
        with FileLock(settings.results / f".{settings.name}.lines.lock"):
            print(json.dumps(values), flush=True)


def _work(settings: BenchSettings, name: str, seed: int) -> tuple[str, int, dict[str, Any] | None, str | None]:
    """One run, in a process of its own; returns what came out, or what went wrong."""
    folder = settings.run_folder(name, seed)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        import_plugins(settings.plugins)
        scenario = _load(settings)
        options = _options(settings, name, scenario)
        with FileLock(folder / ".lock", timeout=5), _tensorboard(settings, folder) as write:

            def on_epoch(record: dict[str, Any]) -> None:
                _tell(settings, learner=name, seed=seed, **record)
                if write is not None:
                    write(record)

            outcome, _ = run(
                scenario,
                name,
                _common(settings, scenario),
                seed,
                options=options,
                folder=folder,
                resume=settings.resume,
                device=find_device(settings.device),
                fraction=settings.fraction,
                on_epoch=on_epoch,
                command=settings.command([name], seed + 1),
            )
        return name, seed, outcome.to_dict(), None
    except Timeout:
        return name, seed, None, f"{folder} is being written by another process: wait for it, or end it"
    except OSError as error:
        return name, seed, None, f"{error.filename or folder}: {error.strerror or error}; then go on with --resume"
    except Exception as error:
        with suppress(OSError):
            (folder / "error.txt").write_text(traceback.format_exc())
        what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        return name, seed, None, f"{what} (see {folder / 'error.txt'})"


@contextmanager
def _tensorboard(settings: BenchSettings, folder: Path) -> Iterator[Any]:
    """A function that writes an epoch's numbers for TensorBoard; None where that is not asked for."""
    if not settings.tensorboard:
        yield None
        return
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / "tensorboard")) as writer:

        def write(record: dict[str, Any]) -> None:
            step = len((folder / "epochs.jsonl").read_bytes().splitlines())
            for name in ("loss", "train_accuracy", "validation_accuracy"):
                writer.add_scalar(name, record[name], step)
            for number, value in enumerate(record.get("accuracy", [])):
                if value is not None:
                    writer.add_scalar(f"test_accuracy/task_{number}", value, step)

        yield write


class Results:
    """The result file of a comparison: a list entry for each seed of each learner."""

    def __init__(self, path: Path, settings: BenchSettings, scenario: Scenario, common: Recipe) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._bench = settings
        self._scenario = scenario
        self._fresh: dict[str, Any] = {
            "scenario": settings.scenario,
            "tasks": [task.name for task in scenario.tasks],
            "images": scenario.images,
            "recipe": {
                "profile": settings.recipe,
                "fraction": settings.fraction,
                **({} if settings.folder is None else {"folder": str(settings.folder.resolve())}),
                **common.to_dict(),
            },
            "command": "",
            "learners": {},
        }
        with self._lock():
            remove_unfinished(path.parent, path.name)
            self.content = self._read()

    def _lock(self) -> FileLock:
        return FileLock(self.path.with_name(f".{self.path.name}.lock"), timeout=60)

    def _read(self) -> dict[str, Any]:
        if not self.path.exists():
            return json.loads(json.dumps(self._fresh))  # type: ignore[no-any-return]
        try:
            content: dict[str, Any] = json.loads(self.path.read_text())
            content["recipe"] = with_defaults(content["recipe"])
            parts = {part: content[part] for part in self._fresh}
        except (ValueError, KeyError) as error:
            raise ValueError(f"{self.path} is not a result file ({error!r}): move it away") from None
        for part in ("scenario", "tasks", "images", "recipe"):
            if parts[part] != self._fresh[part]:
                raise ValueError(
                    f"{self.path} was made with other {part}{_difference(parts[part], self._fresh[part])}: "
                    "give the same, choose another --results folder, or move it away"
                )
        for name, entry in content["learners"].items():
            if name not in self._bench.learners:
                continue
            kept, now = entry.get("version", 1), find_learner(name).version
            if kept != now:
                raise ValueError(
                    f"{self.path} holds {name} of version {kept}, this is version {now}, which gives other numbers: "
                    "choose another --results folder, or move it away"
                )
            if entry["options"] != self._options(name):
                raise ValueError(
                    f"{self.path} holds {name} with other options{_difference(entry['options'], self._options(name))}: "
                    "choose another --results folder, or move it away"
                )
        return content

    def _options(self, name: str) -> dict[str, Any]:
        options = _options(self._bench, name, self._scenario)
        return options_to_dict(options_from_dict(find_learner(name).Options, options))

    def holds(self, learner: str, seed: int) -> bool:
        """Whether this run is in the file already."""
        return seed in self.content["learners"].get(learner, {"seeds": []})["seeds"]

    def merge(self, learner: str, seed: int, outcome: dict[str, Any]) -> None:
        """Add a run, seeds in order; what others have added meanwhile stays."""
        with self._lock():
            self.content = self._read()
            fresh = {"seeds": [], "version": find_learner(learner).version, "options": self._options(learner)}
            entry = self.content["learners"].setdefault(learner, fresh)
            if seed not in entry["seeds"]:
                insert_seed(entry, seed, outcome)
            order = {name: number for number, name in enumerate(LEARNERS)}
            learners = self.content["learners"]
            self.content["learners"] = {
                name: learners[name] for name in sorted(learners, key=lambda name: order.get(name, math.inf))
            }
            seeds = 1 + max(max(entry["seeds"]) for entry in self.content["learners"].values())
            self.content["command"] = self._bench.command(list(self.content["learners"]), seeds)
            write_json(self.path, self.content)


def _difference(kept: Any, given: Any) -> str:
    """Which entries differ, in brackets."""
    if not isinstance(kept, dict) or not isinstance(given, dict):
        return ""
    names = [name for name in {**kept, **given} if kept.get(name) != given.get(name)]
    return " (" + ", ".join(f"{name}: {kept.get(name)} there, {given.get(name)} here" for name in names) + ")"
