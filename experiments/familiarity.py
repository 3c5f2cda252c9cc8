"""How well a model tells familiar images from strange ones, and how well its probabilities are calibrated.

Memories of four data sets are made as `hrn` makes them, from 2,000 training images and 500 held-out images of each. All
are asked about test images, and about strange images: noise, constants and patterns. Then each data set is left out in
turn, and the others must find it strange. AUROC is the chance that a strange image scores higher. Every number is the
mean over several draws of images, beside the lowest and the highest. The six numbers that a memory compares were chosen
on other images: training images of the same data sets (`train` gives their figures), and other patterns.
Calibration: a model learns ten tasks of ten CIFAR-100 classes; test images are asked when it knows ten, five and two.

usage: python experiments/familiarity.py FILE [FOLDER]      FOLDER: of the model, if it is to be kept
       python experiments/familiarity.py train              familiarity alone, on training images: nothing is written
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch import Tensor

from hashroute import Model
from hashroute.data import load_dataset
from hashroute.model.calibration import calibration_error
from hashroute.nn.gaussian import GaussianMemories, edges, texture
from hashroute.nn.hashing import FeatureHash

DATASETS = ("svhn", "cifar-100", "mnist", "fashion-mnist")
PATTERNS = 600
DRAWS = 3
CIFAR_TASKS = 10
MEASURED = (10, 5, 2)
"""Numbers of tasks at which probabilities are measured."""
ASKED = 300
"""Test images of each task."""


def chosen(images: Tensor, count: int, seed: int = 0) -> Tensor:
    """Random images, in colour, of 32 x 32 pixels."""
    rows = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:count]
    found = images[rows].expand(-1, 3, -1, -1)
    if found.shape[-1] != 32:
        found = F.interpolate(found.float(), (32, 32), mode="bilinear").round().clamp(0, 255).to(torch.uint8)
    return found


def pattern(seed: int) -> Tensor:
    """A checkerboard, or stripes, of two random colours."""
    generator = torch.Generator().manual_seed(seed)
    kind, period = (int(torch.randint(low, high, (), generator=generator)) for low, high in ((0, 4), (2, 9)))
    down, across = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    line = (across // period + down // period, across // period, down // period, (across + down) // period)[kind] % 2
    one, other = (torch.rand(3, 1, 1, generator=generator) * 255 for _ in range(2))
    return (one * line + other * (1 - line)).to(torch.uint8)


def strange_images(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randint(0, 256, (PATTERNS, 3, 32, 32), generator=generator).to(torch.uint8)
    soft = (torch.randn(PATTERNS, 3, 32, 32, generator=generator) * 30 + 128).clamp(0, 255).to(torch.uint8)
    colours = torch.randint(0, 256, (PATTERNS, 3, 1, 1), generator=generator).to(torch.uint8).expand(-1, -1, 32, 32)
    grey = noise[:, :1].expand(-1, 3, -1, -1)
    patterns = torch.stack([pattern(10_000 * (seed + 1) + each) for each in range(PATTERNS)])
    return {"noise": noise, "grey noise": grey, "soft noise": soft, "constants": colours, "patterns": patterns}


def described(images: Tensor) -> tuple[Tensor, Tensor]:
    """Hash vectors and textures."""
    function = FeatureHash(1000, 255)
    found = [edges(part.float()) for part in images.split(256)]
    return torch.cat([function.normalised(part) for part in found]), torch.cat([texture(part) for part in found])


def excess(memories: GaussianMemories, images: tuple[Tensor, Tensor], asked: list[int]) -> Tensor:
    """How strange images are to the memory that knows them best; above 1 they are unfamiliar."""
    return (memories.strangeness(*images) / memories.limits)[:, asked].amin(1)


def flagged(scores: Tensor) -> float:
    """The share of images that are unfamiliar."""
    return round((scores > 1).double().mean().item(), 4)


def auroc(known: Tensor, strange: Tensor) -> float:
    truth = [0] * len(known) + [1] * len(strange)
    return round(float(roc_auc_score(truth, torch.cat([known, strange]))), 4)


def familiarity(draw: int, train_only: bool) -> dict[str, float]:
    """The figures of one draw of images."""
    memories, tests = GaussianMemories(1000, 24), []
    for name in DATASETS:
        data = load_dataset(name)
        train = chosen(data.train.images, 4500 if train_only else 2500, seed=1 + 100 * draw)
        hashed, textures = described(train[:2500])
        memories.write(hashed[:2000], hashed[2000:], textures[2000:])
        tests.append(described(train[2500:] if train_only else chosen(data.test.images, 2000, seed=draw)))
    everything = list(range(len(DATASETS)))
    known = [excess(memories, each, everything) for each in tests]
    found = {f"false alarms, {name}": flagged(each) for name, each in zip(DATASETS, known, strict=True)}
    found["false alarms, all"] = flagged(torch.cat(known))
    for name, images in strange_images(77 if train_only else 0).items():
        scores = excess(memories, described(images), everything)
        found |= {f"AUROC, {name}": auroc(torch.cat(known), scores), f"marked, {name}": flagged(scores)}
    for out, name in enumerate(DATASETS):
        others = [place for place in everything if place != out]
        inside = torch.cat([excess(memories, tests[place], others) for place in others])
        scores = excess(memories, tests[out], others)
        found |= {f"AUROC, {name} unseen": auroc(inside, scores), f"marked, {name} unseen": flagged(scores)}
    return found


def draws(train_only: bool = False) -> dict[str, list[float]]:
    """For each figure, its mean over the draws, the lowest and the highest."""
    each = [familiarity(draw, train_only) for draw in range(DRAWS)]
    columns = {name: [found[name] for found in each] for name in each[0]}
    return {name: [round(fmean(column), 4), min(column), max(column)] for name, column in columns.items()}


def calibration(folder: Path) -> dict[str, Any]:
    """Errors of probabilities on test images of CIFAR tasks, after a few epochs, by the number of tasks."""
    model, data = Model(folder), load_dataset("cifar-100")
    for task in range(CIFAR_TASKS):
        if f"CIFAR {task}" not in model.records():
            rows = (data.train.labels // 10 == task).nonzero()[:, 0]
            model.learn((data.train.images[rows], data.train.labels[rows]), f"CIFAR {task}", epochs=5)
    found: dict[str, Any] = {}
    for count in MEASURED:
        while len(model.records()) > count:
            model.undo()
        given, free = [], []
        for task in model.records():
            rows = (data.test.labels // 10 == int(task.split()[1])).nonzero()[:ASKED, 0]
            labels = [str(label) for label in data.test.labels[rows].tolist()]
            for answers, group in (
                (model.predict(data.test.images[rows], task), given),
                (model.predict(data.test.images[rows]), free),
            ):
                right = [answer.class_name == label for answer, label in zip(answers, labels, strict=True)]
                group.append((torch.tensor([answer.probability for answer in answers]), torch.tensor(right)))
        found[f"{count} tasks"] = {"task given": measured(given), "no task given": measured(free)}
    return found


def measured(asked: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """asked: for each task, the probabilities of answers, and whether they are right."""
    chances, right = (torch.cat(parts) for parts in zip(*asked, strict=True))
    return {
        "images": len(right),
        "accuracy": round(right.double().mean().item(), 4),
        "calibration error": round(calibration_error(chances, right), 4),
        "mean over tasks": round(fmean(calibration_error(*each) for each in asked), 4),
        "of chance alone": round(
            calibration_error(chances, torch.rand(len(chances), dtype=chances.dtype) < chances), 4
        ),
    }


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if sys.argv[1] == "train":
        print(json.dumps(draws(train_only=True), indent=1))
        return
    found: dict[str, Any] = {"command": f"python {' '.join(sys.argv[:2])}", "familiarity": draws()}
    print(json.dumps(found, indent=1), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        found["calibration"] = calibration(Path(sys.argv[2] if len(sys.argv) > 2 else folder, "model"))
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["calibration"], indent=1))


if __name__ == "__main__":
    main()
