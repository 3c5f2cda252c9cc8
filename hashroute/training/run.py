"""One run: a learner goes through a scenario's tasks, every epoch is written down, and a killed run goes on."""

from __future__ import annotations

import io
import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import hashroute
from hashroute.learners import Learner, create_learner, find_learner, load_learner
from hashroute.learners.base import TaskFree, clock, options_from_dict, options_to_dict
from hashroute.recipe import Profile, Recipe, result_name, tuned_options, with_defaults
from hashroute.scenarios import scenario_recipe
from hashroute.storage import remove_unfinished, replace_file, write_json
from hashroute.tasks import Scenario, Split, Task
from hashroute.training import metrics
from hashroute.training.samples import samples

CHECKPOINT_FORMAT = 3


@dataclass
class Outcome:
    """What a run gives; accuracies in percent."""

    accuracy: list[list[float | None]] = field(default_factory=list)
    """A row after each task, a column for each task, None for tasks not yet learned."""
    seconds: float = 0.0
    """Of training, evaluation not counted: processor time on a CPU, so that other processes do not count."""
    images: int = 0
    """Images trained on, each as often as it was."""
    parameters: dict[str, int] = field(default_factory=dict)
    bytes_kept: dict[str, int] = field(default_factory=dict)
    task_free: dict[str, float] = field(default_factory=dict)
    """With no task given: answers of the right class among all, and samples taken for the right data set."""
    right: list[str] = field(default_factory=list)
    """Which test images of each task were answered right at the end, with the task given: see `metrics.pack`."""
    right_after: list[str] = field(default_factory=list)
    """The same, when the task had just been learned."""
    decisions: list[Any] = field(default_factory=list)
    """What the learner decided, task by task."""
    routing: list[dict[str, Any]] = field(default_factory=list)
    """Of a hash-routed network after each task: usage, basis fill, paths, and the share of unchanged paths."""

    @property
    def images_per_second(self) -> float:
        """Training images a second."""
        return self.images / max(self.seconds, 1e-9)

    def to_dict(self) -> dict[str, Any]:
        """What a result file holds of one seed."""
        found = {**vars(self), "images_per_second": self.images_per_second}
        del found["images"]
        if not self.routing:
            del found["routing"]
        return found

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Outcome:
        """The outcome that `to_dict` gave."""
        rate = values["images_per_second"]
        rest = {name: value for name, value in values.items() if name != "images_per_second"}
        return cls(**rest, images=round(rate * values["seconds"]))


@dataclass(frozen=True)
class RunSettings:
    """Everything that a run's numbers depend on."""

    scenario: str
    tasks: tuple[str, ...]
    images: list[list[int]]
    """To train on, to validate and to test, of each task."""
    learner: str
    version: int
    options: dict[str, Any]
    recipe: dict[str, Any]
    seed: int
    fraction: float = 1.0
    evaluate_on: Literal["test", "validation"] = "test"


def learner_options(
    learner: str, scenario: str, profile: Profile, image_shape: tuple[int, ...], tuned: Path | None = None
) -> dict[str, Any]:
    """The options that a learner gets in a comparison: usual for the scenario, or searched for."""
    usual = find_learner(learner).usual_options(scenario, image_shape)
    return {**usual, **tuned_options(result_name(scenario, profile), tuned).get(learner, {})}


def describe(
    scenario: Scenario,
    learner: str,
    recipe: Recipe,
    seed: int,
    options: dict[str, Any],
    fraction: float = 1.0,
    evaluate_on: Literal["test", "validation"] = "test",
) -> dict[str, Any]:
    """Everything that a run's numbers depend on, as its settings.json holds it."""
    kind = find_learner(learner)
    whole = options_to_dict(options_from_dict(kind.Options, options))
    tasks = tuple(task.name for task in scenario.tasks)
    described = RunSettings(
        scenario.name,
        tasks,
        scenario.images,
        learner,
        kind.version,
        whole,
        recipe.to_dict(),
        seed,
        fraction,
        evaluate_on,
    )
    plain: dict[str, Any] = json.loads(json.dumps(vars(described)))
    return plain


