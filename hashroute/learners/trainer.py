"""Training: the one loop over batches and epochs, which `Learner.learn` and runs share."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from hashroute import devices, distributed
from hashroute.learners.entries import Batch, EpochLog, TaskEntry
from hashroute.learners.maps import Maps
from hashroute.recipe import Recipe
from hashroute.schema import check
from hashroute.tasks import Task, read_batches

if TYPE_CHECKING:
    from hashroute.learners.learner import Learner


class TrainingValues(TypedDict):
    """The training that is under way, in a checkpoint."""

    tasks: list[int]
    epoch: int
    optimizer: dict[str, Any]
    schedule: dict[str, Any] | None
    scratch: dict[str, Tensor]


@dataclass
class TrainingState:
    """The training of one task, or of several together, while it lasts."""

    tasks: list[TaskEntry]
    optimizer: Optimizer
    schedule: LRScheduler | None
    epoch: int = 0

    @property
    def weights(self) -> Iterator[nn.Parameter]:
        """The weights that are trained."""
        return (weight for group in self.optimizer.param_groups for weight in group["params"])

    def step(self, loss: Tensor) -> None:
        """Compute gradients and change the weights."""
        self.optimizer.zero_grad()
        loss.backward()
        self.update()

    def update(self) -> None:
        """Change the weights by the gradients that there are, and the learning rate by its schedule."""
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()

    def set_rates(self, schedule: dict[str, Any]) -> None:
        """Put the schedule, and the learning rates that follow from it, back to an earlier state."""
        if self.schedule is not None:
            self.schedule.load_state_dict(schedule)
            for group, rate in zip(self.optimizer.param_groups, self.schedule.get_last_lr(), strict=True):
                group["lr"] = rate


def new_training_state(
    recipe: Recipe,
    tasks: Sequence[TaskEntry],
    steps: int,
    weights: Iterable[nn.Parameter],
    undecayed: Iterable[nn.Parameter] = (),
) -> TrainingState:
    """An optimiser for this many steps, with the learning rate schedule of the recipe.

    undecayed: weights that are trained without weight decay.
    """
    kind = torch.optim.AdamW if recipe.weight_decay else torch.optim.Adam
    groups: list[dict[str, Any]] = [
        {"params": list(weights), "weight_decay": recipe.weight_decay},
        {"params": list(undecayed), "weight_decay": 0.0},
    ]
    if not any(group["params"] for group in groups):
        groups[0]["params"] = [torch.zeros(1)]  # nothing is trained, but an optimiser needs a tensor
    optimizer = kind([group for group in groups if group["params"]], recipe.learning_rate, fused=True)
    schedule = None
    if recipe.one_cycle:
        schedule = OneCycleLR(optimizer, recipe.learning_rate, max(2, steps), cycle_momentum=False)
    return TrainingState(list(tasks), optimizer, schedule)


class Trainer:
    """Trains a learner on a task, or on several together: `begin`, `run_epoch` until `done`, then `finish`.

    An epoch that is interrupted or fails does not count and can be run again. `abort` gives the task up.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    @property
    def state(self) -> TrainingState:
        """The training that is under way; an error if there is none."""
        if self.learner.training_state is None:
            raise RuntimeError("nothing is being learned: call begin(task) first")
        return self.learner.training_state

    @property
    def epochs(self) -> int:
        """Epochs of what is being learned."""
        return max(map(self._epochs_of, self.state.tasks))

    def _epochs_of(self, task: TaskEntry) -> int:
        return self.learner.recipe.epochs_of(task.index) if self.learner.trained else 1

    @property
    def done(self) -> bool:
        """Whether all epochs of what is being learned are over."""
        return self.state.epoch >= self.epochs

    @property
    def images(self) -> int:
        """Images to train on over all epochs."""
        return sum(self._epochs_of(task) * len(task.data.train) for task in self.state.tasks)

    def begin(self, *tasks: Task) -> None:
        """Add the tasks to the learner, let it prepare for them, and make an optimiser."""
        learner = self.learner
        self._check(tasks)
        entries = [learner.Entry.of(task, index) for index, task in enumerate(tasks, len(learner.tasks))]
        random = learner.random.state
        try:
            with self._in_step():
                distributed.check_same([_identity(task) for task in tasks], "other images")
                for entry in entries:
                    learner.add_task(entry)
                learner.to(learner._place).eval()
                for entry in entries:
                    learner.before_task(entry)
                distributed.copy_from_first([*learner.parameters(), *learner.buffers(), *learner.kept.values()])
                distributed.copy_from_first(learner.scratch.values())
                self._start(entries)
        except BaseException:  # an interrupted preparation leaves the learner as it was before
            learner.rollback(entries[0])
            learner.random.state = random
            raise

    def is_learning(self, tasks: Sequence[Task]) -> bool:
        """Whether these tasks are being learned now."""
        state = self.learner.training_state
        return state is not None and list(map(_identity, tasks)) == [_identity(entry.data) for entry in state.tasks]

    def run_epoch(self, on_batch: Callable[[int], None] | None = None) -> EpochLog:
        """One pass over the training images; a task with fewer epochs than others joins in the last ones.

        on_batch: called after each batch with its number of images.
        """
        learner, state, start = self.learner, self.state, clock(self.learner.device)
        rates = {} if state.schedule is None else state.schedule.state_dict()
        try:
            with self._in_step():
                if not learner.trained:
                    return self._absorb(on_batch, start)
                loss, score, images = self._pass(on_batch)
            self._check_finite(loss)
        except BaseException:
            state.set_rates(rates)
            raise
        finally:
            learner.eval()
        state.epoch += 1
        return EpochLog(loss, score, images, clock(learner.device) - start)

    def _absorb(self, on_batch: Callable[[int], None] | None, start: float) -> EpochLog:
        """Let the learner learn all images in its own way."""
        state = self.state
        images = self.learner.absorb(state.tasks) or self.images
        state.epoch = 1
        if on_batch is not None:
            on_batch(images)
        return EpochLog(None, None, images, clock(self.learner.device) - start)

    def finish(self) -> None:
        """Let the learner keep what it needs of the tasks, and drop their images."""
        learner, state = self.learner, self.state
        learner.eval()
        with self._in_step():
            for entry in state.tasks:
                learner.after_task(entry)
        for entry in state.tasks:
            entry.held = None
            entry.maps.clear()
        learner.training_state = None
        learner.scratch = {}

    def abort(self) -> None:
        """Give up what is being learned. Weights that all tasks share keep what was learned so far."""
        self.learner.rollback(self.state.tasks[0])

    def checkpoint(self) -> dict[str, Any] | None:
        """The training that is under way, for a file; None if there is none."""
        state = self.learner.training_state
        if state is None:
            return None
        return {
            "tasks": [entry.index for entry in state.tasks],
            "epoch": state.epoch,
            "optimizer": state.optimizer.state_dict(),
            "schedule": None if state.schedule is None else state.schedule.state_dict(),
            "scratch": self.learner.scratch,
        }

    def restore(self, checkpoint: dict[str, Any], tasks: Sequence[Task]) -> None:
        """Continue the training that `checkpoint` described; tasks: those that were being learned."""
        check(checkpoint, TrainingValues, "training")
        learner = self.learner
        learner.scratch = {name: tensor.to(learner.device) for name, tensor in checkpoint["scratch"].items()}
        entries = [learner.tasks[index] for index in checkpoint["tasks"]]
        for entry, task in zip(entries, tasks, strict=True):
            entry.held = task
        self._start(entries)
        state = self.state
        if not 0 <= checkpoint["epoch"] <= self.epochs:
            raise ValueError(f"epoch {checkpoint['epoch']} of {self.epochs}")
        state.epoch = checkpoint["epoch"]
        _load_optimizer(state, checkpoint["optimizer"])
        if state.schedule is not None:
            _load_schedule(state.schedule, checkpoint["schedule"])

    # ---------------------------------------------------------------- parts

    @contextmanager
    def _in_step(self) -> Iterator[None]:
        """All processes take the same steps in this block, with the same random numbers of the learner."""
        random = self.learner.random
        with distributed.together():
            random.state = distributed.first(lambda: random.state)
            with random.use(self.learner.device):
                yield

    def _check(self, tasks: Sequence[Task]) -> None:
        """Refuse what cannot be learned now."""
        learner = self.learner
        if learner.training_state is not None:
            names = ", ".join(repr(entry.name) for entry in learner.training_state.tasks)
            raise ValueError(
                f"{names} is still being learned: call learn() with the same images to continue, or abort() to give "
                "it up"
            )
        if len(tasks) > 1 and not learner.at_once:
            raise ValueError(f"{learner.name} was given {len(tasks)} tasks at once: it learns one task after the other")
        known = [entry.name for entry in learner.tasks]
        for task in tasks:
            if tuple(task.train.images.shape[1:]) != learner.image_shape:
                raise ValueError(
                    f"task {task.name!r} has images of shape {tuple(task.train.images.shape[1:])}: "
                    f"this learner was made for {learner.image_shape}"
                )
            if task.name in known:
                raise ValueError(f"task {task.name!r} was learned before: give the new one another name")
            known.append(task.name)

    def _start(self, entries: Sequence[TaskEntry]) -> None:
        learner, recipe = self.learner, self.learner.recipe
        steps = sum(recipe.epochs_of(entry.index) * -(-len(entry.data.train) // recipe.batch_size) for entry in entries)
        weights, undecayed = learner.trainable(entries), learner.undecayed(entries)
        learner.training_state = new_training_state(recipe, entries, steps, weights, undecayed)
        learner.on_train_start(entries)

    def _pass(self, on_batch: Callable[[int], None] | None) -> tuple[float, float, int]:
        """Train on all images once. Returns the mean loss, the mean score, and how many images there were."""
        learner, state = self.learner, self.state
        learner.train()
        requests = self._requests()
        learner.on_epoch_start(len(requests))
        loss = torch.zeros((), device=learner.device)
        score = torch.zeros((), device=learner.device)
        scored = 0.0
        with closing(self._batches(requests)) as batches:  # files are read ahead by threads, which end with it
            for (_, rows), batch in zip(requests, batches, strict=True):
                with learner.autocast():
                    batch_loss, outputs = learner.loss(batch)
                state.optimizer.zero_grad()
                distributed.weighted(batch_loss).backward()
                distributed.sum_gradients(state.weights)
                learner.before_step()
                state.update()
                learner.after_step()
                loss += distributed.weighted(batch_loss.detach())
                score += distributed.counted(learner.objective.scores(outputs.detach(), batch.targets).sum())
                scored += distributed.counted(float(len(batch.targets)))  # an objective may make several views
                if on_batch is not None:
                    on_batch(len(rows))
        count = torch.tensor(scored, dtype=torch.float64)
        distributed.sum_over_ranks([loss, score, count])
        distributed.copy_from_first(learner.encoder.buffers())  # such as the statistics of a batch norm
        return loss.item() / len(requests), score.item() / count.item(), sum(len(rows) for _, rows in requests)

    def _requests(self) -> list[tuple[TaskEntry, Tensor]]:
        """The batches of an epoch, in order: the task, and the rows of its images."""
        recipe, state = self.learner.recipe, self.state
        requests = []
        for entry in state.tasks:
            if state.epoch >= self.epochs - recipe.epochs_of(entry.index):  # all tasks end together
                rows = torch.randperm(len(entry.data.train)).split(recipe.batch_size)
                requests += [(entry, row) for row in rows]
        if len(state.tasks) > 1:
            requests = [requests[place] for place in torch.randperm(len(requests)).tolist()]
        return requests

    def _batches(self, requests: Sequence[tuple[TaskEntry, Tensor]]) -> Generator[Batch, None, None]:
        """Training batches, or their part: read, augmented as the task allows, normalised, prepared by the objective.

        Maps of a frozen stem are not augmented: they are computed once, from the images as they are.
        """
        learner, own = self.learner, distributed.batch_slice
        read = read_batches((learner.inputs(entry.data.train, entry), rows[own(len(rows))]) for entry, rows in requests)
        for (entry, rows), (images, targets) in zip(requests, read, strict=True):
            with distributed.batch(len(rows)):  # until the next batch is asked for
                images, targets = devices.send(images, learner.device), devices.send(targets, learner.device)
                if learner.recipe.augment and not isinstance(images, Maps):
                    images = augment(images, entry.data.augmentations)
                batch = Batch(learner.normalise(images, entry), targets, entry)
                yield learner.objective.prepare(batch)

    def _check_finite(self, loss: float) -> None:
        finite = torch.stack([weight.isfinite().all() for weight in self.state.weights]).all()
        if not loss < float("inf") or not finite:
            what = "its weights are not finite" if loss < float("inf") else f"its loss is {loss}"
            raise ValueError(
                f"{self.learner.name} diverged: {what}; lower its learning rate, or the weight of its penalties"
            )


def _identity(task: Task) -> tuple[Any, ...]:
    """What tells two tasks apart: name, classes, and how many images there are."""
    return task.name, task.class_names, len(task.train), len(task.validation)


def clock(device: torch.device) -> float:
    """Seconds: processor time on a CPU, so that other processes do not count; elapsed time elsewhere."""
    return time.process_time() if device.type == "cpu" else time.perf_counter()


def augment(images: Tensor, augmentations: frozenset[str]) -> Tensor:
    """Mirror half of the images, and shift each by up to two pixels, where a task allows it."""
    n, channels, height, width = images.shape
    device, draw = images.device, distributed.draw_rows
    if "flip" in augmentations:
        images = torch.where(devices.send(draw(n, torch.rand) < 0.5, device).view(-1, 1, 1, 1), images.flip(3), images)
    if "shift" in augmentations:
        images = F.pad(images, (2, 2, 2, 2))
        shifts = [draw(n, lambda rows: torch.randint(5, (rows, 1))) for _ in range(2)]
        down, right = (devices.send(each, device) for each in shifts)
        rows, columns = down + torch.arange(height, device=device), right + torch.arange(width, device=device)
        numbers = torch.arange(n, device=device).view(-1, 1, 1, 1)
        planes = torch.arange(channels, device=device).view(1, -1, 1, 1)
        images = images[numbers, planes, rows[:, None, :, None], columns[:, None, None, :]]
    return images


def _load_optimizer(training: TrainingState, state: dict[str, Any]) -> None:
    """Load the state of an optimiser; an error if it does not fit, which torch would not see before it is used."""
    optimizer = training.optimizer
    expected = [_kinds(group) for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    if [_kinds(group) for group in optimizer.param_groups] != expected:
        raise ValueError("the settings of the optimiser are others, or of other types")
    for weight in training.weights:
        for name, value in optimizer.state.get(weight, {}).items():
            shapes = (weight.shape,) if name.startswith("exp_") else (weight.shape, torch.Size([]))
            if not isinstance(value, Tensor) or value.shape not in shapes or not value.is_floating_point():
                raise ValueError(f"{name} of the optimiser does not fit a weight of shape {tuple(weight.shape)}")


def _load_schedule(schedule: LRScheduler, values: dict[str, Any]) -> None:
    """Load how far a schedule is; an error if it is the state of another one."""
    fresh = schedule.state_dict()
    moving = {"last_epoch": int, "_step_count": int, "_last_lr": list}
    if _kinds(values) != _kinds(fresh) or any(values[name] != fresh[name] for name in fresh.keys() - moving.keys()):
        raise ValueError("the schedule of the learning rate is another one")
    check(values["_last_lr"], list[float], "_last_lr")
    steps = fresh.get("total_steps", values["last_epoch"])
    if len(values["_last_lr"]) != len(fresh["_last_lr"]) or not 0 <= values["last_epoch"] <= steps:
        raise ValueError(f"the schedule of the learning rate is at step {values['last_epoch']} of {steps}")
    schedule.load_state_dict(values)


def _kinds(group: dict[str, Any]) -> dict[str, type]:
    """The types of the settings of a group of parameters."""
    return {name: type(value) for name, value in group.items()}
