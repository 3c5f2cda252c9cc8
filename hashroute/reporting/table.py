"""Tables: numbers with their spread and source, rendered for a terminal, Markdown, HTML and LaTeX.

A table holds numbers, not text. Only a renderer rounds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import rich.table


@dataclass(frozen=True)
class Number:
    """A number and how it came about."""

    value: float
    spread: float | None = None
    """Standard deviation over seeds, or a standard error where the column says so. None for a single value."""
    count: int = 1
    """Seeds behind the number."""
    source: str = ""
    """The file or folder that it comes from."""
    unit: str = ""
    change: bool = False
    """A difference is shown with its sign."""

    @classmethod
    def over_seeds(cls, values: Sequence[float], source: str = "") -> Number:
        """The mean of one value per seed, and with several finite values their standard deviation."""
        spread = stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None
        return cls(fmean(values), spread, len(values), source)


Cell = str | Number | tuple[Number | None, ...] | None
"""Text, a number, or several that belong together, such as the accuracy right after learning and at the end. Of
several, a number that does not exist is None at the front, and one that is still to come is None at the back."""


@dataclass(frozen=True)
class Column:
    """A column: its header, what it means, and how its numbers are shown."""

    name: str
    meaning: str = ""
    """One sentence, the tooltip of the header."""
    best: Literal["highest", "lowest"] | None = None
    """Which numbers are best; None if the column has no best."""
    digits: int | None = 1
    """After the decimal point; None for as many as the number has."""
    words: bool = False
    """The column holds text."""
    separator: str = " / "
    """Between numbers of one cell."""
    spread: bool = True
    """Whether the spread is shown."""


@dataclass(frozen=True)
class Row:
    """Cells, one per column, and the learner that they are about."""

    cells: tuple[Cell, ...]
    learner: str | None = None
    published: bool = False
    """The numbers are the paper's."""
    bound: bool = False
    """The numbers are an upper bound, such as those of a learner of all tasks at once."""

    @property
    def ranked(self) -> bool:
        """Whether its numbers can be the best of a column."""
        return not self.published and not self.bound


@dataclass
class Table:
    """A title, columns and rows."""

    title: str
    columns: list[Column]
    rows: list[Row]

    def pick(self, *names: str) -> Table:
        """The same table with these columns only, in this order."""
        places = [[column.name for column in self.columns].index(name) for name in names]
        rows = [replace(row, cells=tuple(row.cells[place] for place in places)) for row in self.rows]
        return Table(self.title, [self.columns[place] for place in places], rows)

    def column(self, name: str) -> list[Cell]:
        """The cells of a column."""
        return [row.cells[0] for row in self.pick(name).rows]


# ---------------------------------------------------------------------- from numbers to text

Mark = Callable[[str], str]


def numbers_of(cell: Cell) -> tuple[Number | None, ...]:
    """The numbers in a cell."""
    if isinstance(cell, Number):
        return (cell,)
    return cell if isinstance(cell, tuple) else ()


def sort_value(cell: Cell) -> float | None:
    """What a cell is sorted by: its last number."""
    values = [number.value for number in numbers_of(cell) if number is not None]
    return values[-1] if values and math.isfinite(values[-1]) else None


def number_text(number: Number, column: Column) -> str:
    """A number as its column shows it."""
    form = "g" if column.digits is None else f".{column.digits}f"
    text = format(number.value, f"{'+' if number.change else ''},{form}")
    if column.spread and number.spread is not None:
        text += f" ± {number.spread:,{form}}"
    return text + (f" {number.unit}" if number.unit else "")


def _plain(text: str) -> str:
    return text


def _texts(table: Table, escaped: Mark = _plain, bold: Mark = _plain) -> list[list[str]]:
    """The text of every cell; bold marks the best numbers of a column among ranked rows."""
    lines: list[list[str]] = [[] for _ in table.rows]
    for place, column in enumerate(table.columns):
        best = _best(table, place)
        for line, row in zip(lines, table.rows, strict=True):
            cell = row.cells[place]
            if cell is None or isinstance(cell, str):
                line.append(escaped(cell or ""))
                continue
            numbers = numbers_of(cell)
            parts = []
            for part, number in enumerate(numbers, len(best) - len(numbers)):
                if number is not None:
                    text = escaped(number_text(number, column))
                    marked = row.ranked and best[part] is not None and _shown(number, column) == best[part]
                    parts.append(bold(text) if marked else text)
                elif parts:
                    parts.append(escaped("…"))
            line.append(escaped(column.separator).join(parts))
    return lines


