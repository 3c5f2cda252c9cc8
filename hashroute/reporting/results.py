"""The tables of a comparison: summary, tasks, leads and ablations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median, stdev
from typing import Literal

from hashroute.reporting.table import Cell, Column, Number, Row, Table
from hashroute.training import metrics
from hashroute.training.result import Comparison, RunResult, Score

Published = Mapping[str, Sequence[tuple[float, float]]]
"""By learner, the accuracy of each task right after learning and at the end, as the paper gives it."""

LEARNER = Column("learner", "The learner. The legend says what each one is.", words=True)
SEEDS = Column("seeds", "Number of runs, each with another seed.", digits=0)
SUMMARY = [
    LEARNER,
    SEEDS,
    Column(
        "task-aware",
        "Accuracy after the last task, mean over tasks, %. The task of every image is given (task-incremental).",
        "highest",
    ),
    Column(
        "task-free",
        "Accuracy after the last task, mean over tasks, %. The task is not given: "
        "the answer is a class of any task (class-incremental).",
        "highest",
    ),
    Column("data set found", "Share of images whose data set is recognised when the task is not given, %.", "highest"),
    Column("right after", "Task-aware accuracy of each task right after learning it, mean over tasks, %.", "highest"),
    Column("best-ever", "Highest task-aware accuracy that each task ever had, mean over tasks, %.", "highest"),
    Column(
        "forgetting",
        "Best-ever less final task-aware accuracy, mean over all tasks but the last, in points.",
        "lowest",
    ),
    Column(
        "backward transfer",
        "Final task-aware accuracy less that right after learning, mean over all tasks but the last, in points.",
        "highest",
    ),
    Column(
        "intransigence",
        "Accuracy of separate networks right after learning, less that of this learner, in points.",
        "lowest",
    ),
    Column("images/s", "Training images a second on one processor core; of several seeds, the median.", "highest", 0),
    Column("encoder", "Number of weights in the encoder at the end.", digits=0),
    Column("heads", "Number of weights in the heads at the end.", digits=0),
    Column("kept, kB", "All that must be stored between tasks: weights and memories.", "lowest", 0),
]
IMAGES_KEPT = Column("images kept", "Training images that are kept between tasks.", digits=0)
"""A column of tables that have learners which keep images."""
FEATURES = [
    LEARNER,
    SEEDS,
    Column("neighbours", "Test images named by their nearest labelled images in the features, %.", "highest"),
    Column("linear", "Test images named by a linear probe that the few labelled images train, %.", "highest"),
    Column("purity", "Test images of the most frequent class of their cluster, %. No label is used.", "highest"),
    Column("information", "Normalised mutual information of clusters and classes, %.", "highest"),
    Column(
        "forgetting of features",
        "How much better the neighbours once named the classes of a task, mean over all tasks but the last, in points.",
        "lowest",
    ),
]
HEADLINE = ("learner", "task-aware", "task-free", "forgetting")


def summary(comparison: Comparison, source: str = "") -> Table:
    """A row for each learner: means over tasks, with the standard deviation over seeds."""
    keeps = any(run.images_kept for run in comparison.runs)
    separate = {run.seed: run for run in comparison.learners.get("separate", [])}
    rows = []
    for name, runs in comparison.learners.items():

        def over_seeds(measure: Callable[[metrics.Matrix], float], runs: Sequence[RunResult] = runs) -> Number | None:
            """A measure of the accuracy matrix; None where all tasks were learned at once."""
            if any(run.at_once for run in runs):
                return None
            return Number.over_seeds([measure(run.accuracy) for run in runs], source)

        pairs = [(run.accuracy, separate[run.seed].accuracy) for run in runs if run.seed in separate]
        intransigence = [metrics.intransigence(ours, theirs) for ours, theirs in pairs if not runs[0].at_once]
        count = len(runs)
        cells: list[Cell] = [
            name,
            Number(count),
            Number.over_seeds([metrics.final(run.accuracy) for run in runs], source),
            *(_task_free(runs, part, source) for part in ("all_classes", "dataset")),
            over_seeds(right_after_mean),
            over_seeds(best_ever_mean),
            over_seeds(metrics.forgetting),
            over_seeds(metrics.backward_transfer),
            Number.over_seeds(intransigence, source) if intransigence else None,
            Number(median(run.images_per_second for run in runs), None, count, source),
            *(
                Number(fmean(run.parameters.get(part, 0) for run in runs), None, count, source)
                for part in ("encoder", "heads")
            ),
            Number(fmean(sum(run.bytes_kept.values()) for run in runs) / 1000, None, count, source),
        ]
        if keeps:
            cells.append(Number(fmean(run.images_kept for run in runs), None, count, source))
        rows.append(Row(tuple(cells), name, bound=runs[0].at_once))
    title = f"{comparison.scenario}: {comparison.evaluate_on} {comparison.score.label}, mean over tasks"
    columns = [*SUMMARY, IMAGES_KEPT] if keeps else SUMMARY
    return Table(title, worded(columns, comparison.score), rows)


def features(comparison: Comparison, source: str = "") -> Table | None:
    """What features are worth after the last task, a row for each learner; None if labels were learned from."""
    rows = []
    for name, runs in comparison.learners.items():
        last = [run.features[-1] for run in runs if run.features]
        if len(last) < len(runs):
            continue
        measures = [[each[part] for each in last] for part in ("neighbours", "linear", "purity", "information")]
        cells: list[Cell] = [Number.over_seeds(values, source) for values in measures]
        own = [metrics.padded([after["own"] for after in run.features]) for run in runs if not run.at_once]
        cells.append(Number.over_seeds([metrics.forgetting(each) for each in own], source) if own else None)
        rows.append(Row((name, Number(len(runs)), *cells), name, bound=runs[0].at_once))
    return Table(f"{comparison.scenario}: features, judged with few labels", FEATURES, rows) if rows else None


def worded(columns: Sequence[Column], score: Score) -> list[Column]:
    """The same columns, where those about accuracy are about this score."""
    found = []
    for column in columns:
        if "accuracy" in column.meaning.lower():
            name = column.name if score.percent else column.name.removesuffix(", %")
            column = replace(column, name=name, meaning=score.words(column.meaning), digits=score.digits)
        found.append(column)
    return found


def headline(comparison: Comparison, source: str = "") -> Table:
    """The summary's columns that matter most."""
    return with_images_kept(summary(comparison, source), HEADLINE)


