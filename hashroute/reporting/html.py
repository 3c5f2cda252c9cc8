"""Pieces of the page: tables with their buttons, figures as SVG, commands, notes."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET  # reads our own pictures  # nosec B405
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from hashroute.reporting.figures.picture import Picture
from hashroute.reporting.learners import INK
from hashroute.reporting.table import Table, to_html, to_latex

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
COPY = '<button type="button" class="copy">copy</button>'


@dataclass
class Page:
    """What the parts of a page share: names that are taken, values behind figures, and tables for papers."""

    values: dict[str, Any] = field(default_factory=dict)
    """By the id of a part of a figure, what it shows."""
    latex: dict[str, str] = field(default_factory=dict)
    """By name, the LaTeX of every table that papers may want."""
    taken: set[str] = field(default_factory=set)

    def unique(self, name: str) -> str:
        """A name that is safe in files and links and that nothing else has."""
        plain = (re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.") or "runs")[:100]
        while plain in self.taken:
            plain += "-2"
        self.taken.add(plain)
        return plain

    def table(self, table: Table, heading: str = "", name: str = "") -> str:
        """A table that can be sorted and copied; with a name it is also written as LaTeX, with its own title."""
        if not table.rows:
            return ""
        link = ""
        if name:
            name = self.unique(name)
            self.latex[name] = to_latex(table)
            link = f'<a href="tables/{name}.tex">LaTeX</a> '
        head = f"<div><h4>{escape(heading)}</h4><span>{link}{COPY}</span></div>"
        return f'<div class="table">{head}<div class="scroll">{to_html(table)}</div></div>'

    def figures(self, pictures: Sequence[Picture]) -> str:
        """Figures side by side, wide ones alone."""
        found = "".join(map(self._figure, pictures))
        return f'<div class="figures">{found}</div>' if found else ""

    def _figure(self, picture: Picture) -> str:
        prefix = f"{picture.name}-"
        self.values |= {prefix + part: shown for part, shown in picture.values.items()}
        links = ", ".join(f'<a href="figures/{picture.name}.{form}">{form.upper()}</a>' for form in ("png", "pdf"))
        kind = ' class="wide"' if picture.wide else ""
        caption = f"<figcaption>{escape(picture.caption)} {links}</figcaption>"
        svg = inline_svg(picture, prefix)
        return f'<figure{kind}><h4>{escape(picture.title)}</h4><div class="scroll">{svg}</div>{caption}</figure>'


def inline_svg(picture: Picture, prefix: str) -> str:
    """A figure as part of a page: ids of its own, the page's ink, and its parts marked."""
    ET.register_namespace("", SVG)
    ET.register_namespace("xlink", XLINK)
    root = ET.fromstring(picture.save("svg"))  # nosec B314
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{SVG}}}metadata", f"{{{SVG}}}style"):
                parent.remove(child)
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == f"{{{XLINK}}}href" and value.startswith("#"):
                element.set(name, f"#{prefix}{value[1:]}")
            elif name in ("style", "clip-path"):
                element.set(name, value.replace("url(#", f"url(#{prefix}").replace(INK, "currentColor"))
        found = element.get("id")
        if found is not None:
            element.set("id", prefix + found)
            part = picture.values.get(found)
            if part is not None:
                if part["learner"] is not None:
                    element.set("data-learner", part["learner"])
                if "values" in part:
                    element.set("data-part", "")
    root.set("role", "img")
    root.set("aria-label", picture.title)
    return ET.tostring(root, encoding="unicode")


def command_box(text: str) -> str:
    """A command with a button that copies it."""
    return f'<div class="command"><pre>{escape(text)}</pre>{COPY}</div>'


def missing_box(sentences: Sequence[str]) -> str:
    """A list of what is missing; nothing if nothing is."""
    points = "".join(f"<li>{escape(each)}</li>" for each in sentences)
    return f'<div class="missing"><b>What is missing</b><ul>{points}</ul></div>' if points else ""


def finite(value: Any) -> Any:
    """The same value for JSON, with None instead of NaN and infinity."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plural(count: int, noun: str) -> str:
    """`1 task`, `2 tasks`."""
    return f"{count} {noun}" + ("" if count == 1 else "s")
