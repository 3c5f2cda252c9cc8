"""hrn-paper: the hash-routed network as published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from hashroute.images import Images
from hashroute.learners.entries import Batch, Familiarity, TaskEntry
from hashroute.learners.learner import Learner, Style, count_weights
from hashroute.learners.options import Space, Span
from hashroute.learners.registry import register_learner
from hashroute.nn.growth import Growth
from hashroute.nn.network import DEFAULT_UNITS, HashRoutedNetwork, Routing
from hashroute.nn.units import ChannelRule, UnitSpec

MOST_ADDED = 1000
"""Units that are added before a task, or by growth, at most."""


@dataclass(frozen=True)
class HRNPaperOptions:
    """Options of hrn-paper; see HashRoutedNetwork for what the settings of the network mean."""

    units: tuple[UnitSpec, ...] = DEFAULT_UNITS
    units_added: tuple[int, ...] = ()
    """Units to add before each task, copies of randomly chosen ones; none after the last number. Units that the network
    has added by itself count."""
    grow: int = 0
    """The most units that the network grows to by itself, copies of its first units in turn; 0 for no growth."""
    residue_weight: float = 1.0
    """lambda, of the residue penalty."""
    features: int | None = None
    """s; None takes the number of features of the recipe."""
    depth: int = 3
    basis_size: int = 3
    tau_depth: float = 1e-5
    tau_empty: float = 0.2
    tau_expand: float = 1e-2
    max_age: float | None = 5.0
    """None for infinite: no replacement."""
    aging_rate: float = 1.2
    last_residue: bool = False
    channels: ChannelRule = "chunk-sum"
    gradient_regularisation: bool = True

    def __post_init__(self) -> None:
        if not all(type(each) is int and 0 <= each <= MOST_ADDED for each in self.units_added):
            raise ValueError(
                f"units_added of hrn-paper is {self.units_added!r:.80}: expected whole numbers from 0 to {MOST_ADDED:,}"
            )
        if type(self.grow) is not int or not 0 <= self.grow <= MOST_ADDED:
            raise ValueError(
                f"grow of hrn-paper is {self.grow!r:.80}: expected a whole number from 0 to {MOST_ADDED:,}"
            )

    @staticmethod
    def from_plain(values: dict[str, Any]) -> dict[str, Any]:
        """Values as read from JSON, in the types of the fields."""
        if "units" in values:
            values["units"] = tuple(u if isinstance(u, UnitSpec) else UnitSpec.from_dict(u) for u in values["units"])
        if "units_added" in values:
            values["units_added"] = tuple(values["units_added"])
        return values


@register_learner("hrn-paper")
class HRNPaper(Learner):
    """The hash-routed network as published: Algorithm 1, chunk-sum channels, the residue penalty."""

    style = Style("#E69F00", "-", "s")
    Options = HRNPaperOptions
    space: ClassVar[Space] = {
        "residue_weight": Span(0.01, 10.0, log=True),
        "basis_size": Span(1, 8),
        "tau_empty": Span(0.05, 0.5),
        "tau_expand": Span(1e-3, 0.1, log=True),
        "max_age": Span(2.0, 50.0, log=True),
        "aging_rate": Span(1.05, 10.0, log=True),
    }
    encoder: HashRoutedNetwork

    @classmethod
    def usual_options(cls, scenario: str, image_shape: Sequence[int]) -> dict[str, Any]:
        """The paper's; a scenario that it does not have gets those for images of as many channels."""
        return PUBLISHED.get(scenario) or PUBLISHED["pairwise-mnist" if image_shape[0] == 1 else "svhn-cifar100"]

    @classmethod
    def saved_options(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {"grow": 0, **values}  # models were saved before networks could grow

    def new_encoder(self) -> HashRoutedNetwork:
        options = self.options
        if self.backbone.stem is not None:
            raise ValueError(
                f"{self.name} has units of its own and takes no backbone: use hrn with {self.backbone.stem.name!r}"
            )
        return HashRoutedNetwork(
            self.image_shape,
            options.units,
            features=options.features or self.recipe.features,
            depth=options.depth,
            basis_size=options.basis_size,
            tau_depth=options.tau_depth,
            tau_empty=options.tau_empty,
            tau_expand=options.tau_expand,
            max_age=float("inf") if options.max_age is None else options.max_age,
            aging_rate=options.aging_rate,
            last_residue=options.last_residue,
            channels=options.channels,
            gradient_regularisation=options.gradient_regularisation,
            seed=self.seed,
            grow=Growth(options.units, options.grow) if options.grow else None,
        )

    def feature_count(self) -> int:
        return self.encoder.features

    def add_task(self, task: TaskEntry) -> None:
        wanted = len(self.options.units) + sum(self.options.units_added[: task.index + 1])
        added = wanted - len(self.encoder.units)  # none if a task that was given up has left them
        if added > 0:
            chosen = torch.randint(len(self.encoder.units), (added,), device="cpu").tolist()
            self.encoder.add_units([self.encoder.units[place].spec for place in chosen])
        super().add_task(task)

    def features(self, images: Tensor, task: TaskEntry) -> Tensor:  # noqa: ARG002
        routing: Routing = self.encoder(images)
        return routing.features

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        routing = self.encoder(batch.images)
        outputs = self.heads[batch.task.index](routing.features)
        loss = self.objective.loss(outputs, batch.targets)
        if self.options.residue_weight:
            loss = loss + self.options.residue_weight * routing.residue_penalty()
        return loss, outputs

    def before_step(self) -> None:
        if self.options.grow and self.training_state is not None:
            self.encoder.train_new_units(self.training_state.optimizer)

    @torch.no_grad()
    def paths(self, images: Tensor | Images, task: TaskEntry) -> Tensor:
        """(n, levels) the unit that each image goes through at each level, -1 after it stops."""
        self.eval()
        return torch.cat([self.encoder(self.normalise(part, task)).paths for part in self._parts(images)])

    def analyse(self, images: Tensor | Images, task: TaskEntry) -> dict[str, Any]:
        """Share of selections of each unit, fill and age of its basis, and how many paths the images spread over."""
        paths = self.paths(images, task).cpu()
        visits = torch.bincount(paths[paths >= 0], minlength=len(self.encoder.units)).double()
        share = paths.unique(dim=0, return_counts=True)[1].double() / len(paths)
        return {
            "usage": (visits / visits.sum().clamp_min(1)).tolist(),
            "basis_fill": (self.encoder.bases.ranks / self.encoder.bases.size).tolist(),
            "ages": self.encoder.bases.ages.tolist(),
            "paths": float((-(share * share.log()).sum()).exp()),
        }

    def unit_facts(self) -> list[dict[str, Any]]:
        """Of each unit its weights, share of selections in training, fill and age of its basis, and replacements."""
        bases = self.encoder.bases
        usage = bases.usage / bases.usage.sum().clamp_min(1)
        columns = (usage, bases.ranks / bases.size, bases.ages, bases.replacements)
        return [
            dict(zip(("unit", "parameters", "usage", "basis_fill", "age", "replacements"), row, strict=True))
            for row in zip(
                range(len(bases)),
                map(count_weights, self.encoder.units),
                *(column.tolist() for column in columns),
                strict=True,
            )
        ]

    @torch.no_grad()
    def known_by(self, images: Tensor, task: TaskEntry) -> Familiarity:
        """Lengths of the projections of images' hash vectors h_0 on the bases of all units."""
        hashed = self.encoder.image_hash.normalised(self.normalise(images, task))
        return Familiarity("units", torch.linalg.vector_norm(self.encoder.bases.vectors @ hashed.T, dim=1).T)

    def extra_description(self) -> dict[str, Any]:
        return {"network": self.encoder.config}

    def make_room(self, description: dict[str, Any]) -> None:
        super().make_room(description)
        # Which units were copied was drawn at random: the description says what the network became.
        self.encoder = HashRoutedNetwork.from_config(description["network"])


PUBLISHED: dict[str, dict[str, Any]] = {
    "pairwise-mnist": dict(
        units=(UnitSpec(16, 5, 3, 2, norm_groups=1),) * 2 + (UnitSpec(16, 2, 3, norm_groups=1),) * 2,
        features=300,
        residue_weight=1.0,
        aging_rate=1.2,
    ),
    "fashion-mnist": dict(
        units=(UnitSpec(6, 5, 3, 2),) * 3 + (UnitSpec(8, 2, 3),) * 3,
        features=300,
        residue_weight=1.0,
        aging_rate=10.0,
        units_added=(0, 2),
    ),
    "svhn-cifar100": dict(
        units=(
            *(UnitSpec(36, 3, 2, 2, dropout=0.5),) * 2,
            *(UnitSpec(36, 3, 1, 2, dropout=0.5),) * 2,
            UnitSpec(12, 2, 1, 1, dropout=0.5),
            UnitSpec(24, 4, 2, 1, dropout=0.5),
        ),
        features=2800,
        residue_weight=0.5,
        aging_rate=10.0,
        units_added=(0, 2),
    ),
}
"""The paper's units and numbers, by scenario; what is not here is the same in all of them."""