def with_images_kept(table: Table, names: Sequence[str]) -> Table:
    """Some columns of the summary, and how many images are kept, if it says so."""
    return table.pick(*names, *(column.name for column in table.columns if column == IMAGES_KEPT))


def _task_free(runs: Sequence[RunResult], part: str, source: str) -> Number | None:
    values = [run.task_free[part] for run in runs if part in run.task_free]
    return Number.over_seeds(values, source) if values else None


def right_after_mean(matrix: metrics.Matrix) -> float:
    """Accuracy right after learning, mean over tasks."""
    return fmean(metrics.right_after(matrix))


def best_ever_mean(matrix: metrics.Matrix) -> float:
    """Best-ever accuracy, mean over tasks."""
    return fmean(metrics.best_ever(matrix))


def per_task(comparison: Comparison, published: Published, source: str = "") -> Table:
    """Accuracy of each task right after learning and at the end, by learner; the paper's numbers stand below ours."""
    score = comparison.score
    meaning = "Task-aware accuracy right after learning this task / after the last task, %."
    columns = [LEARNER, *(Column(task, meaning, "highest", spread=False) for task in comparison.tasks)]
    columns.append(
        Column("mean", "Mean accuracy: right after learning / after the last task, %.", "highest", spread=False)
    )
    rows = []
    for name, runs in comparison.learners.items():
        cells = [_pair(runs, task, source) for task in range(len(comparison.tasks))]
        rows.append(Row((name, *cells, _pair(runs, None, source)), name, bound=runs[0].at_once))
        if name in published:
            pairs = [*published[name], (fmean(a for a, _ in published[name]), fmean(b for _, b in published[name]))]
            theirs = [tuple(Number(value, source="the paper") for value in pair) for pair in pairs]
            rows.append(Row((f"{name}, paper", *theirs), name, published=True))
    title = score.words("task-aware accuracy right after learning / after the last task, %")
    return Table(f"{comparison.scenario}: {title}", worded(columns, score), rows)


def _pair(runs: Sequence[RunResult], task: int | None, source: str) -> Cell:
    """Accuracy right after learning a task, and at the end; the mean over tasks where none is given."""

    def number(values: Sequence[Sequence[float]]) -> Number:
        """values: for each seed, the accuracy of each task."""
        if task is not None:
            return Number.over_seeds([each[task] for each in values], source)
        mean = fmean(fmean(each) for each in zip(*values, strict=True))
        return replace(Number.over_seeds([fmean(each) for each in values], source), value=mean)

    end = number([metrics.at_the_end(run.accuracy) for run in runs])
    if any(run.at_once for run in runs):
        return (None, end)
    return (number([metrics.right_after(run.accuracy) for run in runs]), end)


def leads(
    comparison: Comparison, who: str = "hrn", when: Literal["right", "right_after"] = "right", source: str = ""
) -> Table:
    """How far one learner is ahead of each other one in task-aware accuracy, with the interval of a paired bootstrap.

    when: at the end, or right after each task was learned, which excludes learners of all tasks at once.
    """
    moment = "after the last task" if when == "right" else "right after each task"
    columns = [
        Column(f"{who} against", "The other learner.", words=True),
        Column("ahead by", f"Difference of the task-aware accuracy {moment}, mean over tasks, in points.", digits=2),
        Column(
            "95 % interval",
            "Where the difference lies with 95 % probability, if seeds and test images are drawn again.",
            digits=2,
            separator=" to ",
        ),
        Column("seeds", "Seeds that both learners have.", digits=0),
    ]
    ours = _answers(comparison.learners.get(who, []), when)
    rows = []
    for name, runs in comparison.learners.items():
        theirs = _answers(runs, when)
        seeds = sorted(ours.keys() & theirs.keys())
        if name != who and seeds:
            found = metrics.ahead([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds])
            mean, *interval = (Number(value, None, len(seeds), source, change=True) for value in found)
            rows.append(Row((name, mean, tuple(interval), Number(len(seeds))), name))
    return Table(f"{comparison.scenario}: lead of {who} {moment}, in points", columns, rows)


