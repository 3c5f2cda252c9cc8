"""Which tasks are asked about an image, if none is given and there are many."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

MOST_ASKED = 16
"""Tasks whose heads are asked about an image, at most: with more, the cost of an answer would follow their number."""


def most_promising(prior: Tensor, shared: Tensor, widths: Sequence[int]) -> Tensor:
    """The prior of tasks, (n, tasks), with minus infinity for all but the `MOST_ASKED` best tasks of each image.

    shared: (n, classes) what the shared head says about the classes of all tasks that have some. widths: how many
    classes each of these tasks has. Tasks are compared by the sum of their prior and of the best of their classes.
    """
    if len(widths) <= MOST_ASKED:
        return prior
    owners = [task for task, width in enumerate(widths) for _ in range(width)]
    said = shared[:, members_of(owners)].amax(2)
    promise = prior + F.pad(said, (0, prior.shape[1] - len(widths)))
    return prior.masked_fill(promise < promise.topk(MOST_ASKED, 1).values[:, -1:], -torch.inf)


def members_of(owners: Sequence[int]) -> Tensor:
    """(owners, most columns) the columns of each owner; the first one is repeated where an owner has fewer.

    owners: of each column, from 0 on.
    """
    columns: list[list[int]] = [[] for _ in range(max(owners) + 1)]
    for column, owner in enumerate(owners):
        columns[owner].append(column)
    most = max(map(len, columns))
    return torch.tensor([own + own[:1] * (most - len(own)) for own in columns])
