"""What Avalanche trains for `avalanche_learners`: our network, by our recipe, with its own strategies."""

from __future__ import annotations

import copy
import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import avalanche.training
import torch
from avalanche.benchmarks import benchmark_from_datasets, with_classes_timeline, with_task_labels
from avalanche.benchmarks.utils import _make_taskaware_tensor_classification_dataset as as_dataset
from avalanche.core import SupervisedPlugin
from avalanche.models import MultiTaskModule
from torch import Tensor, nn

from hashroute.learners.entries import TaskEntry
from hashroute.learners.prediction import EVALUATION_BATCH
from hashroute.learners.trainer import augment, new_training_state

if TYPE_CHECKING:
    from hashroute.integrations.avalanche_learners import AvalancheLearner

MISSING = -torch.inf
"""Output of a class that a head does not have, where a batch has images of several tasks."""


class Reference:
    """Refers to the learner from its network. A copy of the network refers to the same learner."""

    def __init__(self, learner: AvalancheLearner) -> None:
        self.learner = learner

    def __deepcopy__(self, memo: dict[int, Any]) -> Reference:
        return self


class Network(MultiTaskModule):  # type: ignore[misc]
    """The encoder and the heads of a learner. It takes images of uint8."""

    def __init__(self, learner: AvalancheLearner) -> None:
        super().__init__()
        self.encoder, self.heads = learner.encoder, learner.heads
        self.reference = Reference(learner)

    def adaptation(self, experience: Any) -> None:
        """Make sure that there is a head for each task: a copy of the network from before has not got all."""
        super().adaptation(experience)
        for head in self.reference.learner.heads[len(self.heads) :]:
            self.heads.append(copy.deepcopy(head))

    def forward(self, x: Tensor, task_labels: Any) -> Any:
        """(n, classes of a task) for images (n, channels, height, width); without task labels, that of each task."""
        if task_labels is None or isinstance(task_labels, int):
            return super().forward(x, task_labels)
        tasks = task_labels.unique().tolist()
        rows = [task_labels == task for task in tasks]
        parts = [self.forward_single_task(x[some], task) for some, task in zip(rows, tasks, strict=True)]
        outputs = parts[0].new_full((len(x), max(part.shape[1] for part in parts)), MISSING)
        for some, part in zip(rows, parts, strict=True):
            outputs[some, : part.shape[1]] = part
        return outputs

    def forward_single_task(self, x: Tensor, task_label: int) -> Tensor:
        learner = self.reference.learner
        outputs: Tensor = self.heads[task_label](self.encoder(learner.normalise(x, learner.tasks[task_label])))
        return outputs


class Features(nn.Module):
    """The encoder of a learner, for images of any task."""

    def __init__(self, learner: AvalancheLearner) -> None:
        super().__init__()
        self.encoder = learner.encoder
        self.reference = Reference(learner)

    def forward(self, images: Tensor) -> Tensor:
        learner = self.reference.learner
        features: Tensor = self.encoder(learner.normalise(images, learner.tasks[0]))
        return features


class AllHeads(nn.Module):
    """The outputs of all heads, one after the other: (n, all classes)."""

    def __init__(self, learner: AvalancheLearner) -> None:
        super().__init__()
        self.heads = learner.heads

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([head(features) for head in self.heads], 1)


class OurTraining:
    """Trains a strategy by our recipe: optimiser, schedule, augmentation. It stands before a class of Avalanche."""

    hashroute: AvalancheLearner
    seen: int
    is_training: bool
    train_epochs: int

    def learn(self: Any, task: TaskEntry) -> int:
        """Learn a task. Returns how many images were trained on."""
        learner, self.seen = self.hashroute, 0
        self.train_epochs = learner.recipe.epochs_of(task.index)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about its own code
            self.train(experience_of(learner, task), eval_streams=[])
        self.keep()
        return int(self.seen)

    def make_optimizer(self: Any, **settings: Any) -> None:  # noqa: ARG002
        """Wait until the number of batches is known."""
        self.optimized_param_id = dict[str, Any]()
        self.course = None

    def _before_training_epoch(self: Any, **settings: Any) -> None:
        if self.course is None:
            steps = self.train_epochs * len(self.dataloader)
            self.course = new_training_state(self.hashroute.recipe, [], steps, self.model.parameters())
            self.optimizer = self.course.optimizer
        super()._before_training_epoch(**settings)  # type: ignore[misc]

    def optimizer_step(self: Any) -> None:
        """Make a step, also of the schedule."""
        self.course.update()

    def _unpack_minibatch(self: Any) -> None:
        super()._unpack_minibatch()  # type: ignore[misc]
        if self.is_training:
            self.seen += len(self.mbatch[0])
            if self.hashroute.recipe.augment:
                self.mbatch[0] = self.augmented(self.mbatch[0], self.tasks_of(self.mbatch))

    def augmented(self: Any, images: Tensor, tasks: Tensor) -> Tensor:
        """Images, changed as the task of each allows."""
        images = images.clone()
        for task in tasks.unique().tolist():
            rows = tasks == task
            images[rows] = augment(images[rows], self.allowed[task])
        return images

    def tasks_of(self: Any, batch: Any) -> Tensor:
        """(n,) the task of each image of a batch."""
        tasks: Tensor = batch[-1]
        return tasks

    def keep(self: Any) -> None:
        """Give the learner the weights, and the images that are kept."""
        learner = self.hashroute
        if self.model.heads is not learner.heads:  # a copy was trained
            learner.encoder.load_state_dict(self.model.encoder.state_dict())
            learner.heads.load_state_dict(self.model.heads.state_dict())
        images = self.kept_images()
        if images is not None:
            learner.kept["images"] = images

    def kept_images(self: Any) -> Tensor | None:
        """(n, channels, height, width) the images that the strategy keeps; None if it keeps none."""
        for plugin in self.plugins:
            if hasattr(plugin, "storage_policy"):
                return torch.stack([each[0] for each in plugin.storage_policy.buffer])
            if hasattr(plugin, "memory_x"):
                return torch.cat(list(plugin.memory_x.values()))
        return None


