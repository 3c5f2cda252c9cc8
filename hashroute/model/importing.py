"""Models that `Learner.save` wrote, as the first tasks of a model that people keep."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from hashroute.learners import load_learner
from hashroute.learners.growth import HRNEntry
from hashroute.learners.hrn import HRN
from hashroute.model.lessons import LearnReport
from hashroute.model.records import SMALL, ModelSettings, TaskRecord
from hashroute.model.store import Manifest, Store


def is_saved_learner(source: Any) -> bool:
    """Whether this is a folder that `Learner.save` wrote."""
    return isinstance(source, (str, Path)) and (Path(source) / "learner.json").is_file()


def import_learner(store: Store, manifest: Manifest, folder: Path) -> LearnReport:
    """Take over all tasks of a saved learner. The model must be new, because hash functions belong to all tasks."""
    start = time.monotonic()
    if manifest.tasks:
        raise ValueError(f"{store.path} has tasks already: a saved learner can only begin a new model")
    learner = load_learner(folder)
    if type(learner) is not HRN:
        raise ValueError(f"{folder} holds a learner {learner.name!r}: only hrn can be imported")
    if not learner.tasks or learner.own_backbone or learner.objective.name != "classification":
        raise ValueError(f"{folder} cannot be imported: expected tasks of classification, and a backbone with a name")
    backbone = learner.recipe.backbone if isinstance(learner.recipe.backbone, str) else SMALL
    stem = None if learner.backbone.stem is None else learner.backbone.stem.describe()
    settings = ModelSettings(learner.image_shape, backbone, learner.seed, learner.recipe, learner.options, stem)
    manifest = Manifest(settings.to_dict())
    paths = [_plain_path(learner, path) for path in range(len(learner.encoder))]
    names = [store.put_tensors(path) for path in paths]
    shared = None if learner.shared is None else store.put_tensors(learner.shared.state_dict())
    domains: dict[int, str] = {}
    for entry in learner.entries:
        memory = store.put_tensors({name: buffer[entry.memory] for name, buffer in learner.memories.named_buffers()})
        parent = learner.encoder.parents[entry.path]
        record = TaskRecord(
            classes=entry.class_names,
            images=0,
            held_out=0,
            accuracy=None,
            private=False,
            temperature=1.0,
            task_free_temperature=None,
            domain=domains.setdefault(entry.domain, memory),
            objects={
                "path": names[entry.path],
                "head": store.put_tensors(learner.heads[entry.index].state_dict()),
                "memory": memory,
                **({} if learner.shared is None else {"columns": _columns(store, learner, entry)}),
            },
            parent=None if parent is None else names[parent],
            decision={} if entry.decision is None else entry.decision.to_dict(),
            mean=entry.mean,
            std=entry.std,
            columns=entry.columns,
            mirror=entry.mirror,
        )
        manifest = manifest.learned(entry.name, store.put_json(record.to_dict()), shared)
    store.commit(manifest)
    last = learner.entries[-1]
    note = f"imported {len(learner.tasks)} tasks: {', '.join(manifest.tasks)}"
    return LearnReport(last.name, last.class_names, 0, 0, None, 0, time.monotonic() - start, notes=[note])


def _columns(store: Store, learner: HRN, entry: HRNEntry) -> str:
    """The task's part of the shared head."""
    return store.put_tensors(learner.task_columns[entry.index].state_dict())


def _plain_path(learner: HRN, path: int) -> dict[str, Any]:
    """The weights of a path; differences of low rank are added up."""
    plain = learner.encoder.grow(path)
    state = {name: tensor.clone() for name, tensor in learner.encoder.paths[plain].state_dict().items()}
    learner.encoder.drop_last()
    return state
