"""The page works in a real browser: it fits, sorts, copies, hides learners, tells values, and executes no name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from hashroute.reporting.page import write_report
from hashroute.training.result import Comparison

Opened = Callable[..., Any]


@pytest.fixture
def opened(browser: Any) -> Iterator[Opened]:
    """Opens a page, which must write nothing to the console and ask for no other file."""
    problems: list[str] = []
    contexts = []

    def open_page(path: Path, width: int = 1280, scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.set_default_timeout(0)  # however busy the machine is
        contexts.append(context)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(dialog.message))
        page.on("request", lambda request: requests.append(request.url))
        requests: list[str] = []
        page.goto(path.as_uri())
        assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def brightness(colour: str) -> float:
    return fmean(map(int, re.findall(r"\d+", colour)[:3]))


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_the_page_fits_and_can_be_read(opened: Opened, written: Path, width: int, scheme: str) -> None:
    page = opened(written, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    sizes = page.evaluate(
        "[...document.querySelectorAll('figure svg')].map(e => e.getBoundingClientRect()).map(b => [b.width, b.height])"
    )
    assert len(sizes) == 11
    assert all(across > 250 and down > 30 for across, down in sizes)
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    background = brightness(page.evaluate(paper))
    texts = page.evaluate("[...document.querySelectorAll('figure svg')].map(e => getComputedStyle(e).color)")
    letters = page.evaluate("getComputedStyle(document.querySelector('figure svg g[id*=xtick] text')).fill")
    assert all(abs(brightness(text) - background) > 150 for text in [*texts, letters])
    assert (background > 128) == (scheme == "light")
    page.click("#theme")
    assert (brightness(page.evaluate(paper)) > 128) == (scheme == "dark")


def test_the_buttons_of_many_learners_are_all_in_sight_on_a_wide_screen(opened: Opened, written: Path) -> None:
    page = opened(written, 1280)
    hidden = page.evaluate(
        """() => {
            const row = document.querySelector('.learners'), button = row.querySelector('button');
            for (let more = 0; more < 20; more++) row.append(button.cloneNode(true));
            return row.scrollWidth - row.clientWidth;
        }"""
    )
    assert hidden == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_can_be_scrolled_sideways_has_a_shadow_at_its_edge(
    opened: Opened, written: Path, tmp_path: Path, scheme: str
) -> None:
    from PIL import Image

    page = opened(written, 390, scheme)
    hidden = page.evaluate(
        "[...document.querySelectorAll('body *')].filter(e => e.scrollWidth > e.clientWidth + 1"
        " && ['auto', 'scroll'].includes(getComputedStyle(e).overflowX)).map(e => e.className || e.tagName)"
    )
    assert "scroll" in hidden
    assert set(hidden) <= {"scroll", "learners", "PRE"}, "these have the shadow; commands end in a button"
    table = page.locator(".scroll:has(table)").first
    edges = []
    for place in (0, 10_000):
        table.evaluate("(e, place) => { e.scrollLeft = place; }", place)
        table.screenshot(path=tmp_path / "table.png")
        picture = Image.open(tmp_path / "table.png").convert("L")
        right, inner = (picture.getpixel((picture.width - 1 - off, picture.height - 4)) for off in (0, 60))
        edges.append(abs(right - inner))  # type: ignore[operator]
    assert edges[0] > 15, "more to the right"
    assert edges[1] < 5, "nothing more to the right"


def test_a_learner_is_switched_off_and_on(opened: Opened, written: Path) -> None:
    page = opened(written)
    plots = [page.locator("figure svg").nth(place) for place in range(7)]  # bars, curves, points, matrices

    def pictures() -> list[bytes]:
        page.evaluate("scrollTo(0, 0)")  # a figure between two pixels is drawn in another way
        return [plot.screenshot() for plot in plots]

    before = pictures()
    parts = page.locator('[data-learner="vc"]:visible')
    assert parts.count() > 10
    page.click('.learners button[data-name="vc"]')
    assert parts.count() == 0
    assert all(now != was for now, was in zip(pictures(), before, strict=True))
    page.click('.learners button[data-name="vc"]')
    page.mouse.move(0, 0)
    assert pictures() == before


def test_tables_are_sorted_by_a_click(opened: Opened, written: Path) -> None:
    page = opened(written)
    table = page.locator("table").first
    column = table.locator("th").all_inner_texts().index("task-aware")

    def cells() -> list[float]:
        texts = table.locator(f"tbody td:nth-child({column + 1})").all_inner_texts()
        return [float(text.split("±")[0]) for text in texts]

    unsorted = cells()
    table.locator("th").nth(column).locator("button").click()
    assert cells() == sorted(unsorted, reverse=True)
    table.locator("th").nth(column).locator("button").click()
    assert cells() == sorted(unsorted)
    table.locator("th").nth(0).locator("button").click()
    names = table.locator("tbody td:first-child").all_inner_texts()
    assert names == sorted(names)


def test_a_table_is_copied_as_it_stands(opened: Opened, written: Path) -> None:
    page = opened(written)
    page.click('.learners button[data-name="joint"]')
    page.locator(".table").first.locator("button.copy").click()
    page.wait_for_function("[...document.querySelectorAll('button.copy')].some(b => b.textContent === 'copied')")
    lines = [line.split("\t") for line in page.evaluate("navigator.clipboard.readText()").splitlines()]
    assert lines[0][:4] == ["learner", "seeds", "task-aware", "task-free"]
    assert [line[0] for line in lines[1:]] == ["hrn", "hrn-paper", "vc", "separate"]
    assert len({len(line) for line in lines}) == 1


def test_pointing_tells_the_value_and_what_a_column_means(opened: Opened, written: Path, result: Any) -> None:
    page = opened(written)
    values = json.loads(page.locator("#values").text_content())
    first = {name: part for name, part in values.items() if name.startswith("digits-first")}
    name = next(name for name, part in first.items() if part["learner"] == "vc" and part.get("labels"))
    page.locator(f'[id="{name}"] use').last.hover(force=True)
    mean = fmean(result(f"vc-seed{seed}")["accuracy"][-1][0] for seed in (0, 1))
    assert f"vc, after 8 or 9: {mean:.2f}" in page.inner_text("#tip").splitlines()
    grid = next(name for name, part in values.items() if part["learner"] == "separate" and part.get("rows"))
    image = page.locator(f'[id="{grid}"] image')
    image.scroll_into_view_if_needed()
    box = image.bounding_box()
    page.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + 0.9 * box["height"])
    value = result("separate-seed0")["accuracy"][-1][0]
    assert page.inner_text("#tip") == f"separate, after 8 or 9, 0 or 1: {value:.2f}"
    for label in ("unit 3, age", "0 or 1: unit 1 at level 2 → unit 3"):  # a bar, and a step from level to level
        name = next(name for name, part in values.items() if label in part.get("labels", []))
        place = values[name]["labels"].index(label)
        page.locator(f'[id="{name}"] path').nth(place).hover(force=True)
        assert page.inner_text("#tip") == f"hrn-paper, {label}: {values[name]['values'][place]:.2f}"
    page.locator("th button", has_text="task-free").hover()
    assert "class-incremental" in page.inner_text("#tip")
    page.mouse.move(0, 0)
    assert page.locator("#tip:visible").count() == 0


def test_samples_are_marked_and_their_bars_labelled(opened: Opened, written: Path) -> None:
    page = opened(written)
    card = page.locator('[data-learner="hrn-paper"] .sample')
    text = card.inner_text()
    assert "2 of 2 or 3" in text
    assert "✗ task-aware: 3" in text
    assert "✗ task-free: 1 of 0 or 1" in text
    assert "units 0 → 1 → 3" in text
    assert card.locator(".bars span").all_inner_texts()[:4] == ["unit 0", "0.90", "unit 1", "0.80"]
    assert (card.locator(".bars i").count(), card.locator(".bars i.taken").count()) == (4, 3)
    assert card.locator("img").evaluate("e => e.naturalWidth") == 1
    ours = page.locator('[data-learner="hrn"] .sample').first.inner_text()
    assert "units 0.0 → 0.1" in ours
    assert "✓" in page.locator('[data-learner="hrn"] .samples').inner_text()


def test_names_are_shown_as_they_are_and_run_nothing(
    opened: Opened, tmp_path: Path, made_up: Callable[..., Comparison]
) -> None:
    tasks = ["<script>alert(1)</script>", "$x$", '"><img src=x onerror=alert(1)>', "a & b", "数字", "$x"]
    learners = ["</script><script>alert[1]</script>", "vc", "$\\frac{1}$"]
    made_up(tasks, learners).write(tmp_path / "result.json")
    page = opened(write_report([tmp_path / "result.json"], tmp_path / "report", "hashroute report"))
    assert page.locator("table").nth(1).locator("th").all_inner_texts() == ["learner", *tasks, "mean"]
    others = sorted(set(learners) - {"vc"})
    assert page.locator(".learners button").all_inner_texts() == ["vc", *others]
    labels = [text.strip() for text in page.locator("figure svg text").all_text_contents()]
    assert {"$x$", "a & b", "数字", "$\\frac{1}$", "<script>ale…cript>"} <= set(labels)
    assert page.locator("script").count() == 2
    assert page.locator("img").count() == 0
    page.click(".learners button >> nth=1")
    assert page.locator(f'[data-learner="{others[0]}"]:visible').count() == 0
