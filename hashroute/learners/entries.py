"""What learners, trainers and predictions pass to each other."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, NamedTuple

from torch import Tensor
from typing_extensions import Self

from hashroute.tasks import Split, Task


@dataclass
class TaskEntry:
    """What a learner knows about one task, beside its head. No images are kept."""

    index: int
    name: str
    class_names: tuple[str, ...]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    held: Task | None = field(default=None, repr=False)
    """The task with its images, while it is being learned."""
    maps: dict[Split, Split] = field(default_factory=dict, repr=False, compare=False, kw_only=True)
    """The maps of a frozen stem for splits of the task, while it is being learned."""

    @classmethod
    def of(cls, task: Task, index: int) -> Self:
        """The entry of a task that is about to be learned."""
        return cls(index, task.name, task.class_names, task.mean, task.std, task)

    @property
    def data(self) -> Task:
        """The task with its images; an error if it is not being learned."""
        if self.held is None:
            raise RuntimeError(f"task {self.name!r} is not being learned: its images are gone")
        return self.held

    def to_dict(self) -> dict[str, Any]:
        """The entry as plain values, for JSON."""
        whole = {
            each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("held", "maps", "index")
        }
        return {
            name: asdict(value) if hasattr(value, "__dataclass_fields__") else value for name, value in whole.items()
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any], index: int) -> Self:
        """The entry that `to_dict` described."""
        known: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(index=index, **known)


class Batch(NamedTuple):
    """Training images of one task, as the encoder takes them."""

    images: Tensor
    """(n, channels, height, width), normalised."""
    targets: Tensor
    """(n,) labels, or whatever the objective learns from."""
    task: TaskEntry


class TaskFree(NamedTuple):
    """Task-free answers: the index of the task that each image is assigned to, and its label in that task."""

    tasks: Tensor
    labels: Tensor


class Familiarity(NamedTuple):
    """How well each of a learner's units or memories knows images."""

    parts: Literal["units", "memories"]
    values: Tensor
    """(n, parts)"""


class EpochLog(NamedTuple):
    """What an epoch gave."""

    loss: float | None
    """Mean over the epoch's batches; None for a learner that has no loss."""
    score: float | None
    """Mean score of the training images during the epoch; for classification, accuracy from 0 to 1. None for a learner
    that is not trained by gradients."""
    images: int
    seconds: float
    """Processor time on a CPU, so that other processes do not count; elapsed time elsewhere."""
