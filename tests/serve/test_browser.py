"""The page in a real browser: ask, teach two classes with files, see that old answers are unchanged, undo."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from served import running

SHOTS = os.environ.get("SHOTS")
"""A folder for pictures of the page, for people to look at."""
TOKEN = "a-token-of-many-characters"


class Visit:
    """A page that is open."""

    def __init__(self, browser: Any, address: str, width: int, scheme: str) -> None:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.set_default_timeout(0)  # however busy the machine is
        context.set_default_timeout(60_000)
        self.page, self.width, self.scheme = context.new_page(), width, scheme
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: self.problems.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)

    def fits(self, name: str) -> None:
        if SHOTS:
            self.page.screenshot(path=f"{SHOTS}/{name}-{self.width}-{self.scheme}.png", full_page=True)
        assert self.page.evaluate("document.documentElement.scrollWidth") <= self.width

    def see(self, place: str, text: str) -> None:
        self.page.locator(place, has_text=text).first.wait_for()


def files(folder: Path, count: int = 8) -> list[str]:
    return [str(file) for file in sorted(folder.iterdir())[:count]]


@pytest.mark.parametrize(("width", "scheme"), [pytest.param(1280, "light", marks=pytest.mark.slow), (390, "dark")])
def test_teach_ask_and_undo(browser: Any, images: Path, tmp_path: Path, width: int, scheme: str) -> None:
    model = Path(shutil.copytree(images / "model", tmp_path / "model"))
    with running(model) as server:
        visit = Visit(browser, server.address, width, scheme)
        page = visit.page
        visit.see("#summary", "This model knows 1 task with 2 classes.")
        (tmp_path / "notes.txt").write_text("not an image")
        page.get_by_label("Images to ask about").set_input_files(
            [*files(images / "round" / "circle", 2), str(tmp_path / "notes.txt")]
        )
        visit.see("#answers .card", "notes.txt cannot be read as an image")
        assert page.locator("#answers .card", has_text="task round").count() == 2
        assert page.locator("#answers img").evaluate_all("all => all.filter(e => e.naturalWidth === 16).length") == 2
        visit.fits("asked")

        page.click("#learn")
        visit.see("#problem", "The task has no name")
        page.fill("#task", "<b>straight</b>")
        for place, name in enumerate(("square", "stripes"), 1):
            page.get_by_label(f"Name of class {place}").fill(name)
            page.get_by_label(f"Images of class {place}").set_input_files(files(images / "straight" / name))
        visit.fits("filled")
        page.click("#learn")
        visit.see("#progress-text", "Learning <b>straight</b>: epoch")
        visit.fits("learning")
        visit.see("#report", "<b>straight</b> is learned: square, stripes")
        visit.see("#report .good", "All old answers are unchanged: 18 answers of 1 old task")
        visit.see("#answers .good", "round still answers")
        assert page.locator("#answers .bad", has_text="CHANGED").count() == 0
        visit.see("#summary", "This model knows 2 tasks with 4 classes.")
        visit.see("#tasks .task", "<b>straight</b>")
        page.get_by_label("Images to ask about").set_input_files(files(images / "straight" / "stripes", 1))
        page.locator("#answers .card b").nth(2).wait_for()
        visit.fits("learned")

        page.click("text=Undo learn <b>straight</b>")
        visit.see("#undone", "<b>straight</b> is not known any more")
        visit.see("#summary", "This model knows 1 task with 2 classes.")
        assert page.locator("#tasks .task").count() == 1
        page.get_by_label("Forget round", exact=True).click()
        page.get_by_label("Forget round for good").click()
        visit.see("#summary", "This model knows nothing yet")
        visit.fits("empty")
        refused = "Failed to load resource: the server responded with a status of 400 (Bad Request)"
        assert visit.problems == [refused]
        assert all(url.startswith((server.address, "blob:", "data:")) for url in visit.requests)


def test_files_are_dropped(browser: Any, images: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(images / "model", tmp_path / "model"))
    with running(model, "--token", TOKEN) as server:
        visit = Visit(browser, server.address, 390, "light")
        visit.see("#problem", "the token is missing or wrong")
        visit.page.fill("#token", TOKEN)
        visit.page.click("text=Open")
        visit.see("#summary", "This model knows 1 task")
        content = list((images / "round" / "cross" / "0.png").read_bytes())
        drop = """([place, bytes]) => {
            const moved = new DataTransfer();
            moved.items.add(new File([new Uint8Array(bytes)], "a.png", {type: "image/png"}));
            const zone = document.querySelector(place);
            zone.dispatchEvent(new DragEvent("drop", {dataTransfer: moved, bubbles: true, cancelable: true}));
        }"""
        visit.page.evaluate(drop, ["#ask", content])
        visit.see("#answers .card", "task round")
        visit.page.evaluate(drop, ["#classes .drop", content])
        visit.see("#classes .drop", "1 image. Drop more")
        visit.fits("dropped")
        again = Visit(browser, f"{server.address}#token={TOKEN}", 1280, "dark")
        again.see("#summary", "This model knows 1 task")
        assert TOKEN not in again.page.url
        again.fits("token")
