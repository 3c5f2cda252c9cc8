"""How fast a training step is, as ratios within one run: table on screen, list in benchmarks/results/speed.json.

usage: python benchmarks/speed.py [--quick]      (make bench)
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from hashroute import HashRoutedNetwork, UnitSpec
from hashroute.learners import create_learner
from hashroute.learners.trainer import Trainer
from hashroute.nn.reference import Reference
from hashroute.nn.units import ConvUnit
from hashroute.recipe import recipe_for
from hashroute.tasks import Split, Task
from hashroute.training.workers import keep_memory

RESULTS = Path(__file__).parent / "results" / "speed.json"
CLASSES = 10
BATCHES = 16
Step = Callable[[], None]

PAIRWISE_MNIST: dict[str, Any] = dict(
    image_shape=(1, 28, 28),
    units=(UnitSpec(16, 5, 3, 2, norm_groups=1),) * 2 + (UnitSpec(16, 2, 3, norm_groups=1),) * 2,
    features=300,
    aging_rate=1.2,
)
SVHN_CIFAR: dict[str, Any] = dict(
    image_shape=(3, 32, 32),
    units=(UnitSpec(36, 3, 2, 2, dropout=0.5),) * 2
    + (UnitSpec(36, 3, 1, 2, dropout=0.5),) * 2
    + (UnitSpec(12, 2, 1, 1, dropout=0.5), UnitSpec(24, 4, 2, 1, dropout=0.5)),
    features=2800,
    aging_rate=10.0,
)
PUBLISHED: dict[str, Any] = dict(last_residue=False, channels="chunk-sum")
CIFAR_UNIT = UnitSpec(64, 3, 2, 1, norm_groups=8)
MNIST_UNIT = UnitSpec(16, 3, 2, 1, norm_groups=8)


def step_of(encode: Callable[[Tensor], Tensor], modules: list[nn.Module], images: Tensor, weight: float = 0.0) -> Step:
    """A training step: encode, classify, backward, Adam. images: (batches, batch, ...), taken in turns.

    `encode` returns features, or a routing, of which the residue penalty counts with this weight.
    """
    batches = itertools.cycle(images)
    labels = torch.arange(images.shape[1]) % CLASSES
    optimizer = torch.optim.Adam([w for module in modules for w in module.parameters()], 1e-3, fused=True)
    head = modules[-1]

    def step() -> None:
        out: Any = encode(next(batches))
        loss = F.cross_entropy(head(out if isinstance(out, Tensor) else out.features), labels)
        if weight:
            loss = loss + weight * out.residue_penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def medians(repeats: int, *steps: Step, warm_up: int = 3) -> list[float]:
    """Median seconds of each step, the steps taking turns so that a noisy moment hits all of them."""
    times: list[list[float]] = [[] for _ in steps]
    for turn in range(warm_up + repeats):
        for step, record in zip(steps, times, strict=True):
            start = time.perf_counter()
            step()
            if turn >= warm_up:
                record.append(time.perf_counter() - start)
    return [statistics.median(record) for record in times]


def clustered_images(batch: int, shape: tuple[int, ...]) -> Tensor:
    """Batches of standardised images around ten centres: (batches, batch, *shape)."""
    centres = torch.randn(CLASSES, *shape)
    return (2 * centres[torch.randint(CLASSES, (BATCHES, batch))] + torch.randn(BATCHES, batch, *shape)) / 5**0.5


def like_images(batch: int, shape: tuple[int, ...]) -> Tensor:
    """Batches of images that have most of their energy in common, so that all take one path."""
    return 1.0 + torch.rand(shape) + 0.3 * torch.randn(BATCHES, batch, *shape)


def fill_bases(network: HashRoutedNetwork, images: Tensor) -> None:
    """Full bases that send all these images along units 0, 1, 2, ...; the bases of the other units are random."""
    bases = network.bases
    vectors = torch.randn_like(bases.vectors)
    maps = images[0]
    with torch.no_grad():
        for level in range(network.levels):
            hashed = (network.hashes[level - 1] if level else network.image_hash).normalised(maps)
            vectors[level, 0] = hashed.mean(0)
            maps = network.units[level](maps)
    bases.vectors.copy_(torch.linalg.qr(vectors.mT)[0].mT)
    bases.ranks.fill_(bases.size)


def one_path_network(unit: UnitSpec, images: Tensor, units: int = 4, **settings: Any) -> HashRoutedNetwork:
    network = HashRoutedNetwork(tuple(images.shape[2:]), [unit] * units, max_age=float("inf"), **settings)
    fill_bases(network, images)
    return network


def routed_step(network: HashRoutedNetwork, images: Tensor) -> Step:
    return step_of(network, [network, nn.Linear(network.features, CLASSES)], images)


def plain_step(unit: UnitSpec, images: Tensor) -> Step:
    """The plain chain: the same two convolutions with norm and activation, and a linear head."""
    layers: list[nn.Module] = []
    channels = images.shape[2]
    for _ in range(2):
        layers += [
            nn.Conv2d(channels, unit.out_channels, unit.kernel_size, unit.stride, unit.padding),
            nn.GroupNorm(unit.norm_groups, unit.out_channels),
            nn.LeakyReLU(inplace=True),
        ]
        channels = unit.out_channels
    encoder = nn.Sequential(*layers, nn.Flatten())
    return step_of(encoder, [encoder, nn.Linear(encoder(images[0]).shape[1], CLASSES)], images)


class Report:
    """The rows measured so far."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(
        self, name: str, value: float, aim: float | None, images_per_second: dict[str, float], at_most: bool = False
    ) -> None:
        met = None if aim is None else (value <= aim if at_most else value >= aim)
        speeds = {key: round(speed) for key, speed in images_per_second.items()}
        row = {"name": name, "value": round(value, 3), "aim": aim, "met": met, "images_per_second": speeds}
        self.rows.append(row)
        print(f"  {name}: {value:.3g} (aim {aim})", flush=True)

    def over_reference(
        self, name: str, setting: dict[str, Any], weight: float, batch: int, aim: float, repeats: int
    ) -> None:
        torch.manual_seed(0)
        network = HashRoutedNetwork(**setting, **PUBLISHED)
        images = clustered_images(batch, setting["image_shape"])
        head = nn.Linear(network.features, CLASSES)
        step = step_of(network, [network, head], images, weight)  # type: ignore[arg-type]
        for _ in range(200):  # past the first, frequent basis changes
            step()
        reference = Reference(network)
        for basis, vectors, rank in zip(
            reference.bases, network.bases.vectors, network.bases.ranks.tolist(), strict=True
        ):
            basis.vectors = list(vectors[:rank].clone())
            basis.counters = [0] * rank
            basis.maximum_age = 1e6
        slow = step_of(lambda x: reference(x, by_level=True), [network, head], images, weight)  # type: ignore[arg-type,return-value]
        # For scale: nothing but the one convolution that trains here (what the last unit makes is never used).
        unit = ConvUnit(setting["units"][0], setting["image_shape"][0], "chunk-sum", "plain")
        encoder = nn.Sequential(unit, nn.Flatten())
        plain = step_of(encoder, [encoder, nn.Linear(encoder(images[0]).shape[1], CLASSES)], images)
        fast_seconds, slow_seconds, plain_seconds = medians(repeats, step, slow, plain, warm_up=1)
        speeds = {"network": batch / fast_seconds, "reference": batch / slow_seconds, "plain": batch / plain_seconds}
        self.add(f"over reference, {name}, batch {batch}", slow_seconds / fast_seconds, aim, speeds)
        self.rows[-1]["reason"] = (
            f"one convolution with head and Adam, unrouted, is {slow_seconds / plain_seconds:.0f}x the reference; "
            "the rest is a fixed cost for each of many small operations"
        )

    def over_plain(
        self, name: str, unit: UnitSpec, shape: tuple[int, ...], batch: int, aim: float, repeats: int
    ) -> None:
        torch.manual_seed(0)
        images = like_images(batch, shape)
        network = one_path_network(unit, images)
        network_seconds, plain_seconds = medians(repeats, routed_step(network, images), plain_step(unit, images))
        assert len(network(images[0]).paths.unique(dim=0)) == 1
        speeds = {"network": batch / network_seconds, "plain": batch / plain_seconds}
        self.add(f"over plain chain, {name}, batch {batch}", plain_seconds / network_seconds, aim, speeds)

    def many_units(self, repeats: int) -> None:
        torch.manual_seed(0)
        like = like_images(64, (3, 32, 32))
        few, many = (one_path_network(CIFAR_UNIT, like, units) for units in (8, 256))
        few_seconds, many_seconds = medians(repeats, routed_step(few, like), routed_step(many, like))
        assert all(len(network(like[0]).paths.unique()) == 3 for network in (few, many))
        speeds = {"8 units": 64 / few_seconds, "256 units": 64 / many_seconds}
        name = "time with 256 units over 8, 3 visited, batch 64"
        self.add(name, many_seconds / few_seconds, 1.5, speeds, at_most=True)

        spread = one_path_network(CIFAR_UNIT, like, 256)
        images = torch.randn(1, 64, 3, 32, 32).expand(BATCHES, -1, -1, -1, -1)
        hashed = spread.image_hash.normalised(images[0])
        # Near these, but not on them: a sample without a residue would stop at once.
        spread.bases.vectors[:48, 0] = hashed[:48] + 0.5 * torch.randn_like(hashed[:48]) / spread.features**0.5
        spread.bases.vectors.copy_(torch.linalg.qr(spread.bases.vectors.mT)[0].mT)
        spread_seconds, many_seconds = medians(repeats, routed_step(spread, images), routed_step(many, like))
        visited = len(spread(images[0]).paths.unique())
        assert visited >= 32
        speeds = {"spread": 64 / spread_seconds, "one path": 64 / many_seconds}
        self.add(
            f"time with 256 units, {visited} visited over 3, batch 64", spread_seconds / many_seconds, None, speeds
        )

    def growth(self, repeats: int) -> None:
        torch.manual_seed(0)
        for name, setting, base, larger in (
            ("m", "basis_size", 4, (16, 64)),
            ("s", "features", 1000, (4000, 16000)),
            ("d", "depth", 3, (5, 9)),
        ):
            # A path of depth d has d - 1 convolutions; to make them alike, the image has as many channels as the maps.
            unit = UnitSpec(16, 3, 1, 1, norm_groups=8) if name == "d" else CIFAR_UNIT
            images = like_images(64, (16, 16, 16) if name == "d" else (3, 32, 32))
            values = (base, *larger)
            steps = [routed_step(one_path_network(unit, images, 10, **{setting: value}), images) for value in values]
            seconds = medians(repeats, *steps)
            for value, time_taken in zip(values[1:], seconds[1:], strict=True):
                speeds = {f"{name}={base}": 64 / seconds[0], f"{name}={value}": 64 / time_taken}
                row = f"step time, {name} = {value} over {name} = {base}"
                linear = (value - 1) / (base - 1) if name == "d" else value / base
                self.add(row, time_taken / seconds[0], linear, speeds, at_most=True)

    def learners(
        self,
        name: str,
        shape: tuple[int, int, int],
        epochs: int,
        kinds: Sequence[int],
        images: int,
        classes: int = CLASSES,
    ) -> None:
        """The whole training of `hrn` over that of `vc`, epoch by epoch in turns: decisions and memories included.

        kinds: for each task, the side of the squares of noise in its images. If data is of the kind of an earlier task
        but not of the last one, two heads are tried.
        """
        keep_memory()  # as in the workers of bench
        torch.manual_seed(0)
        settings = replace(recipe_for(shape, classes), epochs=(epochs,))
        hrn, vc = (Trainer(create_learner(name, shape, settings)) for name in ("hrn", "vc"))
        seconds = {"hrn": 0.0, "vc": 0.0}

        def timed(trainer: Trainer, work: Callable[..., Any], *tasks: Task) -> None:
            start = time.process_time()
            work(*tasks)
            seconds[trainer.learner.name] += time.process_time() - start

        for number, side in enumerate(kinds):
            parts = [
                Split(noise(count, shape, side), torch.arange(count) % classes)
                for count in (images, images // 9, images // 9)
            ]
            names = tuple(f"{number} {label}" for label in range(classes))
            task = Task(f"task {number}", *parts, names, frozenset({"flip", "shift"}))
            for trainer in (hrn, vc):
                timed(trainer, trainer.begin, task)
            for epoch in range(epochs):
                for trainer in (hrn, vc) if epoch % 2 else (vc, hrn):
                    timed(trainer, trainer.run_epoch)
            for trainer in (hrn, vc):
                timed(trainer, trainer.finish)
        speeds = {name: len(kinds) * epochs * images / each for name, each in seconds.items()}
        self.add(f"speed of the learner hrn over vc, {name}", seconds["vc"] / seconds["hrn"], 0.8, speeds)

    def memory(self) -> None:
        peaks = {}
        for which in ("network", "plain"):
            command = [sys.executable, __file__, "--memory", which]
            peaks[which] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        name = "peak memory over plain chain, CIFAR size, batch 256"
        self.add(name, peaks["network"] / peaks["plain"], 2.0, {}, at_most=True)
        self.rows[-1]["mebibytes"] = {which: round(peak) for which, peak in peaks.items()}

    def show(self) -> None:
        table = Table("measured", "value", "aim", "met", "images per second")
        for row in self.rows:
            speeds = ", ".join(f"{key} {speed:,}" for key, speed in row["images_per_second"].items())
            met = {True: "yes", False: "no", None: ""}[row["met"]]
            aim = "" if row["aim"] is None else f"{row['aim']:g}"
            table.add_row(row["name"], f"{row['value']:.2f}", aim, met, speeds)
            if row["met"] is False and "reason" in row:
                table.add_row(f"  {row['reason']}", style="dim")
        Console(width=None if sys.stdout.isatty() else 150).print(table)


def noise(count: int, shape: tuple[int, int, int], side: int) -> torch.Tensor:
    """Images of random squares of this side."""
    channels, height, width = shape
    small = torch.randint(256, (count, channels, -(-height // side), -(-width // side)), dtype=torch.uint8)
    return small.repeat_interleave(side, 2).repeat_interleave(side, 3)[:, :, :height, :width].contiguous()


def print_peak(which: str) -> None:
    """Peak memory of twenty steps above what the imports and the images take, in MiB."""
    images = like_images(256, (3, 32, 32))
    with open("/proc/self/statm") as numbers:
        before = int(numbers.read().split()[1]) * resource.getpagesize() / 1024
    if which == "network":
        step = routed_step(one_path_network(CIFAR_UNIT, images), images)
    else:
        step = plain_step(CIFAR_UNIT, images)
    for _ in range(20):
        step()
    # Not ru_maxrss: a child inherits its parent's.
    with open("/proc/self/status") as lines:
        peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    print((peak - before) / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few repeats, nothing written")
    parser.add_argument("--memory", choices=["network", "plain"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.memory:
        print_peak(arguments.memory)
        return
    few, many = (2, 5) if arguments.quick else (7, 40)
    report = Report()
    for batch, aim in ((16, 15), (128, 60)):
        report.over_reference("published pairwise-MNIST", PAIRWISE_MNIST, 1.0, batch, aim, few)
    for batch, aim in ((16, 20), (64, 60)):
        report.over_reference("published SVHN/CIFAR", SVHN_CIFAR, 0.5, batch, aim, few)
    for batch, share in ((64, 0.5), (256, 0.7)):
        report.over_plain("CIFAR size", CIFAR_UNIT, (3, 32, 32), batch, share, many)
    report.over_plain("MNIST size", MNIST_UNIT, (1, 28, 28), 128, 0.4, many)
    report.many_units(many)
    report.growth(many // 2)
    report.memory()
    images = 200 if arguments.quick else 1800
    report.learners("32 x 32, ten epochs a task", (3, 32, 32), 10, [1, 1, 1], images)
    report.learners("32 x 32, ten epochs, two kinds of data in turns", (3, 32, 32), 10, [1, 2, 1, 2], images)
    report.learners("28 x 28, five epochs a task", (1, 28, 28), 5, [1, 1, 1], 3 * images)
    report.learners("28 x 28, five epochs, pairs of classes", (1, 28, 28), 5, [1, 1, 1], 3 * images, classes=2)
    report.show()
    if not arguments.quick:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(report.rows, indent=1) + "\n")
        print(f"written to {os.path.relpath(RESULTS)}; torch {torch.__version__}, {platform.machine()}, 1 thread")


if __name__ == "__main__":
    main()
