"""One learner in many processes (`torch.distributed`): which part of the work is this process's, and what is shared.

Every process, a rank, holds the same learner and takes the same steps. A batch is split over the ranks, in order, and
gradients are summed. Random numbers of a batch are drawn for the whole batch on every rank, which uses its own rows of
them: so the weights are those of one process. Decisions are made on rank 0 and shared, and rank 0 alone writes files.

In a process that belongs to no group, these functions change nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

Result = TypeVar("Result")
Sum = TypeVar("Sum", Tensor, float)

PATIENCE = timedelta(days=2)
"""How long a rank waits for another one that is alive. The end of a process is noticed at once."""


class RanksError(ValueError):
    """Another rank has failed, or ended."""


class Part(NamedTuple):
    """The rows of a batch that this rank computes."""

    own: slice | Tensor
    rows: int
    total: int
    copies: int = 1
    """How many ranks compute these rows: all, where a batch has fewer rows than there are ranks."""


_together = False
"""Whether all ranks take the same steps at present."""
_part: Part | None = None
"""The part of the batch that is computed at present; None if this rank computes the whole batch."""
_left: int | None = None
"""The rank that this process had, after an error made it leave its group."""


# -------------------------------------------------------------------- the group


def rank() -> int:
    """The number of this process in its group; 0 without a group."""
    return dist.get_rank() if _has_group() else _left or 0


def is_first() -> bool:
    """Whether this process decides, writes files and prints: it is rank 0, or has no group."""
    return rank() == 0


def ranks() -> int:
    """How many processes there are in the group; 1 without a group."""
    if _has_group():
        return dist.get_world_size()
    if _left is not None:
        raise RanksError("an error has ended the group of processes: start all of them again")
    return 1


def _has_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def is_launched() -> bool:
    """Whether `torchrun` has started this process as one of several."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def joined(device: str) -> Iterator[str]:
    """Join the group of processes that `torchrun` has started, if it has; gives the name of this one's device."""
    if not is_launched() or _has_group():
        yield device
        return
    if device in ("auto", "cuda") and torch.cuda.is_available():
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo", timeout=PATIENCE)
    try:
        yield device
    finally:
        if _has_group():
            dist.destroy_process_group()


@contextmanager
def together() -> Iterator[None]:
    """All ranks take the same steps in this block. An error on one of them ends it on all."""
    global _together, _left
    if ranks() == 1:
        yield
        return
    before, _together = _together, True
    try:
        yield
    except BaseException:
        if _has_group():  # the others would wait for this rank; a closed connection is an error to them
            _left = dist.get_rank()
            if not _on_nccl():  # which waits for the others; they end with this process
                dist.destroy_process_group()
        raise
    finally:
        _together = before


@contextmanager
def _talking() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:120]
        raise RanksError(
            f"rank {rank()} has lost another process: its own message says why; start all again ({reason})"
        ) from None


def _on_nccl() -> bool:
    return bool(dist.get_backend() == "nccl")


def _sendable(tensor: Tensor) -> Tensor:
    """The same numbers where the group can send them from."""
    return tensor.to("cuda" if _on_nccl() else tensor.device).contiguous()


# -------------------------------------------------------------------- decisions


def first(compute: Callable[[], Result]) -> Result:
    """What `compute` gives on rank 0, for all ranks; also an error. It must not wait for other ranks."""
    global _together, _part
    if ranks() == 1:
        return compute()
    outcome: list[Any] = [None, None]
    state, _together, _part = (_together, _part), False, None
    try:
        if is_first():
            try:
                outcome[0] = compute()
            except Exception as error:
                outcome[1] = error
        with _talking():
            dist.broadcast_object_list(outcome, 0)
    finally:
        _together, _part = state
    result, problem = outcome
    if problem is not None:
        raise problem
    return result  # type: ignore[no-any-return]


def check_same(value: Any, what: str) -> None:
    """Raise an error if a value is not the same as on rank 0. what: it has, if the value differs."""
    if value != first(lambda: value):
        raise ValueError(f"rank {rank()} has {what} than rank 0: give all ranks the same settings and data")