def _answers(runs: Sequence[RunResult], when: Literal["right", "right_after"]) -> dict[int, list[str]]:
    """By seed, which test images were answered correctly, where that is known."""
    known = [run for run in runs if when == "right" or not run.at_once]
    return {run.seed: getattr(run, when) for run in known if getattr(run, when)}


# ---------------------------------------------------------------------- ablations

MEASURES: dict[str, tuple[str, Callable[[RunResult], float]]] = {
    "long-term accuracy": (
        "Accuracy of the first task after the last one, %",
        lambda run: metrics.at_the_end(run.accuracy)[0],
    ),
    "best task accuracy": ("Best-ever accuracy, mean over tasks, %", lambda run: best_ever_mean(run.accuracy)),
    "training time": ("Training time", lambda run: run.seconds),
}


def ablation(rows: Mapping[str, Sequence[RunResult]], signs: Mapping[str, Sequence[str]]) -> Table:
    """Differences of each row from the first one: with its standard error, its sign and the paper's sign.

    signs: by row, the paper's sign of each measure.
    """
    columns = [Column("change", "What is different from the baseline.", words=True)]
    for name, (meaning, _) in MEASURES.items():
        columns.append(Column(name, f"{meaning}: difference from the baseline, ± its standard error."))
        columns.append(
            Column("sign", "Plus for better, minus for worse, if the difference exceeds two standard errors.")
        )
        columns.append(Column("paper", "The sign in the paper: the more, the clearer."))
    (first, baseline), *others = rows.items()
    cells: list[Cell] = [first]
    for name, (_, measure) in MEASURES.items():
        mean = fmean(measure(run) for run in baseline)
        cells += [Number(mean, None, len(baseline), unit="s" if name == "training time" else ""), "", ""]
    table = Table("Difference from the baseline, ± its standard error", columns, [Row(tuple(cells))])
    for name, runs in others:
        cells = [name]
        for what, paper in zip(MEASURES, signs[name], strict=True):
            number = difference(runs, baseline, what)
            cells += [number, "" if number is None else sign_of(number, what), paper]
        table.rows.append(Row(tuple(cells)))
    return table


def difference(runs: Sequence[RunResult], baseline: Sequence[RunResult], measure: str) -> Number | None:
    """Mean difference of a measure over the seeds that both have, and its standard error; of times, in percent."""
    value = MEASURES[measure][1]
    theirs = {run.seed: value(run) for run in baseline}
    pairs = [(value(run), theirs[run.seed]) for run in runs if run.seed in theirs]
    if not pairs:
        return None
    relative = measure == "training time"
    changes = [100 * (own / other - 1) if relative else own - other for own, other in pairs]
    error = stdev(changes) / len(changes) ** 0.5 if len(changes) > 1 else None
    return Number(fmean(changes), error, len(changes), unit="%" if relative else "", change=True)


def sign_of(change: Number, measure: str) -> str:
    """Plus for better, minus for worse, nothing unless the change exceeds two standard errors."""
    if change.spread is None or not abs(change.value) > 2 * change.spread:
        return ""
    better = change.value < 0 if measure == "training time" else change.value > 0
    return "+" if better else "-"


def variants(rows: Mapping[str, Sequence[RunResult]], source: str = "") -> Table:
    """Variants of a learner side by side, each with its difference from the first."""
    find = {column.name: column for column in SUMMARY}
    columns = [
        Column("variant", "What is different from the first row.", words=True),
        SEEDS,
        find["task-aware"],
        Column("change", "Difference of the task-aware accuracy from the first row, in points, mean over seeds."),
        find["task-free"],
        find["forgetting"],
        Column("paths", "Paths of units at the end, mean over seeds.", digits=None),
        find["encoder"],
        find["kept, kB"],
    ]
    first = next(iter(rows.values()))
    whole = {run.seed: metrics.final(run.accuracy) for run in first}
    table = Table("Variants", columns, [])
    for name, runs in rows.items():
        if not runs:
            continue
        changes = [metrics.final(run.accuracy) - whole[run.seed] for run in runs if run.seed in whole]
        grown = [sum(made["action"] != "reuse" for made in run.decisions) for run in runs]
        cells: list[Cell] = [
            name,
            Number(len(runs)),
            Number.over_seeds([metrics.final(run.accuracy) for run in runs], source),
            Number.over_seeds(changes, source) if changes and runs is not first else None,
            _task_free(runs, "all_classes", source),
            Number.over_seeds([metrics.forgetting(run.accuracy) for run in runs], source),
            Number(fmean(grown), None, len(runs), source),
            Number(fmean(run.parameters.get("encoder", 0) for run in runs), None, len(runs), source),
            Number(fmean(sum(run.bytes_kept.values()) for run in runs) / 1000, None, len(runs), source),
        ]
        table.rows.append(Row(tuple(cells), name))
    return table
