"""The report: one page about runs that opens from the disk, with its figures and tables for papers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

from hashroute.reporting.figures import pictures
from hashroute.reporting.figures.picture import Picture
from hashroute.reporting.games import game_section
from hashroute.reporting.html import Page, command_box, finite, missing_box
from hashroute.reporting.runs import Group, collect
from hashroute.reporting.sections import introduction, section
from hashroute.rl.result import GameResults, is_game_results
from hashroute.storage import replace_file


@dataclass
class Report:
    """A report before it is written: the text of the page, its figures, and its tables as LaTeX."""

    text: str
    pictures: list[Picture]
    latex: dict[str, str]

    def write(self, output: Path) -> Path:
        """Write report.html, figures/*.png and *.pdf, and tables/*.tex; returns the page's path.

        Figures and tables of an earlier report are removed from the folder.
        """
        files = {f"figures/{each.name}.{form}": each.save(form) for each in self.pictures for form in ("png", "pdf")}
        files |= {f"tables/{name}.tex": table.encode() for name, table in self.latex.items()}
        for name, content in {**files, "report.html": self.text.encode()}.items():
            path = output / name
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, lambda file, content=content: file.write_bytes(content))  # type: ignore[misc]
        for pattern in ("figures/*.png", "figures/*.pdf", "tables/*.tex"):
            for old in output.glob(pattern):
                if old.relative_to(output).as_posix() not in files:
                    old.unlink()
        return output / "report.html"


def make_report(paths: Sequence[Path], command: str) -> Report:
    """A report about run folders, folders that contain them, or result files.

    command: the command that writes this report again.
    """
    if not paths:
        raise ValueError("no run is given: expected a run folder, a folder of run folders, or a result file")
    groups, left_out = collect(paths)
    drawn = [pictures(group) for group in groups]
    page = Page()
    names = [page.unique(group.scenario) for group in groups]
    for name, some in zip(names, drawn, strict=True):
        for picture in some:
            picture.name = page.unique(f"{name}-{picture.name}")
    text = _render(page, groups, names, drawn, left_out, command)
    return Report(text, [picture for some in drawn for picture in some], page.latex)


def make_game_report(paths: Sequence[Path], command: str) -> Report:
    """A report about result files of `hashroute rl`."""
    page, found = Page(), [GameResults.read(path) for path in paths]
    parts = [game_section(results, str(path), page) for results, path in zip(found, paths, strict=True)]
    title = " · ".join(dict.fromkeys(results.sequence for results in found))
    body = "\n".join([f"<h1>{escape(title)}</h1></header>", *(text for text, _ in parts)])
    body += f"\n<footer><h3>This page</h3>{command_box(command)}</footer>"
    return Report(_fill(title, body, page), [picture for _, drawn in parts for picture in drawn], page.latex)


def write_report(paths: Sequence[Path], output: Path, command: str) -> Path:
    """Make a report and write it into a folder; returns the page's path."""
    games = [path for path in paths if is_game_results(path)]
    if games and len(games) < len(paths):
        raise ValueError("some of these files are results of games and some are not: make a report of each kind")
    return (make_game_report if games else make_report)(paths, command).write(output)


def _render(
    page: Page,
    groups: Sequence[Group],
    names: Sequence[str],
    drawn: Sequence[Sequence[Picture]],
    left_out: Sequence[str],
    command: str,
) -> str:
    """The text of the page."""
    several = len(groups) > 1
    sections = [
        section(group, name, some, several, page) for group, name, some in zip(groups, names, drawn, strict=True)
    ]
    title = " · ".join(dict.fromkeys(group.name for group in groups))
    head = [f"<h1>{escape(title)}</h1>"]
    head += [] if several else [introduction(groups[0])]
    head.append(f"<nav>{''.join(f'<div>{links}</div>' for links, _ in sections)}</nav></header>")
    head.append(missing_box(left_out))
    body = "\n".join([*head, *(text for _, text in sections)])
    body += f"\n<footer><h3>This page</h3>{command_box(command)}</footer>"
    return _fill(title, body, page)


def _fill(title: str, body: str, page: Page) -> str:
    """The whole text of a page with a body."""
    here = Path(__file__).parent
    return Template((here / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(f"{title}: hashroute report"),
        style=(here / "page.css").read_text(encoding="utf-8"),
        script=(here / "page.js").read_text(encoding="utf-8"),
        values=json.dumps(finite(page.values), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        body=body,
    )
