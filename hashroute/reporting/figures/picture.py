"""A figure, what it shows, and the look that all figures share. Needs matplotlib: pip install 'hashroute[plots]'.

Every figure is drawn once and saved as PNG and PDF for papers and as SVG for a page. Parts of a figure that belong to
a learner, or that show a value, have names, so that the page can hide them and tell the value.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from hashroute.reporting.learners import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.5, 7.2
"""Inches: the width of a paper's column, and of its page."""

SETTINGS: Any = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    "grid.color": INK,
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "text.parse_math": False,  # a name may have dollars in it
    "svg.fonttype": "none",
    "svg.hashsalt": "hashroute",
    "pdf.fonttype": 42,
}

Section = Literal["top", "accuracy", "units", "paths"]


@dataclass
class Picture:
    """A figure with its title and caption, and the values that its parts show."""

    section: Section
    """Where the page shows it."""
    name: str
    """The name of its files."""
    title: str
    caption: str
    figure: Figure
    wide: bool = False
    """Whether it needs the whole width of a page."""
    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By the name of a part (its id in the SVG): the learner, and the labels and values of its points or cells."""

    def name_part(self, artist: Any, learner: str | None = None, **shown: Any) -> None:
        """Name a part of the figure and record what it shows."""
        name = f"part{len(self.values)}"
        artist.set_gid(name)
        self.values[name] = {"learner": learner, **shown}

    def save(self, form: str) -> bytes:
        """The figure as png, pdf or svg."""
        metadata = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[form]
        content = io.BytesIO()
        with plot_settings():
            background = "none" if form == "svg" else "white"
            self.figure.savefig(content, format=form, dpi=200, facecolor=background, metadata=metadata)
        return content.getvalue()

    def settle(self) -> Picture:
        """Lay the figure out now, instead of once for each format."""
        engine = self.figure.get_layout_engine()
        if engine is not None:
            engine.execute(self.figure)
        self.figure.set_layout_engine(None)
        return self


@contextmanager
def plot_settings() -> Iterator[None]:
    """Our settings of matplotlib; characters that the font lacks cause no warning."""
    try:
        import matplotlib
    except ImportError:
        raise ValueError("figures need matplotlib: pip install 'hashroute[plots]'") from None
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def new_figure(width: float, height: float, layout: Any = "constrained") -> Figure:
    """An empty figure, in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def shorten(name: str, length: int = 18) -> str:
    """A name without its middle if it is too long: its end often tells it from others."""
    tail = length // 3
    return name if len(name) <= length else f"{name[: length - tail - 1]}…{name[-tail:]}"


def spaced(count: int, most: int = 11) -> range:
    """Evenly spaced places, no more than can be labelled."""
    return range(0, count, math.ceil(count / most))


def name_ticks(axis: Any, names: Sequence[str], turn: bool = False) -> None:
    """Label an axis with names, as many as fit; turned if they are long."""
    places = spaced(len(names))
    labels = [shorten(names[place]) for place in places]
    turned = turn and sum(map(len, labels)) > 34
    look = dict(rotation=40, ha="right", rotation_mode="anchor") if turned else {}
    axis.set_ticks(places, labels, **look)


def add_legend(picture: Picture, axes: Axes, place: Any = "outside lower center", columns: int = 3) -> None:
    """A legend outside of the axes, whose entries belong to their learners."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        legend = picture.figure.legend(handles, labels, loc=place, ncols=columns, handlelength=2.6)
        for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
            picture.name_part(handle, text.get_text())
            picture.name_part(text, text.get_text())


def add_colour_bar(picture: Picture, image: Any, axes: Any, label: str) -> None:
    """The scale of a heat map."""
    bar: Any = picture.figure.colorbar(image, ax=axes, fraction=0.03, pad=0.02, label=label)
    bar.solids.set_rasterized(True)
    bar.outline.set_visible(False)
