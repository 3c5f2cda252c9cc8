"""What `mkdocs build` does beside: formulas become MathML, and files outside of docs become part of the site."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\(((?:\.\./)+(?![./])[^)#\s]+)\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def _outside(source: str, target: str) -> Path | None:
    """The file that a page links to, from the root of the repository, if it is not one of docs."""
    path = (ROOT / "docs" / source).parent.joinpath(target).resolve()
    return None if path.is_relative_to(ROOT / "docs") or not path.is_file() else path.relative_to(ROOT)


def on_files(files: Files, config: Any) -> Files:
    """Add every file outside of docs that a page links to."""
    for page in files.documentation_pages():
        for target in LINK.findall(page.content_string):
            path = _outside(page.src_uri, target)
            if path is not None and files.get_file_from_path(f"files/{path}") is None:
                files.append(File.generated(config, f"files/{path}", content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links to these files at their place in the site."""
    up = "../" * page.file.src_uri.count("/")

    def replace(link: re.Match[str]) -> str:
        path = _outside(page.file.src_uri, link[1])
        return link[0] if path is None else f"]({up}files/{path})"

    return LINK.sub(replace, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Convert formulas: browsers show MathML without any script."""

    def replace(formula: re.Match[str]) -> str:
        return convert(html.unescape(formula[2]), display="block" if formula[1] == "div" else "inline")

    return FORMULA.sub(replace, content)
