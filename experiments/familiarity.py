"""How well a model tells familiar images from strange ones, and how well its probabilities are calibrated.

Memories of four data sets are made as `hrn` makes them, from 2,000 training images and 500 held-out images of each. All
are asked about test images, and about strange images: noise, constants and patterns. Then each data set is left out in
turn, and the others must find it strange. AUROC is the chance that a strange image scores higher. The four numbers that
a memory compares were chosen on other images: training images of the same data sets, and other patterns.
Calibration: a model learns tasks of ten CIFAR-100 classes; test images of each task are asked.

usage: python experiments/familiarity.py FILE
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
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
CIFAR_TASKS = 2


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


def strange_images() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (PATTERNS, 3, 32, 32), generator=generator).to(torch.uint8)
    soft = (torch.randn(PATTERNS, 3, 32, 32, generator=generator) * 30 + 128).clamp(0, 255).to(torch.uint8)
    colours = torch.randint(0, 256, (PATTERNS, 3, 1, 1), generator=generator).to(torch.uint8).expand(-1, -1, 32, 32)
    grey = noise[:, :1].expand(-1, 3, -1, -1)
    patterns = torch.stack([pattern(10_000 + seed) for seed in range(PATTERNS)])
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


def familiarity() -> dict[str, Any]:
    memories, tests = GaussianMemories(1000, 24), []
    for name in DATASETS:
        data = load_dataset(name)
        train = chosen(data.train.images, 2500, seed=1)
        hashed, textures = described(train)
        memories.write(hashed[:2000], hashed[2000:], textures[2000:])
        tests.append(described(chosen(data.test.images, 2000)))
    everything = list(range(len(DATASETS)))
    known = [excess(memories, each, everything) for each in tests]
    found: dict[str, Any] = {
        "false alarms": {
            name: round((each > 1).double().mean().item(), 4) for name, each in zip(DATASETS, known, strict=True)
        },
        "false alarms, all": round((torch.cat(known) > 1).double().mean().item(), 4),
        "strange": {},
        "unseen": {},
    }
    for name, images in strange_images().items():
        scores = excess(memories, described(images), everything)
        found["strange"][name] = {"AUROC": auroc(torch.cat(known), scores), "flagged": flagged(scores)}
    for out, name in enumerate(DATASETS):
        others = [place for place in everything if place != out]
        inside = torch.cat([excess(memories, tests[place], others) for place in others])
        scores = excess(memories, tests[out], others)
        found["unseen"][name] = {"AUROC": auroc(inside, scores), "flagged": flagged(scores)}
    return found


def calibration(folder: Path) -> dict[str, Any]:
    """Errors of probabilities on test images of CIFAR tasks, after a few epochs."""
    model, data = Model(folder / "model"), load_dataset("cifar-100")
    for task in range(CIFAR_TASKS):
        rows = (data.train.labels // 10 == task).nonzero()[:, 0]
        model.learn((data.train.images[rows], data.train.labels[rows]), f"CIFAR {task}", epochs=5)
    found: dict[str, Any] = {}
    everything = []
    for task in range(CIFAR_TASKS):
        rows = (data.test.labels // 10 == task).nonzero()[:, 0]
        images, labels = data.test.images[rows], [str(label) for label in data.test.labels[rows].tolist()]
        for name, answers in ((f"CIFAR {task}", model.predict(images, f"CIFAR {task}")), ("", model.predict(images))):
            chances = torch.tensor([answer.probability for answer in answers])
            right = torch.tensor([answer.class_name == label for answer, label in zip(answers, labels, strict=True)])
            if name:
                found[name] = measured(chances, right)
            else:
                everything.append((chances, right))
    chances, right = (torch.cat(parts) for parts in zip(*everything, strict=True))
    return {**found, "no task given": measured(chances, right)}


def measured(chances: Tensor, right: Tensor) -> dict[str, float]:
    accuracy = round(right.double().mean().item(), 4)
    return {"accuracy": accuracy, "calibration error": round(calibration_error(chances, right), 4)}


def main() -> None:
    torch.set_num_threads(1)
    found: dict[str, Any] = {"command": f"python {' '.join(sys.argv)}", "familiarity": familiarity()}
    print(json.dumps(found, indent=1), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        found["calibration"] = calibration(Path(folder))
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["calibration"], indent=1))


if __name__ == "__main__":
    main()
