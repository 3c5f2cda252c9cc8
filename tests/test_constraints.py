"""The packages that are installed are those that constraints.txt pins; constraints-min.txt has the lowest versions."""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]


def plain(name: str) -> str:
    """The one spelling of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def lines_of(name: str) -> list[str]:
    """The requirements in a file, without markers."""
    lines = (line.partition(";")[0].strip() for line in (ROOT / name).read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def pins() -> dict[str, str]:
    found = [re.fullmatch(r"([\w.-]+)==([\w.]+)", line) for line in lines_of("constraints.txt")]
    assert None not in found, "every line pins one version"
    return {plain(each[1]): each[2] for each in found if each}


def test_everything_that_the_project_asks_for_is_pinned() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    asked = {plain(name) for name in re.findall(r'"([A-Za-z][\w.-]*)(?:\[\w+\])?>=', text)} | {"hatchling"}
    assert asked - pins().keys() == {"timm"}, "timm needs torchvision, which nothing here tests with"


def test_the_lowest_versions_are_those_that_the_project_allows() -> None:
    project = (ROOT / "pyproject.toml").read_text().partition("dependencies = [")[2]
    tools = re.compile(r"^(docs|lint|fuzz|openapi) = .*$", re.MULTILINE)
    asked = map(
        Requirement, re.findall(r'"([A-Za-z][^"]*>=[^"]*)"', tools.sub("", project).partition("[project.scripts]")[0])
    )
    lowest = {
        plain(each.name): min(Version(part.version) for part in each.specifier if part.operator == ">=")
        for each in asked
    }
    pinned = {plain(each.name): each for each in map(Requirement, lines_of("constraints-min.txt"))}
    assert pinned.keys() == lowest.keys()
    others = {name for name, version in lowest.items() if not pinned[name].specifier.contains(version)}
    assert others == {"torch"}


@pytest.mark.skipif(not (Path(sys.prefix) / "developing").exists(), reason="make did not make this environment")
def test_the_environment_of_make_has_the_pinned_versions() -> None:
    known, found, ahead = pins(), {}, [("hashroute", extra) for extra in ("", "plots", "serve", "test", "lint", "docs")]
    while ahead:
        name, extra = ahead.pop()
        for each in map(Requirement, requires(name) or ()):
            needed = each.marker is None or each.marker.evaluate({"extra": extra})
            if needed and is_installed(each.name) and plain(each.name) not in found:
                found[plain(each.name)] = version(each.name).partition("+")[0]
                ahead += [(each.name, part) for part in ("", *each.extras)]
    assert {name: (here, known.get(name)) for name, here in found.items() if known.get(name) != here} == {}


def is_installed(name: str) -> bool:
    """CUDA's packages, for example, do not come with every torch."""
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False
