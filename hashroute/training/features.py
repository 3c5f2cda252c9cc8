"""Measuring features that were learned without labels: this is where labels are read, and nowhere before.

Few labelled training images name the classes of test images, by the nearest neighbours and by a linear probe. Without
any label, test images are clustered into twice as many clusters as there are classes. This is the protocol of STAM
(Smith et al., 2021): draws of 100 test images of each class that was seen so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from hashroute.learners.learner import Learner
from hashroute.tasks import Split, Task, class_indices
from hashroute.training.result import FeatureValues

NEIGHBOURS = 5
PENALTIES = tuple(10.0**power for power in range(-3, 4))
"""Of the linear probe, where the mean variance of a feature is 1; the labelled images choose."""

Encode = Callable[[Tensor], Tensor]
"""From images to features: (n, features)."""


@dataclass(frozen=True)
class FeatureProbe:
    """How features are judged.

    labels: labelled training images of each class.
    asked: test images of each class.
    draws: how often images are drawn; measures are means over these draws.
    """

    labels: int = 100
    asked: int = 100
    draws: int = 5

    def measure(self, encode: Encode, known: Split, asked: Split, seed: int = 0) -> dict[str, float]:
        """The measures of features, in percent: `neighbours` and `linear` accuracy, `purity` and `information`.

        `information` is the normalised mutual information of clusters and classes. known: images of which some get
        their labels. asked: images to name and to cluster.
        """
        generator = torch.Generator().manual_seed(seed)
        found = []
        for _ in range(self.draws):
            some, others = (draw(*each, generator) for each in ((known, self.labels), (asked, self.asked)))
            features = [encode(split.images[:]).cpu().double() for split in (some, others)]
            named = name_classes(*features, some.labels)
            right = {name: 100 * _mean(labels == others.labels) for name, labels in named.items()}
            clusters = find_clusters(features[1], 2 * len(others.labels.unique()), seed)
            found.append({**right, **agreement(clusters, others.labels)})
        return {name: fmean(each[name] for each in found) for name in found[0]}


def measure_features(
    learner: Learner, tasks: Sequence[Task], asked: Sequence[Split], probe: FeatureProbe
) -> FeatureValues:
    """What the features of a learner are worth after some tasks. asked: images of each task to name and to cluster.

    An image is encoded for all tasks whose features differ, since nobody says which task it belongs to.
    """
    kinds = {learner.feature_key(entry): entry for entry in learner.tasks}.values()

    def encode(images: Tensor) -> Tensor:
        return torch.cat([learner.encode(images, entry) for entry in kinds], 1)

    own = [
        probe.measure(partial(learner.encode, task=entry), task.train, split)["neighbours"]
        for entry, task, split in zip(learner.tasks, tasks, asked, strict=True)
    ]
    all_of_them: Any = probe.measure(encode, joined(tasks, [task.train for task in tasks]), joined(tasks, asked))
    return {**all_of_them, "own": own}


def draw(split: Split, count: int, generator: torch.Generator) -> Split:
    """This many images of each class, or all."""
    members = ((split.labels == label).nonzero()[:, 0] for label in split.labels.unique())
    rows = [each[torch.randperm(len(each), generator=generator)[:count]] for each in members]
    return split[torch.cat(rows)]


def joined(tasks: Sequence[Task], splits: Iterable[Split]) -> Split:
    """A split of each task, with labels among the classes of all tasks."""
    pairs = list(zip(class_indices(tasks), splits, strict=True))
    labels = torch.cat([indices[split.labels] for indices, split in pairs])
    return Split(torch.cat([split.images[:] for _, split in pairs]), labels)


def name_classes(known: Tensor, asked: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The classes of images by labelled ones: (n,) by the nearest neighbours, and by a linear probe.

    known: (m, features) of labelled images. asked: (n, features). labels: (m,).
    """
    from sklearn.linear_model import RidgeClassifierCV
    from sklearn.neighbors import KNeighborsClassifier

    known, asked = ((each - known.mean(0)) / known.std(0).square().mean().sqrt() for each in (known, asked))
    nearest = KNeighborsClassifier(min(NEIGHBOURS, len(known)), weights="distance")
    probes: dict[str, Any] = {"neighbours": nearest, "linear": RidgeClassifierCV(PENALTIES)}
    return {
        name: torch.from_numpy(probe.fit(known.numpy(), labels.numpy()).predict(asked.numpy()))
        for name, probe in probes.items()
    }


def find_clusters(features: Tensor, count: int, seed: int = 0) -> Tensor:
    """(n,) the cluster of each image, by k-means. features: (n, features)."""
    from sklearn.cluster import KMeans

    found = KMeans(min(count, len(features)), n_init=10, random_state=seed).fit_predict(features.numpy())
    return torch.from_numpy(found).long()


def agreement(clusters: Tensor, labels: Tensor) -> dict[str, float]:
    """How well clusters agree with classes, in percent.

    `purity` is the share of images that are of the most frequent class of their cluster. clusters, labels: (n,).
    """
    from sklearn.metrics import normalized_mutual_info_score
    from sklearn.metrics.cluster import contingency_matrix

    table = contingency_matrix(labels.numpy(), clusters.numpy())
    information = normalized_mutual_info_score(labels.numpy(), clusters.numpy())
    return {"purity": 100 * float(table.max(0).sum() / len(labels)), "information": 100 * float(information)}


def _mean(values: Tensor) -> float:
    return values.double().mean().item()
