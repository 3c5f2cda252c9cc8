"""Trackers: they send the records of a run to TensorBoard, MLflow, or Weights & Biases.

Each one is a context manager that gives a callback for `run(on_epoch=...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from hashroute.integrations.installed import check_installed

Record = dict[str, Any]


class Tracker:
    """A callback for `run(on_epoch=...)`.

    Args:
        write: takes the numbers of an epoch by name, and the step that they belong to.
    """

    def __init__(self, write: Callable[[dict[str, float], int], None]) -> None:
        self._write = write
        self.step = 0

    def __call__(self, record: Record, step: int | None = None) -> None:
        """Send the record of an epoch. Without a step, calls are counted."""
        self.step = self.step + 1 if step is None else step
        self._write(numbers(record), self.step)


def numbers(record: Record) -> dict[str, float]:
    """The numbers of an epoch by name. Scores of tasks are there after the last epoch of a task."""
    names = ("loss", "train_accuracy", "validation_accuracy")
    found = {name: record[name] for name in names if record.get(name) is not None}
    scores = {f"test_accuracy/task_{index}": value for index, value in enumerate(record.get("accuracy", ()))}
    return found | {name: value for name, value in scores.items() if value is not None}


@contextmanager
def tensorboard(folder: str | Path) -> Iterator[Tracker]:
    """Write event files for TensorBoard into a folder."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:

        def write(values: dict[str, float], step: int) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)

        yield Tracker(write)


@contextmanager
def mlflow(name: str, experiment: str = "hashroute", **settings: Any) -> Iterator[Tracker]:
    """Log a run to MLflow, at the address of `mlflow.set_tracking_uri`.

    settings: further arguments of `mlflow.start_run`.
    """
    import mlflow as library

    library.set_experiment(experiment)
    with library.start_run(run_name=name, **settings):
        yield Tracker(lambda values, step: library.log_metrics(values, step=step))


@contextmanager
def wandb(name: str, project: str = "hashroute", **settings: Any) -> Iterator[Tracker]:
    """Log a run to Weights & Biases.

    settings: further arguments of `wandb.init`, such as mode="offline".
    """
    import wandb as library

    with library.init(project=project, name=name, **settings) as logged:
        yield Tracker(lambda values, step: logged.log(values, step=step))


TRACKERS = ("tensorboard", "mlflow", "wandb")


def check_tracker(name: str) -> None:
    """Raise an error if the library of a tracker is not installed."""
    check_installed(f"the tracker {name}", name, name)


def open_tracker(name: str, run: str, comparison: str, folder: Path) -> AbstractContextManager[Tracker]:
    """The tracker of one run of a comparison. TensorBoard's files go into the folder of the run."""
    if name == "tensorboard":
        return tensorboard(folder / name)
    return mlflow(run, f"hashroute-{comparison}") if name == "mlflow" else wandb(run, f"hashroute-{comparison}")