class OurICaRL(OurTraining):
    """The same for iCaRL, which is told classes of all tasks and no task."""

    def tasks_of(self: Any, batch: Any) -> Tensor:
        ends = torch.tensor([len(entry.class_names) for entry in self.hashroute.tasks]).cumsum(0)
        return torch.bucketize(batch[1], ends.to(batch[1].device), right=True)

    def keep(self: Any) -> None:
        plugin = next(plugin for plugin in self.plugins if hasattr(plugin, "x_memory"))
        self.hashroute.kept["images"] = torch.cat(plugin.x_memory)
        means = [plugin.class_means[label] for label in sorted(plugin.class_means)]
        self.hashroute.kept["class_means"] = torch.stack(means)


class NewTeacher(SupervisedPlugin):  # type: ignore[misc]
    """Lets iCaRL copy the network after each task: it would copy weights into the first copy, which has fewer heads."""

    def after_training_exp(self, strategy: Any, *arguments: Any, **named: Any) -> None:  # noqa: ARG002
        strategy._criterion.old_model = None


def new_strategy(learner: AvalancheLearner) -> Any:
    """The strategy of a learner, which has learned nothing yet."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No loggers specified")  # runs have their own
        return _new_strategy(learner)


def _new_strategy(learner: AvalancheLearner) -> Any:
    kind = getattr(avalanche.training, learner.strategy)
    common = {
        "optimizer": torch.optim.SGD([torch.zeros(1)], 0.0),  # replaced before each task
        "train_mb_size": learner.recipe.batch_size,
        "eval_mb_size": EVALUATION_BATCH,
        "device": learner.device,
        "evaluator": None,
        **{argument: getattr(learner.options, option) for argument, option in learner.arguments.items()},
    }
    if learner.strategy == "ICaRL":
        made = type(kind.__name__, (OurICaRL, kind), {})(
            feature_extractor=Features(learner),
            classifier=AllHeads(learner),
            buffer_transform=None,
            fixed_memory=True,
            plugins=[NewTeacher()],
            **common,
        )
    else:
        criterion = Criterion(learner)
        made = type(kind.__name__, (OurTraining, kind), {})(model=Network(learner), criterion=criterion, **common)
    made.hashroute, made.allowed = learner, []
    return made


class Criterion:
    """The loss of the objective, over the classes that the task of each image has."""

    def __init__(self, learner: AvalancheLearner) -> None:
        self.objective = learner.objective

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        widths = (outputs.detach() != MISSING).sum(1)
        loss = outputs.new_zeros(())
        for width in widths.unique().tolist():
            rows = widths == width
            loss = loss + self.objective.loss(outputs[rows, :width], targets[rows]) * rows.double().mean()
        return loss.to(outputs.dtype)


def experience_of(learner: Any, task: TaskEntry) -> Any:
    """The training images of a task as an experience."""
    images, labels = task.data.train.read(torch.arange(len(task.data.train)))
    learner._strategy.allowed.append(task.data.augmentations)
    if learner.strategy != "ICaRL":
        benchmark = benchmark_from_datasets(train=[as_dataset(images, labels, task_labels=task.index)])
        return with_classes_timeline(with_task_labels(benchmark)).train_stream[0]
    labels = labels + learner.columns(task).start
    experience = benchmark_from_datasets(train=[as_dataset(images, labels, task_labels=0)]).train_stream[0]
    counts = [len(entry.class_names) for entry in learner.tasks]
    experience.benchmark = SimpleNamespace(n_classes_per_exp=counts, classes_order=list(range(sum(counts))))
    return experience
