"""Registries: things by name, those that come with hashroute and those that users add."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from hashroute.schema import shown

Thing = TypeVar("Thing")


class BuiltIn(NamedTuple):
    """A thing that comes with hashroute: the module that adds it, and what it is in one line."""

    module: str
    summary: str


class Registry(dict[str, Thing]):
    """The things of one kind that are imported, by name.

    Args:
        what: the kind, as messages call it: "a learner".
        built_in: things that are imported when they are first needed, so that their names and summaries are known
            without importing torch.
    """

    def __init__(self, what: str, built_in: Mapping[str, BuiltIn] | None = None) -> None:
        super().__init__()
        self.what, self.built_in = what, built_in or {}

    @property
    def names(self) -> list[str]:
        """All names: built-in ones first, in their order."""
        return list(dict.fromkeys([*self.built_in, *self]))

    def add(self, name: str, thing: Thing, module: str) -> None:
        """Add a thing that a module defines; an error if the name is taken."""
        if name in self or (name in self.built_in and self.built_in[name].module != module):
            raise ValueError(f"there is {self.what} {name!r} already: choose another name")
        self[name] = thing

    def find(self, name: str, others: str = "") -> Thing:
        """The thing of this name. others: what an error says is possible beside the names."""
        if name in self.built_in:
            importlib.import_module(self.built_in[name].module)
        if name not in self:
            kind = self.what.partition(" ")[2]
            raise ValueError(f"there is no {kind} {shown(name)}: expected one of {', '.join(self.names)}{others}")
        return self[name]
