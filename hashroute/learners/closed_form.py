"""closed-form: the shared head alone, a control. Nothing is trained by gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from hashroute.images import Images
from hashroute.learners.entries import TaskEntry
from hashroute.learners.learner import Style
from hashroute.learners.options import Space
from hashroute.learners.registry import register_learner
from hashroute.learners.shared_head import SHARPNESS, SharedEntry, SharedHead, SharedHeadLearner, check_fixed_features
from hashroute.nn.closed_form import ClosedForm


@dataclass(frozen=True)
class ClosedFormOptions:
    """Options of closed-form."""

    fixed_features: int = 1792
    """Features of an image. A frozen backbone has its own number."""

    def __post_init__(self) -> None:
        check_fixed_features("closed-form", self.fixed_features, 8)


@register_learner("closed-form")
class ClosedFormLearner(SharedHeadLearner):
    """One linear head over fixed features, solved from sums. The order of tasks does not matter."""

    style = Style("#332288", ":", "p")
    Options = ClosedFormOptions
    space: ClassVar[Space] = {"fixed_features": (448, 896, 1792, 3584)}
    trained = False
    encoder: SharedHead

    @property
    def shared(self) -> SharedHead:  # type: ignore[override]
        """The shared head is the whole encoder."""
        return self.encoder

    def new_encoder(self) -> SharedHead:
        if not self.objective.names_classes:
            raise ValueError(f"closed-form was given the objective {self.objective.name!r}: expected classification")
        return self.new_shared_head()

    def add_task(self, task: TaskEntry) -> None:
        self.tasks.append(task)
        self.heads.append(nn.Identity())

    def pixel_statistics(self, task: TaskEntry) -> tuple[tuple[float, ...], tuple[float, ...]]:  # noqa: ARG002
        """Pixels are taken as they are."""
        return (0.0,), (1.0,)

    def kind_of_data(self, task: SharedEntry) -> Any:
        """The statistics of the data set."""
        return task.mean, task.std

    def absorb(self, tasks: Sequence[TaskEntry]) -> None:
        """Add the images of tasks to the sums."""
        for task in tasks:
            before = self.shared.sums
            lesson = self.study(self._entry(task))
            self.scratch |= {f"{task.index}.{name}": tensor for name, tensor in before.state_dict().items()}
            self.scratch[f"{task.index}.evidence"] = self.shared.evidence
            self.shared.take(lesson)

    def rollback(self, task: TaskEntry) -> None:
        kept = {
            name.partition(".")[2]: tensor for name, tensor in self.scratch.items() if name.startswith(f"{task.index}.")
        }
        if kept:
            self.shared.evidence = kept.pop("evidence")
            self.shared.sums = ClosedForm(self.shared.sums.features)
            self.shared.sums.load_state_dict(kept)
        super().rollback(task)

    def trainable(self, tasks: Sequence[TaskEntry]) -> Iterator[nn.Parameter]:  # noqa: ARG002
        yield from ()

    def features(self, images: Tensor, task: TaskEntry) -> Tensor:
        return self.shared.fixed(images, self._entry(task).mirror)

    def feature_key(self, task: TaskEntry) -> Any:
        return self._entry(task).mirror

    def adjusted(self, outputs: Tensor, images: Tensor | Images, task: TaskEntry) -> Tensor:  # noqa: ARG002
        """The scores of the classes of a task. outputs: features of images."""
        return SHARPNESS * self.shared.solution(outputs)[:, list(self._entry(task).columns)].to(outputs)

    def class_scores(self, images: Tensor | Images) -> Tensor:
        """(n, all classes) the log-probability of each class of all tasks."""
        return self.shared_scores(images, [self._entry(task) for task in self.tasks])

    def _entry(self, task: TaskEntry) -> SharedEntry:
        entry = self.tasks[task.index]
        assert isinstance(entry, SharedEntry)
        return entry
