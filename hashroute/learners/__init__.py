"""Continual learners, by name. A file registers its learners when it is imported."""

from hashroute.learners import controls, ell, ewc, gpm, hrn, hrn_paper, plain  # noqa: F401
from hashroute.learners.base import (
    LEARNERS,
    Batch,
    LearnedTask,
    Learner,
    TaskFree,
    create_learner,
    find_learner,
    import_plugins,
    load_learner,
    register_learner,
)

for _name in ("hrn", "hrn-paper", "vc", "ewc", "ell", "gpm", "hash-only", "separate", "joint"):
    LEARNERS[_name] = LEARNERS.pop(_name)  # the order in which tables show them

__all__ = [
    "LEARNERS",
    "Batch",
    "LearnedTask",
    "Learner",
    "TaskFree",
    "create_learner",
    "find_learner",
    "import_plugins",
    "load_learner",
    "register_learner",
]
