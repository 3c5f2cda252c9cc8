"""The sentence about a decision of `hrn`: which units a task got, why, and what that added."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hashroute.training.result import ACCURACY, Score

if TYPE_CHECKING:
    from hashroute.learners.growth import Decision


def describe(decision: dict[str, Any] | Decision, score: Score = ACCURACY) -> str:
    """One line about a decision. Accuracies, or other scores, are on validation images."""
    decision = decision if isinstance(decision, dict) else decision.to_dict()
    parts = [_likeness(decision), _choice(decision, score), _added(decision)]
    return f"{decision.get('task')}: " + "; ".join(part for part in parts if part)


def gain(decision: dict[str, Any]) -> float | None:
    """Accuracy with the fork less that with frozen units, in points; None where no fork was tried."""
    reused, forked = decision.get("reused"), decision.get("forked")
    return None if reused is None or forked is None else forked - reused


def _likeness(decision: dict[str, Any]) -> str:
    distance, like = decision.get("distance"), decision.get("looks_like")
    if distance is None:
        return ""
    what = f"resembles {like} (" if like else "resembles no earlier task (nearest "
    return f"{what}{distance:,.1f} nats away)"


def _choice(decision: dict[str, Any], score: Score) -> str:
    action, parent = decision.get("action"), decision.get("parent")
    if action == "fresh" or parent is None:
        return "gets new units"
    gained, forks = gain(decision), action == "fork"
    choice = f"forks the units of {parent}" if forks else f"reuses the units of {parent}"
    if gained is None:
        return choice if forks else f"{choice}: there is no room for a fork"
    measured = (
        f"head alone: {score.text(decision['forked'])} with a fork, {score.text(decision['reused'])} with frozen units"
    )
    measured += "" if decision.get("error") is None else f", ± {decision['error']:.{score.digits}f}"
    if decision.get("known"):  # data and classes are known, so the fork had to be better
        reason = "the fork is better" if forks else "the fork is not better"
    else:
        reason = "frozen units are not better" if forks else "frozen units are better"
    if not forks and gained == 0:
        return f"{choice}: the fork changes nothing ({measured})"
    return f"{choice}: {reason} by two standard errors ({measured})"


def _added(decision: dict[str, Any]) -> str:
    """What was stored for the task. Decisions of earlier versions do not know the size of the head."""
    if "bytes_added" not in decision:
        return ""
    units, size = decision.get("units_added", 0), _size(decision["bytes_added"])
    head = f"a head ({_size(decision['head_bytes'])})" if decision.get("head_bytes") else "a head"
    if units:
        return f"adds {units} unit{'' if units == 1 else 's'} and a memory of its data ({size}), and {head}"
    return f"adds a memory of its data ({size}) and {head}" if decision["bytes_added"] else f"adds only {head}"


def _size(count: int) -> str:
    return f"{count / 1000:,.0f} kB"
