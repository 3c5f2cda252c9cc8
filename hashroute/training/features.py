"""Measuring features that were learned without labels: this is where labels are read, and nowhere before.

Few labelled training images name the classes of test images, by the nearest neighbours and by a linear probe. Without
any label, test images are clustered into twice as many clusters as there are classes. This is the protocol of STAM
(Smith et al., 2021): draws of 100 test images of each class that was seen so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
        found = []
        for some, others in self._draws(known, asked, seed):
            features = _encoded(encode, others)
            named = name_classes(_encoded(encode, some), features, some.labels)
            clusters = find_clusters(features, 2 * len(others.labels.unique()), seed)
            found.append({**_right(named, others.labels), **agreement(clusters, others.labels)})
        return {name: fmean(each[name] for each in found) for name in found[0]}

    def neighbours(self, encode: Encode, known: Split, asked: Split, seed: int = 0) -> float:
        """One of these measures, alone."""
        found = []
        for some, others in self._draws(known, asked, seed):
            named = name_classes(_encoded(encode, some), _encoded(encode, others), some.labels, ("neighbours",))
            found.append(_right(named, others.labels)["neighbours"])
        return fmean(found)

    def _draws(self, known: Split, asked: Split, seed: int) -> Iterator[tuple[Split, Split]]:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(self.draws):
            yield draw(known, self.labels, generator), draw(asked, self.asked, generator)


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
        probe.neighbours(partial(learner.encode, task=entry), task.train, split)
        for entry, task, split in zip(learner.tasks, tasks, asked, strict=True)
    ]
    found = probe.measure(encode, joined(tasks, [task.train for task in tasks]), joined(tasks, asked))
    return FeatureValues(
        neighbours=found["neighbours"],
        linear=found["linear"],
        purity=found["purity"],
        information=found["information"],
        own=own,
    )


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


def name_classes(
    known: Tensor, asked: Tensor, labels: Tensor, ways: Sequence[str] = ("neighbours", "linear")
) -> dict[str, Tensor]:
    """The classes of images by labelled ones: (n,) by the nearest neighbours, and by a linear probe.

    known: (m, features) of labelled images. asked: (n, features). labels: (m,).
    """
    from sklearn.linear_model import RidgeClassifierCV
    from sklearn.neighbors import KNeighborsClassifier

    scale = known.std(0).square().mean().sqrt().clamp_min(1e-12)
    known, asked = ((each - known.mean(0)) / scale for each in (known, asked))
    nearest = KNeighborsClassifier(min(NEIGHBOURS, len(known)), weights="distance")
    probes: dict[str, Any] = {"neighbours": nearest, "linear": RidgeClassifierCV(PENALTIES)}
    return {
        name: torch.from_numpy(probes[name].fit(known.numpy(), labels.numpy()).predict(asked.numpy())) for name in ways
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


def _encoded(encode: Encode, split: Split) -> Tensor:
    return encode(split.images[:]).cpu().double()


def _right(named: dict[str, Tensor], labels: Tensor) -> dict[str, float]:
    """The accuracy of each way to name classes, in percent."""
    return {way: 100 * (found == labels).double().mean().item() for way, found in named.items()}
