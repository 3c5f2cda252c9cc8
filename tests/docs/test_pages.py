"""Code and commands in README and the guide work as they are printed, and links lead to something that exists."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image

from hashroute import load_scenario
from programs import run_script, run_together
from served import running
from support import import_file

ROOT = Path(__file__).parents[2]
README, QUICK_START = ROOT / "README.md", ROOT / "docs" / "quick-start.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
DOWNLOADS = "  # downloads"
"""Ends a command that needs a data set which is not part of hashroute."""


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[list[str]]:
    """The arguments of every hashroute command of a page."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines() if not line.endswith(DOWNLOADS)]
    split = [shlex.split(line, comments=True) for line in lines]
    return [arguments for program, *arguments in split if program == "hashroute"]


ELSEWHERE = (ROOT / "docs" / "guide" / "avalanche.md",)
"""Pages that need a library which is not installed here: the tests of that library run them."""


def with_blocks(language: str) -> pytest.MarkDecorator:
    """A test for each page that has blocks in a language."""
    some = [page for page in PAGES if blocks(page, language) and page not in ELSEWHERE]
    pages = [pytest.param(page, id=str(page.relative_to(ROOT))) for page in some]
    return pytest.mark.parametrize("page", pages)


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}


def run_python(folder: Path, *arguments: str) -> None:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True)
    assert done.returncode == 0, f"{shlex.join(arguments)}: {done.stderr[-2000:]}"


def run_commands(folder: Path, lines: Sequence[Sequence[str]]) -> None:
    for arguments in lines:
        if arguments[0] == "serve":
            with running(folder / arguments[1]) as server:
                assert b"<title>" in server.get("").content
        elif arguments[0] != "export" or find_spec("onnx"):
            run_python(folder, "-m", "hashroute", *arguments)


def write_code(page: Path, folder: Path, known: Sequence[str] = ()) -> Path:
    """The Python code of a page, in the file that the page names, and the images that it uses."""
    for task in load_scenario("digits").tasks[:2]:
        for label, name in enumerate(task.class_names):
            place = folder / "my-images" / task.name / name
            place.mkdir(parents=True)
            for number, image in enumerate(task.test.images[task.test.labels == label][:20]):
                Image.fromarray(image[0].numpy()).save(place / f"{number}.png")
    if page == README:
        run_script(ROOT / "examples" / "write_images.py", folder, "images")
    name = re.search(r"Save it as `(\w+\.py)`", page.read_text())
    code = folder / (name[1] if name else "page.py")
    code.write_text("\n".join(block for block in blocks(page, "python") if block not in known))
    return code


@with_blocks("python")
def test_code_runs(page: Path, tmp_path: Path) -> None:
    known = blocks(QUICK_START, "python") if page == README else ()
    printed = run_script(write_code(page, tmp_path, known), tmp_path)
    if page == README:
        assert re.search(r"^A letters (0\.\d+|1\.0) True$", printed, re.MULTILINE), (
            "the image of letters/A is answered so"
        )


def test_commands_of_readme_compare_learners(tmp_path: Path) -> None:
    """The commands before these are a story of their own: tests/docs/test_story.py."""
    bench = [line[0] for line in commands(README)].index("bench")
    lines = commands(README)[bench:]
    assert [line[0] for line in lines] == ["bench", "bench", "report", "inspect"]
    quick = [[part.replace("runs/digits", "runs/digits-0.3-epochs=1") for part in line] for line in lines]
    for line in quick[:2]:
        line += ["--epochs", "1", "--fraction", "0.3"]
    assert quick[0][-6:-4] == ["--jobs", "2"]  # processes that import torch: the slow test below runs them
    quick[0] = [*quick[0][:-6], *quick[0][-4:], "--learners", "hrn", "vc"]
    run_together(tmp_path, *quick)


@pytest.mark.slow
@with_blocks("sh")
def test_commands_work_as_printed(page: Path, tmp_path: Path) -> None:
    run_python(tmp_path, str(write_code(page, tmp_path)))
    run_commands(tmp_path, commands(page))


def test_make_has_the_targets_of_readme() -> None:
    named = re.findall(r"\bmake ([a-z]+)", README.read_text())
    assert set(named) <= set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert len(named) >= 3
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^make ([a-z-]+): ", listed, re.MULTILINE)) >= set(named)


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for target, heading in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", page.read_text()):
        other = page.parent / target if target else page
        assert other.exists(), f"{page.name} links to {target}"
        if heading:
            headings = re.findall(r"^#+ (.+)$", other.read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", each).strip().lower().replace(" ", "-") for each in headings]
            assert heading in slugs, f"{page.name} links to {target}#{heading}"


def test_tables_and_examples_are_those_of_the_files() -> None:
    pages = import_file(ROOT / "docs" / "make_pages.py")
    filled = 0
    for page in pages.PAGES:
        text = page.read_text()
        assert pages.fill(text) == text, f"{page.name} differs from its result file or example: run make pages"
        filled += len(pages.MARK.findall(text))
    assert filled >= 30
