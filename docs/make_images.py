"""Draw the pictures of README and docs: the demo's output, its report, and a digit's path through the network.

usage: python docs/make_images.py      (make images; the report's picture needs chromium)
"""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.patches import ConnectionPatch
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.terminal_theme import MONOKAI

from hashroute import HashRoutedNetwork, load_scenario, run
from hashroute.cli.demo import DemoSettings, show, train
from hashroute.reporting.page import write_report
from hashroute.training.run import learner_options

IMAGES = Path(__file__).parent / "images"
WIDTH = 100
SHOWN = (3, 0)
"""The digit that the second picture follows: a task, and a test image of it."""
BLUE, GREY, LIGHT = "#0072B2", "#9a9a9a", "#dddddd"


def draw_demo() -> None:
    """Its output, and the top of its report."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    with TemporaryDirectory() as name:
        folder = Path(name) / "demo-seed0"
        comparison = train(DemoSettings(), "hashroute demo", folder, Console(quiet=True))
        page = write_report([folder], folder, "hashroute report")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            view = browser.new_page(viewport={"width": 1100, "height": 1250})
            view.goto(page.as_uri())
            view.screenshot(path=IMAGES / "report.png")
            browser.close()
    console.print("[bold]$ hashroute demo[/bold]", highlight=False)
    show(comparison, console)
    console.print("saved in runs/demo-seed0", highlight=False)
    console.print("report in runs/demo-seed0/report.html", highlight=False)
    console.save_svg(str(IMAGES / "demo.svg"), title="hashroute demo", theme=MONOKAI)


def draw_way() -> None:
    """The image, and at every level the projections on all units, the selected unit and its maps.

    The network is that of hrn-paper with the residue of its third level, as in the paper's equation.
    """
    scenario = load_scenario("digits")
    options = learner_options("hrn-paper", "digits", "default", scenario.image_shape)
    learner: Any = run(scenario, "hrn-paper", options={**options, "last_residue": True})[1]
    network: HashRoutedNetwork = learner.encoder
    task, row = SHOWN
    image = learner.normalise(scenario.tasks[task].test.images[row : row + 1], learner.tasks[task])
    routing = network(image)
    path = routing.paths[0].tolist()
    hashed, maps, used = network.image_hash.normalised(image), image, []

    figure, axes = plt.subplots(2, 4, figsize=(10, 4.6), height_ratios=(1, 1.1), layout="constrained")
    show_map(axes[0, 0], maps[0, 0], "image")
    for level, unit in enumerate(path):
        projections = torch.linalg.vector_norm(network.bases.vectors @ hashed[0], dim=1)
        colours = [BLUE if k == unit else LIGHT if k in used else GREY for k in range(len(projections))]
        bars = axes[1, level].bar(range(len(projections)), projections, color=colours)
        for k in used:
            bars[k].set_hatch("//")
        residue = float(routing.residue_l2[0, level])
        axes[1, level].set(
            title=f"its hash: unit {unit} fits best,\nresidue {residue:.2f}",
            xticks=range(len(projections)),
            xlabel="unit",
            ylim=(0, 1),
        )
        if level == 0:
            axes[1, 0].set_ylabel("projection of the hash")
        used.append(unit)
        if level < len(path) - 1:
            maps = network.units[unit](maps).detach()
            hashed = network.hashes[unit].normalised(maps)
            show_map(axes[0, level + 1], mosaic(maps[0]), f"after unit {unit}")
    features = routing.features[0].detach()
    axes[1, 3].plot(features, color=BLUE, linewidth=0.6)
    axes[1, 3].set(title="features: the sum\nof the three residues", xlabel="feature")
    axes[0, 3].axis("off")
    for level in range(2):
        arrow(axes[0, level], axes[0, level + 1])
    arrow(axes[1, 2], axes[1, 3])
    for axis in axes.flat:
        axis.spines[["top", "right"] if axis in axes[1] else ["top", "right", "bottom", "left"]].set_visible(False)
        axis.title.set_fontsize(9)
        axis.tick_params(labelsize=8)
    figure.savefig(IMAGES / "way.png", dpi=150)


def mosaic(maps: torch.Tensor) -> torch.Tensor:
    """All channels as tiles of one picture, four in a row."""
    channels, height, width = maps.shape
    padded = torch.nn.functional.pad(maps, (0, 1, 0, 1), value=float("nan"))
    return padded.view(channels // 4, 4, height + 1, width + 1).permute(0, 2, 1, 3).reshape(-1, 4 * (width + 1))


def show_map(axis: Axes, pixels: torch.Tensor, title: str) -> None:
    axis.imshow(pixels, cmap="viridis")
    axis.set(title=title, xticks=[], yticks=[])


def arrow(start: Axes, end: Axes) -> None:
    """From the right edge of one picture to the left edge of the next."""
    ends = {"coordsA": "axes fraction", "coordsB": "axes fraction", "axesA": start, "axesB": end}
    style = {"arrowstyle": "-|>", "mutation_scale": 16, "color": GREY, "linewidth": 1.5}
    start.figure.add_artist(ConnectionPatch((1.03, 0.5), (-0.16, 0.5), **ends, **style))


if __name__ == "__main__":
    torch.set_num_threads(1)
    IMAGES.mkdir(exist_ok=True)
    draw_demo()
    draw_way()
