"""What many tasks cost a model that people keep, and what an approximate index of memories would give.

    tasks   at 10 to 1,000 tasks of two classes, images of 8 x 8: bytes by kind, learning one more task, opening the
            model for one answer, answers to one image and to a hundred with no task given: processor time
    head    solving the shared head of 1,792 features, by the number of classes: processor time
    index   10,000 simulated memories: the exact product over all of them, beside the exact product over a shortlist
            that an HNSW index gives: how often the shortlist has the best memory, and processor time

A few tasks are learned. Their objects, each with a little noise and therefore a file of its own, stand for the others:
what a task costs depends on the sizes of its objects, not on what was learned. Each number of tasks is measured in a
process of its own, and what was measured is not measured again.
usage: python benchmarks/scale.py [tasks] [head] [index]    writes benchmarks/results/scale.json; index needs faiss-cpu
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from kept_model import answer_time, opening_time
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import pad

from hashroute import Model
from hashroute.data import load_dataset
from hashroute.learners.shared_head import SharedHead
from hashroute.model.store import Manifest
from hashroute.nn.closed_form import ClosedForm
from hashroute.nn.gaussian import GaussianMemories, edges
from hashroute.nn.hashing import FeatureHash

OUTPUT = Path(__file__).parent / "results" / "scale.json"
TASKS = (10, 30, 100, 300, 1000)
LEARNED = 4
MEMORIES, FEATURES, DIRECTIONS = 10_000, 1000, 20
SAMPLES, HELD_OUT, ASKED, BATCHES, BATCH = 500, 100, 60, 10, 50
SHORTLISTS = (64, 256, 1024)
CLASSES, USUAL_FEATURES = (100, 1000, 10_000), 1792
SETS = {"cifar-100": 30, "svhn": 10, "mnist": 10, "fashion-mnist": 10}
"""Classes of each data set, from which memories are simulated."""


# -------------------------------------------------------------------- tasks


def task(number: int) -> tuple[Tensor, Tensor]:
    """Images of two digits, with labels that no other task has."""
    digits = load_digits()
    pair = np.random.default_rng(number).choice(10, 2, replace=False)
    rows = np.flatnonzero(np.isin(digits.target, pair))[:200]
    images = torch.from_numpy(digits.images[rows] * 15).to(torch.uint8)[:, None]
    return images, torch.from_numpy(digits.target[rows] == pair[0]).long() + 2 * number


def filled(folder: Path, tasks: int) -> Model:
    """A model of this many tasks, the first of which were learned."""
    model = Model(folder / "model", size=8)
    for number in range(LEARNED):
        model.learn(task(number), f"task {number}", epochs=2, progress=False)
    torch.manual_seed(0)
    store, records = model.store, list(model.records().values())
    with store.writing() as manifest:
        names, paths = dict(manifest.tasks), [record.objects["path"] for record in records]
        for number in range(LEARNED, tasks):
            known = records[number % LEARNED]
            objects = {kind: store.put_tensors(noisy(store.tensors(name))) for kind, name in known.objects.items()}
            own = (2 * number, 2 * number + 1)
            new = replace(known, classes=tuple(map(str, own)), columns=own, objects=objects)
            new = replace(new, domain=objects["memory"], parent=paths[-1], sources=(f"{number:064x}",))
            paths.append(objects["path"])
            names[f"task {number}"] = store.put_json(new.to_dict())
        assert manifest.shared is not None
        shared = repeated(store.tensors(manifest.shared), tasks)
        store.commit(Manifest(manifest.settings, names, (), store.put_tensors(shared)))
    return model


def repeated(shared: dict[str, Tensor], tasks: int) -> dict[str, Tensor]:
    """A shared head that has learned the first tasks again and again, each time as new classes."""
    times, rest = divmod(tasks, LEARNED)
    sums, counts = shared["sums.sums"], shared["sums.counts"]
    longer = {
        "sums.gram": shared["sums.gram"] * (times + 1),
        "sums.sums": torch.cat([sums.repeat(times, 1), sums[: 2 * rest]]),
        "sums.counts": torch.cat([counts.repeat(times), counts[: 2 * rest]]),
    }
    return {**shared, **longer}


def noisy(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, with other low digits."""
    return {
        name: value * (1 + 1e-3 * torch.rand_like(value)) if value.is_floating_point() else value
        for name, value in tensors.items()
    }


def sizes(model: Model) -> dict[str, int]:
    """Bytes by kind of object."""
    manifest, store, found = model.store.read(), model.store, Counter[str]()
    for record in model.records().values():
        found.update({kind: store.size(name) for kind, name in record.objects.items()})
    found["record"] = sum(map(store.size, manifest.tasks.values()))
    found["manifest"] = (model.path / "manifest.json").stat().st_size
    assert manifest.shared is not None
    found["shared head"] = store.size(manifest.shared)
    return dict(found)


