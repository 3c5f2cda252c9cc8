"""One lesson: a model learns a new task, or more of a task that it knows."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hashroute import distributed
from hashroute.learners import checkpoints
from hashroute.learners.progress import progress_bar
from hashroute.learners.trainer import Trainer
from hashroute.model.calibration import temperature
from hashroute.model.further import FurtherLearner
from hashroute.model.learner import KeptLearner
from hashroute.model.records import ModelSettings, TaskRecord
from hashroute.model.sources import Source
from hashroute.model.statistics import ClassStatistics
from hashroute.model.store import MOST_TASKS, Manifest, Store
from hashroute.tasks import Split, Task

FEWEST_EPOCHS, MOST_EPOCHS = 10, 60
TRAINED_IMAGES = 40_000
"""Images that small tasks are trained on, epoch after epoch, unless a number of epochs is given."""


class Progress(NamedTuple):
    """How far the learning of a task is."""

    task: str
    epoch: int
    epochs: int
    images: int
    """Images that were trained on, over all epochs."""
    total: int


@dataclass
class Lesson:
    """What is to be learned."""

    task: str
    source: Source
    private: bool = False
    epochs: int | None = None


@dataclass
class LearnReport:
    """What was learned, and what was decided."""

    task: str
    classes: tuple[str, ...]
    images: int
    """Images that were trained on."""
    held_out: int
    accuracy: float | None
    """Share of right answers to held-out images, the task given; None if it was imported."""
    epochs: int
    seconds: float
    decision: dict[str, Any] = field(default_factory=dict)
    """What was decided about its units; nothing if the task was known."""
    new_classes: tuple[str, ...] = ()
    """Classes that a known task got."""
    resumed_at: int | None = None
    """The epoch from which an interrupted lesson continued."""
    notes: list[str] = field(default_factory=list)
    """What else was found and decided, in plain words."""
    unreadable: int = 0
    """Files that could not be read."""
    unreadable_list: Path | None = None
    """A file that lists them."""


def learn(
    store: Store,
    manifest: Manifest,
    settings: ModelSettings,
    records: Mapping[str, TaskRecord],
    lesson: Lesson,
    progress: bool | Callable[[Progress], None] | None,
    device: torch.device,
) -> LearnReport:
    """Learn, and commit the new state of the model."""
    start, known = time.monotonic(), records.get(lesson.task)
    if known is not None and lesson.private and not known.private:
        raise ValueError(
            f"task {lesson.task!r} was learned before and is not private: give the private one another name"
        )
    if len(lesson.source.classes) < 2 and not records:
        raise ValueError(
            f"{lesson.task!r} has one class, {lesson.source.classes[0]!r}: expected at least two in the first task"
        )
    if known is None and len(records) >= MOST_TASKS:
        raise ValueError(f"the model has {len(records):,} tasks, which is the most: begin another one")
    digest = distributed.first(lesson.source.fingerprint)
    if known is not None and digest in known.sources:
        notes = ["these images were learned before: nothing was changed"]
        return LearnReport(lesson.task, known.classes, 0, 0, known.accuracy, 0, 0.0, notes=notes)
    task, problems = lesson.source.task(lesson.task, settings.image_shape, known.classes if known else ())
    epochs = lesson.epochs or min(MOST_EPOCHS, max(FEWEST_EPOCHS, TRAINED_IMAGES // max(1, len(task.train))))
    report = LearnReport(lesson.task, task.class_names, len(task.train), len(task.validation), 0.0, epochs, 0.0)
    report.notes += [*lesson.source.notes, *_choices(lesson.source, task, settings, not manifest.settings)]
    if known is None:
        seen = {name: record for name, record in records.items() if not record.private}
    else:
        if "statistics" not in known.objects:
            raise ValueError(
                f"task {task.name!r} was imported and cannot learn further: learn its images under another name"
            )
        seen = {lesson.task: known}

    def new_learner() -> KeptLearner:
        if known is None:
            return KeptLearner(store, settings, seen, manifest.shared, epochs, lesson.private).to(device)
        return FurtherLearner(store, settings, known, manifest.shared, epochs).to(device)

    checkpoint = _Checkpoint(
        store.checkpoint(lesson.task, manifest.tasks.get(lesson.task)),
        _key(lesson, settings, seen, epochs, digest),
    )
    learner, splits = _learned(store, new_learner, task, checkpoint, report, progress)

    def commit() -> LearnReport:
        if isinstance(learner, FurtherLearner):
            record, shared = _record_more(store, learner, task, digest, report)
        else:
            record, shared = _record_new(store, learner, lesson, task, splits, digest, report)
        report.unreadable, report.unreadable_list = len(problems), store.write_unreadable(lesson.task, problems)
        named = replace(manifest, settings=settings.to_dict())
        store.commit(named.learned(lesson.task, store.put_json(record.to_dict()), shared, record.private))
        report.seconds = time.monotonic() - start
        return report

    return distributed.first(commit)


def _choices(source: Source, task: Task, settings: ModelSettings, new: bool) -> list[str]:
    """What was chosen for the images of a task, and for a new model, in plain words."""
    chosen = []
    if new:
        height, width = settings.image_shape[1:]
        chosen.append(f"the model takes images of {height} x {width} pixels, and resizes others")
    if task.augmentations and source.augmentations is None and settings.stem is None:
        kind = "in colour" if "flip" in task.augmentations else "grey"
        changed = [word for name, word in (("flip", "mirrored"), ("shift", "shifted")) if name in task.augmentations]
        chosen.append(f"its images are {kind}: they are {' and '.join(changed)} at random while it trains")
    return chosen


Watch = bool | Callable[[Progress], None] | None
Splits = tuple[Split, Split]
"""What was trained on and what was held out. With a frozen stem, these are maps, which are computed once."""


def _learned(
    store: Store,
    new_learner: Callable[[], KeptLearner],
    task: Task,
    checkpoint: _Checkpoint,
    report: LearnReport,
    progress: Watch,
) -> tuple[KeptLearner, Splits]:
    """A learner that was trained to the end, from the checkpoint if there is one that can be used."""
    learner = new_learner()
    try:
        trainer = checkpoint.resume(learner, task)
        if trainer is not None:
            report.resumed_at = trainer.state.epoch
            return learner, _train(store, learner, trainer, checkpoint, progress, resumed=True)
    except checkpoints.UnfitError as error:
        report.notes.append(f"its checkpoint cannot be used ({error}): the lesson began anew")
        report.resumed_at, learner = None, new_learner()
    trainer = learner.start(task)
    checkpoint.write(store, learner)
    return learner, _train(store, learner, trainer, checkpoint, progress)


def _train(
    store: Store,
    learner: KeptLearner,
    trainer: Trainer,
    checkpoint: _Checkpoint,
    progress: Watch,
    resumed: bool = False,
) -> Splits:
    """Train to the end. resumed: what was read may turn out not to fit."""
    own_bar = progress if isinstance(progress, bool) else None if progress is None else False
    entry, told = learner.entries[-1], progress if callable(progress) and distributed.is_first() else None
    task, outside = entry.data, False
    with progress_bar(trainer, own_bar) as bar:
        done = trainer.state.epoch * len(task.train)

        def advance(images: int) -> None:
            nonlocal done, outside
            done += images
            if bar is not None:
                bar(images)
            if told is not None:
                outside = True
                told(Progress(task.name, trainer.state.epoch, trainer.epochs, done, trainer.images))
                outside = False

        try:
            while not trainer.done:
                trainer.run_epoch(advance)
                checkpoint.write(store, learner)
            maps = dict(entry.maps)
            trainer.finish()
        except checkpoints.RAW:
            if outside or not resumed:
                raise
            with checkpoints.fitting(*checkpoints.RAW):
                raise
    return maps.get(task.train, task.train), maps.get(task.validation, task.validation)


def _record_new(
    store: Store,
    learner: KeptLearner,
    lesson: Lesson,
    task: Task,
    splits: tuple[Split, Split],
    digest: str,
    report: LearnReport,
) -> tuple[TaskRecord, str | None]:
    """The record of a new task, and the shared head that knows it. It has seen no private task."""
    train, validation = splits
    entry = learner.entries[-1]
    logits = learner.logits(validation.images, entry)
    report.accuracy = (logits.argmax(1).cpu() == task.validation.labels).double().mean().item()
    statistics = ClassStatistics.of(*learner.record(train, entry), task.classes)
    objects, domain, parent = learner.store_task(entry)
    shared = learner.store_shared(entry, objects)
    objects["statistics"] = store.put_tensors(statistics.tensors())
    assert entry.decision is not None, "hrn decides about every task"
    report.decision = entry.decision.to_dict()
    free = None
    if entry.index:
        before = sum(len(each.class_names) for each in learner.tasks[: entry.index])
        free = temperature(learner(task.validation.images), task.validation.labels + before)
    record = TaskRecord(
        classes=task.class_names,
        images=len(task.train),
        held_out=len(task.validation),
        accuracy=report.accuracy,
        private=lesson.private,
        temperature=temperature(logits, task.validation.labels),
        task_free_temperature=free,
        domain=domain,
        objects=objects,
        parent=parent,
        decision=report.decision,
        sources=(digest,),
        columns=learner.stored_columns(entry),
        mirror=entry.mirror,
    )
    return record, shared


def _record_more(
    store: Store, learner: FurtherLearner, task: Task, digest: str, report: LearnReport
) -> tuple[TaskRecord, str | None]:
    """The record of a task that got more images, or new classes, and the shared head that knows them."""
    known, found, entry = learner.known, learner.found, learner.entries[-1]
    assert found is not None, "the lesson is finished"
    report.accuracy = found.accuracy
    report.new_classes = task.class_names[len(known.classes) :]
    report.notes.append(found.summary)
    objects = {
        "path": known.objects["path"],
        "head": store.put_tensors(learner.heads[entry.index].state_dict()),
        "memory": store.put_tensors(found.memory),
        "statistics": store.put_tensors(found.statistics.tensors()),
    }
    forked = found.kept == "fork"
    if forked:
        objects["path"] = store.put_tensors(learner.encoder.paths[entry.path].state_dict())
    held_out = known.held_out + len(task.validation)
    share = len(task.validation) / held_out
    shared = learner.store_shared(entry, objects)
    record = replace(
        known,
        classes=task.class_names,
        images=known.images + len(task.train),
        held_out=held_out,
        accuracy=(1 - share) * (known.accuracy or 0.0) + share * found.accuracy,
        temperature=found.temperature,
        objects=objects,
        parent=known.objects["path"] if forked else known.parent,
        earlier=(*known.earlier, known.objects["path"]) if forked else known.earlier,
        sources=(*known.sources, digest),
        columns=learner.stored_columns(entry),
        mirror=entry.mirror,
    )
    return record, shared


# -------------------------------------------------------------------- checkpoints


def _key(lesson: Lesson, settings: ModelSettings, shared: Mapping[str, TaskRecord], epochs: int, digest: str) -> str:
    """What a checkpoint belongs to: with anything else, learning starts again."""
    parts = {
        "settings": settings.to_dict(),
        "known": {name: record.to_dict() for name, record in shared.items()},
        "lesson": [lesson.task, lesson.private, epochs, digest],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class _Checkpoint:
    """The file from which an interrupted lesson continues."""

    path: Path
    key: str
    """What it belongs to: the checkpoint of another lesson does not count."""

    def write(self, store: Store, learner: KeptLearner) -> None:
        """Replace it by the present state."""

        def write() -> None:
            content = checkpoints.pack({"key": self.key, **learner.checkpoint()})
            store.write_checkpoint(self.path, lambda file: file.write_bytes(content))

        distributed.first(write)

    def resume(self, learner: KeptLearner, task: Task) -> Trainer | None:
        """Continue from it, if it belongs to the same lesson; an `UnfitError` if it cannot be used."""
        with checkpoints.fitting():
            checkpoint = distributed.first(self._read)
            return None if checkpoint is None else learner.restore(checkpoint, task)

    def _read(self) -> dict[str, Any] | None:
        if not self.path.exists():
            return None
        checkpoint = checkpoints.unpack(self.path)
        return checkpoint if checkpoint.pop("key", None) == self.key else None
