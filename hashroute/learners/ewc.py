"""ewc: elastic weight consolidation (Kirkpatrick et al., 2017) on the plain network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from hashroute import distributed
from hashroute.learners.entries import Batch, TaskEntry
from hashroute.learners.learner import Style
from hashroute.learners.options import Space, Span
from hashroute.learners.plain import Vanilla
from hashroute.learners.randomness import evenly_spaced_indices
from hashroute.learners.registry import register_learner


@dataclass(frozen=True)
class EWCOptions:
    """Options of ewc."""

    weight: float = 1000.0
    """Weight of the penalty: half of this times the Fisher information times the squared change of each weight."""
    samples: int = 1000
    """Training images, evenly spaced, over which the Fisher information is averaged."""
    empirical: bool = False
    """Use the gradient for the true label only, instead of the expectation over the answers of the model."""
    online: bool = False
    """Keep one running penalty around the latest weights (Schwarz et al., 2018), instead of one for each task."""
    decay: float = 1.0
    """Decay of the running Fisher information at each task, for the online variant."""


@register_learner("ewc")
class EWC(Vanilla):
    """Weights of the encoder are held where old tasks need them, as firmly as their Fisher information says.

    The penalty of each task is a quadratic around the weights at its end. Their sum is one quadratic around a weighted
    mean, so only its curvature and its centre are kept. Heads belong to one task and are not penalised.
    """

    style = Style("#0072B2", "-", "^")
    Options = EWCOptions
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"weight": (1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6)}
    space: ClassVar[Space] = {"weight": Span(1.0, 1e6, log=True)}
    tuned: ClassVar[dict[str, dict[str, Any]]] = {
        "fashion-mnist": {"weight": 1000.0},
        "fashion-mnist-paper": {"weight": 100.0},
        "mixed": {"weight": 100.0},
        "pairwise-mnist": {"weight": 100.0},
        "pairwise-mnist-paper": {"weight": 10.0},
        "svhn-cifar100": {"weight": 10.0},
        "svhn-cifar100-paper": {"weight": 100.0},
    }

    def before_step(self) -> None:
        """Add the gradient of the penalty."""
        if not self.options.weight or not self.kept:
            return
        with torch.no_grad():
            for name, weight in self.encoder.named_parameters():
                if weight.grad is not None:
                    pull = self.kept[f"fisher.{name}"] * (weight - self.kept[f"centre.{name}"])
                    weight.grad.add_(pull, alpha=self.options.weight)

    def after_task(self, task: TaskEntry) -> None:
        """Add the penalty of the task."""
        fisher = self.fisher(task)
        for name, weight in self.encoder.named_parameters():
            new, here = fisher[name], weight.detach()
            old = self.kept.get(f"fisher.{name}", torch.zeros_like(new))
            centre = self.kept.get(f"centre.{name}", here)
            if self.options.online:
                total, centre = self.options.decay * old + new, here.clone()
            else:
                total = old + new
                centre = torch.where(total > 0, (old * centre + new * here) / total.clamp_min(1e-38), here)
            self.kept[f"fisher.{name}"], self.kept[f"centre.{name}"] = total, centre

    @torch.no_grad()  # the weights of the head would keep the graph of all gradients alive
    def fisher(self, task: TaskEntry, chunk: int = 6) -> dict[str, Tensor]:
        """The diagonal Fisher information of the class log-likelihood at the present weights, by name of weight.

        An objective that does not name classes has no such likelihood: the gradients of its loss stand for it.

        chunk: images at a time, each with all classes; the maps of more images do not fit into the cache.
        """
        weights = {name: weight.detach() for name, weight in self.encoder.named_parameters()}
        data, head = task.data.train, self.heads[task.index]
        rows = evenly_spaced_indices(len(data), self.options.samples)
        classes = torch.arange(self.objective.outputs(task), device=self.device)
        expected = self.objective.names_classes and not self.options.empirical

        def log_likelihood(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
            features = functional_call(self.encoder, weights, (image[None],))
            likely = head(features).log_softmax(1)[0]
            chosen = likely.gather(0, label.view(1))[0]
            return chosen, chosen.exp().detach()

        def minus_loss(weights: dict[str, Tensor], image: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
            features = functional_call(self.encoder, weights, (image[None],))
            loss = self.objective.plain_loss(head(features), target[None])
            return -loss, torch.ones_like(loss)

        measured = log_likelihood if self.objective.names_classes else minus_loss
        gradient = vmap(grad(measured, has_aux=True), (None, 0, 0))  # one for each image and target
        fisher = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        for part in rows[distributed.own_rows(len(rows))].split(chunk):
            batch = Batch(self.normalise(data.images[part], task), data.labels[part].to(self.device), task)
            images, targets, _ = self.objective.prepare(batch)
            views = len(images) / len(part)
            if expected:
                targets = classes.repeat(len(images))
                images = images.repeat_interleave(len(classes), 0)
            gradients, likely = gradient(weights, images, targets)
            share = (likely if expected else torch.ones_like(likely)) / views
            for name, each in gradients.items():
                fisher[name] += torch.einsum("n,n...->...", share, each.square()) / len(rows)
        distributed.sum_over_ranks(fisher.values())
        return fisher
