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

from hashroute.learners import checkpoints
from hashroute.learners.progress import progress_bar
from hashroute.learners.trainer import Trainer
from hashroute.model.calibration import temperature
from hashroute.model.further import learn_further
from hashroute.model.learner import KeptLearner
from hashroute.model.records import ModelSettings, TaskRecord
from hashroute.model.sources import Source
from hashroute.model.statistics import ClassStatistics
from hashroute.model.store import Manifest, Store
from hashroute.tasks import Task

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
    """The epoch from which an interrupted lesson went on."""
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
    digest = lesson.source.fingerprint()
    if known is not None and digest in known.sources:
        notes = ["these images were learned before: nothing was changed"]
        return LearnReport(lesson.task, known.classes, 0, 0, known.accuracy, 0, 0.0, notes=notes)
    task, problems = lesson.source.task(lesson.task, settings.image_shape, known.classes if known else ())
    epochs = lesson.epochs or min(MOST_EPOCHS, max(FEWEST_EPOCHS, TRAINED_IMAGES // max(1, len(task.train))))
    report = LearnReport(lesson.task, task.class_names, len(task.train), len(task.validation), 0.0, epochs, 0.0)
    report.notes += lesson.source.notes
    if known is None:
        learner = _new_learner(store, settings, records, manifest.shared, lesson, report).to(device)
        record, shared = _learn_new(learner, records, lesson, task, digest, report, progress)
    else:
        only = {task.name: known}
        learner = KeptLearner(store, settings, only, manifest.shared, report.epochs, known.private).to(device)
        record, shared = _learn_more(learner, known, task, digest, report)
    report.unreadable, report.unreadable_list = len(problems), store.write_unreadable(lesson.task, problems)
    named = replace(manifest, settings=settings.to_dict())
    store.commit(named.learned(lesson.task, store.put_json(record.to_dict()), shared, record.private))
    report.seconds = time.monotonic() - start
    return report


def _new_learner(
    store: Store,
    settings: ModelSettings,
    records: Mapping[str, TaskRecord],
    shared: str | None,
    lesson: Lesson,
    report: LearnReport,
) -> KeptLearner:
    """The learner of a new task. It sees the tasks that are not private, and no other."""
    open_records = {name: record for name, record in records.items() if not record.private}
    return KeptLearner(store, settings, open_records, shared, report.epochs, lesson.private)


def _learn_new(
    learner: KeptLearner,
    records: Mapping[str, TaskRecord],
    lesson: Lesson,
    task: Task,
    digest: str,
    report: LearnReport,
    progress: bool | Callable[[Progress], None] | None,
) -> tuple[TaskRecord, str | None]:
    """Learn a new task; returns its record, and the shared head that knows it."""
    store, settings = learner.store, learner.settings
    seen = {name: record for name, record in records.items() if not record.private}
    key = _key(lesson, settings, seen, report.epochs, digest)
    trainer = _resume(store, learner, key, task)
    if trainer is None:
        trainer = learner.start(task)
        _keep(store, learner, key, task.name)
    else:
        report.resumed_at = trainer.state.epoch
    with progress_bar(trainer, progress if isinstance(progress, bool) else None if progress is None else False) as bar:
        done = trainer.state.epoch * len(task.train)

        def advance(images: int) -> None:
            nonlocal done
            done += images
            if bar is not None:
                bar(images)
            if callable(progress):
                progress(Progress(task.name, trainer.state.epoch, trainer.epochs, done, trainer.images))

        while not trainer.done:
            trainer.run_epoch(advance)
            _keep(store, learner, key, task.name)
    entry = learner.entries[-1]
    maps = dict(entry.maps)  # of a frozen stem, which are computed once
    trainer.finish()
    train, validation = (maps.get(split, split) for split in (task.train, task.validation))
    logits = learner.logits(validation.images, entry)
    report.accuracy = (logits.argmax(1).cpu() == task.validation.labels).double().mean().item()
    statistics = ClassStatistics.of(*learner.record(train, entry), task.classes)
    objects, domain, parent = learner.store_task(entry)
    shared = learner.store_shared(entry, objects)
    objects["statistics"] = store.put_tensors(statistics.tensors())
    assert entry.decision is not None, "hrn decides about every task"
    report.decision = entry.decision.to_dict()
    free = None
    if seen:
        before = sum(len(record.classes) for record in seen.values())
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


def _learn_more(
    learner: KeptLearner, known: TaskRecord, task: Task, digest: str, report: LearnReport
) -> tuple[TaskRecord, str | None]:
    """Learn more images, or new classes, of the only task of a learner; returns its record, and the shared head."""
    store, entry = learner.store, learner.entries[0]
    if "statistics" not in known.objects:
        raise ValueError(
            f"task {task.name!r} was imported and cannot learn further: learn its images under another name"
        )
    old = ClassStatistics.from_tensors(store.tensors(known.objects["statistics"]))
    found = learn_further(learner, entry, old, known.held_out, task, learner.task_seed(entry))
    report.accuracy = found.accuracy
    report.new_classes = task.class_names[len(known.classes) :]
    if found.kept_old:
        report.notes.append("the head of the task stays as it was: training it further made it worse")
    objects = {
        **known.objects,
        "head": store.put_tensors(found.head.state_dict()),
        "memory": store.put_tensors(found.memory),
        "statistics": store.put_tensors(found.statistics.tensors()),
    }
    shared = learner.store_shared(entry, objects)
    images, held_out = known.images + len(task.train), known.held_out + len(task.validation)
    share = len(task.validation) / held_out
    record = TaskRecord(
        classes=task.class_names,
        images=images,
        held_out=held_out,
        accuracy=(1 - share) * (known.accuracy or 0.0) + share * found.accuracy,
        private=known.private,
        temperature=found.temperature,
        task_free_temperature=known.task_free_temperature,
        domain=known.domain,
        objects=objects,
        parent=known.parent,
        decision=known.decision,
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


def _keep(store: Store, learner: KeptLearner, key: str, task: str) -> None:
    content = checkpoints.pack({"key": key, **learner.checkpoint()})
    store.write_checkpoint(task, lambda file: file.write_bytes(content))


def _resume(store: Store, learner: KeptLearner, key: str, task: Task) -> Trainer | None:
    """Go on from the checkpoint of the same lesson, if there is one."""
    path = store.checkpoint(task.name)
    if not path.exists():
        return None
    try:
        checkpoint = checkpoints.unpack(path)
    except ValueError:  # whatever is wrong with it, the task can be learned from its beginning
        return None
    return learner.restore(checkpoint, task) if checkpoint.get("key") == key else None
