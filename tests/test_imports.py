"""Imports go one way: a module imports only what stands below it, and nothing imports what it does not need."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "hashroute"

ORDER = (
    ("storage", "devices", "distributed"),
    ("schema",),
    ("registry",),
    ("nn",),
    ("images",),
    ("user_data",),
    ("tasks", "recipe"),
    ("data",),
    ("scenarios",),
    ("learners",),
    ("model",),
    ("training",),
    ("integrations",),
    ("rl",),
    ("reporting",),
    ("serve",),
    ("cli",),
)
"""From the bottom to the top. Rooms of one row do not import each other."""

LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}


@cache
def modules() -> dict[str, Path]:
    """All modules of the package by name, but for the package itself and `python -m hashroute`."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name not in ("hashroute", "hashroute.__main__"):
            found[name] = path
    return found


def imports(path: Path) -> Iterator[str]:
    """Every module of ours that a file imports, at its top or inside a function; type checking alone does not count."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for inner in node.body:
                for each in ast.walk(inner):
                    each.names = []  # type: ignore[attr-defined]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "hashroute")
        elif isinstance(node, ast.ImportFrom) and node.names and (node.module or "").split(".")[0] == "hashroute":
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                yield inside if inside in modules() else str(node.module)


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_every_room_has_its_place() -> None:
    assert {room(module) for module in modules()} == set(LEVEL)


def test_the_page_about_the_rooms_lists_them_in_their_order() -> None:
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text()
    cells = re.findall(r"^\| (`[^|]+) \|", page.partition("## ")[0], re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"`(\w+)(?:\.py|/)`", cell)]
    assert named == [name for rooms in ORDER for name in rooms]


def test_imports_go_downward() -> None:
    upward = [
        f"{module} imports {other}"
        for module, path in modules().items()
        for other in imports(path)
        if room(other) not in ("", room(module)) and LEVEL[room(other)] >= LEVEL[room(module)]
    ]
    assert upward == []


def test_no_module_imports_itself_through_others() -> None:
    edges = {module: {other for other in imports(path) if other != module} for module, path in modules().items()}
    state: dict[str, str] = {}

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert state.get(module) != "open", f"a cycle: {' -> '.join([*way, module])}"
        if module not in state:
            state[module] = "open"
            for other in sorted(edges.get(module, ())):
                visit(other, (*way, module))
            state[module] = "done"

    for module in edges:
        visit(module, ())


@pytest.mark.parametrize("command", ["import hashroute", "from hashroute.cli import main; main(['--help'])"])
def test_a_start_imports_nothing_heavy(command: str) -> None:
    heavy = ("torch", "numpy", "matplotlib", "scipy", "sklearn", "pooch", "PIL", "safetensors", "joblib")
    script = f"""
import sys
try:
    {command.replace("; ", chr(10) + "    ")}
except SystemExit:
    pass
print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
