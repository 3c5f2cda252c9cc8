"""What a model that people keep costs: learning from files, memory, saving, and asking when there are many tasks.

    files    learning 5,000 PNG files of 32 x 32 pixels, beside the same pixels as a tensor: processor time
    memory   learning 20,000 JPEG files of 224 x 224 pixels: peak memory in megabytes, resized to 64 and not resized
    tasks    by the number of tasks: learning one more, writing it to disk, opening the model for one answer, and
             answers to one image and to a hundred, with no task given: processor time

Every measurement runs in a process of its own. Processor time does not depend on other processes.
usage: python benchmarks/kept_model.py [files] [memory] [tasks]      writes benchmarks/results/kept_model.json
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from hashroute import Model
from hashroute.data import load_dataset

OUTPUT = Path(__file__).parent / "results" / "kept_model.json"
CLASSES, IMAGES = 10, 5000
MANY, SIDE, DISTINCT = 20_000, 224, 500
TASKS = (10, 25, 50, 100, 200)
REPEATS = 30


def cifar(classes: int, images: int) -> tuple[Tensor, Tensor]:
    """Images of the first classes of CIFAR-100, and their labels."""
    train = load_dataset("cifar-100").train
    rows = torch.cat([(train.labels == label).nonzero()[: images // classes, 0] for label in range(classes)])
    return train.images[rows], train.labels[rows]


def write_files(folder: Path, images: Tensor, labels: Tensor, ending: str) -> Path:
    """Images as files in folder/LABEL."""
    for place, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        inside = folder / str(label)
        inside.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(inside / f"{place}.{ending}", quality=90)
    return folder


def learn_files(folder: Path) -> dict[str, float]:
    """Seconds to learn the PNG files in a folder."""
    return _learned(folder, lambda: write_files(folder / "task", *cifar(CLASSES, IMAGES), "png"))


def learn_tensor(folder: Path) -> dict[str, float]:
    """Seconds to learn the same pixels from a tensor."""
    return _learned(folder, lambda: cifar(CLASSES, IMAGES))


def _learned(folder: Path, make: Callable[[], Any]) -> dict[str, float]:
    source = make()
    start = time.process_time()
    report = Model(folder / "model", size=32).learn(source, "task", progress=False)
    return {"seconds": time.process_time() - start, "epochs": report.epochs, "images": report.images}


def memory_resized(folder: Path) -> dict[str, float]:
    """Peak memory of learning large files that are resized as usual."""
    return _peak(folder, Model(folder / "model"))


def memory_large(folder: Path) -> dict[str, float]:
    """Peak memory of learning large files that are not resized, which do not fit into memory together."""
    return _peak(folder, Model(folder / "model", size=SIDE, backbone="smallx0.25"))


def _peak(folder: Path, model: Model) -> dict[str, float]:
    random = np.random.default_rng(0)
    for place in range(DISTINCT):
        inside = folder / "task" / str(place % CLASSES)
        inside.mkdir(parents=True, exist_ok=True)
        tiles = random.integers(0, 255, (7, 7, 3)).repeat(SIDE // 7, 0).repeat(SIDE // 7, 1)
        Image.fromarray(tiles.astype(np.uint8)).save(inside / f"{place}.jpg", quality=90)
    for file in list((folder / "task").rglob("*.jpg")):  # more names for the same content: the same work for a reader
        for copy in range(1, MANY // DISTINCT):
            os.link(file, file.with_name(f"{file.stem}-{copy}.jpg"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    report = model.learn(folder / "task", epochs=1, progress=False)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = time.process_time() - start
    images = report.images + report.held_out
    return {"images": images, "before_mb": before / 1024, "peak_mb": peak / 1024, "seconds": seconds}


def many_tasks(folder: Path) -> dict[str, Any]:
    """Processor time to learn and write one more small task, and to answer, by the number of tasks."""
    images, labels = cifar(100, 4000)
    images = torch.nn.functional.interpolate(images.float(), (16, 16), mode="area").to(torch.uint8)
    model, random = Model(folder / "model"), np.random.default_rng(0)
    learning: list[float] = []
    writing = written(model)
    found: dict[str, dict[int, float]] = {
        name: {} for name in ("learn_s", "write_s", "open_s", "answer_ms", "answer_100_ms", "paths")
    }
    for task in range(max(TASKS)):
        rows = torch.cat([(labels == label).nonzero()[:, 0] for label in random.choice(100, 2, replace=False)])
        start = time.process_time()
        writing.append(0.0)
        model.learn((images[rows], labels[rows]), f"task {task}", epochs=2, progress=False)
        learning.append(time.process_time() - start)
        if (count := task + 1) in TASKS:
            found["learn_s"][count], found["write_s"][count] = median(learning[-5:]), median(writing[-5:])
            found["open_s"][count] = median(opening_time(model, images[0], folder) for _ in range(3))
            found["answer_ms"][count] = answer_time(model, images[rows[:1]])
            found["answer_100_ms"][count] = answer_time(model, images[:: len(images) // 100][:100])
            found["paths"][count] = len(model.learner().encoder)
    return found


def written(model: Model) -> list[float]:
    """A list to whose last number the processor time is added that a model spends in writing."""
    times: list[float] = []

    def timed(write: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            start = time.process_time()
            try:
                return write(*arguments)
            finally:
                times[-1] += time.process_time() - start

        return run

    for name in ("put_tensors", "put_json", "commit"):
        setattr(model.store, name, timed(getattr(model.store, name)))
    return times


def opening_time(model: Model, image: Tensor, folder: Path) -> float:
    """Seconds of a new process for the answer to one image, without the import of torch."""
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / "asked.png")
    lines = (
        "import sys, time, torch",
        "start = time.process_time()",
        "from hashroute import Model",
        "Model(sys.argv[1]).predict(sys.argv[2])",
        "print(time.process_time() - start)",
    )
    command = [sys.executable, "-c", "\n".join(lines), str(model.path), str(folder / "asked.png")]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=one_thread).stdout)


def answer_time(model: Model, images: Tensor) -> float:
    """Milliseconds for images, no task given, by a model that is open."""
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        model.predict(images)
        times.append(1000 * (time.process_time() - start))
    return median(times[3:])


PARTS: dict[str, tuple[Callable[[Path], dict[str, Any]], ...]] = {
    "files": (learn_files, learn_tensor),
    "memory": (memory_resized, memory_large),
    "tasks": (many_tasks,),
}


def measure(part: str) -> dict[str, Any]:
    """The result of each function of a part, in a process of its own."""
    found = {}
    for function in PARTS[part]:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, function.__name__, folder]
            found[function.__name__] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    if part == "files":
        found["ratio"] = found["learn_files"]["seconds"] / found["learn_tensor"]["seconds"]
    if part == "tasks":
        times = found["many_tasks"]
        found["ratios"] = {
            "write, task 200 / 10": times["write_s"]["200"] / times["write_s"]["10"],
            "learn, task 200 / 10": times["learn_s"]["200"] / times["learn_s"]["10"],
            "answer to one image, 200 tasks / 10": times["answer_ms"]["200"] / times["answer_ms"]["10"],
            "answer to 100 images, 200 tasks / 25": times["answer_100_ms"]["200"] / times["answer_100_ms"]["25"],
        }
    return found


def main(arguments: list[str]) -> None:
    """Measure what is asked, and keep it beside what was measured before."""
    torch.set_num_threads(1)
    functions = {function.__name__: function for part in PARTS.values() for function in part}
    if arguments and arguments[0] in functions:
        print(json.dumps(functions[arguments[0]](Path(arguments[1]))))
        return
    kept = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {}
    for part in arguments or PARTS:
        kept |= {part: measure(part), "torch": torch.__version__}
        OUTPUT.write_text(json.dumps(kept, indent=1) + "\n")
        print(json.dumps(kept[part]))


if __name__ == "__main__":
    main(sys.argv[1:])
