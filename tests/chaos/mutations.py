"""Mutated files of every kind: what reads them gives a result or one line, in bounded time and memory."""

from __future__ import annotations

import copy
import gzip
import io
import json
import os
import pickle
import pickletools
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from kills import digits, recipe
from PIL import Image
from safetensors.torch import load, save
from scipy.io import savemat

from hashroute import Comparison, Model, create_learner, load_learner, run
from hashroute.data.photos import read_photo
from hashroute.data.readers import read_cifar_names, read_cifar_split, read_idx_split, read_svhn_split
from hashroute.learners import checkpoints
from hashroute.model.lessons import Progress
from hashroute.model.sources import open_sources
from hashroute.reporting.page import make_report
from hashroute.reporting.results import headline
from hashroute.storage import write_content
from hashroute.training.run_folder import RunFolder
from hashroute.training.sweep import Sweep
from hashroute.training.sweep_runs import SweepRun, SweepSettings

Files = Iterator[tuple[str, Callable[[], object]]]

NUMBERS = [0, -1, 1, 2**31, 2**63, 10**12, 10**30, 0.5, float("nan"), float("inf"), 24_000_000, 1e308]
VALUES: list[Any] = [None, True, "", "text", "../../etc/passwd", "x" * 10_000, "\0\n\ud800", [], {}, [[]], *NUMBERS]
VALUES += [{"a": {"b": []}}, [None] * 100, "<script>alert(1)</script>"]


def number(random: Random) -> float:
    """A number that is strange, or one of any size between."""
    return random.choice(NUMBERS) if random.random() < 0.5 else int(2 ** random.uniform(0, 26))


