"""A table keeps numbers; only a renderer rounds them."""

from __future__ import annotations

import io
import re
from math import inf, nan

from rich.console import Console

from hashroute.reporting.table import (
    Column,
    Number,
    Row,
    Table,
    escape_latex,
    to_html,
    to_latex,
    to_markdown,
    to_terminal,
)

NAME = "50 % & <b>_|[x]"
TABLE = Table(
    "accuracy & cost",
    [
        Column("learner", words=True),
        Column("final", "Mean over tasks.", "highest"),
        Column("forgetting", best="lowest", digits=2),
        Column("task", best="highest", spread=False),
    ],
    [
        Row(("hrn", Number.over_seeds([80.0, 81.0], "a.json"), Number(0.004), (Number(99.0), Number(97.96))), "hrn"),
        Row((NAME, Number(80.52), Number(-0.5, change=True), (Number(98.0, 3.0), Number(98.04))), NAME),
        Row(("vc", Number(12345.678), None, (None, Number(5.0))), "vc"),
        Row(("vc, paper", Number(99999.0), Number(-9.0), (Number(100.0), None)), "vc", published=True),
    ],
)


def test_a_spread_needs_several_finite_values() -> None:
    assert Number.over_seeds([98.76]) == Number(98.76)
    assert Number.over_seeds([1.0, 3.0]) == Number(2.0, 2**0.5, 2)
    assert Number.over_seeds([1.0, inf]).spread is None
    assert Number.over_seeds([nan, 1.0]).spread is None


def test_markdown_shows_all_numbers_rounded_and_published_rows_in_italics() -> None:
    assert to_markdown(TABLE).splitlines() == [
        "| learner | final | forgetting | task |",
        "|---|---:|---:|---:|",
        "| hrn | 80.5 ± 0.7 | 0.00 | 99.0 / 98.0 |",
        r"| 50 % & <b>_\|[x] | 80.5 | -0.50 | 98.0 / 98.0 |",
        "| vc | 12,345.7 |  | 5.0 |",
        "| *vc, paper* | *99,999.0* | *-9.00* | *100.0 / …* |",
    ]


def test_html_marks_the_best_of_each_column_and_carries_the_exact_number() -> None:
    page = to_html(TABLE)
    assert re.findall(r"<b>([^<]*)</b>", page) == ["99.0", "98.0", "-0.50", "98.0", "12,345.7"], "equal if shown equal"
    assert 'data-number="12345.678"' in page
    assert 'data-number="97.96"' in page, "sorted by the last number"
    assert 'data-tip="2 seeds, from a.json"' in page
    assert 'data-tip="Mean over tasks."' in page
    assert '<td class="words">50 % &amp; &lt;b&gt;_|[x]</td>' in page
    assert "<b>" not in page[page.index('class="published"') :], "the paper is never the best of ours"


def test_an_upper_bound_is_not_the_best() -> None:
    rows = [Row((Number(value),), bound=bound) for value, bound in ((1.0, False), (3.0, True), (2.0, False))]
    assert re.findall(r"<b>(.*?)</b>", to_html(Table("", [Column("x", best="highest")], rows))) == ["2.0"]


def test_a_single_row_is_not_called_the_best() -> None:
    assert "<b>" not in to_html(Table("", TABLE.columns, TABLE.rows[:1]))


def test_latex_has_the_columns_the_rules_and_nothing_unescaped() -> None:
    text = to_latex(TABLE)
    lines = text.splitlines()
    assert r"\begin{tabular}{lrrr}" in lines
    assert [line for line in lines if line.endswith("rule")] == [r"\toprule", r"\midrule", r"\bottomrule"]
    rows = [line for line in lines if line.endswith(r" \\")]
    assert len(rows) == 1 + len(TABLE.rows)
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {3}
    assert r"50 \% \& \textless{}b\textgreater{}\_\textbar{}{[}x{]} & 80.5 & \textbf{$-$0.50}" in text
    assert r"hrn & 80.5 $\pm$ 0.7 & 0.00 & \textbf{99.0} / \textbf{98.0} \\" in lines
    assert r"\textit{vc, paper} & \textit{99,999.0} & \textit{$-$9.00} & \textit{100.0 / \dots{}} \\" in lines
    assert text.count("{") == text.count("}")
    opened, closed = (re.findall(rf"\\{word}{{(\w+)}}", text) for word in ("begin", "end"))
    assert sorted(opened) == sorted(closed) == ["table", "tabular"]


def test_latex_prints_every_special_character() -> None:
    assert escape_latex("a\\b~c^d#e$f{g}\nh") == (
        r"a\textbackslash{}b\textasciitilde{}c\textasciicircum{}d\#e\$f\{g\} h"
    )
    assert escape_latex("++ --") == "++ -{}-", "two hyphens are no dash"


def test_a_terminal_shows_names_as_they_are() -> None:
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(to_terminal(TABLE))
    text = console.export_text()
    assert NAME in text
    assert "80.5 ± 0.7" in text
    assert "98.0 / 98.0" in text


def test_columns_are_picked_by_name_and_in_order() -> None:
    picked = TABLE.pick("task", "learner")
    assert [column.name for column in picked.columns] == ["task", "learner"]
    assert picked.rows[2] == Row(((None, Number(5.0)), "vc"), "vc")
    assert TABLE.column("learner")[0] == "hrn"


def test_numbers_without_fixed_digits_are_shown_in_full() -> None:
    table = Table("", [Column("paths", digits=None)], [Row((Number(8.5),)), Row((Number(10),))])
    assert to_markdown(table).splitlines()[2:] == ["| 8.5 |", "| 10 |"]
