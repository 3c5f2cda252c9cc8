"""The interface of every learner: an encoder, a head for each task, hooks around training, and prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import Self

from hashroute import distributed
from hashroute.images import Images
from hashroute.learners import files
from hashroute.learners.entries import Batch, EpochLog, Familiarity, TaskEntry
from hashroute.learners.inputs import ImagesLike, check_image_shape, tasks_of
from hashroute.learners.objectives import Objective, find_objective
from hashroute.learners.options import NoOptions, Space
from hashroute.learners.prediction import Predictor
from hashroute.learners.progress import progress_bar
from hashroute.learners.randomness import RandomStream
from hashroute.learners.stream import Event, Stream, StreamSettings, StreamState
from hashroute.learners.trainer import Trainer, TrainingState
from hashroute.nn.backbones import BackboneLike, find_backbone
from hashroute.nn.pretrained import check_trusted, is_file
from hashroute.nn.units import ConvUnit
from hashroute.recipe import Profile, Recipe, result_name
from hashroute.tasks import Scenario, Task


class Style(NamedTuple):
    """How a learner looks in figures."""

    colour: str
    line: str = "-"
    marker: str = "o"


class Learner(Predictor):
    """A continual learner: `learn` tasks one after the other, then `predict`.

    A kind of learner overrides `new_encoder`, or some of the hooks `before_task`, `on_train_start`, `loss`,
    `before_step`, `after_step` and `after_task`. Tensors that it keeps between tasks, beside weights, go into `kept`.

    Args:
        image_shape: channels, height and width of the images.
        recipe: how it is trained.
        options: of this kind of learner, an instance of its `Options`.
        seed: of weights, batches and hash functions. The same seed gives the same learner.
        backbone: replaces the backbone of the recipe: a registered name, unit specs, or a module whose children are the
            levels. A module is given again when a saved model is loaded.
        objective: what is learned from a task: a registered name, or a kind of `Objective`.
    """

    name: ClassVar[str]
    """The name that it is registered by; that of the class, if it is not registered."""
    style: ClassVar[Style | None] = None
    """How it looks in figures; None lets the figures choose."""
    version: ClassVar[int] = 1
    """A change that alters the numbers of the same settings increases it. Results of two versions are not mixed."""
    Options: ClassVar[type] = NoOptions
    Entry: ClassVar[type[TaskEntry]] = TaskEntry
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Values of options among which `hashroute search` chooses."""
    space: ClassVar[Space] = {}
    """Values and spans of options in which `hashroute search --trials` chooses; by default those of `grid`."""
    tuned: ClassVar[dict[str, dict[str, Any]]] = {}
    """Options that `hashroute search` chose, by the name of a result file."""
    at_once: ClassVar[bool] = False
    """Whether it learns all tasks together: a reference, not a continual learner."""
    trained: ClassVar[bool] = True
    """Whether the trainer trains its weights, batch by batch. If not, `absorb` learns tasks."""
    remembers_data: ClassVar[bool] = False
    """Whether it remembers what the data of each task was like, so that it can observe a stream."""
    scale_features: ClassVar[bool] = False
    """Whether features are scaled in front of the heads even if the recipe leaves them as they are."""
    _place: Tensor

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = vars(cls).get("name", cls.__name__)

    def __init__(
        self,
        image_shape: Sequence[int],
        recipe: Recipe,
        options: Any = None,
        seed: int = 0,
        *,
        backbone: BackboneLike | None = None,
        objective: str | type[Objective] = "classification",
    ) -> None:
        super().__init__()
        self.image_shape = check_image_shape(image_shape)
        self.options = self.Options() if options is None else options
        self.seed = seed
        if backbone is None:
            check_trusted(recipe.backbone)
        self.backbone = find_backbone(recipe.backbone if backbone is None else backbone, self.image_shape)
        if recipe.channels_last:
            self.backbone = replace(self.backbone, channels_last=True)
        self.own_backbone = isinstance(backbone, nn.Module) or (isinstance(backbone, str) and is_file(backbone))
        if backbone is not None and not self.own_backbone and not isinstance(backbone, nn.Module):
            recipe = replace(recipe, backbone=backbone if isinstance(backbone, str) else tuple(backbone))
        self.recipe = recipe
        self.objective = find_objective(objective)(recipe)
        self.tasks: list[TaskEntry] = []
        self.heads = nn.ModuleList()
        self.kept: dict[str, Tensor] = {}
        """Tensors that are kept between tasks beside the weights, by name."""
        self.scratch: dict[str, Tensor] = {}
        """Tensors that are needed only until the present task is learned."""
        self.training_state: TrainingState | None = None
        self.stream: StreamState | None = None
        """The stream that it is observing; it is not saved."""
        self.random = RandomStream(seed)
        self.register_buffer("_place", torch.empty(0), persistent=False)  # there may be no weights before a task
        with self.random.use(self.device):
            self.encoder = self.new_encoder()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.kept = {name: fn(tensor) for name, tensor in self.kept.items()}
        self.scratch = {name: fn(tensor) for name, tensor in self.scratch.items()}
        return super()._apply(fn, recurse)  # type: ignore[no-any-return,no-untyped-call]

    # ---------------------------------------------------------------- hooks: what kinds of learners override

    @classmethod
    def usual_options(cls, scenario: str, image_shape: Sequence[int]) -> dict[str, Any]:  # noqa: ARG003
        """Options that differ from the defaults in a scenario, where no search has chosen any."""
        return {}

    @classmethod
    def saved_options(cls, values: dict[str, Any]) -> dict[str, Any]:
        """The options of a saved model. Options that its version did not have yet are added."""
        return values

    @classmethod
    def default_options(cls, scenario: str, image_shape: Sequence[int], profile: Profile = "default") -> dict[str, Any]:
        """The options of a comparison: the usual ones of the scenario, then those that a search chose."""
        return {**cls.usual_options(scenario, image_shape), **cls.tuned.get(result_name(scenario, profile), {})}

    def new_encoder(self) -> nn.Module:
        """A fresh encoder, from images (n, channels, height, width) to features (n, features)."""
        raise NotImplementedError

    def add_task(self, task: TaskEntry) -> None:
        """Add a task and its head."""
        self.tasks.append(task)
        scale = self.recipe.feature_scale or float(self.scale_features)
        self.heads.append(self.objective.new_head(self.feature_count(), task, scale))

    def before_task(self, task: TaskEntry) -> None:
        """Called once before a task is trained, when its head exists."""

    def on_train_start(self, tasks: Sequence[TaskEntry]) -> None:
        """Called before the first epoch, and again when a stopped run continues."""

    def on_epoch_start(self, batches: int) -> None:
        """Called before each epoch, with the number of its batches."""

    def before_step(self) -> None:
        """Called when gradients are known, before the optimiser changes the weights."""

    def after_step(self) -> None:
        """Called when the optimiser has changed the weights."""

    def absorb(self, tasks: Sequence[TaskEntry]) -> int | None:
        """Learn tasks in a way of its own; see `trained`. Returns how many images that took, if not each one once."""
        raise NotImplementedError

    def after_task(self, task: TaskEntry) -> None:
        """Called after the last epoch of a task, in eval mode: keep what later tasks need."""

    def rollback(self, task: TaskEntry) -> None:
        """Remove a task that was not learned to its end, and all later ones."""
        del self.tasks[task.index :]
        self.heads, self.scratch, self.training_state = self.heads[: task.index], {}, None

    def task_seed(self, task: TaskEntry) -> int:
        """The seed of random numbers that a task draws beside those of its training."""
        return self.seed * 1000 + task.index

    def trainable(self, tasks: Sequence[TaskEntry]) -> Iterator[nn.Parameter]:
        """The weights that these tasks train: those of the encoder and of their heads."""
        yield from self.encoder.parameters()
        for task in tasks:
            yield from self.heads[task.index].parameters()

    def undecayed(self, tasks: Sequence[TaskEntry]) -> Iterator[nn.Parameter]:  # noqa: ARG002
        """More weights that these tasks train, but without weight decay."""
        yield from ()

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss of a batch, and the outputs of the head."""
        outputs = self.heads[batch.task.index](self.features(batch.images, batch.task))
        return self.objective.loss(outputs, batch.targets), outputs

    def task_encoder(self, task: TaskEntry) -> nn.Module:  # noqa: ARG002
        """The encoder as a task uses it: a module of its own that gives the same features, in eval mode."""
        return self.encoder

    def paths(self, images: Tensor | Images, task: TaskEntry) -> Tensor | None:  # noqa: ARG002
        """(n, levels) the units that images go through, for learners that route images."""
        return None

    def known_by(self, images: Tensor, task: TaskEntry) -> Familiarity | None:  # noqa: ARG002
        """How well its units or memories know images, for learners that have any."""
        return None

    def analyse(self, images: Tensor | Images, task: TaskEntry) -> dict[str, Any]:  # noqa: ARG002
        """What a learner reports about its own work on images of a task, for the log."""
        return {}

    def unit_facts(self) -> list[dict[str, Any]]:
        """What is known about each unit, by name; shares are fractions."""
        units = [(name, unit) for name, unit in self.encoder.named_modules() if isinstance(unit, ConvUnit)]
        return [{"unit": name, "parameters": count_weights(unit)} for name, unit in units]

    @property
    def decisions(self) -> list[Any]:
        """What it decided about each task, and why, for learners that decide."""
        return []

    # ---------------------------------------------------------------- learning

    def learn(
        self,
        *tasks: Task | Scenario,
        progress: bool | None = None,
        on_epoch: Callable[[EpochLog], None] | None = None,
    ) -> Self:
        """Learn a task, or the tasks of a scenario one after the other; `joint` learns several tasks together.

        If learning was interrupted, the same call continues it, and `abort` gives the task up.

        Args:
            tasks: what to learn.
            progress: show a progress bar; by default, on a terminal and in a notebook.
            on_epoch: called with what each epoch gave; in many processes, on rank 0.
        """
        groups, trainer = tasks_of(tasks, self.at_once), Trainer(self)
        begun = next((place for place, together in enumerate(groups) if trainer.is_learning(together)), 0)
        for together in groups[begun:]:
            if not trainer.is_learning(together):
                trainer.begin(*together)
            with progress_bar(trainer, progress) as advance:
                while not trainer.done:
                    log = trainer.run_epoch(advance)
                    if on_epoch is not None:
                        distributed.first(partial(on_epoch, log))
                trainer.finish()
        return self

    def abort(self) -> None:
        """Give up the task that is being learned. Weights that all tasks share keep what was learned so far."""
        Trainer(self).abort()

    def observe(self, images: ImagesLike, labels: Any = None, settings: StreamSettings | None = None) -> list[Event]:
        """Take the next images of a stream that nobody cuts into tasks; returns what was decided, in order.

        The learner notices by itself that the data has changed, recognises data that it has learned, and learns each
        episode in parts. Only the images in the window are held. How the stream is cut into batches does not matter.

        Args:
            images: (n, channels, height, width) of uint8, or from 0 to 1.
            labels: (n,) whole numbers; the same number is the same class. Without them, an objective that names classes
                learns nothing: data is recognised only.
            settings: of the stream that begins with this call.
        """
        return Stream(self._observer()).observe(images, labels, settings)

    def close_stream(self) -> list[Event]:
        """End the stream: learn what is left in the window, and drop it."""
        return Stream(self._observer()).close()

    def _observer(self) -> Any:
        if not self.remembers_data:
            raise ValueError(f"{self.name} does not remember what data was like: expected a learner that does, as hrn")
        return self

    # ---------------------------------------------------------------- storage

    def parameter_counts(self) -> dict[str, int]:
        """Weights of the encoder and of all heads."""
        heads = count_weights(self.heads)
        return {"encoder": count_weights(self) - heads, "heads": heads}

    def bytes_kept(self) -> dict[str, int]:
        """Bytes that must be kept between tasks: weights, and state beside them."""
        weights = {name for name, _ in self.named_parameters()}
        beside = [
            tensor
            for name, tensor in self.state_dict().items()
            if name not in weights and not name.endswith("_extra_state")
        ]
        return {"weights": _bytes(self.parameters()), "memory": _bytes([*beside, *self.kept.values()])}

    def images_kept(self) -> int:
        """How many training images it keeps between tasks."""
        return 0

    def extra_description(self) -> dict[str, Any]:
        """What a kind of learner adds to the description of a saved model, as plain values."""
        return {}

    def make_room(self, description: dict[str, Any]) -> None:
        """Add the tasks of a saved model, untrained; its state is loaded next."""
        for index, values in enumerate(description["tasks"]):
            self.add_task(self.Entry.from_dict(values, index))

    def on_state_loaded(self) -> None:
        """Called when weights and kept tensors were loaded."""

    def save(self, folder: str | Path) -> None:
        """Write the model into a folder; `load_learner` reads it. In many processes, rank 0 writes it."""
        if self.training_state is not None:
            raise ValueError(f"{self.name} is learning a task: let learn() end, or call abort(), then save")
        if distributed.is_first():
            files.write_model(Path(folder), files.describe(self), files.state_of(self))


def count_weights(module: nn.Module) -> int:
    """How many weights a module has."""
    return sum(weight.numel() for weight in module.parameters())


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
