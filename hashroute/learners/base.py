"""What every learner has in common: an encoder, a head for each task, training, prediction, and files."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, overload

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR
from typing_extensions import Self

from hashroute.nn.units import ConvUnit
from hashroute.recipe import HeadSpec, Recipe, recipe_for
from hashroute.storage import replace_file, write_json
from hashroute.tasks import Task

FORMAT = 3
"""Of saved learners; a reader of another format says so."""

EVALUATION_BATCH = 128
"""Larger ones are slower: their maps leave the cache."""


@dataclass(frozen=True)
class NoOptions:
    """Options of a learner that has none."""


@dataclass(frozen=True)
class LearnedTask:
    """What a learner remembers of a task beside its head: no images."""

    name: str
    class_names: tuple[str, ...]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


class Batch(NamedTuple):
    """Training images of one task, as the encoder takes them."""

    images: Tensor
    """(n, channels, height, width), scaled."""
    labels: Tensor
    """(n,)"""
    task: int
    """The task's number."""


class EpochLog(NamedTuple):
    """What an epoch gave."""

    loss: float
    """Mean over the epoch's batches."""
    accuracy: float
    """In percent, of training images as they were trained on."""
    images: int
    seconds: float
    """See `clock`."""


class TaskFree(NamedTuple):
    """Answers when no task was given: the task that each sample was taken for, and its label there."""

    tasks: Tensor
    labels: Tensor


class Familiar(NamedTuple):
    """How well images are known, by each of a learner's units or memories."""

    parts: Literal["units", "memories"]
    values: Tensor
    """(n, parts)"""


@dataclass
class Course:
    """The training of one task, or of some together, while it lasts."""

    tasks: list[int]
    images: list[tuple[int, int]]
    """How many there are of each task, to train on and to validate."""
    optimizer: Optimizer
    schedule: LRScheduler | None
    epoch: int = 0