def deep(depth: int) -> Any:
    """Lists inside lists."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def change_json(value: Any, random: Random) -> Any:
    """The same value with one to three parts removed, replaced, repeated or exchanged."""
    changed = {"whole": copy.deepcopy(value)}
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        inside, name = _somewhere(changed, random)
        action = random.randrange(6)
        if action == 0 and inside is not changed:
            del inside[name]
        elif isinstance(inside[name], torch.Tensor) and action < 5:
            inside[name] = other_tensor(inside[name], random)
        elif action == 1 and isinstance(inside[name], list) and inside[name]:
            inside[name] = inside[name] * random.choice([2, 50])
        elif action == 2 and isinstance(inside[name], int | float):
            inside[name] = number(random)
        elif action == 3:
            inside[name] = deep(random.choice([20, 60, 500]))
        elif action == 4 and isinstance(inside, dict) and inside is not changed:
            inside[random.choice(["", "x" * 1000, "format", "\0"])] = copy.deepcopy(random.choice(VALUES))
        else:
            inside[name] = copy.deepcopy(random.choice(VALUES))
    return changed["whole"]


def _somewhere(value: Any, random: Random) -> tuple[Any, Any]:
    """A part of nested lists and objects: what holds it, and its name."""
    inside, name = value, "whole"
    while isinstance(inside[name], dict | list) and inside[name] and random.random() < 0.8:
        inside = inside[name]
        name = random.choice(list(inside)) if isinstance(inside, dict) else random.randrange(len(inside))
    return inside, name


def change_bytes(content: bytes, random: Random) -> bytes:
    """The same bytes with some of them changed, inserted, removed or cut off; more often near the beginning."""
    changed = bytearray(content)
    for _ in range(random.choice([1, 1, 2, 5, 20])):
        if not changed:
            break
        place = random.randrange(min(len(changed), random.choice([16, 200, 2000, len(changed)])))
        action = random.randrange(6)
        if action == 0:
            changed[place] ^= 1 << random.randrange(8)
        elif action == 1:
            changed[place : place + 4] = random.choice([b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", os.urandom(4)])
        elif action == 2:
            del changed[place : place + random.choice([1, 4, 100])]
        elif action == 3:
            changed[place:place] = changed[place : place + random.choice([1, 8, 200])]
        elif action == 4 and random.random() < 0.3:
            del changed[place:]
        else:
            changed[place] = random.randrange(256)
    return bytes(changed)


def dump(value: Any) -> bytes:
    """JSON as bytes, with text that may hold anything."""
    return json.dumps(value).encode("utf-8", "surrogatepass")


# -------------------------------------------------------------------- kinds of files


def saved_learners(place: Path, random: Random) -> Files:
    """learner.json and the tensors that it names."""
    seeds = []
    for name in ("hrn", "vc", "hrn-paper", "ell"):
        scenario = digits()
        folder = place / name
        create_learner(name, (1, 8, 8), recipe(scenario)).learn(scenario).save(folder)
        described = json.loads((folder / "learner.json").read_text())
        seeds.append((folder, described, (folder / described["tensors"]).read_bytes()))
    images = digits().tasks[0].test.images[:2]

    def read(folder: Path) -> None:
        learner = load_learner(folder)
        learner.predict(images, 0)

    while True:
        folder, described, content = random.choice(seeds)
        for path in folder.glob("*.safetensors"):
            path.unlink()
        description = described
        if random.random() < 0.7:
            name = write_content(folder, content, ".safetensors")
            description = change_json(described, random)
        elif random.random() < 0.5:
            name = write_content(folder, change_bytes(content, random), ".safetensors")
        else:
            name = write_content(folder, _other_tensors(content, random), ".safetensors")
        if isinstance(description, dict) and description.get("tensors") == described["tensors"]:
            description = {**description, "tensors": name}
        (folder / "learner.json").write_bytes(dump(description))
        yield f"{folder.name}: {dump(description)[:3000]!r}", lambda folder=folder: read(folder)


def _other_tensors(content: bytes, random: Random) -> bytes:
    tensors = load(content)
    for _ in range(random.choice([1, 2])):
        name = random.choice(list(tensors))
        if random.random() < 0.2:
            del tensors[name]
        else:
            tensors[name] = other_tensor(tensors[name], random)
    return save(tensors)


def other_tensor(tensor: torch.Tensor, random: Random) -> torch.Tensor:
    """A tensor of another shape, of another type, or with other numbers."""
    others = [torch.zeros(0), torch.zeros(3, 3), tensor.double(), tensor.flatten(), tensor[None], tensor.int()]
    others += [torch.full_like(tensor, value) for value in (0, 100)]
    if tensor.is_floating_point():
        others.append(torch.full_like(tensor, random.choice([float("nan"), float("inf"), 1e30])))
    return random.choice(others).clone()


def kept_models(place: Path, random: Random) -> Files:
    """manifest.json, records and objects."""
    folder = place / "model"
    model = Model(folder)
    for task in digits().tasks:
        model.learn(task, epochs=1, progress=False)
    manifest = json.loads((folder / "manifest.json").read_text())
    contents = {path.name: path.read_bytes() for path in (folder / "objects").iterdir()}
    images = digits().tasks[0].test.images[:2]

    def read() -> None:
        Model(folder).verify()
        found = Model(folder)
        found.tasks()
        found.predict(images)

    while True:
        for path in (folder / "objects").iterdir():
            if path.name not in contents:
                path.unlink()
        described = manifest
        task = random.choice(list(manifest["tasks"]))
        if random.random() < 0.6:
            described = change_json(manifest, random)
        else:
            name = manifest["tasks"][task]
            record = json.loads(contents[name])
            if random.random() < 0.5:
                record = change_json(record, random)
            else:
                part = random.choice(list(record["objects"]))
                changed = random.choice([change_bytes, _other_tensors])(contents[record["objects"][part]], random)
                record["objects"][part] = write_content(folder / "objects", changed, ".safetensors")
            changed_record = write_content(folder / "objects", dump(record), ".json")
            described = {**manifest, "tasks": {**manifest["tasks"], task: changed_record}}
        (folder / "manifest.json").write_bytes(dump(described))
        yield f"{dump(described)[:2000]!r}", read


def run_folders(place: Path, random: Random) -> Files:
    """settings.json, epochs.jsonl, samples.json, result.json and checkpoint.pt."""
    scenario = digits()
    folder, settings = place / "run", recipe(scenario)
    run(scenario, "hrn", settings, folder=folder)
    names = ("settings.json", "samples.json", "result.json", "epochs.jsonl")
    whole = {name: (folder / name).read_bytes() for name in names}
    sealed = bytes(checkpoints.pack({"key": "k", "state": {"a": torch.zeros(3)}, "list": [1, "two", None]}))

    def read() -> None:
        RunFolder(folder).read()

    def resume() -> None:
        run(scenario, "hrn", settings, folder=folder, resume=True)

    while True:
        for name, content in whole.items():
            (folder / name).write_bytes(content)
        name = random.choice(names)
        if name == "epochs.jsonl":
            lines = [json.loads(line) for line in whole[name].splitlines()]
            lines[random.randrange(len(lines))] = change_json(random.choice(lines), random)
            content = b"".join(dump(line) + b"\n" for line in lines)
        else:
            content = dump(change_json(json.loads(whole[name]), random))
        if random.random() < 0.1:
            content = change_bytes(content, random)
        (folder / name).write_bytes(content)
        yield f"{name}: {content[:2000]!r}", read
        if random.random() < 0.02:
            yield f"report of {name}: {content[:2000]!r}", lambda: make_report([folder], "")
        if random.random() < 0.1:
            yield f"resume {name}: {content[:2000]!r}", resume
        (folder / "damaged.pt").write_bytes(change_bytes(sealed, random))
        yield "checkpoint", lambda: checkpoints.unpack(folder / "damaged.pt")


class Stop(Exception):
    """Interrupts a lesson or a run."""


def unfinished_work(place: Path, random: Random) -> Files:
    """Checkpoints of lessons and of runs, with the right digest of wrong parts: the work goes on, or begins anew."""
    works = [_interrupted_lesson(place / "lesson", 2), _interrupted_lesson(place / "more", 1)]
    works += [_interrupted_run(place / name, name) for name in ("hrn", "vc", "lwf", "si", "closed-form")]
    now = place / "now"
    while True:
        folder, go_on = random.choice(works)
        shutil.rmtree(now, ignore_errors=True)
        shutil.copytree(folder, now)
        (path,) = now.rglob("*.pt")
        values = checkpoints.unpack(path)
        try:
            path.write_bytes(checkpoints.pack(change_values(values, random)))
        except (RecursionError, AttributeError, TypeError, UnicodeError):  # no checkpoint can hold this
            continue
        yield f"checkpoint of {folder.name}", lambda go_on=go_on: go_on(now)


def change_values(values: dict[str, Any], random: Random) -> dict[str, Any]:
    """The values of a checkpoint, some of them changed; those that say what it belongs to stay."""
    names = [name for name in values if name not in ("key", "log_length")]
    name = random.choice(names)
    changed = change_json(values[name], random)
    return {**values, name: changed} if random.random() < 0.95 else {**values, random.choice(names): None}


def _interrupted_lesson(folder: Path, task: int) -> tuple[Path, Callable[[Path], object]]:
    """The folder of a model that was interrupted, and what continues it. task: 1 is known to it."""
    tasks = digits(3, 0.05).tasks
    lesson = tasks[task] if task > 1 else replace(tasks[1], train=tasks[1].test)
    for each in tasks[:2]:
        Model(folder).learn(each, epochs=1, progress=False)

    def stop(progress: Progress) -> None:
        if progress.epoch == 1:
            raise Stop

    with suppress(Stop):
        Model(folder).learn(lesson, epochs=2, progress=stop)
    return folder, lambda place: Model(place).learn(lesson, epochs=2, progress=False)


def _interrupted_run(folder: Path, name: str) -> tuple[Path, Callable[[Path], object]]:
    """The folder of a run that was interrupted, and what continues it."""
    scenario = digits(2, 0.05)
    settings = replace(recipe(scenario), epochs=(2,))

    def stop(record: dict[str, Any]) -> None:
        if record["task_index"] == 1:
            raise Stop

    with suppress(Stop):
        run(scenario, name, settings, folder=folder, on_epoch=stop)
    return folder, lambda place: run(scenario, name, settings, folder=place, resume=True)


def result_files(place: Path, random: Random) -> Files:
    """The result file of a comparison."""
    path = place / "results.json"
    Sweep(SweepSettings(digits(), recipe(digits())), [SweepRun("vc", "vc"), SweepRun("hrn", "hrn")], path).run()
    whole = json.loads(path.read_text())

    def read() -> None:
        headline(Comparison.read(path))

    while True:
        content = dump(change_json(whole, random))
        path.write_bytes(change_bytes(content, random) if random.random() < 0.2 else content)
        yield f"{content[:2000]!r}", read


def data_contents() -> dict[str, bytes]:
    """Small data files as they should be."""
    labels = (np.arange(10) % 10).astype(np.uint8)
    pixels = np.zeros((10, 3072), np.uint8)
    found = {
        "idx images": gzip.compress(struct.pack(">4B3I", 0, 0, 8, 3, 10, 28, 28) + bytes(10 * 784), 1),
        "idx labels": gzip.compress(struct.pack(">4BI", 0, 0, 8, 1, 10) + labels.tobytes(), 1),
        "names": pickle.dumps({"fine_label_names": [f"class {n}" for n in range(100)]}, 2),
    }
    for protocol in (2, 4, 5):
        found[f"cifar {protocol}"] = pickle.dumps({b"data": pixels, b"fine_labels": labels.tolist()}, protocol)
    for compressed in (True, False):
        content = io.BytesIO()
        savemat(content, {"X": np.zeros((32, 32, 3, 10), np.uint8), "y": labels[:, None]}, do_compression=compressed)
        found[f"matlab {compressed}"] = content.getvalue()
    return found


def data_files(place: Path, random: Random) -> Files:
    """IDX, CIFAR and MATLAB files."""
    contents = data_contents()
    path, other = place / "a", place / "b"
    other.write_bytes(contents["idx labels"])
    while True:
        name = random.choice(list(contents))
        content = contents[name]
        if name.startswith("idx") and random.random() < 0.5:
            content = gzip.compress(change_bytes(gzip.decompress(content), random), 1)
        else:
            content = change_bytes(content, random)
        path.write_bytes(content)
        readers: dict[str, Callable[[], object]] = {
            "idx": lambda: read_idx_split(path, other, 10),
            "names": lambda: read_cifar_names(path),
            "cifar": lambda: read_cifar_split(path, 10),
            "matlab": lambda: read_svhn_split(path),
        }
        yield f"{name}: {content[:600]!r}", readers[name.split()[0]]


def list_contents() -> dict[str, bytes]:
    """Lists of images as they should be, by the ending of their names."""
    return {
        "csv": b'path,label,split\na.png,one,train\n"b.png",two,test\n' * 4,
        "jsonl": b'{"path": "a.png", "label": "one"}\n{"path": "b.png", "label": 2}\n' * 4,
    }


def image_files(place: Path, random: Random) -> Files:
    """Photographs in the usual formats, and lists of them."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (24, 24, 3)).astype(np.uint8))
    seeds = []
    for form in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
        content = io.BytesIO()
        noise.save(content, form)
        seeds.append(content.getvalue())
    lists = list_contents()
    path = place / "image"
    while True:
        content = change_bytes(random.choice(seeds), random)
        path.write_bytes(content)
        yield f"image: {content[:60]!r}", lambda: read_photo(path, 16)
        ending = random.choice(list(lists))
        listed, content = place / f"list.{ending}", change_bytes(lists[ending], random)
        listed.write_bytes(content)
        yield f"{ending}: {content!r}", lambda listed=listed: open_sources(listed)