def tasks_cost(folder: Path, tasks: int) -> dict[str, Any]:
    """Bytes, processor time and peak memory of a model of this many tasks."""
    model = filled(folder, tasks)
    images, _ = task(tasks)
    found: dict[str, Any] = {"bytes": sizes(model)}
    found["open_s"] = median(opening_time(model, images[0].expand(3, 8, 8), folder) for _ in range(3))
    found["answer_ms"], found["answer_100_ms"] = answer_time(model, images[:1]), answer_time(model, images[:100])
    model = Model(model.path)  # nothing is read yet
    with timed(SharedHead, "study") as study:
        start = time.process_time()
        model.learn(task(tasks), "one more", epochs=2, progress=False)
        found["learn_s"] = time.process_time() - start
    found["shared_head_s"] = sum(study)
    found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


class timed:
    """Gives a list of the processor time of each call of a method in this block."""

    def __init__(self, kind: type, name: str) -> None:
        self.kind, self.name, self.method = kind, name, getattr(kind, name)

    def __enter__(self) -> list[float]:
        times: list[float] = []

        def run(*arguments: Any) -> Any:
            start = time.process_time()
            try:
                return self.method(*arguments)
            finally:
                times.append(time.process_time() - start)

        setattr(self.kind, self.name, run)
        return times

    def __exit__(self, *_: object) -> None:
        setattr(self.kind, self.name, self.method)


def head_cost() -> dict[int, float]:
    """Seconds to solve the shared head for one penalty, by the number of classes. Random features do."""
    found = {}
    for classes in CLASSES:
        torch.manual_seed(0)
        sums = ClosedForm(USUAL_FEATURES)
        features = torch.randint(-9, 10, (classes, USUAL_FEATURES)).float()
        sums.add(features, torch.arange(classes))
        sums.add(features.roll(1, 1), torch.arange(classes))
        start = time.process_time()
        sums.solve(0.1)
        found[classes] = time.process_time() - start
    return found


# -------------------------------------------------------------------- an index


