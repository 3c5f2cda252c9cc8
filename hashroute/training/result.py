"""The result of a run, and the result file of a comparison: the only code that knows its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

from hashroute.schema import check, one_line, parse_json
from hashroute.storage import read_bounded, write_json

Row = list[float | None]
MOST_BYTES = 2**26
"""A larger result file is not read."""


class DecisionValues(TypedDict, total=False):
    """A decision in a file."""

    task: str
    action: str
    looks_like: str | None
    known: bool
    distance: float | None
    parent: str | None
    tried: dict[str, float]
    reused: float | None
    forked: float | None
    error: float | None
    units_added: int
    bytes_added: int
    head_bytes: int


class FeatureValues(TypedDict):
    """What features are worth after a task, where nothing was learned from labels; in percent."""

    neighbours: float
    linear: float
    purity: float
    information: float
    own: list[float]
    """For each task so far, how well the neighbours name its own classes, by the features of that task."""


class Score(NamedTuple):
    """What the numbers of an accuracy matrix are: accuracy in percent, or the score of another objective."""

    name: str = "accuracy"
    percent: bool = True

    @property
    def label(self) -> str:
        """The name with its unit: `accuracy, %`."""
        return f"{self.name}, %" if self.percent else self.name

    @property
    def digits(self) -> int:
        """Digits after the decimal point that are shown."""
        return 1 if self.percent else 4

    def text(self, value: float) -> str:
        """A value with its unit: `98.1 %`."""
        return f"{value:.{self.digits}f}" + (" %" if self.percent else "")

    def words(self, text: str) -> str:
        """A text about accuracy in percent, as a text about this score."""
        if not self.percent:
            text = text.replace(", %", "").replace(", in points", "")
        return text.replace("accuracy", self.name).replace("Accuracy", self.name[:1].upper() + self.name[1:])


ACCURACY = Score()


@dataclass
class RunResult:
    """What one learner reaches with one seed. Accuracies are in percent."""

    learner: str
    seed: int
    options: dict[str, Any] = field(default_factory=dict)
    """All options of the learner, as plain values."""
    name: str = ""
    """The row of the table that the run belongs to; the learner's name unless its options are unusual."""
    version: int = 1
    """Version of the learner's code: other versions give other numbers."""
    at_once: bool = False
    """Whether all tasks are learned together, so that nothing can be forgotten."""
    accuracy: list[Row] = field(default_factory=list)
    """A row after each task, a column for each task, None for tasks not yet learned. Another objective than
    classification gives its own scores, times its `score_factor`."""
    score_name: str = "accuracy"
    """What these numbers are; of another objective than classification, its `score_name`."""
    score_percent: bool = True
    """Whether these numbers are in percent."""
    seconds: float = 0.0
    """Training time without evaluation. On a CPU this is processor time, which other processes do not change."""
    images: int = 0
    """Training images, each counted as often as it was used."""
    parameters: dict[str, int] = field(default_factory=dict)
    """Weights of the encoder and of the heads."""
    bytes_kept: dict[str, int] = field(default_factory=dict)
    """Bytes of weights and of other memory that must be kept between tasks."""
    images_kept: int = 0
    """Training images that the learner keeps between tasks."""
    task_free: dict[str, float] = field(default_factory=dict)
    """Task-free (class-incremental) accuracy: of the class among all classes, and of the data set."""
    right: list[str] = field(default_factory=list)
    """For each task, which test images have a correct task-aware answer at the end, packed by `metrics.pack`."""
    right_after: list[str] = field(default_factory=list)
    """The same directly after the task was learned."""
    features: list[FeatureValues] = field(default_factory=list)
    """After each task, what the features are worth, if the objective names no classes; see `training.features`."""
    decisions: list[dict[str, Any]] = field(default_factory=list)
    """The learner's decision about each task."""
    routing: list[dict[str, Any]] = field(default_factory=list)
    """How a learner with routing uses its units, after each task."""

    def __post_init__(self) -> None:
        self.name = self.name or self.learner

    @property
    def score(self) -> Score:
        """What the numbers of the accuracy matrix are."""
        return Score(self.score_name, self.score_percent)

    @property
    def images_per_second(self) -> float:
        """Training speed."""
        return self.images / max(self.seconds, 1e-9)

    def complete(self, tasks: int) -> bool:
        """Whether the accuracy matrix has all values of a finished run with this number of tasks."""
        if len(self.accuracy) != tasks or any(len(row) != tasks for row in self.accuracy):
            return False
        judged = [len(after["own"]) for after in self.features]
        if judged and judged != ([tasks] if self.at_once else list(range(1, tasks + 1))):
            return False
        first = tasks - 1 if self.at_once else 0
        return all(None not in self.accuracy[place][: place + 1] for place in range(first, tasks))

    def to_dict(self) -> dict[str, Any]:
        """The result as plain values, for JSON. Left out: that accuracy is in percent, that no images are kept,
        and measures of features where there are none."""
        hidden: tuple[str, ...] = ("score_name", "score_percent") if self.score == ACCURACY else ()
        hidden += tuple(name for name in ("images_kept", "features") if not getattr(self, name))
        return {name: value for name, value in vars(self).items() if name not in hidden}

    @classmethod
    def from_dict(cls, values: Any) -> RunResult:
        """The result that `to_dict` described; an error names what is wrong with it."""
        check(values, cls)
        check(values.get("decisions", []), list[DecisionValues], "decisions")
        return cls(**values)


