"""The names of sequences, agents and learners, for messages and help, without importing anything heavy."""

from __future__ import annotations

from typing import Literal, NamedTuple

AgentName = Literal["ppo", "dqn"]


class SequenceInfo(NamedTuple):
    """A sequence: what it is in one line, and the names of its environments."""

    summary: str
    tasks: tuple[str, ...]


MINATAR = ("MinAtar/Breakout-v1", "MinAtar/SpaceInvaders-v1", "MinAtar/Freeway-v1")

SEQUENCES = {
    "catch": SequenceInfo("two tiny games and the first one again, in seconds", ("catch", "rise", "catch")),
    "minatar": SequenceInfo(
        "MinAtar's Breakout, SpaceInvaders and Freeway, twice, and Breakout again; needs the package minatar (GPL-3)",
        (*MINATAR, *MINATAR, MINATAR[0]),
    ),
}

LEARNERS = {
    "hrn": "a path of units and heads for each game, forked from another; recognises games that come back",
    "vc": "one convolutional network that is trained on: nothing protects old games",
    "separate": "control: an agent for each game, which is told the game",
    "reset": "control: new weights for each task",
    "hrn-paper": "the hash-routed network as published, trained on",
}
