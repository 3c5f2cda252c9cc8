"""avalanche:er and others: strategies of Avalanche as learners, with our encoder, heads, epochs and data.

Avalanche is imported when a task is learned. Models that were trained answer without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from hashroute.images import Images
from hashroute.integrations.installed import check_installed
from hashroute.learners.entries import TaskEntry
from hashroute.learners.learner import Learner
from hashroute.learners.plain import Vanilla


class AvalancheLearner(Vanilla):
    """A strategy of Avalanche that trains the plain network, one experience for each task.

    The strategy is told the task of every training image. What it keeps between tasks, beside images, is in memory
    only: a model that is loaded answers, and does not learn any further.
    """

    trained = False
    strategy: ClassVar[str]
    """The class of `avalanche.training`."""
    arguments: ClassVar[dict[str, str]] = {}
    """Arguments of that class, and the options that they come from."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._strategy: Any = None
        if self.backbone.stem is not None or not self.objective.names_classes:
            raise ValueError(f"{self.name} learns classes with a backbone of its own: use another learner")

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return {**state, "_strategy": None}  # copies answer, and learn no more

    def absorb(self, tasks: Sequence[TaskEntry]) -> int:
        """Let the strategy learn a task. Returns how many images it has seen."""
        task = tasks[0]
        if self._strategy is None:
            if task.index:
                raise ValueError(
                    f"{self.name} cannot go on with task {task.name!r}: what Avalanche keeps between tasks was not "
                    "saved; learn all tasks from the first one, without --resume"
                )
            check_installed(self.name, "avalanche", "avalanche")
            try:
                from hashroute.integrations.avalanche_strategies import new_strategy
            except Exception as error:  # torchvision, which Avalanche needs, raises a RuntimeError with another torch
                what = " ".join(f"{type(error).__name__}: {error}".split())[:120]
                raise ValueError(f"Avalanche cannot be imported ({what}): install versions that fit together") from None
            self._strategy = new_strategy(self)
        seen: int = self._strategy.learn(task)
        self.eval()
        return seen

    def rollback(self, task: TaskEntry) -> None:
        super().rollback(task)
        self._strategy = None

    def images_kept(self) -> int:
        return len(self.kept.get("images", ()))


@dataclass(frozen=True)
class MemoryOptions:
    """Options of strategies that keep images."""

    images: int = 2000
    """Training images that are kept, of all tasks together."""


class ER(AvalancheLearner):
    """Experience replay (Avalanche): batches also have kept images of old tasks."""

    name = "avalanche:er"
    strategy = "Replay"
    Options = MemoryOptions
    arguments: ClassVar[dict[str, str]] = {"mem_size": "images"}


class GDumb(AvalancheLearner):
    """GDumb (Prabhu, 2020; Avalanche): after each task, a new network learns the kept images alone."""

    name = "avalanche:gdumb"
    strategy = "GDumb"
    Options = MemoryOptions
    arguments: ClassVar[dict[str, str]] = {"mem_size": "images"}


@dataclass(frozen=True)
class GEMOptions:
    """Options of avalanche:gem."""

    images_per_task: int = 200
    """Training images that are kept of each task. A step computes the gradient of all of them."""
    strength: float = 0.5
    """gamma: by how much steps favour old tasks."""


class GEM(AvalancheLearner):
    """Gradient episodic memory (Lopez-Paz, 2017; Avalanche): no step raises the loss of kept images of an old task."""

    name = "avalanche:gem"
    strategy = "GEM"
    Options = GEMOptions
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"strength": (0.0, 0.5, 1.0)}
    arguments: ClassVar[dict[str, str]] = {"patterns_per_exp": "images_per_task", "memory_strength": "strength"}


@dataclass(frozen=True)
class AvalancheSIOptions:
    """Options of avalanche:si."""

    weight: float = 1.0
    """Weight of the penalty."""
    damping: float = 1e-7
    """Added to squared changes."""


class AvalancheSI(AvalancheLearner):
    """Synaptic intelligence (Zenke, 2017; Avalanche): also holds heads."""

    name = "avalanche:si"
    strategy = "SynapticIntelligence"
    Options = AvalancheSIOptions
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"weight": (0.01, 0.1, 1.0, 10.0, 100.0)}
    arguments: ClassVar[dict[str, str]] = {"si_lambda": "weight", "eps": "damping"}


@dataclass(frozen=True)
class AvalancheLwFOptions:
    """Options of avalanche:lwf."""

    distillation: float = 1.0
    """Weight of the distillation of all old heads."""
    temperature: float = 2.0
    """Temperature of the distillation."""


class AvalancheLwF(AvalancheLearner):
    """Learning without forgetting (Li and Hoiem, 2016; Avalanche)."""

    name = "avalanche:lwf"
    strategy = "LwF"
    Options = AvalancheLwFOptions
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"distillation": (0.25, 1.0, 4.0, 16.0)}
    arguments: ClassVar[dict[str, str]] = {"alpha": "distillation", "temperature": "temperature"}


class ICaRL(AvalancheLearner):
    """iCaRL (Rebuffi, 2017; Avalanche): answers with the nearest mean of the kept images of a class."""

    name = "avalanche:icarl"
    strategy = "ICaRL"
    Options = MemoryOptions
    arguments: ClassVar[dict[str, str]] = {"memory_size": "images"}

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if self.recipe.scaling != "fixed":
            raise ValueError(f"{self.name} is not told the task of images: use a recipe with scaling='fixed'")

    def columns(self, task: TaskEntry) -> slice:
        """The classes of a task among the classes of all tasks."""
        first = sum(len(entry.class_names) for entry in self.tasks[: task.index])
        return slice(first, first + len(task.class_names))

    def adjusted(self, outputs: Tensor, images: Tensor | Images, task: TaskEntry) -> Tensor:  # noqa: ARG002
        """The scores of the classes of a task."""
        return self.class_scores(images)[:, self.columns(task)]

    def class_scores(self, images: Tensor | Images) -> Tensor:
        """(n, all classes) minus the distance to the mean of each class; zero before the first task is learned."""
        features = torch.nn.functional.normalize(self.encode(images, 0))
        means = self.kept.get("class_means", features.new_zeros(len(self.tasks[0].class_names), features.shape[1]))
        return -torch.cdist(features, means)


KINDS: dict[str, type[Learner]] = {kind.name: kind for kind in (ER, GEM, ICaRL, GDumb, AvalancheSI, AvalancheLwF)}
"""Learners by name."""


def find(name: str) -> type[Learner]:
    """The learner of this name."""
    if name not in KINDS:
        raise ValueError(f"there is no learner {name!r}: expected one of {', '.join(KINDS)}")
    return KINDS[name]