def vectors() -> Iterator[tuple[str, Tensor, Tensor]]:
    """For each class: its data set, and hash vectors of training and of test images."""
    phi = FeatureHash(FEATURES, 255)
    for name, classes in SETS.items():
        data = load_dataset(name)
        for label in range(classes):
            hashed = []
            for split, count in ((data.train, SAMPLES), (data.test, HELD_OUT)):
                images = split.images[(split.labels == label).nonzero()[:count, 0]].float()
                images = images.expand(-1, 3, -1, -1)
                images = pad(images, [(32 - images.shape[3]) // 2] * 4)
                hashed.append(phi.normalised(edges(images)))
            yield name, *hashed


def simulated() -> tuple[GaussianMemories, Tensor]:
    """Memories between those of two classes of one data set, and real hash vectors to ask: (classes, 100, s)."""
    real, owners, asked = GaussianMemories(FEATURES, DIRECTIONS), [], []
    for name, seen, test in vectors():
        real.write(seen, test)
        owners.append(name)
        asked.append(test)
    random = np.random.default_rng(0)
    places = {name: np.flatnonzero(np.array(owners) == name) for name in SETS}
    one = random.integers(len(owners), size=MEMORIES)
    other = torch.tensor([random.choice(places[owners[each]]) for each in one])
    one = torch.from_numpy(one)
    share = torch.from_numpy(random.uniform(size=(MEMORIES, 1))).float()
    spread = torch.from_numpy(np.exp(random.normal(0, 0.1, (MEMORIES, 1)))).float()
    memories = GaussianMemories(FEATURES, DIRECTIONS)
    memories.reserve(MEMORIES)
    along = (
        real.variances[one].div(SAMPLES).sqrt() * torch.from_numpy(random.normal(size=(MEMORIES, DIRECTIONS))).float()
    )
    drift = torch.einsum("nm,nms->ns", along, real.directions[one])  # the error of a mean of few images
    values = {
        "means": share * real.means[one] + (1 - share) * real.means[other] + drift,
        "directions": real.directions[one],
        "variances": real.variances[one] * spread,
        "rests": (share * real.rests[one][:, None] + (1 - share) * real.rests[other][:, None])[:, 0],
    }
    memories._buffers |= values
    return memories, torch.stack(asked)


def some(memories: GaussianMemories, rows: Tensor) -> GaussianMemories:
    """These memories alone."""
    found = GaussianMemories(FEATURES, DIRECTIONS)
    found._buffers |= {name: buffer[rows] for name, buffer in memories._buffers.items() if buffer is not None}
    return found


def index_cost() -> dict[str, Any]:
    """Recall and processor time of shortlists, for single images and for batches."""
    import faiss

    faiss.omp_set_num_threads(1)
    memories, known = simulated()
    random = np.random.default_rng(1)
    asked = known.flatten(0, 1)[random.choice(known.shape[0] * HELD_OUT, ASKED, replace=False)]
    batches = known[random.choice(len(known), BATCHES, replace=False), :BATCH]
    memories.log_likelihood(asked[:1])  # makes the tables
    exact, exact_ms = clocked(lambda each: memories.log_likelihood(each[None])[0], asked)
    near, near_ms = clocked(memories.divergence, batches)
    found: dict[str, Any] = {"memories": MEMORIES, "features": FEATURES, "directions": DIRECTIONS, "batch": BATCH}
    found |= {"faiss": faiss.__version__, "image_ms": exact_ms, "batch_ms": near_ms}
    found["table_mb"] = memories._tables()[0].nbytes / 1e6
    start = time.process_time()
    index = faiss.IndexHNSWFlat(FEATURES, 32)  # 32 neighbours of each mean
    index.hnsw.efConstruction = 100
    index.add(memories.means.numpy())
    found["build_s"] = time.process_time() - start
    found["index_mb"] = len(faiss.serialize_index(index)) / 1e6
    shortlists = []
    for count in SHORTLISTS:
        index.hnsw.efSearch = 2 * count

        def nearest(vector: Tensor, count: int = count) -> Tensor:
            rows = torch.from_numpy(index.search(vector[None].numpy(), count)[1][0])
            return rows[rows >= 0]  # fewer may be found

        def single(image: Tensor) -> Tensor:
            rows = nearest(image)
            return rows[some(memories, rows).log_likelihood(image[None])[0].argsort(descending=True)]

        def several(batch: Tensor) -> Tensor:
            rows = nearest(batch.mean(0))
            return rows[some(memories, rows).divergence(batch).argsort()]

        by_image, image_ms = clocked(single, asked)
        by_batch, batch_ms = clocked(several, batches)
        images, several_images = list(zip(exact, by_image, strict=True)), zip(near, by_batch, strict=True)
        shortlists.append(
            {
                "shortlist": count,
                "image_best": mean(one.argmax() == rows[0] for one, rows in images),
                "image_best_16": mean(torch.isin(one.topk(16).indices, rows).double().mean() for one, rows in images),
                "image_loss": mean(one.max() - one[rows[0]] for one, rows in images) / FEATURES,
                "image_ms": image_ms,
                "batch_best": mean(one.argmin() == rows[0] for one, rows in several_images),
                "batch_ms": batch_ms,
            }
        )
    return {**found, "shortlists": shortlists}


def clocked(ask: Callable[[Tensor], Tensor], asked: Tensor) -> tuple[list[Tensor], float]:
    """The answers to each, and the median processor time of one in milliseconds."""
    answers, times = [], []
    for each in asked:
        start = time.process_time()
        answers.append(ask(each))
        times.append(1000 * (time.process_time() - start))
    return answers, median(times)


def mean(values: Iterable[Any]) -> float:
    """The mean of numbers."""
    return float(np.mean([float(value) for value in values]))


# -------------------------------------------------------------------- all

ALONE: dict[str, Callable[[], dict[Any, Any]]] = {"head-only": head_cost, "index-only": index_cost}


def in_own_process(*arguments: str) -> Any:
    """What this file prints with these arguments."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, __file__, *arguments], check=True, stdout=subprocess.PIPE, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def keep(found: dict[str, Any]) -> None:
    """Write all that was measured."""
    OUTPUT.write_text(json.dumps({**found, "torch": torch.__version__}, indent=1) + "\n")


def main(arguments: list[str]) -> None:
    """Measure what is asked and not known yet."""
    torch.set_num_threads(1)
    if arguments and arguments[0].isdecimal():
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(tasks_cost(Path(folder), int(arguments[0]))))
        return
    if arguments and arguments[0] in ALONE:
        print(json.dumps(ALONE[arguments[0]]()))
        return
    found = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {}
    for part in arguments or ("tasks", "head", "index"):
        if part != "tasks" and part not in found:
            keep(found := {**found, part: in_own_process(f"{part}-only")})
        for count in TASKS if part == "tasks" else ():
            if str(count) not in (known := found.get("tasks", {})):
                keep(found := {**found, "tasks": {**known, str(count): in_own_process(str(count))}})


if __name__ == "__main__":
    main(sys.argv[1:])
