"""Code and commands in README and the guide work as they are printed, and links lead to something that exists."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from hashroute import load_scenario
from support import import_file

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)
QUICK = {"bench": ["--epochs", "1"], "demo": ["--epochs", "1"]}
"""What is added to commands that train, to save time."""


def run_command(command: list[str], folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr[-2000:]}"


def write_images(folder: Path) -> None:
    """Some digits as files: folder/TASK/CLASS/NUMBER.png."""
    for task in load_scenario("digits").tasks[:2]:
        for label, name in enumerate(task.class_names):
            place = folder / task.name / name
            place.mkdir(parents=True)
            for number, image in enumerate(task.test.images[task.test.labels == label][:20]):
                Image.fromarray(image[0].numpy()).save(place / f"{number}.png")


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES if BLOCK.search(page.read_text())],
)
def test_code_and_commands_work_in_the_order_of_the_page(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    write_images(tmp_path / "my-images")
    blocks = BLOCK.findall(text)
    module = re.search(r"[Ss]ave it as `(\w+\.py)`", text)
    code = tmp_path / (module[1] if module else "page.py")
    code.write_text("\n".join(block for language, block in blocks if language == "python"))
    run_command([sys.executable, str(code)], tmp_path)
    for line in "".join(block for language, block in blocks if language == "sh").splitlines():
        command, _, comment = line.partition("  # ")
        program, *arguments = shlex.split(command)
        if program == "hashroute" and "downloads" not in comment:
            run_command([sys.executable, "-m", "hashroute", *arguments, *QUICK.get(arguments[0], [])], tmp_path)
        elif program == "make":
            assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for target, heading in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", page.read_text()):
        other = page.parent / target if target else page
        assert other.exists(), f"{page.name} links to {target}"
        if heading:
            headings = re.findall(r"^#+ (.+)$", other.read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", each).strip().lower().replace(" ", "-") for each in headings]
            assert heading in slugs, f"{page.name} links to {target}#{heading}"


def test_tables_are_those_of_the_result_files() -> None:
    pages = import_file(ROOT / "docs" / "make_pages.py")
    filled = 0
    for page in pages.PAGES:
        text = page.read_text()
        assert pages.fill(text) == text, f"{page.name} is not what its result file says: run make pages"
        filled += len(pages.PLACE.findall(text))
    assert filled >= 30
