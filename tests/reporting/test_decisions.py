"""The sentence about a decision says what was chosen, why, and what was added."""

from __future__ import annotations

from typing import Any

from hashroute.reporting.decisions import describe

FORK: dict[str, Any] = {
    "task": "b",
    "action": "fork",
    "parent": "a",
    "looks_like": "a",
    "distance": 1234.56,
    "reused": 90.0,
    "forked": 91.25,
    "error": 0.5,
    "units_added": 3,
    "bytes_added": 475_000,
}


def test_the_first_task_gets_new_units() -> None:
    first = {"task": "a", "action": "fresh", "units_added": 2, "bytes_added": 38_400}
    assert describe(first) == "a: gets new units; adds 2 units and a memory of its data (38 kB), and a head"
    assert describe({**first, "head_bytes": 1_700_000}).endswith("a memory of its data (38 kB), and a head (1,700 kB)")


def test_a_fork_is_named_with_its_parent_and_the_reason() -> None:
    assert describe(FORK) == (
        "b: resembles a (1,234.6 nats away); forks the units of a: frozen units are not better by two standard errors "
        "(head alone: 91.2 % with a fork, 90.0 % with frozen units, ± 0.5); "
        "adds 3 units and a memory of its data (475 kB), and a head"
    )
    assert "forks the units of a: the fork is better by two standard errors (head alone: 91.2 %" in describe(
        {**FORK, "known": True}
    )


def test_reuse_is_explained() -> None:
    reuse = {**FORK, "action": "reuse", "looks_like": None, "forked": 80.0, "units_added": 0, "bytes_added": 19_000}
    assert "resembles no earlier task (nearest 1,234.6 nats away)" in describe(reuse)
    assert "frozen units are better by two standard errors (head alone: 80.0 % with a" in describe(reuse)
    assert describe(reuse).endswith("adds a memory of its data (19 kB) and a head")
    known = {**reuse, "known": True, "forked": 90.5}
    assert "reuses the units of a: the fork is not better by two standard errors (head alone: 90.5 %" in describe(known)
    assert "reuses the units of a: the fork changes nothing (head alone: 90.0 %" in describe({**reuse, "forked": 90.0})
    full = {**reuse, "forked": None, "bytes_added": 0}
    assert describe(full).endswith("reuses the units of a: there is no room for a fork; adds only a head")


def test_a_decision_object_is_described_like_its_values() -> None:
    from hashroute.learners.growth import Decision

    assert describe(Decision(**FORK)) == describe(FORK)
