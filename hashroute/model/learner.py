"""`hrn` on the objects of a store: units and heads are read when they are first needed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from hashroute.learners.entries import TaskEntry
from hashroute.learners.files import check_size
from hashroute.learners.growth import Decision, HRNEntry
from hashroute.learners.hrn import HRN
from hashroute.learners.randomness import RandomStream
from hashroute.learners.shared_head import Columns, SharedEntry
from hashroute.learners.trainer import Trainer
from hashroute.model.records import ModelSettings, TaskRecord
from hashroute.model.store import Store
from hashroute.nn.closed_form import ClosedForm
from hashroute.nn.gaussian import all_ranges
from hashroute.schema import check, shown
from hashroute.tasks import Task


class LessonValues(TypedDict):
    """A lesson that is under way, in a checkpoint."""

    entry: dict[str, Any]
    head: dict[str, Tensor]
    path: dict[str, Tensor] | None
    parent: int | None
    training: dict[str, Any]
    random: Tensor


MOST_UNSTORED = 2**25
"""Numbers that settings may ask for, whatever is stored: a model without tasks has nothing yet."""
MANY_CLASSES = 1000
"""The modules of a task with more classes are made when their file has proved to be as large."""


class Unread(nn.Module):
    """Stands for a module that was not read yet."""

    def __init__(self, read: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.read = read


class LazyModules(nn.ModuleList):
    """A list of modules; one that was not read yet is read when it is asked for."""

    def __getitem__(self, index: Any) -> Any:
        module = super().__getitem__(index)
        if isinstance(module, Unread):
            module = module.read()
            self[index] = module
        return module


class KeptLearner(HRN):
    """The learner of a model: some of its tasks, in the order in which they were learned.

    Args:
        store: where the objects are.
        settings: of the model.
        records: of the tasks, by name.
        shared: the object with the shared head of all tasks that are not private; None if there is none yet.
        epochs: of the task that is learned next.
        private: whether that task is private.
    """

    name = HRN.name  # messages are about the kind of learner that a user has chosen

    def __init__(
        self,
        store: Store,
        settings: ModelSettings,
        records: Mapping[str, TaskRecord],
        shared: str | None,
        epochs: int | None = None,
        private: bool = False,
    ) -> None:
        self._check_size(store, settings, records, shared)
        recipe = settings.recipe if epochs is None else replace(settings.recipe, epochs=(epochs,))
        super().__init__(settings.image_shape, recipe, settings.options, settings.seed, backbone=settings.code)
        if self.backbone.stem is not None:
            self.backbone.stem.check_same(settings.stem or {})
        self.settings, self.store, self.private = settings, store, private
        self.path_names = _distinct(record.objects["path"] for record in records.values())
        self.memory_names = _distinct(record.objects["memory"] for record in records.values())
        self.domain_names = _distinct(record.domain for record in records.values())
        for index, (name, record) in enumerate(records.items()):
            self.tasks.append(self._entry(index, name, record))
        self.heads = LazyModules(Unread(_Reader(self, self._read_head, entry.index)) for entry in self.tasks)
        self.head_names = [record.objects["head"] for record in records.values()]
        self.encoder.paths = LazyModules(Unread(_Reader(self, self._read_path, i)) for i in range(len(self.path_names)))
        parents = {record.objects["path"]: record.parent for record in reversed(list(records.values()))}
        places = {name: place for place, name in enumerate(self.path_names)}
        self.encoder.parents = [places.get(parents[name] or "") for name in self.path_names]
        self.encoder.ranks = [0] * len(self.path_names)
        self._read_memories()
        if self.shared is not None:
            self._read_shared(shared, records)
            if lacking := [name for name, record in records.items() if "columns" not in record.objects]:
                raise ValueError(f"task {shown(lacking[0])} has no columns of the shared head")
            self.column_names = [record.objects["columns"] for record in records.values()]
            self.task_columns = LazyModules(
                Unread(_Reader(self, self._read_columns, entry.index)) for entry in self.tasks
            )
        self.eval()

    @staticmethod
    def _check_size(
        store: Store, settings: ModelSettings, records: Mapping[str, TaskRecord], shared: str | None
    ) -> None:
        """Raise an error if settings ask for much more memory than the objects of the model take, or for large maps.

        Frozen stems, and code that a user names, have a known size.
        """
        if settings.stem is not None or settings.code is not None:
            return

        def make() -> nn.Module:
            learner = HRN(settings.image_shape, settings.recipe, settings.options, settings.seed)
            for record in list(records.values())[:1]:
                learner.add_task(HRNEntry(0, "", record.classes))
                units: Any = learner.encoder.paths[learner.encoder.grow()]
                nn.Sequential(*units)(torch.zeros(1, *settings.image_shape))
            return learner

        names = {shared, *(name for record in list(records.values())[:1] for name in record.objects.values())}
        stored = sum(store.size(name) for name in names if name is not None)
        try:
            check_size(make, max(stored, MOST_UNSTORED))
        except ValueError as error:
            raise ValueError(f"the settings of the model are damaged ({error}): restore manifest.json") from None

    def _entry(self, index: int, name: str, record: TaskRecord) -> HRNEntry:
        decision = Decision.from_dict(record.decision) if record.decision else Decision(name)
        path, memory = (
            self.path_names.index(record.objects["path"]),
            self.memory_names.index(record.objects["memory"]),
        )
        domain = self.domain_names.index(record.domain)
        known = (index, name, record.classes, record.mean, record.std)
        return HRNEntry(
            *known,
            path=path,
            domain=domain,
            memory=memory,
            decision=decision,
            columns=record.columns,
            mirror=record.mirror,
        )

    def _read_shared(self, shared: str | None, records: Mapping[str, TaskRecord]) -> None:
        """Read the shared head, and add what private tasks keep to themselves."""
        assert self.shared is not None
        if shared is not None:
            head = self.shared
            self._filled(lambda: head, shared)
        elif records:  # all are private
            self.shared.fixed.draw(self.seed)
        self.shared_sums, self.shared.sums = self.shared.sums, copy.deepcopy(self.shared.sums)
        for entry, record in zip(self.entries, records.values(), strict=True):
            if "sums" in record.objects:
                own = ClosedForm(self.shared.sums.features)
                self._filled(lambda own=own: own, record.objects["sums"])  # type: ignore[misc]
                first = self.shared.sums.classes
                self.shared.sums.merge(own, first + torch.arange(own.classes))
                entry.columns = tuple(first + column for column in entry.columns)
        self.check_columns()

    def _read_columns(self, index: int) -> nn.Module:
        assert self.shared is not None
        features, classes = self.shared.sums.features, len(self.tasks[index].class_names)
        return self._filled(lambda: Columns(features, classes), self.column_names[index], classes)

    def _read_memories(self) -> None:
        stored = []
        for name in self.memory_names:  # all are read first: a missing one takes no memory
            found = self.store.tensors(name)
            if "ranges" in found:
                found["ranges"] = all_ranges(found["ranges"])
            for part, buffer in self.memories.named_buffers():
                _check_shape(found, part, buffer.shape[1:], name)
            stored.append(found)
        self.memories.reserve(len(stored))
        for place, found in enumerate(stored):
            for part, buffer in self.memories.named_buffers():
                buffer[place] = found[part]

    def new_head(self, entry: TaskEntry) -> nn.Module:
        """A head with fresh weights."""
        scale = self.recipe.feature_scale or float(self.scale_features)
        return self.objective.new_head(self.feature_count(), entry, scale)

    def _read_head(self, index: int) -> nn.Module:
        task = self.tasks[index]
        return self._filled(lambda: self.new_head(task), self.head_names[index], len(task.class_names))

    def _read_path(self, index: int) -> nn.Module:
        return self._filled(self.backbone.new_levels, self.path_names[index]).requires_grad_(False)

    def _filled(self, make: Callable[[], nn.Module], name: str, classes: int = 0) -> nn.Module:
        """A module with the weights of an object. Random numbers that its start draws do not count."""
        found = self.store.tensors(name)
        try:
            if classes > MANY_CLASSES:
                check_size(make, sum(tensor.numel() for tensor in found.values()))
            module = make()
            module.load_state_dict(found)
        except (RuntimeError, ValueError):
            raise ValueError(f"object {name} does not fit the model: run hashroute verify") from None
        return module.to(self._place).eval()

    def columns_of(self, task: SharedEntry) -> tuple[int, ...]:
        """The column of each class. A private task shares none."""
        assert self.shared is not None
        if not self.private:
            return super().columns_of(task)
        known = len(task.columns)
        more = self.shared.sums.classes + torch.arange(len(task.class_names) - known)
        return (*task.columns, *more.tolist())

    def task_seed(self, task: TaskEntry) -> int:
        return self.settings.task_seed(task.name)

    # ---------------------------------------------------------------- learning a task

    def start(self, task: Task) -> Trainer:
        """Begin to learn a task, with random numbers of its own."""
        self.random = RandomStream(self.settings.task_seed(task.name))
        trainer = Trainer(self)
        trainer.begin(task)
        return trainer

    def checkpoint(self) -> dict[str, Any]:
        """The task that is being learned: all that `restore` needs to continue it, bit for bit."""
        entry = self.entries[-1]
        grown = entry.path == len(self.path_names)
        return {
            "entry": entry.to_dict(),
            "head": self.heads[entry.index].state_dict(),
            "path": self.encoder.paths[entry.path].state_dict() if grown else None,
            "parent": self.encoder.parents[entry.path],
            "training": Trainer(self).checkpoint(),
            "random": self.random.state,
        }

    def restore(self, checkpoint: dict[str, Any], task: Task) -> Trainer:
        """Continue a task from a checkpoint of a learner with the same tasks."""
        check(checkpoint, LessonValues)
        entry = HRNEntry.from_dict(checkpoint["entry"], len(self.tasks))
        self._check_entry(entry, task, checkpoint["path"] is not None, checkpoint["parent"])
        with self.random.use(self.device):
            self.add_task(entry)
            if checkpoint["path"] is not None:
                self.encoder.grow()
                self.encoder.parents[-1] = checkpoint["parent"]
                self.encoder.paths[entry.path].load_state_dict(checkpoint["path"])
        self.heads[entry.index].load_state_dict(checkpoint["head"])
        self.to(self._place).eval()
        trainer = Trainer(self)
        trainer.restore(checkpoint["training"], [task])
        self.random.restore(checkpoint["random"])
        return trainer

    def _check_entry(self, entry: HRNEntry, task: Task, grown: bool, parent: int | None) -> None:
        """Raise an error unless this is what a lesson about a task knows before its end."""
        fresh, known = HRNEntry.of(task, entry.index), self.entries
        same = ("name", "class_names", "mean", "std", "memory")
        own = [(fresh.columns, fresh.mirror), *((each.columns, each.mirror) for each in known)]
        paths = [len(self.path_names)] if grown else list(range(len(self.path_names)))
        decision = entry.decision
        if (
            any(getattr(entry, name) != getattr(fresh, name) for name in same)
            or (entry.columns, entry.mirror) not in own
            or entry.path not in paths
            or entry.domain not in range(len(self.domain_names) + 1)
            or parent not in (None, *range(len(self.path_names)))
            or (decision is not None and decision.looks_like not in (None, *(each.name for each in known)))
        ):
            raise ValueError("its task is another one")

    def store_task(self, entry: HRNEntry) -> tuple[dict[str, str], str, str | None]:
        """Write the objects of a task that was just learned; returns them, its domain, and the parent of its path."""
        assert entry.memory is not None, "a task that was learned has one"
        known = entry.path < len(self.path_names)
        path = (
            self.path_names[entry.path]
            if known
            else self.store.put_tensors(self.encoder.paths[entry.path].state_dict())
        )
        if entry.memory < len(self.memory_names):
            memory = self.memory_names[entry.memory]
        else:
            memory = self.store.put_tensors(self.memory(entry))
        head = self.store.put_tensors(self.heads[entry.index].state_dict())
        domain = self.domain_names[entry.domain] if entry.domain < len(self.domain_names) else memory
        parent = self.encoder.parents[entry.path]
        objects = {"path": path, "head": head, "memory": memory}
        return objects, domain, None if parent is None else self.path_names[parent]

    def store_shared(self, entry: HRNEntry, objects: dict[str, str]) -> str | None:
        """Write what the shared head learned from a task; returns the shared head of all tasks that are not private.

        objects: of the task, to which its own are added.
        """
        if self.shared is None:
            return None
        objects["columns"] = self.store.put_tensors(self.task_columns[entry.index].state_dict())
        if not self.private:
            return self.store.put_tensors(self.shared.state_dict())
        own = copy.deepcopy(self.shared.sums)
        if self.shared_sums.classes:
            own.merge(self.shared_sums, torch.arange(self.shared_sums.classes), -1)
        own.drop_first(self.shared_sums.classes)
        objects["sums"] = self.store.put_tensors(own.state_dict())
        return None

    def stored_columns(self, entry: HRNEntry) -> tuple[int, ...]:
        """The columns of a task, as its record has them."""
        first = self.shared_sums.classes if self.private and self.shared is not None else 0
        return tuple(column - first for column in entry.columns)

    def memory(self, entry: HRNEntry) -> dict[str, Tensor]:
        """The tensors of the memory of a task."""
        return {name: buffer[entry.memory] for name, buffer in self.memories.named_buffers()}


class _Reader:
    """Reads a module without a trace in the random numbers of the program."""

    def __init__(self, learner: KeptLearner, read: Callable[[int], nn.Module], index: int) -> None:
        self.device, self.read, self.index = learner.device, read, index

    def __call__(self) -> nn.Module:
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            return self.read(self.index)


def _check_shape(found: Mapping[str, Tensor], part: str, shape: torch.Size, name: str) -> None:
    if part not in found or found[part].shape != shape:
        raise ValueError(f"object {name} does not fit the model: run hashroute verify")


def _distinct(names: Any) -> list[str]:
    return list(dict.fromkeys(names))