class Learner(nn.Module):
    """A continual learner: `learn` tasks one after the other, then `predict`.

    A kind of learner overrides `new_encoder`, or one of the hooks `look`, `prepare`, `loss`, `before_step`,
    `after_step`, `consolidate`; what it keeps between tasks beside weights goes into `memory`, by name.

    Args:
        image_shape: channels, height and width of the images.
        recipe: how it is trained.
        options: of this kind of learner, an instance of its `Options`.
        seed: of hash functions. Weights and batches follow torch.manual_seed.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Raised when the same settings give other numbers: runs of two versions are not put together."""
    Options: ClassVar[type] = NoOptions
    at_once: ClassVar[bool] = False
    """Whether it learns all tasks together: a landmark, not a continual learner."""
    _place: Tensor
    norm_features: ClassVar[bool] = False
    """Whether features are scaled in front of the heads even where the settings leave them as they are."""
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Values of options among which `hashroute search` chooses."""

    def __init__(self, image_shape: Sequence[int], recipe: Recipe, options: Any = None, seed: int = 0) -> None:
        super().__init__()
        self.image_shape = tuple(image_shape)
        self.recipe = recipe
        self.options = self.Options() if options is None else options
        self.seed = seed
        self.tasks: list[LearnedTask] = []
        self.heads = nn.ModuleList()
        self.memory: dict[str, Tensor] = {}
        self.decisions: list[dict[str, Any]] = []
        """What it decided about each task, and why, where there was something to decide."""
        self.scratch: dict[str, Tensor] = {}
        """What is needed only until the running task is learned."""
        self.course: Course | None = None
        self.register_buffer("_place", torch.empty(0), persistent=False)  # there may be no weights before a task
        self.encoder = self.new_encoder()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.memory = {name: fn(tensor) for name, tensor in self.memory.items()}
        self.scratch = {name: fn(tensor) for name, tensor in self.scratch.items()}
        return super()._apply(fn, recurse)  # type: ignore[no-any-return,no-untyped-call]

    # ---------------------------------------------------------------- what kinds of learners override

    @classmethod
    def usual_options(cls, scenario: str, image_shape: Sequence[int]) -> dict[str, Any]:  # noqa: ARG003
        """Options that differ from the defaults for a scenario, where nothing was searched for."""
        return {}

    def new_encoder(self) -> nn.Module:
        """A fresh encoder: maps (n, channels, height, width) to (n, features)."""
        raise NotImplementedError

    def add_task(self, task: LearnedTask) -> None:
        """Make room for a task: a head for it."""
        self.tasks.append(task)
        size = self.recipe.feature_scale or float(self.norm_features)
        self.heads.append(Head(self.feature_count(), self.recipe.head, len(task.class_names), size))

    def trainable(self, tasks: Sequence[int]) -> Iterator[nn.Parameter]:
        """The weights that these tasks train: the encoder's and their heads'."""
        yield from self.encoder.parameters()
        for task in tasks:
            yield from self.heads[task].parameters()

    def undecayed(self, tasks: Sequence[int]) -> Iterator[nn.Parameter]:  # noqa: ARG002
        """More weights that these tasks train, but by the loss alone: weight decay leaves them as they are."""
        yield from ()

    def features(self, images: Tensor, task: int) -> Tensor:  # noqa: ARG002
        """Features of scaled images, for the head of a task."""
        features: Tensor = self.encoder(images)
        return features

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss of a batch, and the logits."""
        logits = self.heads[batch.task](self.features(batch.images, batch.task))
        return self.errors(logits, batch.labels), logits

    def errors(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy of answers, with labels smoothed as the settings say."""
        return F.cross_entropy(logits, labels, label_smoothing=self.recipe.label_smoothing)

    def look(self, tasks: Sequence[Task], first: int) -> None:
        """Called once before tasks are learned, when their heads are there; their numbers begin at first."""

    def take_back(self, first: int) -> None:
        """Remove what was added for the tasks from this one on, which were not learned to their end."""
        del self.tasks[first:], self.decisions[first:]
        self.heads, self.scratch, self.course = self.heads[:first], {}, None

    def prepare(self, tasks: Sequence[int]) -> None:
        """Called before the first epoch, and again where a stopped run goes on."""

    def before_step(self) -> None:
        """Called when gradients are known, before the optimiser changes the weights."""

    def after_step(self) -> None:
        """Called when the optimiser has changed the weights."""

    def consolidate(self, tasks: Sequence[Task], first: int) -> None:
        """Called after the last epoch, in eval mode: write down what must be kept; task numbers begin at first."""

    def encoding(self, task: int) -> Any:
        """Tasks with the same value here have the same features for the same image."""
        return self.scaling(task)

    def prior(self, images: Tensor) -> Tensor:
        """(n, tasks) what speaks for each task, when none is given, before its head is asked: for all alike.

        It is added to what the head says; minus infinity where it need not be asked.
        """
        return torch.zeros(len(images), len(self.tasks), dtype=self._place.dtype, device=self.device)

    def paths(self, images: Tensor, task: int) -> Tensor | None:  # noqa: ARG002
        """(n, levels) the way that images take through the encoder, where that depends on the image."""
        return None

    def analyse(self, images: Tensor, task: int) -> dict[str, Any]:  # noqa: ARG002
        """What a kind of learner can say about its own work on images of a task, for the log."""
        return {}

    def unit_facts(self) -> list[dict[str, Any]]:
        """What there is to say of each of its units, by name: shares are fractions."""
        units = [(name, unit) for name, unit in self.encoder.named_modules() if isinstance(unit, ConvUnit)]
        return [{"unit": name, "parameters": count_weights(unit)} for name, unit in units]

    def known_by(self, images: Tensor, task: int) -> Familiar | None:  # noqa: ARG002
        """How well its units or memories know images of a task, where it has such."""
        return None

    # ---------------------------------------------------------------- learning

    def learn(self, *tasks: Task) -> None:
        """Learn a task; or several at once.

        Where that was interrupted, the same call goes on with it, and `give_up` ends it.
        """
        if self.course is None or not self._goes_on(tasks):
            self.begin(*tasks)
        while not self.done():
            self.train_epoch(*tasks)
        self.finish(*tasks)

    def begin(self, *tasks: Task) -> None:
        """Make heads and an optimiser for these tasks."""
        if self.course is not None:
            names = ", ".join(repr(self.tasks[number].name) for number in self.course.tasks)
            raise ValueError(
                f"{names} is still being learned: go on with learn() of the same images, or call give_up(), before the "
                "next begins"
            )
        for task in tasks:
            if tuple(task.train.images.shape[1:]) != self.image_shape:
                raise ValueError(
                    f"task {task.name!r} has images of shape {tuple(task.train.images.shape[1:])}: "
                    f"this learner was made for {self.image_shape}"
                )
            if any(task.name == learned.name for learned in self.tasks):
                raise ValueError(f"task {task.name!r} was learned before: give the new one another name")
        first = len(self.tasks)
        try:
            for task in tasks:
                self.add_task(LearnedTask(task.name, task.class_names, task.mean, task.std))
            self.to(self._place)
            self.look(tasks, first)
            self._start(list(range(first, first + len(tasks))), tasks)
        except BaseException:  # to look at a task may take a while: interrupted, it has not begun
            self.take_back(first)
            raise

    def give_up(self) -> None:
        """Give up what is being learned, so that other tasks can be learned, and what came before saved.

        Weights that all tasks share stay as they are by then; where tasks have their own, nothing is left of it.
        """
        self.take_back(self._course.tasks[0])

    def _start(self, numbers: list[int], tasks: Sequence[Task]) -> None:
        settings = self.recipe
        steps = sum(
            settings.epochs_of(number) * -(-len(task.train) // settings.batch_size)
            for number, task in zip(numbers, tasks, strict=True)
        )
        weights, undecayed = self.trainable(numbers), self.undecayed(numbers)
        self.course = Course(numbers, _sizes(tasks), *self.new_optimizer(weights, steps, undecayed))
        self.prepare(numbers)

    def new_optimizer(
        self, weights: Iterable[nn.Parameter], steps: int, undecayed: Iterable[nn.Parameter] = ()
    ) -> tuple[Optimizer, LRScheduler | None]:
        """An optimiser for so many steps, and what changes its rate, as the settings say."""
        settings = self.recipe
        kind = torch.optim.AdamW if settings.weight_decay else torch.optim.Adam
        groups: list[dict[str, Any]] = [
            {"params": list(weights), "weight_decay": settings.weight_decay},
            {"params": list(undecayed), "weight_decay": 0.0},
        ]
        optimizer = kind([group for group in groups if group["params"]], settings.learning_rate, fused=True)
        if not settings.one_cycle:
            return optimizer, None
        return optimizer, OneCycleLR(optimizer, settings.learning_rate, max(2, steps), cycle_momentum=False)

    @property
    def epochs(self) -> int:
        """Epochs of what is being learned."""
        return max(self.recipe.epochs_of(task) for task in self._course.tasks)

    def done(self) -> bool:
        """Whether all epochs of what is being learned are over."""
        return self._course.epoch >= self.epochs

    def _goes_on(self, tasks: Sequence[Task]) -> bool:
        """Whether these are the tasks that are being learned."""
        begun = [(self.tasks[number].name, self.tasks[number].class_names) for number in self._course.tasks]
        return begun == [(task.name, task.class_names) for task in tasks] and _sizes(tasks) == self._course.images

    @property
    def _course(self) -> Course:
        if self.course is None:
            raise RuntimeError("nothing is being learned: call begin(task) first")
        return self.course

    def train_epoch(self, *tasks: Task) -> EpochLog:
        """One pass over the training images; tasks with fewer epochs than others sit out the first ones.

        Interrupted, it is to be done anew.
        """
        course, start = self._course, clock(self.device)
        rates = {} if course.schedule is None else course.schedule.state_dict()
        try:
            loss, right, images, steps = self._pass(tasks)
            mean = loss.item() / steps
            trained = (weight for group in course.optimizer.param_groups for weight in group["params"])
            whole = torch.stack([weight.isfinite().all() for weight in trained]).all()
            if not mean < float("inf") or not whole:
                said = "its weights are not finite" if mean < float("inf") else f"its loss is {mean}"
                raise ValueError(f"{self.name} diverged: {said}; lower its learning rate, or what its penalties weigh")
        except BaseException:
            if course.schedule is not None:
                course.schedule.load_state_dict(rates)
                for group, rate in zip(course.optimizer.param_groups, course.schedule.get_last_lr(), strict=True):
                    group["lr"] = rate
            raise
        finally:
            self.eval()
        course.epoch += 1
        return EpochLog(mean, 100 * right.item() / images, images, clock(self.device) - start)

    def _pass(self, tasks: Sequence[Task]) -> tuple[Tensor, Tensor, int, int]:
        """Train on all images once. Returns the sum of losses, how many answers were right, images, and steps."""
        course = self._course
        self.train()
        batches = []
        for number, task in zip(course.tasks, tasks, strict=True):
            if course.epoch >= self.epochs - self.recipe.epochs_of(number):  # none is left to be forgotten
                rows = torch.randperm(len(task.train)).split(self.recipe.batch_size)
                batches += [(number, task, row) for row in rows]
        if len(tasks) > 1:
            batches = [batches[place] for place in torch.randperm(len(batches)).tolist()]
        loss = torch.zeros((), device=self.device)
        right = torch.zeros((), dtype=torch.int64, device=self.device)
        images = 0
        for number, task, rows in batches:
            batch = self._batch(task, number, rows)
            batch_loss, logits = self.loss(batch)
            course.optimizer.zero_grad()
            batch_loss.backward()
            self.before_step()
            course.optimizer.step()
            self.after_step()
            if course.schedule is not None:
                course.schedule.step()
            loss += batch_loss.detach()
            right += (logits.argmax(1) == batch.labels).sum()
            images += len(rows)
        return loss, right, images, len(batches)

    def finish(self, *tasks: Task) -> None:
        """Write down what must be kept of what was learned."""
        self.eval()
        self.consolidate(tasks, self._course.tasks[0])
        self.course = None
        self.scratch = {}

    def _batch(self, task: Task, number: int, rows: Tensor) -> Batch:
        images = task.train.images[rows].to(self.device)
        if self.recipe.augment:
            images = augment(images, task.augmentations)
        return Batch(self.scale(images, number), task.train.labels[rows].to(self.device), number)

    # ---------------------------------------------------------------- using it

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self._place.device

    def scaling(self, task: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and deviation, channel by channel, by which a task's pixels are scaled."""
        learned = self.tasks[task]
        if self.recipe.scaling == "data set" and learned.mean is not None and learned.std is not None:
            return learned.mean, learned.std
        return (0.5,), (0.25,)

    def scale(self, images: Tensor, task: int) -> Tensor:
        """Pixels, uint8 or from 0 to 1, as the encoder takes them."""
        mean, deviation = (self._place.new_tensor(part).view(-1, 1, 1) for part in self.scaling(task))
        whole = not images.is_floating_point()
        images = images.to(self.device, self._place.dtype)
        if whole:
            images = images / 255
        images = (images - mean) / deviation
        if any(spec.max_pool > 1 for spec in self.recipe.backbone):  # pooling is several times as fast so
            images = images.contiguous(memory_format=torch.channels_last)
        return images

    @torch.no_grad()
    def feature_count(self) -> int:
        """How many features the encoder gives to the last task's head."""
        self.eval()
        return self.features(self._place.new_zeros(1, *self.image_shape), len(self.tasks) - 1).shape[1]

    @torch.no_grad()
    def encode(self, images: Tensor, task: int | str | None = None) -> Tensor:
        """Features of images, uint8 or from 0 to 1.

        The task matters where scaling or encoder are its own; with none given, they are those of the task that an image
        is taken for (`predict`).
        """
        self._check_learned()
        if task is None and len(set(map(self.encoding, range(len(self.tasks))))) > 1:
            found = self.predict(images).tasks
            features = torch.zeros(len(images), self.feature_count(), dtype=self._place.dtype, device=self.device)
            for number in found.unique().tolist():
                features[found == number] = self.encode(images[(found == number).to(images.device)], number)
            return features
        number = 0 if task is None else self.task_number(task)
        self.eval()
        return torch.cat([self.features(self.scale(part, number), number) for part in self._parts(images)])

    @torch.no_grad()
    def logits(self, images: Tensor, task: int | str) -> Tensor:
        """(n, classes) what a task's head says of images."""
        logits: Tensor = self.heads[self.task_number(task)](self.encode(images, task))
        return logits

    @overload
    def predict(self, images: Tensor, task: int | str) -> Tensor: ...

    @overload
    def predict(self, images: Tensor, task: None = None) -> TaskFree: ...

    def predict(self, images: Tensor, task: int | str | None = None) -> Tensor | TaskFree:
        """Labels of images of a task, given by number or name; with no task given, the most confident head answers.

        That is the one whose highest logit is the farthest above the mean of its others, among those for which
        something speaks (`prior`), and that included.
        """
        if task is not None:
            return self.logits(images, task).argmax(1)
        self._check_learned()
        self._check_images(images)
        prior = self.prior(images)
        confidence = torch.full_like(prior, -torch.inf)
        labels = torch.zeros(prior.shape, dtype=torch.int64, device=self.device)
        alike: dict[Any, list[int]] = {}
        for number in range(len(self.tasks)):
            alike.setdefault(self.encoding(number), []).append(number)
        for numbers in alike.values():
            rows = prior[:, numbers].isfinite().any(1).nonzero()[:, 0]
            if len(rows) == 0:
                continue
            features = self.encode(images[rows.to(images.device)], numbers[0])
            for number in numbers:
                with torch.no_grad():
                    logits = self.heads[number](features)
                confidence[rows, number] = prior[rows, number] + above_others(logits)
                labels[rows, number] = logits.argmax(1)
        tasks = confidence.argmax(1)
        return TaskFree(tasks, labels.gather(1, tasks[:, None])[:, 0])

    def task_number(self, task: int | str) -> int:
        """The number of a task that was learned, from its name or number."""
        names = [learned.name for learned in self.tasks]
        if task in names:
            return names.index(str(task))
        if isinstance(task, int) and 0 <= task < len(names):
            return task
        raise ValueError(
            f"there is no task {task!r}: expected {', '.join(names) or 'none, as nothing was learned yet'}"
        )

    def _check_learned(self) -> None:
        if not self.tasks:
            raise ValueError("this learner has learned no task yet: call learn(task) first")

    def _check_images(self, images: Tensor) -> None:
        if not isinstance(images, Tensor) or images.dtype == torch.bool:
            kind = "bool" if isinstance(images, Tensor) else type(images).__name__
            raise ValueError(f"images are {kind}: expected a tensor of uint8, or of numbers from 0 to 1")
        if images.dim() != 4 or images.shape[1:] != self.image_shape or len(images) == 0:
            raise ValueError(
                f"images are of shape {tuple(images.shape)}: expected (number, {', '.join(map(str, self.image_shape))})"
            )
        if images.dtype != torch.uint8:
            most = 1 if images.is_floating_point() else 255
            lowest, highest = images.aminmax()
            if not (lowest >= 0 and highest <= most):  # so that NaN fails, too
                wrong = [not (image.min() >= 0 and image.max() <= most) for image in images].index(True)
                raise ValueError(f"image {wrong} has pixels that are not from 0 to {most}: expected these, or uint8")

    def _parts(self, images: Tensor) -> Iterator[Tensor]:
        self._check_images(images)
        return iter(images.split(EVALUATION_BATCH))

    # ---------------------------------------------------------------- what it weighs

    def parameter_counts(self) -> dict[str, int]:
        """Weights of the encoder and of all heads."""
        heads = count_weights(self.heads)
        return {"encoder": count_weights(self) - heads, "heads": heads}

    def bytes_kept(self) -> dict[str, int]:
        """Bytes that must be kept between tasks: weights, and memory beside them."""
        weights = {name for name, _ in self.named_parameters()}
        beside = [
            tensor
            for name, tensor in self.state_dict().items()
            if name not in weights and not name.endswith("_extra_state")
        ]
        return {"weights": _bytes(self.parameters()), "memory": _bytes([*beside, *self.memory.values()])}

    # ---------------------------------------------------------------- files

    def description(self) -> dict[str, Any]:
        """What the state does not hold, as plain values: `from_description` makes the same learner, untrained."""
        return {
            "format": FORMAT,
            "learner": self.name,
            "image_shape": list(self.image_shape),
            "recipe": self.recipe.to_dict(),
            "options": options_to_dict(self.options),
            "seed": self.seed,
            "tasks": [asdict(task) for task in self.tasks],
        }

    @classmethod
    def from_description(cls, description: dict[str, Any]) -> Learner:
        """A learner with room for the tasks described; its state is still to be loaded."""
        recipe = Recipe.from_dict(description["recipe"])
        options = options_from_dict(cls.Options, description["options"])
        learner = cls(description["image_shape"], recipe, options, description["seed"])
        for task in description["tasks"]:
            learner.add_task(LearnedTask(task["name"], tuple(task["class_names"]), *_pair(task)))
        return learner

    def state(self) -> dict[str, Tensor]:
        """Weights and memory, by name."""
        weights = {f"weights.{name}": tensor for name, tensor in self.state_dict().items()}
        return {**weights, **{f"memory.{name}": tensor for name, tensor in self.memory.items()}}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take over weights and memory, and their precision."""
        self.to(next(tensor.dtype for tensor in state.values() if tensor.is_floating_point()))
        parts: dict[str, dict[str, Tensor]] = {"weights": {}, "memory": {}}
        for name, tensor in state.items():
            kind, _, rest = name.partition(".")
            parts[kind][rest] = tensor.to(self.device)
        self.load_state_dict(parts["weights"])
        self.memory = parts["memory"]

    def save(self, folder: str | Path) -> None:
        """Write learner.json and model.safetensors into a folder; each is whole or not there."""
        if self.course is not None:
            raise ValueError(f"{self.name} is learning a task: let learn() end, or call give_up(), then save")
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        state = {name: tensor.detach().contiguous().clone() for name, tensor in self.state().items()}
        replace_file(folder / "model.safetensors", lambda file: file.write_bytes(save(state)))
        write_json(folder / "learner.json", self.description())

    def course_state(self) -> dict[str, Any] | None:
        """The training that is under way, for a checkpoint."""
        if self.course is None:
            return None
        return {
            "tasks": self.course.tasks,
            "epoch": self.course.epoch,
            "optimizer": self.course.optimizer.state_dict(),
            "schedule": None if self.course.schedule is None else self.course.schedule.state_dict(),
            "scratch": self.scratch,
        }

    def resume_course(self, state: dict[str, Any], tasks: Sequence[Task]) -> None:
        """Go on with the training that `course_state` described; tasks are those that were being learned."""
        self.scratch = {name: tensor.to(self.device) for name, tensor in state["scratch"].items()}
        self._start(state["tasks"], tasks)
        course = self._course
        course.epoch = state["epoch"]
        course.optimizer.load_state_dict(state["optimizer"])
        if course.schedule is not None:
            course.schedule.load_state_dict(state["schedule"])


class ScaleFeatures(nn.Module):
    """Takes the mean from an image's features, and scales them to a root mean square: of 2,048 hashed ones 1 % less."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.size = size

    def forward(self, features: Tensor) -> Tensor:
        """features: (n, features)."""
        return self.size * F.layer_norm(features, features.shape[1:])

    def extra_repr(self) -> str:
        return f"{self.size:g}"


class Head(nn.Sequential):
    """A task's classifier of features, which are scaled to a size first, unless that is 0."""

    def __init__(self, features: int, spec: HeadSpec, classes: int, size: float) -> None:
        layers: list[nn.Module] = [ScaleFeatures(size)] if size else []
        activation = nn.LeakyReLU if spec.activation == "leaky_relu" else nn.ReLU
        for width, rate in zip(spec.widths, spec.dropout, strict=True):
            layers += [nn.Linear(features, width), activation()]
            if rate:
                layers.append(nn.Dropout(rate))
            features = width
        super().__init__(*layers, nn.Linear(features, classes))


def _sizes(tasks: Sequence[Task]) -> list[tuple[int, int]]:
    """How many images each task has to train on and to validate."""
    return [(len(task.train), len(task.validation)) for task in tasks]


def above_others(logits: Tensor) -> Tensor:
    """How sure a head is: by how much its highest logit is above the mean of its others; 0 for a single class.

    logits: (n, classes). A softmax near 1 would no longer say.
    """
    classes = logits.shape[1]
    return (logits.amax(1) - logits.mean(1)) * (classes / max(1, classes - 1))


def evenly(total: int, count: int) -> Tensor:
    """So many rows, evenly spread over all, or all: (count,)."""
    return torch.linspace(0, total - 1, min(count, total)).round().long()


@contextmanager
def drawn_apart(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers of a seed; those after it go on as if these had not been drawn."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed % 2**63)
        yield


def clock(device: torch.device) -> float:
    """Seconds: of the processor where that does the work, so that other processes do not count; else passed."""
    return time.process_time() if device.type == "cpu" else time.perf_counter()


def augment(images: Tensor, augmentations: frozenset[str]) -> Tensor:
    """Mirror half of the images, and shift each by up to two pixels, where a task allows it."""
    n, channels, height, width = images.shape
    device = images.device
    if "flip" in augmentations:
        images = torch.where((torch.rand(n) < 0.5).to(device).view(-1, 1, 1, 1), images.flip(3), images)
    if "shift" in augmentations:
        images = F.pad(images, (2, 2, 2, 2))
        down, right = (torch.randint(5, (n, 1)).to(device) for _ in range(2))
        rows, columns = down + torch.arange(height, device=device), right + torch.arange(width, device=device)
        numbers = torch.arange(n, device=device).view(-1, 1, 1, 1)
        planes = torch.arange(channels, device=device).view(1, -1, 1, 1)
        images = images[numbers, planes, rows[:, None, :, None], columns[:, None, None, :]]
    return images


def count_weights(module: nn.Module) -> int:
    """How many weights a module has."""
    return sum(weight.numel() for weight in module.parameters())


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _pair(task: dict[str, Any]) -> tuple[Any, Any]:
    mean, deviation = ((None if task[part] is None else tuple(task[part])) for part in ("mean", "std"))
    return mean, deviation


# -------------------------------------------------------------------- options


def options_to_dict(options: Any) -> dict[str, Any]:
    """Options as plain values, for JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(options)))
    return plain


def options_from_dict(kind: type, values: dict[str, Any]) -> Any:
    """Options of a learner from plain values; an unknown name is an error that lists the known ones."""
    if not is_dataclass(kind):
        raise TypeError(f"{kind} is not a dataclass")
    known = {item.name: item for item in fields(kind)}
    for name in values:
        if name not in known:
            expected = f"one of {', '.join(known)}" if known else "none"
            raise ValueError(f"{kind.__name__} has no option {name!r}: expected {expected}")
    convert = getattr(kind, "from_plain", lambda plain: plain)
    return kind(**convert(dict(values)))


def parse_option(flag: str, text: str, learners: Sequence[str]) -> tuple[str, str, str]:
    """Learner, option and value of LEARNER.OPTION=VALUE, as a command gives it behind a flag, for one of these."""
    place, equals, value = text.partition("=")
    learner, _, name = place.partition(".")
    if not (name and equals):
        raise ValueError(f"{flag} has {text!r}: expected LEARNER.OPTION=VALUE, such as gpm.threshold=0.9")
    if learner not in learners:
        raise ValueError(
            f"{flag} has {text!r}, of a learner that is not asked for: expected one of {', '.join(learners)}"
        )
    return learner, name, value


# -------------------------------------------------------------------- registry

LEARNERS: dict[str, type[Learner]] = {}
"""Kinds of learners, by name."""

Kind = TypeVar("Kind", bound=type[Learner])


def register_learner(name: str) -> Callable[[Kind], Kind]:
    """Decorate a kind of learner, so that `create_learner` and the commands find it by this name."""

    def register(kind: Kind) -> Kind:
        if name in LEARNERS:
            raise ValueError(f"there is a learner {name!r} already: choose another name")
        kind.name = name
        LEARNERS[name] = kind
        return kind

    return register


def find_learner(name: str) -> type[Learner]:
    """The kind of learner with this name."""
    if name not in LEARNERS:
        raise ValueError(f"there is no learner {name!r}: expected one of {', '.join(LEARNERS)}")
    return LEARNERS[name]


def create_learner(
    name: str, image_shape: Sequence[int], recipe: Recipe | None = None, seed: int = 0, **options: Any
) -> Learner:
    """Make a learner by name; the recipe defaults to ours for images of this shape, options are those of its kind."""
    kind = find_learner(name)
    recipe = recipe or recipe_for(image_shape)
    return kind(image_shape, recipe, options_from_dict(kind.Options, options), seed)


def import_plugins(modules: Sequence[str]) -> None:
    """Import modules that register learners or scenarios of their own."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever a module of someone else's may raise
            what = f"{type(error).__name__}: {error}"
            raise ValueError(f"--plugins has {name!r}, which cannot be imported: {what}") from None


def load_learner(folder: str | Path) -> Learner:
    """The learner that was saved in a folder."""
    folder = Path(folder)
    for name in ("learner.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} holds no model, {name} is missing: give the folder of a run that is finished")
    try:
        description = json.loads((folder / "learner.json").read_text())
        found, kind = description["format"], description["learner"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{folder / 'learner.json'} is damaged: expected what a learner's save writes") from None
    if found != FORMAT:
        raise ValueError(
            f"{folder} holds a learner of format {found}, this version reads {FORMAT}: "
            "use the version of hashroute that wrote it"
        )
    kind = find_learner(kind)
    try:
        learner: Learner = kind.from_description(description)
        learner.load_state(load_file(folder / "model.safetensors"))
    except OSError:
        raise
    except Exception as error:  # a file may be damaged in any way
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ValueError(
            f"{folder} holds a model that cannot be read, it is damaged or of another version of hashroute ({what})"
        ) from None
    return learner.eval()
