"""Scripts in every name of a report, which is opened in Chromium: nothing runs, and nothing is asked for."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from random import Random
from typing import Any

from kills import digits, recipe
from outcome import Part

from hashroute import run
from hashroute.reporting.page import write_report

CODE = ("alert(1)", "fetch('//localhost:1/')", "document.title='touched'")
SCRIPTS = (
    "<script>{}</script>",
    "</script><script>{}</script>",
    '"><img src=x onerror="{}">',
    "'><svg onload={}>",
    "<svg><style><img src onerror={}></style>",
    "javascript:{}",
    "`${{{}}}`",
    "--><script>{}</script><!--",
    "]]><script>{}</script>",
    "<iframe srcdoc='<script>parent.{}</script>'>",
    "&lt;script&gt;{}&lt;/script&gt;",
    "\u2028{}//",
    "<a xlink:href='javascript:{}'>a</a>",
)


def scripts_in_names(place: Path, seconds: float, random: Random) -> Part:
    """Every text in the files of a run becomes a script; its report is opened."""
    part = Part("scripts in every name of a report, opened in Chromium")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        part.note = "not tried: there is no Chromium"
        return part
    from playwright.sync_api import sync_playwright

    run(digits(), "hrn", recipe(digits()), folder=place / "pages")
    names = ("settings.json", "result.json", "samples.json")
    whole = {name: json.loads((place / "pages" / name).read_text()) for name in names}
    epochs = [json.loads(line) for line in (place / "pages" / "epochs.jsonl").read_text().splitlines()]
    with sync_playwright() as playwright:
        environment = {**os.environ, "LD_PRELOAD": ""}
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"], env=environment)
        end = time.monotonic() + seconds
        while part.tries == 0 or time.monotonic() < end:
            known: dict[str, str] = {}
            for name, value in whole.items():
                (place / "pages" / name).write_text(json.dumps(with_scripts(value, random, known)))
            lines = [json.dumps(with_scripts(value, random, known)) for value in epochs]
            (place / "pages" / "epochs.jsonl").write_text("\n".join(lines) + "\n")
            part.tries += 1
            report = write_report([place / "pages"], place / "report", "hashroute report")
            for problem in what_happens(browser, report):
                part.fail(f"{problem} with {list(known.values())[:20]}")
        browser.close()
    return part


KEPT = ("image", "learner", "objective", "evaluate_on", "backbone", "activation", "scaling", "action", "data")
"""Entries that are no names: an image, or one of a few words."""


def with_scripts(value: Any, random: Random, known: dict[str, str], inside: str = "") -> Any:
    """The same value, with a script in the place of every name; the same name always becomes the same script."""
    if isinstance(value, dict):
        return {name: each if name in KEPT else with_scripts(each, random, known, name) for name, each in value.items()}
    if isinstance(value, list):
        return [with_scripts(each, random, known, inside) for each in value]
    if isinstance(value, str):
        return known.setdefault(value, random.choice(SCRIPTS).format(random.choice(CODE)) + str(len(known)))
    return value


def what_happens(browser: Any, path: Path) -> list[str]:
    """Everything that a page does beside being shown."""
    problems: list[str] = []
    page = browser.new_page()
    page.on("console", lambda message: problems.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: problems.append(f"request: {request.url}"))
    page.goto(path.as_uri())
    for button in page.locator("button:visible").all()[:12]:
        button.click()
    if page.title() == "touched" or page.locator("script").count() != 2 or page.locator("iframe").count():
        problems.append("a script is part of the page")
    page.close()
    expected = f"request: {path.as_uri()}"
    return [each for each in problems if each != expected and not each.startswith("request: data:")]
