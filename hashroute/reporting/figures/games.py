"""Return over steps of a sequence of games: one figure for each game, with the boundaries of tasks."""

from __future__ import annotations

from statistics import fmean

from hashroute.reporting.figures.picture import PAGE, Picture, add_legend, new_figure, plot_settings
from hashroute.reporting.learners import styles
from hashroute.rl.result import GameResults, short_names


def draw(results: GameResults) -> list[Picture]:
    """A figure for each game."""
    return [_draw_game(results, game) for game in range(len(results.games))] if results.runs else []


def _draw_game(results: GameResults, game: int) -> Picture:
    names, looks = short_names(results.tasks), styles(list(results.learners))
    caption = (
        "Mean return of this game after each task (points with thin lines), and while it is trained (thick lines). "
        "Vertical lines are the ends of tasks."
    )
    if max(map(len, results.learners.values())) > 1:
        caption += " Means over seeds."
    with plot_settings():
        figure = new_figure(PAGE, 2.6)
        picture = Picture("top", f"return-{game}", short_names(results.games)[game], caption, figure, wide=True)
        axes = figure.subplots()
        for task, name in enumerate(names):
            axes.axvline(task + 1, color="0.6", linewidth=0.6)
            axes.annotate(name, (task + 0.5, 1.0), xycoords=("data", "axes fraction"), ha="center", va="bottom")
        for learner, runs in results.learners.items():
            look = looks[learner]
            values = [fmean(run.returns[task][game] for run in runs) for task in range(len(names))]
            ends = list(range(1, len(names) + 1))
            (line,) = axes.plot(
                ends, values, color=look.colour, marker=look.marker, linestyle=look.line, linewidth=0.6, label=learner
            )
            labels = [f"after task {task + 1}, {name}" for task, name in enumerate(names)]
            picture.name_part(line, learner, labels=labels, values=values)
            for task in (task for task, each in enumerate(results.order) if each == game):
                points = len(runs[0].curves[task])
                curve = [[run.curves[task][place] for run in runs] for place in range(points)]
                known = [
                    (task + (place + 0.5) / points, fmean(each for each in some if each is not None))
                    for place, some in enumerate(curve)
                    if any(each is not None for each in some)
                ]
                if known:
                    (line,) = axes.plot(*zip(*known, strict=True), color=look.colour, linestyle=look.line)
                    picture.name_part(line, learner)
        axes.set_xlim(0, len(names))
        axes.set_xticks(range(len(names) + 1), [f"{task * results.steps / 1000:g}" for task in range(len(names) + 1)])
        axes.set_xlabel("thousand steps")
        axes.set_ylabel("mean return")
        axes.grid(axis="y")
        add_legend(picture, axes, columns=5)
        return picture.settle()
