"""Continual learners, by name."""

from hashroute.learners.registry import (
    create_learner,
    find_learner,
    learner_names,
    learner_summaries,
    load_learner,
    register_learner,
)

__all__ = [
    "create_learner",
    "find_learner",
    "learner_names",
    "learner_summaries",
    "load_learner",
    "register_learner",
]
