"""ewc: elastic weight consolidation (Kirkpatrick et al., 2017) on the plain network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from hashroute.learners.base import evenly, register_learner
from hashroute.learners.plain import Vanilla
from hashroute.tasks import Task


@dataclass(frozen=True)
class EWCOptions:
    """Options of ewc."""

    weight: float = 1000.0
    """Of the penalty: half of this times the Fisher information times the squared change of each weight."""
    samples: int = 1000
    """Training images, evenly spread over the task's, that the Fisher information is the mean of."""
    empirical: bool = False
    """Take the gradient of the true label only, instead of the expectation over the model's own answers."""
    online: bool = False
    """One running penalty around the latest weights (Schwarz et al., 2018), instead of one for each task."""
    decay: float = 1.0
    """Of the running Fisher information of the online variant, at each task."""


@register_learner("ewc")
class EWC(Vanilla):
    """Weights of the encoder are held where old tasks need them, each as firmly as its Fisher information says.

    The penalties of all tasks, each a quadratic around the weights at its end, add up to one quadratic around their
    weighted mean, so that only its curvature and its centre are kept. Heads belong to one task and are not penalised.
    """

    Options = EWCOptions
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"weight": (1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6)}

    def before_step(self) -> None:
        if not self.options.weight or not self.memory:
            return
        with torch.no_grad():
            for name, weight in self.encoder.named_parameters():
                if weight.grad is not None:
                    pull = self.memory[f"fisher.{name}"] * (weight - self.memory[f"centre.{name}"])
                    weight.grad.add_(pull, alpha=self.options.weight)

    def consolidate(self, tasks: Sequence[Task], first: int) -> None:
        for number, task in enumerate(tasks, first):
            fisher = self.fisher(task, number)
            for name, weight in self.encoder.named_parameters():
                new, here = fisher[name], weight.detach()
                old = self.memory.get(f"fisher.{name}", torch.zeros_like(new))
                centre = self.memory.get(f"centre.{name}", here)
                if self.options.online:
                    total, centre = self.options.decay * old + new, here.clone()
                else:
                    total = old + new
                    centre = torch.where(total > 0, (old * centre + new * here) / total.clamp_min(1e-38), here)
                self.memory[f"fisher.{name}"], self.memory[f"centre.{name}"] = total, centre

    @torch.no_grad()  # the heads' weights would keep the graph of all gradients alive
    def fisher(self, task: Task, number: int, chunk: int = 6) -> dict[str, Tensor]:
        """The diagonal Fisher information of the class log-likelihood, at the present weights, by name of weight.

        chunk: images at a time, each with all classes; the maps of more would leave the cache.
        """
        weights = {name: weight.detach() for name, weight in self.encoder.named_parameters()}
        rows = evenly(len(task.train), self.options.samples)
        classes = torch.arange(task.classes, device=self.device)

        def log_likelihood(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
            features = functional_call(self.encoder, weights, (image[None],))
            likely = self.heads[number](features).log_softmax(1)[0]
            chosen = likely.gather(0, label.view(1))[0]
            return chosen, chosen.exp().detach()

        gradient = vmap(grad(log_likelihood, has_aux=True), (None, 0, 0))  # one for each image and label
        fisher = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        for part in rows.split(chunk):
            images = self.scale(task.train.images[part], number)
            if self.options.empirical:
                labels = task.train.labels[part].to(self.device)
            else:
                labels = classes.repeat(len(images))
                images = images.repeat_interleave(len(classes), 0)
            gradients, likely = gradient(weights, images, labels)
            share = torch.ones_like(likely) if self.options.empirical else likely
            for name, each in gradients.items():
                fisher[name] += torch.einsum("n,n...->...", share, each.square()) / len(rows)
        return fisher
