"""Two processes that learn together, for tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from programs import prepared_processes

RANKS = 2


def on_ranks(function: Callable[..., Any], folder: Path, *arguments: Any) -> list[Any]:
    """What a function gives in each of two processes of one group. An error is returned as its type and text."""
    folder.mkdir(parents=True, exist_ok=True)
    context = prepared_processes()
    processes = [context.Process(target=_be_rank, args=(rank, folder, function, arguments)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(RANKS)]


def _be_rank(rank: int, folder: Path, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.chdir(folder)
    torch.set_num_threads(1)
    where = f"file://{folder / 'group'}"
    dist.init_process_group("gloo", where, timedelta(minutes=2), RANKS, rank)
    try:
        outcome = function(*arguments)
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    torch.save(outcome, folder / f"rank{rank}.pt")
    if dist.is_initialized():
        dist.destroy_process_group()