class Harmful:
    """A pickle that would touch a file."""

    def __init__(self, how: Callable[..., object], *given: object) -> None:
        self.call = how, given

    def __reduce__(self) -> Any:
        return self.call


def hostile_pickles(place: Path, random: Random) -> Files:
    """Pickles that would run code: as data files and as checkpoints."""
    touched, path = place / "touched", place / "hostile"
    calls = [
        Harmful(os.system, f"touch {touched}"),
        Harmful(exec, f"open({str(touched)!r}, 'w')"),
        Harmful(eval, f"open({str(touched)!r}, 'w')"),
        Harmful(open, str(touched), "w"),
        Harmful(os.mkdir, str(touched)),
        Harmful(shutil.copy, "/etc/hostname", str(touched)),
        Harmful(__import__, "antigravity"),
    ]

    def read(reader: Callable[[Path], object]) -> None:
        try:
            reader(path)
        finally:
            if touched.exists():
                os._exit(99)

    readers = (read_cifar_names, checkpoints.unpack, lambda file: read_cifar_split(file, 10))
    while True:
        inner: Any = random.choice(calls)
        for _ in range(random.randrange(3)):
            inner = random.choice([lambda each: [each], lambda each: {"data": each}, lambda each: (each, 1)])(inner)
        value = {random.choice(["data", "fine_label_names", "format", "digest"]): inner}
        if random.random() < 0.5:
            content = pickle.dumps(value, random.choice([2, 4]))
            content = pickletools.optimize(content) if random.random() < 0.5 else content
        else:
            whole = io.BytesIO()
            torch.save(value, whole)
            content = whole.getvalue()
        path.write_bytes(content if random.random() < 0.7 else change_bytes(content, random))
        reader = random.choice(readers)
        yield "hostile", lambda reader=reader: read(reader)


class Kind(NamedTuple):
    """Files of one kind."""

    name: str
    files: Callable[[Path, Random], Files]
    share: float
    """Of the time: some are read faster than others."""


KINDS = (
    Kind("learner.json and tensors of a saved learner", saved_learners, 0.22),
    Kind("manifest, records and objects of a kept model", kept_models, 0.22),
    Kind("checkpoints of lessons and runs", unfinished_work, 0.16),
    Kind("files of a run", run_folders, 0.12),
    Kind("result files", result_files, 0.1),
    Kind("IDX, CIFAR and MATLAB files", data_files, 0.06),
    Kind("images, CSV and JSON lists", image_files, 0.06),
    Kind("pickles that would run code", hostile_pickles, 0.06),
)
