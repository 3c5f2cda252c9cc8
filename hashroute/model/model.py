"""Model: one folder that learns task after task, answers, undoes and forgets."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hashroute import distributed
from hashroute.devices import find_device
from hashroute.learners.export import export_onnx
from hashroute.model import lessons
from hashroute.model.answers import Answer, answer, task_free_temperature
from hashroute.model.importing import import_learner, is_saved_learner
from hashroute.model.learner import KeptLearner
from hashroute.model.lessons import LearnReport, Lesson, Progress
from hashroute.model.names import is_name
from hashroute.model.pixels import prediction_images
from hashroute.model.records import SMALL, ModelSettings, TaskRecord
from hashroute.model.sources import Source, open_sources
from hashroute.model.store import Manifest, Store
from hashroute.nn.pretrained import is_file, with_side

Result = TypeVar("Result")

MOST = 10**9
"""Of anything that is counted."""


class TaskInfo(NamedTuple):
    """What is known about a task of a model."""

    name: str
    classes: tuple[str, ...]
    images: int
    """Images that it was trained on."""
    accuracy: float | None
    """Share of right answers to held-out images, the task given; None if it was imported."""
    learned: datetime
    """When it was last learned: the time of its file."""
    private: bool
    bytes: int
    """Bytes of its units, head, memory and statistics; some may be shared with other tasks."""
    parent: str | None
    """The task whose units were forked or are reused."""
    decision: dict[str, Any]
    """What was decided about its units, and why: `hashroute.reporting.decisions.describe` makes a sentence of it."""


@dataclass
class _Opened:
    """What was read of a model, and when."""

    stamp: Any
    learner: KeptLearner
    records: dict[str, TaskRecord]


class Model:
    """A model in a folder. Other processes may read it, and change it, at the same time.

    In a group of processes (`torch.distributed`), all of them make the same changes together: they share the work of
    `learn`, and rank 0 writes.

    Args:
        path: the folder; the first `learn` makes it.
        size: side of its images in pixels. By default that of a pre-trained backbone; otherwise the first task chooses,
            with at most 64.
        backbone: the encoder of a new model, by name: "small", "resnet18x0.25", or a pre-trained one that stays frozen:
            "efficientnet-lite0", "timm:NAME", "FILE.py:FUNCTION". An existing model has its own; code of yours is named
            again whenever the model is used, because no code runs only because a model names it.
        seed: of weights, batches and hash functions. An existing model has its own.
        device: to compute on; "auto" takes an accelerator if there is one.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        size: int | None = None,
        backbone: str = SMALL,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        if size is not None:
            _check_whole("size", size, 8, 1024, "8 to 1024 pixels")
        _check_whole("seed", seed, -(2**63), 2**63 - 1, "a whole number")
        if not isinstance(backbone, str):
            raise ValueError(f"backbone is {backbone!r:.80}: expected a name, such as {SMALL!r}")
        self.store = Store(path)
        self.path = self.store.path
        self.size, self.backbone, self.seed = size, backbone, seed
        self.device = find_device(device)
        self._opened: _Opened | None = None
        self._check(self.store.read())

    # ---------------------------------------------------------------- learning

    def learn(
        self,
        source: Any,
        task: str | None = None,
        *,
        private: bool = False,
        epochs: int | None = None,
        progress: bool | Callable[[Progress], None] | None = None,
    ) -> LearnReport:
        """Learn a task, or more of a task that exists. If this was interrupted, the same call continues it.

        Args:
            source: a folder of class folders; a list of files (CSV, JSON lines, Parquet); (images, labels); a Dataset,
                DataLoader or Task; a folder that `Learner.save` wrote, for a new model. Items of three (image, label,
                task) are several tasks.
            task: its name; by default that of the folder, list or Task. Images of a task that exists make it better,
                and new classes are added to it. The answers of all other tasks stay as they are.
            private: no other task may learn from it, so that `forget` leaves no trace of it.
            epochs: passes over its images; by default more for fewer images.
            progress: show a bar (by default on a terminal and in a notebook), or a function that is called with a
                `Progress` after every batch.
        """
        if epochs is not None:
            _check_whole("epochs", epochs, 1, MOST, "at least 1")
        if is_saved_learner(source):
            if task is not None or private:
                raise ValueError(f"{source} is a saved learner with tasks of its own: leave the name and privacy out")
            return self._change(lambda manifest: import_learner(self.store, manifest, Path(source)))
        reports = []
        for each in open_sources(source, task):
            if not each.name or not is_name(each.name):
                what = "has no name" if not each.name else f"has the name {each.name!r}"
                raise ValueError(f"the task {what}: give it one, as in learn(source, task='birds')")
            lesson = Lesson(each.name, each, private, epochs)
            reports.append(self._learn(lesson, progress))
        return reports[-1]

    def _learn(self, lesson: Lesson, progress: Any) -> LearnReport:
        with ExitStack() as stack:
            manifest = distributed.first(lambda: stack.enter_context(self.store.writing()))
            settings = self._settings_for(manifest, lesson.source, lesson.private)
            records = self._records(manifest)
            return lessons.learn(self.store, manifest, settings, records, lesson, progress, self.device)

    def _settings_for(self, manifest: Manifest, source: Source, private: bool) -> ModelSettings:
        """The settings of the model. A new model gets them from its first task."""
        self._check(manifest)
        if manifest.settings:
            return self._settings(manifest)
        if private and (self.size is None or source.channels != 3):
            raise ValueError(
                "the first task of a model is private, and would choose the size of images: give a size, or learn "
                "another task first"
            )
        name, side = with_side(self.backbone, self.size), self.size or source.size()
        settings = ModelSettings.new((source.channels, side, side), name, self.seed)
        own = settings.stem["size"][0] if settings.stem and self.size is None else side
        return settings if own == side else ModelSettings.new((source.channels, own, own), name, self.seed)

    def _settings(self, manifest: Manifest) -> ModelSettings:
        """The settings in a manifest, and the backbone code that the caller named."""
        return ModelSettings.from_dict(manifest.settings).trusting(self.backbone)

    def _check(self, manifest: Manifest) -> None:
        """Refuse settings that an existing model does not have."""
        if not manifest.settings:
            return
        known = ModelSettings.from_dict(manifest.settings)
        if self.size is not None and known.image_shape[1] != self.size:
            raise ValueError(f"{self.path} has images of {known.image_shape[1]} pixels, not {self.size}: make another")
        given = {self.backbone, with_side(self.backbone, self.size)}
        same = {SMALL, known.backbone, known.backbone.partition("@")[0]} & given
        if not same and not (is_file(self.backbone) and is_file(known.backbone)):
            raise ValueError(f"{self.path} has the backbone {known.backbone!r}, not {self.backbone!r}: make another")

    # ---------------------------------------------------------------- answers

    def predict(self, images: Any, task: str | int | None = None, top: int = 1) -> list[Answer]:
        """The class of each image, with a calibrated probability.

        Args:
            images: paths, arrays, tensors or Pillow images, of any size; or one of them.
            task: the task that they belong to, by name or number; None lets every task answer.
            top: how many possible answers each `Answer` lists.
        """
        _check_whole("top", top, 1, MOST, "at least 1")

        def ask(opened: _Opened) -> list[Answer]:
            fitted = prediction_images(images, opened.learner.image_shape)
            name = None if task is None else opened.learner.find_task(task).name
            return list(answer(opened.learner, opened.records, fitted, name, top))

        return self._read(ask)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels, height and width to which images are resized."""
        return self._read(lambda opened: opened.learner.image_shape)

    def learner(self) -> KeptLearner:
        """The learner with all tasks, to be read and not changed: the export and other tools use it."""
        return self._read(lambda opened: opened.learner)

    def export(self, path: str | Path) -> None:
        """Write the model as one ONNX file; `hashroute.learners.export` describes its inputs and outputs.

        Its metadata also has the temperatures: softmax(scores / temperature) gives calibrated probabilities. They are a
        list `temperatures`, one for each task, and `task_free_temperature`.
        """
        if Path(path).suffix.lower() != ".onnx":
            raise ValueError(f"the file to export to is {path}: expected a name that ends with .onnx")

        def write(opened: _Opened) -> None:
            heat = [record.temperature for record in opened.records.values()]
            free = task_free_temperature(opened.records)
            metadata = {"temperatures": json.dumps(heat), "task_free_temperature": json.dumps(free)}
            export_onnx(opened.learner, path, metadata)

        self._read(write)

    def records(self) -> dict[str, TaskRecord]:
        """What is kept about each task, by name."""
        return self.store.consistently(lambda: self._records(self.store.read()))

    def tasks(self) -> list[TaskInfo]:
        """All tasks, in the order in which they were first learned."""
        return self.store.consistently(self._tasks)

    def _tasks(self) -> list[TaskInfo]:
        manifest = self.store.read()
        records = self._records(manifest)
        owners = {record.objects["path"]: name for name, record in reversed(list(records.items()))}
        found = []
        for name, record in records.items():
            shared = owners[record.objects["path"]]
            parent = shared if shared != name else owners.get(record.parent or "")
            file = self.store.objects / manifest.tasks[name]
            when = datetime.fromtimestamp(file.stat().st_mtime, timezone.utc)
            size = sum(self.store.size(each) for each in set(record.objects.values()))
            decision = {**record.decision, "task": name}
            facts = (record.images, record.accuracy, when, record.private, size, parent, decision)
            found.append(TaskInfo(name, record.classes, *facts))
        return found

    def bytes(self) -> int:
        """Bytes of all files in the folder of the model."""

        def count() -> int:
            return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())

        return self.store.consistently(count)

    def unfinished(self) -> int:
        """How many new tasks were interrupted: the same `learn` continues each, `forget` gives it up."""
        return len([path for path in self.store.unfinished.glob("*.pt") if "-" not in path.stem])

    # ---------------------------------------------------------------- changes

    def undo(self) -> str:
        """Take back the last lesson or renaming; returns what that means.

        Forgetting leaves no trace, so it is not among the changes: what was forgotten does not come back.
        """

        def change(manifest: Manifest) -> str:
            meaning = self._undoing(manifest)
            self.store.commit(manifest.undone())
            return meaning

        return self._change(change)

    def undoing(self) -> str:
        """What `undo` would do."""
        return self._undoing(self.store.read())

    def _undoing(self, manifest: Manifest) -> str:
        if not manifest.history:
            raise ValueError(f"{self.path} has no change that can be undone")
        last = manifest.history[-1]
        if last.action == "rename":
            return f"{last.task} is called {last.before} again"
        if last.before is None:
            return f"{last.task} is not known any more"
        return f"{last.task} is as it was before it was last learned"

    def rename(self, old: str, new: str) -> None:
        """Give a task another name."""

        def change(manifest: Manifest) -> None:
            self._find(manifest, old)
            if new in manifest.tasks:
                raise ValueError(f"there is a task {new!r} already: choose another name")
            if not is_name(new):
                raise ValueError(f"the new name is {new!r}: expected text")
            self.store.commit(manifest.renamed(old, new))

        self._change(change)

    def forget(self, task: str) -> list[str]:
        """Remove a task for good; `undo` does not bring it back.

        Returns the tasks whose units descend from its own: these carry some of what it learned. A private task has
        none, and the folder is afterwards, file for file, that of a model that never learned it.
        """

        def change(manifest: Manifest) -> list[str]:
            unfinished = self.store.remove_checkpoints(task)
            if unfinished and task not in manifest.tasks:
                self.store.commit(manifest)
                return []
            self._find(manifest, task)
            heirs = self._heirs(manifest, task)
            self.store.commit(manifest.without(task))
            return heirs

        return self._change(change)

    def descendants(self, task: str) -> list[str]:
        """The tasks whose units descend from those of a task, or are the same."""

        def find() -> list[str]:
            manifest = self.store.read()
            self._find(manifest, task)
            return self._heirs(manifest, task)

        return self.store.consistently(find)

    def verify(self) -> list[str]:
        """What is wrong with the folder, one line each: nothing if every file has the content that it had."""
        stamp: Any = ()
        problems = [""]
        while problems and stamp != self.store.stamp():  # what changes meanwhile is looked at again
            stamp, problems = self.store.stamp(), self.store.verify()
            if not problems and self.store.read().tasks:
                try:
                    learner = self._learner(self.store.read(), self.records())
                    for modules in (learner.heads, learner.encoder.paths, learner.task_columns):
                        for index in range(len(modules)):
                            modules[index]
                except (ValueError, FileNotFoundError) as error:
                    problems.append(str(error))
        return problems

    # ---------------------------------------------------------------- parts

    def _change(self, change: Callable[[Manifest], Result]) -> Result:
        def locked() -> Result:
            with self.store.writing() as manifest:
                return change(manifest)

        return distributed.first(locked)

    def _find(self, manifest: Manifest, task: str) -> str:
        if task not in manifest.tasks:
            names = ", ".join(manifest.tasks) or "none, because nothing was learned yet"
            raise ValueError(f"there is no task {task!r}: expected {names}")
        return manifest.tasks[task]

    def _records(self, manifest: Manifest) -> dict[str, TaskRecord]:
        return {name: TaskRecord.from_dict(self.store.json(record)) for name, record in manifest.tasks.items()}

    def _heirs(self, manifest: Manifest, task: str) -> list[str]:
        records = self._records(manifest)
        if records[task].decision.get("action") == "reuse":
            return []  # its units belong to another task
        paths, heirs = {records[task].objects["path"], *records[task].earlier}, []
        for name, record in records.items():
            if name != task and (record.objects["path"] in paths or record.parent in paths):
                heirs.append(name)
                paths.add(record.objects["path"])
        return heirs

    def _read(self, use: Callable[[_Opened], Result]) -> Result:
        """Use the model as it is now."""

        def once() -> Result:
            stamp = self.store.stamp()
            if self._opened is None or self._opened.stamp != stamp:
                self._opened = self._open(stamp)
            try:
                return use(self._opened)
            except FileNotFoundError:
                self._opened = None
                raise

        return self.store.consistently(once)

    def _open(self, stamp: Any) -> _Opened:
        manifest = self.store.read()
        if not manifest.tasks:
            raise ValueError(f"{self.path} has learned no task yet: learn one first")
        records = self._records(manifest)
        return _Opened(stamp, self._learner(manifest, records).to(self.device), records)

    def _learner(self, manifest: Manifest, records: dict[str, TaskRecord]) -> KeptLearner:
        return KeptLearner(self.store, self._settings(manifest), records, manifest.shared)

    def __repr__(self) -> str:
        manifest = self.store.read()
        return f"Model({str(self.path)!r}: {len(manifest.tasks)} tasks: {', '.join(manifest.tasks) or 'none yet'})"

    def _repr_html_(self) -> str:
        """What it is, and a table of its tasks, for notebooks."""
        tasks = self.tasks()
        if not tasks:
            return f"<p>{html.escape(str(self.path))}: nothing was learned yet</p>"
        settings = ModelSettings.from_dict(self.store.read().settings)
        height, width = settings.image_shape[1:]
        about = f"{self.path}: images of {height} x {width} pixels, backbone {settings.backbone}"
        rows = [_row("th", "task", "classes", "images", "held-out accuracy", "learned", "size")]
        for each in tasks:
            name = f"{each.name} (private)" if each.private else each.name
            facts = (f"{each.images:,}", percent(each.accuracy), f"{each.learned.astimezone():%Y-%m-%d %H:%M}")
            rows.append(_row("td", name, ", ".join(each.classes)[:200], *facts, f"{each.bytes / 1000:,.0f} kB"))
        return f"<p>{html.escape(about)}</p><table>{''.join(rows)}</table>"


def _check_whole(what: str, value: Any, least: int, most: int, expected: str) -> None:
    if not isinstance(value, Integral) or not least <= int(value) <= most:
        raise ValueError(f"{what} is {value!r:.80}: expected {expected}")


def _row(tag: str, *cells: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def percent(share: float | None) -> str:
    """A share for people to read; nothing if it is not known."""
    return "" if share is None else f"{100 * share:.1f} %"