def check_same(folder: Path, described: dict[str, Any]) -> None:
    """See that a folder holds a run of these settings."""
    kept = json.loads((folder / "settings.json").read_text())
    kept["recipe"] = with_defaults(kept.get("recipe"))
    for name, value in described.items():
        if kept.get(name) != value:
            inside = [key for key in value if kept[name].get(key) != value[key]] if isinstance(value, dict) else []
            what = f"{name} ({', '.join(inside)})" if inside else name
            raise ValueError(
                f"{folder} holds a run with other settings, {what} differs: "
                "give the same settings to go on with it, or choose another folder"
            )


def run(
    scenario: Scenario,
    learner: str = "hrn",
    recipe: Recipe | Profile = "default",
    seed: int = 0,
    *,
    options: dict[str, Any] | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    checkpoints: bool = True,
    device: str | torch.device = "cpu",
    fraction: float = 1.0,
    evaluate_on: Literal["test", "validation"] = "test",
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
    command: str | None = None,
) -> tuple[Outcome, Learner]:
    """Take a learner through a scenario; returns what came out, and the learner.

    Args:
        scenario: its tasks, in order.
        learner: its name.
        recipe: how it is trained; or "default" or "paper" for the recipe that comes with the scenario.
        seed: of weights, batches and hash functions: the same seed gives the same numbers.
        options: of the learner; by default those usual for the scenario, or searched for.
        folder: where the run is written down: settings.json, epochs.jsonl, the model, samples.json and result.json.
            None writes nothing.
        resume: go on from the folder's checkpoint; a run that is finished is read, not done again.
        checkpoints: write one after every epoch, so that a run that is stopped can go on.
        device: where to compute.
        fraction: the share of the images that the scenario was loaded with, to be written down.
        evaluate_on: which images accuracies are measured on.
        on_epoch: called with the record of each epoch.
        command: what repeats this run, to be written down.
    """
    profile: Profile = "default"
    if isinstance(recipe, str):
        profile = recipe
        recipe = scenario_recipe(scenario, profile)
    if options is None:
        options = learner_options(learner, scenario.name, profile, scenario.image_shape)
    described = describe(scenario, learner, recipe, seed, options, fraction, evaluate_on)
    if folder is not None and resume and (Path(folder) / "result.json").exists():
        check_same(Path(folder), described)
        return Outcome.from_dict(json.loads((Path(folder) / "result.json").read_text())), load_learner(folder)
    keeper = None if folder is None else Keeper(Path(folder), described, resume, command)
    checkpoint = None if keeper is None else keeper.checkpoint
    if checkpoint is None:
        torch.manual_seed(seed)
        model = create_learner(learner, scenario.image_shape, recipe, seed, **options).to(device)
        progress = _Run(scenario, model, evaluate_on)
    else:
        model = find_learner(learner).from_description(checkpoint["description"]).to(device)
        model.load_state(checkpoint["state"])
        progress = _Run(scenario, model, evaluate_on)
        progress.restore(checkpoint)
    for record in progress.steps():
        if keeper is not None:
            keeper.keep(record, progress if checkpoints else None)
        if on_epoch is not None:
            on_epoch(record)
    if keeper is not None:
        keeper.finish(progress)
    return progress.outcome, model