def copy_from_first(tensors: Iterable[Tensor]) -> None:
    """Give tensors the values that they have on rank 0."""
    if ranks() == 1:
        return
    own = list(tensors)
    check_same([(tuple(tensor.shape), tensor.dtype) for tensor in own], "another model")
    with torch.no_grad(), _talking():
        for tensor in own:
            sent = _sendable(tensor).flatten()
            dist.broadcast(sent.view(torch.uint8), 0)  # a group cannot send every type
            tensor.copy_(sent.view_as(tensor))


# -------------------------------------------------------------------- shares of rows


def own_rows(total: int) -> slice:
    """Which of so many rows are this rank's, where each rank has others; perhaps none. All, if there is one rank."""
    return slice(*_range(total, rank())) if _together else slice(None)


def _range(total: int, place: int) -> tuple[int, int]:
    count = dist.get_world_size()
    return total * place // count, total * (place + 1) // count


def split_rows(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """What a function gives for rows, each by itself; every rank computes its own rows and gets those of the others."""
    if not _together or len(rows) < ranks():
        return function(rows)
    bounds = [_range(len(rows), place) for place in range(ranks())]
    return gather(function(rows[slice(*bounds[rank()])]), [stop - start for start, stop in bounds])


def gather(own: Tensor, counts: Sequence[int]) -> Tensor:
    """The rows of all ranks, in their order, of which `own` keeps its gradient. counts: the rows of each rank."""
    padded = own.new_zeros(max(counts), *own.shape[1:])
    padded[: len(own)] = own.detach()
    sent = _sendable(padded)
    parts = [torch.empty_like(sent) for _ in counts]
    with _talking():
        dist.all_gather(parts, sent)
    rows = [part[:count].to(own.device) for part, count in zip(parts, counts, strict=True)]
    rows[rank()] = own
    return torch.cat(rows)


def sum_over_ranks(tensors: Iterable[Tensor]) -> None:
    """Replace tensors by their sums over all ranks, where these work on rows of their own."""
    if not _together or ranks() == 1:
        return
    with torch.no_grad(), _talking():
        for tensor in tensors:
            sent = _sendable(tensor)
            dist.all_reduce(sent)
            if sent is not tensor:
                tensor.copy_(sent)


class Layout(NamedTuple):
    """The rows of a batch over all ranks, in order: those from `start` to `stop` are this rank's."""

    counts: tuple[int, ...]
    """The rows of each rank."""
    start: int
    stop: int

    @property
    def total(self) -> int:
        """The rows of all ranks."""
        return sum(self.counts)

    @property
    def alone(self) -> bool:
        """Whether all rows are this rank's."""
        return len(self.counts) == 1

    def owns(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of some rows are this rank's."""
        return (rows >= self.start) & (rows < self.stop)

    def gather(self, own: Tensor, rows: NDArray[np.int64]) -> Tensor:
        """The values of some rows, of which this rank has its own; these keep their gradient.

        rows: (k,) rising. own: (those of them that are this rank's, ...).
        """
        if self.alone:
            return own
        ends = np.searchsorted(rows, np.cumsum((0, *self.counts)))
        return gather(own, np.diff(ends).tolist())

    @contextmanager
    def computing(self, rows: NDArray[np.int64]) -> Iterator[None]:
        """Random numbers in this block are for some rows, of which this rank computes its own."""
        global _part
        before = _part
        if not self.alone:
            _part = Part(torch.from_numpy(np.flatnonzero(self.owns(rows))), int(self.owns(rows).sum()), len(rows))
        try:
            yield
        finally:
            _part = before


def layout(own: int, training: bool) -> Layout:
    """How a batch is laid out over the ranks, of which this one has so many rows. If not training, it is alone."""
    if not training or ranks() == 1 or (_part is not None and _part.copies > 1):
        return Layout((own,), 0, own)
    found = [torch.zeros(1, dtype=torch.long) for _ in range(ranks())]
    found = [_sendable(each) for each in found]
    with _talking():
        dist.all_gather(found, _sendable(torch.tensor([own])))
    counts = tuple(int(each) for each in found)
    start = sum(counts[: rank()])
    return Layout(counts, start, start + own)


# -------------------------------------------------------------------- shares of a training batch


def batch_slice(total: int) -> slice:
    """Which images of a batch of so many are this rank's: all, if there are fewer images than ranks."""
    return own_rows(total) if total >= ranks() else slice(None)


@contextmanager
def batch(total: int) -> Iterator[None]:
    """Train on the images `batch_slice(total)` of a batch of so many until the end of the block."""
    global _part
    if not _together:
        yield
        return
    own = batch_slice(total)
    count = len(range(total)[own])
    before, _part = _part, Part(own, count, total, ranks() if count == total else 1)
    try:
        yield
    finally:
        _part = before


def sharing() -> bool:
    """Whether the rows of a batch are split over ranks at present."""
    return _part is not None


def batch_rows(own: int) -> int:
    """How many rows the whole batch has, of which so many are this rank's."""
    return own if _part is None else _part.total


def draw_rows(rows: int, draw: Callable[[int], Tensor], inner: int = 1) -> Tensor:
    """Random numbers for so many rows of a batch: this rank's rows of what `draw` gives for the whole batch.

    inner: how many consecutive rows belong to an image. Otherwise, if there are several rows for each image, all images
    come once, then all come again.
    """
    part = _part
    if part is None or (part.rows and rows % (part.rows * inner)):
        return draw(rows)
    views = rows // (part.rows * inner) if part.rows else 1
    drawn: Tensor = draw(views * part.total * inner).unflatten(0, (views, part.total, inner))
    return drawn[:, part.own].flatten(0, 2)


def weighted(mean: Tensor) -> Tensor:
    """The share of this rank's rows in a mean over the rows of the batch: the sum over ranks is that mean."""
    return mean if _part is None else mean * (_part.rows / _part.total / _part.copies)


def counted(total: Sum) -> Sum:
    """The share of this rank in a sum over its rows: less than all of it, if other ranks have the same rows."""
    return total if _part is None or _part.copies == 1 else total / _part.copies


@contextmanager
def more_rows(more: int) -> Iterator[tuple[slice, float]]:
    """Train on so many rows beside the batch, which every rank has drawn alike.

    Gives those that are this rank's, and the factor of its mean loss over images and these rows: the batch has another
    share of the whole then.
    """
    global _part
    part, own, factor = _part, slice(None), 1.0
    if part is not None and part.copies > 1:
        _part = part._replace(rows=part.total + more, total=part.total + more)
    elif part is not None:
        own = slice(*_range(more, rank()))
        rows = torch.cat([torch.arange(part.total)[part.own], part.total + torch.arange(more)[own]])
        _part = Part(rows, len(rows), part.total + more)
        factor = (len(rows) / _part.total) / (part.rows / part.total)
    try:
        yield own, factor
    finally:
        _part = part


def sum_gradients(weights: Iterable[nn.Parameter]) -> None:
    """Add up the gradients of all ranks; a weight that got none on any rank has none."""
    if _part is None:
        return
    own = list(weights)
    missing = [weight.grad is None for weight in own]
    parts = [weight.new_zeros(weight.numel()) if weight.grad is None else weight.grad.flatten() for weight in own]
    found = torch.tensor([not each for each in missing], dtype=parts[0].dtype, device=parts[0].device)
    summed = _sendable(torch.cat([*parts, found]))
    with _talking():
        dist.all_reduce(summed)
    *sums, found = summed.to(parts[0].device).split([*map(len, parts), len(own)])
    elsewhere = found.bool().tolist() if any(missing) else [True] * len(own)  # looking at it makes a device wait
    for weight, gradient, known in zip(own, sums, elsewhere, strict=True):
        if known and weight.grad is None:
            weight.grad = torch.empty_like(weight)
        if weight.grad is not None:
            weight.grad.copy_(gradient.view_as(weight))
