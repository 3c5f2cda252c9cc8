"""How soon a change of data is noticed in a stream, and how often one is noticed that did not happen.

The detector of `Learner.observe` reads hash vectors of training images as `hrn` makes them, 32 x 32 pixels in colour,
in random order. No network is trained, but for the last kind of stream. The delay of a change is the number of images
that came after it before it was noticed. Streams:
- same: one data set all the time. Every change that is noticed is a false alarm.
- mixed: the ten parts of the scenario `mixed` in random order, in episodes of random length. Two CIFAR-100 parts have
  other classes, but the same kind of images: such a change is counted apart.
- fade: one data set fades into another, image by image. Delay counts from the middle of the fade. A fade may be noticed
  more than once, because an episode can begin in its midst. Alarms long after its end are false.
- brightness: all pixels are multiplied by a factor that moves from 1 to another one, and stays there.
- recognised: a learner that has learned a little of three data sets observes episodes of other images of all four,
  without labels. It should say which task each is like, or that the data is new.

usage: python experiments/streams.py      (needs all data sets)
Writes experiments/results/streams.json after each part, and skips what the file has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from hashroute import create_learner
from hashroute.data import load_dataset
from hashroute.learners.hrn import HRN
from hashroute.learners.stream import Recognised, StreamSettings
from hashroute.nn.change import ChangeDetector
from hashroute.storage import write_json
from hashroute.tasks import Split, Task

OUTPUT = Path(__file__).parent / "results" / "streams.json"
DATASETS = ("svhn", "cifar-100", "mnist", "fashion-mnist")
IMAGES = 12_500
"""Of each data set: the first ones."""
SEEDS = 3
EPISODES = 40
"""Of each stream of `mixed`."""
SHORTEST, LONGEST = 500, 3000
"""Images of an episode."""
FADES = (1000, 5000)
"""Images from the first new one to the last old one."""
BEFORE, AFTER = 1000, 2000
"""Images before and after a drift."""
FACTORS = (0.5, 2.0)
TAUGHT = 1000
"""Images of each data set that are learned before a stream of episodes that come back."""
BACK = 20
"""Episodes of such a stream."""
SOON = 500
RECENT = StreamSettings.recent
learner: Any = create_learner(HRN, (3, 32, 32), fixed_features=0)


def in_colour(images: Tensor) -> Tensor:
    """Images of 32 x 32 in three channels, as in `mixed`."""
    return pad(images, ((32 - images.shape[-1]) // 2,) * 4).expand(-1, 3, -1, -1)


@cache
def hash_vectors() -> dict[str, Tensor]:
    """The hash vectors of each part: a data set, or ten classes of CIFAR-100."""
    parts = {}
    for name in DATASETS:
        split = load_dataset(name).train[torch.arange(IMAGES)]
        hashed = torch.cat([learner.hashed(in_colour(some)) for some in split.images[:].split(1000)])
        parts[name] = hashed
        if name == "cifar-100":
            parts |= {f"cifar-100, part {part}": hashed[split.labels // 10 == part] for part in range(10)}
        print(name, "is hashed", flush=True)
    return parts


def alarms(hashed: Tensor) -> list[int]:
    """How many images had come at each change that the detector noticed in a stream."""
    size, directions = learner.memory_hash.features, learner.memories.directions.shape[1]
    detector = ChangeDetector(size, directions, learner.recognition_limit, RECENT)
    looks = enumerate(hashed.split(detector.step), 1)
    return [place * detector.step for place, some in looks if detector.look(some)]


def shuffled(rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """This many of the rows, in random order; all of them again if there are too few."""
    rounds = -(-count // len(rows))
    order = torch.cat([torch.randperm(len(rows), generator=generator) for _ in range(rounds)])
    return rows[order[:count]]


def same(seed: int) -> dict[str, Any]:
    parts, generator = hash_vectors(), torch.Generator().manual_seed(seed)
    return {
        name: {"images": IMAGES, "false alarms": len(alarms(shuffled(parts[name], IMAGES, generator)))}
        for name in DATASETS
    }


def mixed(seed: int) -> dict[str, Any]:
    parts, generator = hash_vectors(), torch.Generator().manual_seed(seed)
    names = ["svhn", "mnist", "fashion-mnist", *(f"cifar-100, part {part}" for part in range(10))]
    weights = torch.tensor(
        [2.0, 2.0, 1.0, *[0.5] * 10]
    )  # parts of `mixed`: SVHN and MNIST come twice, CIFAR five times
    episodes: list[str] = []
    while len(episodes) < EPISODES:
        name = names[int(torch.multinomial(weights, 1, generator=generator))]
        if not episodes or name != episodes[-1]:
            episodes.append(name)
    lengths = torch.randint(SHORTEST, LONGEST + 1, (EPISODES,), generator=generator).tolist()
    stream = torch.cat([shuffled(parts[name], size, generator) for name, size in zip(episodes, lengths, strict=True)])
    found, start, false = alarms(stream), 0, 0
    delays: dict[str, list[int | None]] = {"of data": [], "of classes": []}
    for place, (name, size) in enumerate(zip(episodes, lengths, strict=True)):
        inside = [each - start for each in found if start < each <= start + size]
        start += size
        if place:
            alike = name.startswith("cifar") and episodes[place - 1].startswith("cifar")
            delays["of classes" if alike else "of data"].append(inside[0] if inside else None)
            inside = inside[1:]
        false += len(inside)
    return {"images": len(stream), "false alarms": false, **{f"delays, {kind}": each for kind, each in delays.items()}}


def fade(seed: int) -> dict[str, Any]:
    parts, generator = hash_vectors(), torch.Generator().manual_seed(seed)
    results: dict[str, Any] = {}
    for length in FADES:
        delays, noticed, late = [], [], 0
        for old, new in ((old, new) for old in DATASETS for new in DATASETS if old != new):
            size = BEFORE + length + AFTER
            share = (torch.arange(size) - BEFORE) / length
            is_new = torch.rand(size, generator=generator) < share
            first, second = (shuffled(parts[name], size, generator) for name in (old, new))
            found = alarms(torch.where(is_new[:, None], second, first))
            middle, end = BEFORE + length // 2, BEFORE + length
            late += sum(each <= BEFORE or each > end + SOON for each in found)
            after = [each for each in found if BEFORE < each <= end + SOON]
            delays.append(after[0] - middle if after else None)
            noticed.append(len(after))
        results[f"over {length} images"] = {"delays": delays, "times noticed": noticed, "false alarms": late}
    return results


def brightness(seed: int) -> dict[str, Any]:
    """The number of alarms, and the factor at each."""
    results: dict[str, Any] = {}
    generator = torch.Generator().manual_seed(seed)
    for name in DATASETS:
        images = load_dataset(name).train.images[:IMAGES]
        for factor in FACTORS:
            length = FADES[0]
            size = BEFORE + length + AFTER
            share = ((torch.arange(size) - BEFORE) / length).clamp(0, 1)
            by = factor**share
            some = in_colour(shuffled(images, size, generator))
            bright = (some * by.view(-1, 1, 1, 1)).clamp(0, 255).to(torch.uint8)
            found = alarms(learner.hashed(bright))
            results[f"{name}, from 1 to {factor}"] = [round(by[each - 1].item(), 2) for each in found]
    return results


def recognised(seed: int) -> dict[str, Any]:
    """How many episodes of known data were recognised as it, and how many of data that was left out as new."""
    generator, counts = torch.Generator().manual_seed(seed), dict.fromkeys(("known", "right", "new", "called new"), 0)
    data = {name: load_dataset(name).train for name in DATASETS}
    one: Any = create_learner(HRN, (3, 32, 32), seed=seed, epochs=1, fixed_features=0)
    left_out = DATASETS[seed % len(DATASETS)]
    for name in DATASETS:
        if name != left_out:
            rows = torch.arange(TAUGHT)
            some = Split(in_colour(data[name].images[rows]).contiguous(), data[name].labels[rows])
            one.learn(Task.without_test(name, some, [str(label) for label in range(int(some.labels.max()) + 1)]))
    last = ""
    for _ in range(BACK):
        chosen = [name for name in DATASETS if name != last]
        last = chosen[int(torch.randint(len(chosen), (), generator=generator))]
        rows = TAUGHT + torch.randint(IMAGES - TAUGHT, (SHORTEST,), generator=generator)
        events = one.observe(in_colour(data[last].images[rows]))
        for event in events:
            if isinstance(event, Recognised):
                counts["new" if last == left_out else "known"] += 1
                counts["called new"] += last == left_out and event.task is None
                counts["right"] += event.task == last
    return {"left out": left_out, **counts}


KINDS: dict[str, Callable[[int], dict[str, Any]]] = {
    "mixed": mixed,
    "same": same,
    "fade": fade,
    "brightness": brightness,
    "recognised": recognised,
}


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """What all seeds say together."""
    facts: dict[str, Any] = {}
    for kind in ("of data", "of classes"):
        facts[f"mixed, changes {kind}"] = _delays(each[f"delays, {kind}"] for each in found.get("mixed", ()))
    for length in FADES:
        over = [each[f"over {length} images"] for each in found.get("fade", ())]
        facts[f"fade over {length} images, from its middle"] = _delays(each["delays"] for each in over)
    counts = [each for runs in found.get("same", ()) for each in runs.values()]
    counts += found.get("mixed", [])
    facts["false alarms, same and mixed"] = sum(each["false alarms"] for each in counts)
    facts["images, same and mixed"] = sum(each["images"] for each in counts)
    for kind in ("known", "right", "new", "called new"):
        facts[f"recognised, {kind}"] = sum(each[kind] for each in found.get("recognised", ()))
    return facts


def _delays(runs: Iterator[list[int | None]]) -> dict[str, Any]:
    every = [delay for run in runs for delay in run]
    noticed = sorted(delay for delay in every if delay is not None)
    if not noticed:
        return {"changes": len(every)}
    soon = sum(delay <= SOON for delay in noticed)
    return {
        "changes": len(every),
        f"percent noticed within {SOON}": round(100 * soon / len(every), 1),
        "median delay": median(noticed),
        "longest delay": noticed[-1],
        "not noticed": len(every) - len(noticed),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    results: dict[str, Any] = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {}
    results |= {"command": "python experiments/streams.py", "images of each data set": IMAGES}
    for seed in range(SEEDS):
        for kind, measure in KINDS.items():
            done = results.setdefault(kind, [])
            if len(done) <= seed:
                done.append(measure(seed))
                results["summary"] = summary(results)
                write_json(OUTPUT, results)
                print(seed, kind, results["summary"], flush=True)