def _best(table: Table, place: int) -> list[float | None]:
    """The best value, as shown, of every part of a column's cells; None where nothing can be best."""
    column = table.columns[place]
    parts = max((len(numbers_of(row.cells[place])) for row in table.rows), default=0)
    best: list[float | None] = [None] * parts
    ours = [numbers_of(row.cells[place]) for row in table.rows if row.ranked]
    if column.best is None or len(ours) < 2:
        return best
    for part in range(1, parts + 1):
        some = [numbers[-part] for numbers in ours if len(numbers) >= part]
        values = [_shown(number, column) for number in some if number is not None and math.isfinite(number.value)]
        if values:
            best[-part] = max(values) if column.best == "highest" else min(values)
    return best


def _shown(number: Number, column: Column) -> float:
    """The value to the precision that is shown: what looks equal is equally good."""
    return number.value if column.digits is None else round(number.value, column.digits)


# ---------------------------------------------------------------------- renderers


def to_terminal(table: Table) -> rich.table.Table:
    """For a terminal, by rich; the best in bold, published rows dim."""
    import rich.table
    from rich.markup import escape as escape_markup

    title = escape_markup(table.title) if table.title else None
    shown = rich.table.Table(title=title, title_justify="left", header_style="")
    for column in table.columns:
        justify: Any = "left" if column.words else "right"
        shown.add_column(escape_markup(column.name), justify=justify, no_wrap=not column.words)
    for row, texts in zip(table.rows, _texts(table, escape_markup, lambda text: f"[bold]{text}[/bold]"), strict=True):
        shown.add_row(*texts, style="dim" if row.published else "")
    return shown


def to_markdown(table: Table) -> str:
    """For Markdown: numbers to the right, published rows in italics; the title is left to the page."""

    def escaped(text: str) -> str:
        return text.replace("|", "\\|")

    lines = [[escaped(column.name) for column in table.columns]]
    lines.append(["---" if column.words else "---:" for column in table.columns])
    for row, texts in zip(table.rows, _texts(table, escaped), strict=True):
        lines.append([f"*{text}*" if row.published and text else text for text in texts])
    rule = "|" + "|".join(lines.pop(1)) + "|"
    head, *body = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([head, rule, *body]) + "\n"


def to_html(table: Table) -> str:
    """A table element: headers are buttons with tooltips, cells carry the number to sort by and where it comes from."""
    head = ""
    for column in table.columns:
        words = ' class="words"' if column.words else ""
        tip = f' data-tip="{escape(column.meaning)}"' if column.meaning else ""
        head += f'<th scope="col"{words}><button type="button"{tip}>{escape(column.name)}</button></th>'
    body = ""
    for row, texts in zip(table.rows, _texts(table, escape, lambda text: f"<b>{text}</b>"), strict=True):
        kind = ' class="published"' if row.published else ""
        kind += "" if row.learner is None else f' data-learner="{escape(row.learner)}"'
        cells = ""
        for column, cell, text in zip(table.columns, row.cells, texts, strict=True):
            value = sort_value(cell)
            marks = ' class="words"' if column.words else ""
            marks += "" if value is None else f' data-number="{value:.10g}"'
            tip = _origin(cell)
            marks += f' data-tip="{escape(tip)}"' if tip else ""
            cells += f"<td{marks}>{text}</td>"
        body += f"<tr{kind}>{cells}</tr>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _origin(cell: Cell) -> str:
    """How many seeds are behind a cell's numbers, and where they come from."""
    number = next((number for number in reversed(numbers_of(cell)) if number is not None), None)
    if number is None or not number.source:
        return ""
    return (f"{number.count} seeds, " if number.count > 1 else "") + f"from {number.source}"


LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{sign: f"{{{sign}}}" for sign in "[]"},  # \\ takes what follows in brackets for a distance
    **dict.fromkeys("\n\r\t", " "),
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    "±": "$\\pm$",
    "…": "\\dots{}",
}
"""Characters that LaTeX would not print as they are."""


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    if text[:1] == "-" and text[1:2].isdigit():  # a number: a minus, not a hyphen
        return "$-$" + escape_latex(text[1:])
    return "".join(LATEX.get(character, character) for character in text).replace("--", "-{}-")


def to_latex(table: Table) -> str:
    """A table environment with the rules of booktabs: best numbers in bold, published rows in italics."""
    lines = ["% needs \\usepackage{booktabs}", "\\begin{table}", "\\centering"]
    lines += [f"\\caption{{{escape_latex(table.title)}}}"] if table.title else []
    lines.append(f"\\begin{{tabular}}{{{''.join('l' if column.words else 'r' for column in table.columns)}}}")
    lines += ["\\toprule", " & ".join(escape_latex(column.name) for column in table.columns) + " \\\\", "\\midrule"]
    for row, texts in zip(table.rows, _texts(table, escape_latex, lambda text: f"\\textbf{{{text}}}"), strict=True):
        cells = [f"\\textit{{{text}}}" if row.published and text else text for text in texts]
        lines.append(" & ".join(cells) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}"]) + "\n"