@dataclass
class Comparison:
    """Runs of the same tasks with the same recipe, so that their numbers can be compared."""

    scenario: str
    tasks: list[str]
    images: list[list[int]]
    """For each task, the number of images for training, validation and test."""
    recipe: dict[str, Any]
    profile: str = "default"
    fraction: float = 1.0
    """Share of every task's images that was used."""
    folder: str | None = None
    """The user's folder of images, where the scenario is made of one."""
    evaluate_on: Literal["test", "validation"] = "test"
    data: str | None = None
    """Digits of the hash of all images and labels; None in files of earlier versions."""
    command: str = ""
    """The command that repeats the comparison."""
    runs: list[RunResult] = field(default_factory=list)
    """Finished runs in table order: rows one after another, seeds ascending."""

    @property
    def learners(self) -> dict[str, list[RunResult]]:
        """The runs of each row of the table, by the row's name."""
        found: dict[str, list[RunResult]] = {}
        for run in self.runs:
            found.setdefault(run.name, []).append(run)
        return found

    @property
    def score(self) -> Score:
        """What the numbers of the accuracy matrices are."""
        return self.runs[0].score if self.runs else ACCURACY

    def find(self, name: str, seed: int) -> RunResult | None:
        """The run of this row and seed, None if there is none yet."""
        return next((run for run in self.runs if (run.name, run.seed) == (name, seed)), None)

    def add(self, result: RunResult, order: Sequence[str] = ()) -> None:
        """Add a run, or replace the one with its name and seed. Rows follow `order`, then their order in the file."""
        self.runs = [run for run in self.runs if (run.name, run.seed) != (result.name, result.seed)] + [result]
        places = {name: place for place, name in enumerate(dict.fromkeys([*order, *self.learners]))}
        self.runs.sort(key=lambda run: (places[run.name], run.seed))

    def to_dict(self) -> dict[str, Any]:
        """The content of the result file."""
        whole = {**vars(self), "runs": [run.to_dict() for run in self.runs]}
        return whole if self.data is not None else {name: value for name, value in whole.items() if name != "data"}

    @classmethod
    def from_dict(cls, values: Any) -> Comparison:
        """The comparison that `to_dict` described; an error names what is wrong with it."""
        check(values, cls)
        found = cls(**values)
        found.runs = [RunResult.from_dict(run) for run in values.get("runs", [])]
        for run in found.runs:
            if not run.complete(len(found.tasks)):
                raise ValueError(f"the accuracy matrix of {one_line(run.name, 40)}, seed {run.seed}, has gaps")
        return found

    @classmethod
    def read(cls, path: str | Path) -> Comparison:
        """Read a result file."""
        path = Path(path)
        try:
            return cls.from_dict(parse_json(read_bounded(path, MOST_BYTES)))
        except ValueError as error:
            raise ValueError(
                f"{one_line(path, 100)} is not a result file ({error}): expected a file that hashroute bench writes"
            ) from None

    def write(self, path: str | Path) -> None:
        """Write the result file; an existing one is replaced as a whole."""
        write_json(Path(path), self.to_dict())