class _Run:
    """The loop over tasks and epochs, in steps that can be told apart and gone on from."""

    def __init__(self, scenario: Scenario, learner: Learner, evaluate_on: Literal["test", "validation"]) -> None:
        self.scenario = scenario
        self.learner = learner
        self.evaluate_on = evaluate_on
        self.outcome = Outcome()
        self.paths: list[Tensor] = []  # those of each task's evaluation images, right after it was learned

    def steps(self) -> Any:
        """Learn everything that is left; yields a record after each epoch."""
        tasks = self.scenario.tasks
        torch.optim.Adam([torch.zeros(1)])  # a process's first one imports for seconds: no learner's time
        while len(self.learner.tasks) < len(tasks) or self.learner.course is not None:
            learner = self.learner
            if learner.course is None:
                start = clock(learner.device)
                learner.begin(*(tasks if learner.at_once else tasks[len(learner.tasks) : len(learner.tasks) + 1]))
                self.outcome.seconds += clock(learner.device) - start
            course = learner.course
            assert course is not None
            learned = [tasks[number] for number in course.tasks]
            log = learner.train_epoch(*learned)
            self.outcome.seconds += log.seconds
            self.outcome.images += log.images
            record: dict[str, Any] = {
                "task": learned[0].name if len(learned) == 1 else "all",
                "task_number": course.tasks[0],
                "epoch": course.epoch,
                "epochs": learner.epochs,
                "loss": log.loss,
                "train_accuracy": log.accuracy,
                "validation_accuracy": sum(
                    100 * answered(learner, task.validation, number).double().mean().item()
                    for number, task in zip(course.tasks, learned, strict=True)
                )
                / len(learned),
                "images": log.images,
                "seconds": log.seconds,
            }
            record |= learner.analyse(learned[0].validation.images[:1000], course.tasks[0])
            if learner.done():
                start = clock(learner.device)
                learner.finish(*learned)
                self.outcome.seconds += clock(learner.device) - start
                if len(learner.decisions) > len(self.outcome.decisions):
                    record["decision"] = learner.decisions[-1]
                    self.outcome.decisions = list(learner.decisions)
                self._evaluate(record)
            yield record

    def _evaluate(self, record: dict[str, Any]) -> None:
        """A row of the accuracy matrix; after the last task everything that is said about the whole."""
        learner, tasks = self.learner, self.scenario.tasks
        known = len(learner.tasks)
        right = [answered(learner, self._images(task), number) for number, task in enumerate(tasks[:known])]
        row: list[float | None] = [100 * each.double().mean().item() for each in right]
        for _ in range(len(self.outcome.accuracy), known - 1):  # learned together: nothing was known before
            self.outcome.accuracy.append([None] * len(tasks))
        self.outcome.accuracy.append(row + [None] * (len(tasks) - known))
        record["accuracy"] = self.outcome.accuracy[-1]
        packed = [metrics.pack(each.numpy()) for each in right]
        self.outcome.right_after += packed[len(self.outcome.right_after) :]
        paths = [learner.paths(self._images(task).images, n) for n, task in enumerate(tasks[:known])]
        if paths[0] is not None:
            self._routing(record, [each.cpu() for each in paths if each is not None])
        if known == len(tasks):
            self.outcome.right = packed
            self.outcome.parameters = learner.parameter_counts()
            self.outcome.bytes_kept = learner.bytes_kept()
            self.outcome.task_free = task_free_accuracy(learner, self.evaluated())

    def _routing(self, record: dict[str, Any], paths: list[Tensor]) -> None:
        """How a learner routes the last task's images, and the share of each old task's that go as they once did.

        paths: of each known task's images, (n, levels).
        """
        old, last = len(self.paths), len(paths) - 1
        unchanged = [
            100 * (now == before).all(1).double().mean().item()
            for now, before in zip(paths[:old], self.paths, strict=True)
        ]
        self.paths += paths[old:]
        images = self._images(self.scenario.tasks[last]).images
        self.outcome.routing.append({**self.learner.analyse(images, last), "unchanged_paths": unchanged})
        record["unchanged_paths"] = unchanged
        record["flow"] = {task.name: flow(each) for task, each in zip(self.scenario.tasks, paths, strict=False)}

    def evaluated(self) -> list[tuple[Task, Split]]:
        """Every task, with the images that accuracies are measured on."""
        return [(task, self._images(task)) for task in self.scenario.tasks]

    def _images(self, task: Task) -> Split:
        return task.test if self.evaluate_on == "test" else task.validation

    def state(self) -> dict[str, Any]:
        """All that a run needs to go on bit for bit as if it had never stopped."""
        return {
            "description": self.learner.description(),
            "state": self.learner.state(),
            "course": self.learner.course_state(),
            "outcome": dict(vars(self.outcome)),
            "paths": self.paths,
            "random": torch.get_rng_state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `state` gave; the learner has its weights already."""
        self.outcome = Outcome(**state["outcome"])
        self.paths = state["paths"]
        course = state["course"]
        if course is not None:
            self.learner.resume_course(course, [self.scenario.tasks[number] for number in course["tasks"]])
        torch.set_rng_state(state["random"])


class Keeper:
    """A run's folder: what is in it is whole at any moment, whenever the process may be killed."""

    def __init__(self, folder: Path, described: dict[str, Any], resume: bool, command: str | None) -> None:
        self.folder = folder
        self.checkpoint: dict[str, Any] | None = None
        kept = folder / "settings.json"
        if kept.exists():
            if not resume:
                raise ValueError(
                    f"{folder} holds a run already: add --resume to go on with it, or delete it to start again"
                )
            check_same(folder, described)
            if (folder / "checkpoint.pt").exists():
                self.checkpoint = read_checkpoint(folder / "checkpoint.pt")
        else:
            folder.mkdir(parents=True, exist_ok=True)
            versions = {
                "hashroute": hashroute.__version__,
                "torch": str(torch.__version__),
                "python": platform.python_version(),
            }
            write_json(kept, {**described, "versions": versions, "command": command})
        remove_unfinished(folder)
        (folder / "error.txt").unlink(missing_ok=True)
        self.log = folder / "epochs.jsonl"
        length = 0 if self.checkpoint is None else self.checkpoint["log_length"]
        with open(self.log, "ab") as file:  # an epoch that no checkpoint holds is trained, and written down, again
            file.truncate(length)

    def keep(self, record: dict[str, Any], progress: _Run | None) -> None:
        """Write an epoch down, then the checkpoint that holds it, unless there is to be none."""
        with open(self.log, "a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
            length = file.tell()
        if progress is None:
            return
        state = {"format": CHECKPOINT_FORMAT, "log_length": length, **progress.state()}
        content = io.BytesIO()
        torch.save(state, content)  # not into the file: on a full disk that is a RuntimeError of no clear words
        replace_file(self.folder / "checkpoint.pt", lambda file: file.write_bytes(content.getbuffer()))

    def finish(self, progress: _Run) -> None:
        """The model, samples and the result; the checkpoint has served."""
        progress.learner.save(self.folder)
        write_json(self.folder / "samples.json", samples(progress.learner, progress.evaluated()))
        write_json(self.folder / "result.json", progress.outcome.to_dict())
        (self.folder / "checkpoint.pt").unlink(missing_ok=True)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint, checked; only tensors and plain values are read from it."""
    try:
        checkpoint: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
        found = checkpoint["format"]
    except OSError:
        raise
    except Exception as error:
        raise ValueError(
            f"{path} is not a checkpoint ({type(error).__name__}): delete its folder to start again"
        ) from None
    if found != CHECKPOINT_FORMAT:
        raise ValueError(
            f"{path} is of format {found}, this version reads {CHECKPOINT_FORMAT}: "
            "use the version of hashroute that wrote it, or delete its folder to start again"
        )
    return checkpoint


def answered(learner: Learner, split: Split, task: int) -> Tensor:
    """(n,) which images are answered right with the task given."""
    return learner.predict(split.images, task).cpu() == split.labels


def flow(paths: Tensor) -> list[tuple[int, int, int, float]]:
    """A level, a unit there, a unit of the next level or -1 for a stop, and the share of images that go this way.

    paths: (n, levels).
    """
    found = []
    for level in range(paths.shape[1] - 1):
        steps, counts = paths[:, level : level + 2].unique(dim=0, return_counts=True)
        ways = zip(steps.tolist(), counts.tolist(), strict=True)
        found += [(level, unit, then, count / len(paths)) for (unit, then), count in ways if unit >= 0]
    return found


def task_free_accuracy(learner: Learner, data: list[tuple[Task, Split]]) -> dict[str, float]:
    """Of a learner's answers with no task given: see `share_right`."""
    return share_right([learner.predict(split.images) for _, split in data], data)


def share_right(answers: Sequence[TaskFree], data: Sequence[tuple[Task, Split]]) -> dict[str, float]:
    """Percent of right answers with no task given: of the class among all, mean over tasks, and of the data set, of all
    images.

    answers: to each task's images. A class is known by its name and its data set, so that a task that comes again with
    new images is no other class.
    """
    right, found = [], []
    numbers: dict[tuple[str, str], int] = {}
    sets = {name: number for number, name in enumerate(dict.fromkeys(task.dataset for task, _ in data))}
    classes = [
        torch.tensor([numbers.setdefault((task.dataset, name), len(numbers)) for name in task.class_names])
        for task, _ in data
    ]
    width = max(len(each) for each in classes)
    table = torch.stack([torch.nn.functional.pad(each, (0, width - len(each)), value=-1) for each in classes])
    origin = torch.tensor([sets[task.dataset] for task, _ in data])
    for number, (answer, (_, split)) in enumerate(zip(answers, data, strict=True)):
        tasks, labels = answer.tasks.cpu(), answer.labels.cpu()
        right.append((table[tasks, labels] == table[number, split.labels]).double().mean())
        found.append(origin[tasks] == origin[number])
    shares = {"all_classes": torch.stack(right).mean(), "dataset": torch.cat(found).double().mean()}
    return {name: share.item() * 100 for name, share in shares.items()}
