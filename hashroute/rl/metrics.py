"""Measures of runs on games. Returns of different games are compared as shares of those of `separate`."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from hashroute.rl.result import GameResults, GameRun


def references(results: GameResults) -> list[float | None]:
    """Of each game the final mean return of `separate`, over seeds; None without one above 0."""
    runs = results.learners.get("separate", [])
    found = [fmean(run.returns[-1][game] for run in runs) if runs else 0.0 for game in range(len(results.games))]
    return [value if value > 0 else None for value in found]


def normalised(results: GameResults, run: GameRun) -> float | None:
    """The final return as a share of that of `separate`, mean over games."""
    pairs = zip(run.returns[-1], references(results), strict=True)
    return _mean([value / reference for value, reference in pairs if reference])


def forgetting(results: GameResults, run: GameRun) -> float | None:
    """The return right after a game was last trained less the final one, as a share; all games but the last."""
    lost = []
    for game, reference in enumerate(references(results)):
        last = max(task for task, each in enumerate(results.order) if each == game)
        if reference and last < len(results.tasks) - 1:
            lost.append((run.returns[last][game] - run.returns[-1][game]) / reference)
    return _mean(lost)


def returning(results: GameResults) -> Iterator[tuple[int, int]]:
    """Every task whose game was trained before, and the last task before it with the same game."""
    for task, game in enumerate(results.order):
        if game in results.order[:task]:
            yield task, max(each for each in range(task) if results.order[each] == game)


def lost_on_return(results: GameResults, run: GameRun) -> float | None:
    """What a game has lost when it comes back: the return when it was left less that before it is trained again."""
    found = []
    for task, left in returning(results):
        game = results.order[task]
        reference = references(results)[game]
        if reference:
            found.append((run.returns[left][game] - run.returns[task - 1][game]) / reference)
    return _mean(found)


def transfer(results: GameResults, run: GameRun) -> float | None:
    """Forward transfer: mean return while a game is first trained, less that of `separate`; all games but the first."""
    control = next((each for each in results.learners.get("separate", []) if each.seed == run.seed), None)
    if control is None:
        return None
    gained = []
    for game, reference in enumerate(references(results)):
        task = results.order.index(game)
        means = [_mean([value for value in each.curves[task] if value is not None]) for each in (run, control)]
        if task and reference and means[0] is not None and means[1] is not None:
            gained.append((means[0] - means[1]) / reference)
    return _mean(gained)


def recognised(results: GameResults, run: GameRun) -> float | None:
    """The share of right decisions about games: of tasks that begin, and of games that are played; None without any."""
    right = []
    for task, (game, entered) in enumerate(zip(results.order, run.entered, strict=True)):
        seen = results.order[:task]
        if entered:
            right.append(entered["known"] == (game in seen) and entered["task"] == game)
        for other, played in enumerate(run.played[task]):
            if played:
                known = other in results.order[: task + 1]
                right.append(played["known"] == known and (not known or played["task"] == other))
    return _mean([float(each) for each in right])


def steps_per_second(results: GameResults, run: GameRun) -> float:
    """Steps of training for each second of processor time, environments included."""
    return results.steps * len(results.tasks) / max(sum(run.seconds), 1e-9)


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None
