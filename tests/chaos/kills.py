"""Kills at every call that changes files, and full disks: afterwards there is one whole version, and work goes on."""

from __future__ import annotations

import copy
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from outcome import Part, in_a_child, memory, or_one_line

from hashroute import Model, Scenario, create_learner, load_learner, load_scenario, run
from hashroute.recipe import recipe_for

BEFORE, AFTER, FULL, READ_ONLY, GONE = range(5)
MODES = {
    BEFORE: "killed before a call",
    AFTER: "killed after or in the middle of a call",
    FULL: "disk full from a call on",
    READ_ONLY: "read-only from a call on",
    GONE: "folder deleted before a call",
}
KILLS = (BEFORE, AFTER)
KILLED_MORE = 12
"""How much more often than other faults a kill is tried, when everything was tried once."""
IN_A_ROW = 4
"""Kills of one work, at most: what is left of one is changed again, and killed again."""
DONE = 77
"""Exit code of a process that found its change made already."""

LEAST = 1
"""Tries of each work, however little time there is."""


class Work:
    """Something that changes a folder, and what must be true of the folder at any moment."""

    name: str

    def __init__(self, place: Path) -> None:
        self.before = place / f"{self.name}-before"
        self.folder = place / f"{self.name}-now"
        self.before.mkdir(parents=True)
        self.prepare()

    def prepare(self) -> None:
        """Make the folder `before`."""

    def change(self) -> None:
        """Change the folder."""

    def look(self) -> bool:
        """See that the folder holds one whole version; whether the change is still to be made."""
        raise NotImplementedError

    def check(self) -> None:
        """See that the folder holds one whole version, that work goes on, and that nothing is left over."""

    def start_again(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.before, self.folder)


def digits(tasks: int = 2, share: float = 0.15) -> Scenario:
    scenario = load_scenario("digits")
    return Scenario("digits", scenario.tasks[:tasks]).part(share)


def recipe(scenario: Scenario) -> Any:
    return replace(recipe_for(scenario.image_shape, classes=2), epochs=(1,))


class Save(Work):
    """A learner is saved over another one."""

    name = "save"

    def prepare(self) -> None:
        scenario = digits()
        old = create_learner("hrn", (1, 8, 8), recipe(scenario)).learn(scenario.tasks[0])
        old.save(self.before)
        self.new = copy.deepcopy(old).learn(scenario.tasks[1])
        self.expected = {len(each.tasks): each.state_dict() for each in (old, self.new)}

    def change(self) -> None:
        self.new.save(self.folder)

    def look(self) -> bool:
        found = load_learner(self.folder)
        torch.testing.assert_close(found.state_dict(), self.expected[len(found.tasks)], rtol=0, atol=0)
        return True

    def check(self) -> None:
        for _ in range(2):
            self.look()
            self.change()
        assert len(list(self.folder.iterdir())) == 3, sorted(self.folder.iterdir())


class Kept(Work):
    """A model that people keep."""

    before_and_after: tuple[list[str], list[str]]
    """The names of its tasks."""

    def prepare(self) -> None:
        self.tasks = digits(3).tasks
        model = Model(self.before)
        for task in self.tasks[:2]:
            model.learn(task, epochs=1, progress=False)

    def whole(self) -> list[str]:
        model = Model(self.folder)
        assert model.verify() == []
        return [task.name for task in model.tasks()]

    def look(self) -> bool:
        found, (before, after) = self.whole(), self.before_and_after
        assert found in (before, after)
        return found == before

    def check(self) -> None:
        """The change can be made, and another one."""
        if self.look():
            self.change()
        self.next_writer()

    def next_writer(self) -> None:
        """Whoever writes next removes what the killed one left."""
        last = self.whole()[-1]
        Model(self.folder).rename(last, "other")
        assert self.whole()[-1] == "other"
        store = Model(self.folder).store
        assert {path.name for path in store.objects.iterdir()} == store._needed(store.read())
        assert {path.name for path in self.folder.iterdir()} <= {"manifest.json", "objects", ".lock"}


class Learn(Kept):
    """A model learns a task."""

    name = "learn"

    def prepare(self) -> None:
        super().prepare()
        names = [task.name for task in self.tasks]
        self.before_and_after = names[:2], names

    def change(self) -> None:
        Model(self.folder).learn(self.tasks[2], epochs=2, progress=False)


class LearnMore(Kept):
    """A task that the model knows learns more images; the same call ends in the same model."""

    name = "learn more"

    def prepare(self) -> None:
        super().prepare()
        self.start_again()
        self.change()
        self.after = self.content()

    def change(self) -> None:
        task = self.tasks[1]
        Model(self.folder).learn(replace(task, train=task.test), epochs=2, progress=False)

    def content(self) -> dict[str, bytes]:
        """The manifest, and all objects by their names."""
        return {
            path.name: path.read_bytes() for path in self.folder.rglob("*") if path.suffix in (".json", ".safetensors")
        }

    def look(self) -> bool:
        assert self.whole() == [task.name for task in self.tasks[:2]]
        return True

    def check(self) -> None:
        self.look()
        self.change()
        assert self.content() == self.after
        self.next_writer()


class Forget(Kept):
    """A model forgets a task."""

    name = "forget"

    def prepare(self) -> None:
        super().prepare()
        names = [task.name for task in self.tasks[:2]]
        self.before_and_after = names, names[:1]

    def change(self) -> None:
        Model(self.folder).forget(self.tasks[1].name)


class Bench(Work):
    """A run writes its folder."""

    name = "run"

    def prepare(self) -> None:
        self.scenario = digits()
        self.expected = self._run(self.before.with_name("undisturbed"))

    def _run(self, folder: Path) -> list[Any]:
        result, _ = run(self.scenario, "vc", recipe(self.scenario), folder=folder, resume=True)
        return result.accuracy

    def change(self) -> None:
        self._run(self.folder)

    def look(self) -> bool:
        for path in self.folder.glob("*.json"):
            json.loads(path.read_text())
        return not (self.folder / "result.json").exists()

    def check(self) -> None:
        self.look()
        assert self._run(self.folder) == self.expected
        assert not list(self.folder.glob("*.unfinished")) + list(self.folder.glob("checkpoint.pt"))


WORKS = (Save, Learn, LearnMore, Forget, Bench)


def kill_everywhere(works: Sequence[Work], seconds: float, random: Random) -> Iterator[Part]:
    """Disturb each work at each of its calls, again and again until the time is over."""
    library = ctypes.CDLL(None)
    share = seconds / len(works)
    for work in works:
        parts = {mode: Part(f"{work.name}, {text}", "kill" if mode in KILLS else "") for mode, text in MODES.items()}
        calls = _count(work, library)
        points = [(mode, call) for call in range(1, calls + 1) for mode in MODES]
        weights = [KILLED_MORE if mode in KILLS else 1 for mode, _ in points]
        first = list(points)
        random.shuffle(first)
        end, tries = time.monotonic() + share, 0
        while tries < LEAST or time.monotonic() < end:
            tries += 1
            mode, call = first.pop() if first else random.choices(points, weights)[0]
            if mode in KILLS:
                more = [(random.choice(KILLS), random.randint(1, calls)) for _ in range(random.randrange(IN_A_ROW))]
                kill_in_a_row(work, parts, [(mode, call), *more], library)
            else:
                try_once(work, parts[mode], mode, call, library)
        kills = sum(parts[mode].tries for mode in KILLS)
        tried = f"{len(points) - len(first)} of {len(points)} points tried, {kills} kills"
        print(f"{work.name}: {calls} calls, {tried}", flush=True)
        yield from parts.values()


def _count(work: Work, library: Any) -> int:
    """The calls that change the folder when nothing happens."""
    work.start_again()
    reading, writing = os.pipe()

    def counted() -> None:
        library.chaos_arm(os.fsencode(work.folder), 0, BEFORE)
        work.change()
        os.write(writing, str(library.chaos_count()).encode())

    status, text = in_a_child(counted)
    assert status == 0, text
    os.close(writing)
    with os.fdopen(reading) as said:
        return int(said.read())


def kill_in_a_row(work: Work, parts: dict[int, Part], points: Sequence[tuple[int, int]], library: Any) -> None:
    """Start again, and kill the work at a call. What is left is whole; the work goes on, and is killed again."""
    work.start_again()
    for place, (mode, call) in enumerate(points):

        def killed(mode: int = mode, call: int = call, begun: bool = place > 0) -> None:
            if begun and not work.look():
                os._exit(DONE)
            library.chaos_arm(os.fsencode(work.folder), call, mode)
            work.change()

        status, text = in_a_child(killed)
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            if status and os.waitstatus_to_exitcode(status) != DONE:
                parts[mode].fail(f"killed at {points[:place]}: {text or status}")
            break  # the change was made before this call
        parts[mode].tries += 1
    status, text = in_a_child(work.check)
    if status:
        parts[points[0][0]].fail(f"after kills at {points}: {text or status}")


def try_once(work: Work, part: Part, mode: int, call: int, library: Any) -> None:
    """Start again, disturb the work at a call, and check what is there."""
    work.start_again()

    def disturbed() -> None:
        library.chaos_arm(os.fsencode(work.folder), call, mode)
        or_one_line(work.change)

    part.tries += 1
    status, text = in_a_child(disturbed)
    if status:
        part.fail(f"call {call}: {text or status}")
    if mode == GONE:
        bring_back(work, part, call)
    status, text = in_a_child(work.check)
    if status:
        part.fail(f"after call {call}: {text or status}")


def bring_back(work: Work, part: Part, call: int) -> None:
    """What was begun in the place of a deleted folder goes on or is refused; then the folder is brought back."""
    away = work.folder.with_name(f"{work.folder.name}-gone")
    if not away.exists():  # the work had ended before this call
        return
    status, text = in_a_child(lambda: or_one_line(work.change))
    if status:
        part.fail(f"in the place of the folder that was deleted before call {call}: {text or status}")
    shutil.rmtree(work.folder, ignore_errors=True)
    away.rename(work.folder)


def kill_commands(place: Path, seconds: float, random: Random) -> Part:
    """Kill `hashroute bench` with two jobs at any moment; at its end it has the numbers of an undisturbed one."""
    part = Part("hashroute bench --jobs 2, killed at any moment", "kill")
    command = [sys.executable, "-m", "hashroute", "bench", "digits", "--learners", "vc", "ewc", "hrn"]
    command += ["--epochs", "2", "--fraction", "0.3", "--jobs", "2", "--resume"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LD_PRELOAD": ""}

    def start(folder: Path) -> subprocess.Popen[str]:
        folder.mkdir(exist_ok=True)
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def numbers(folder: Path) -> Any:
        (file,) = folder.glob("results/*.json")
        found = json.loads(file.read_text())
        return {(each["name"], each["seed"]): each["accuracy"] for each in found["runs"]}

    begun = time.monotonic()
    whole = start(place / "commands-whole")
    assert whole.wait() == 0, whole.stderr and whole.stderr.read()
    took, end, round_ = time.monotonic() - begun, begun + seconds, 0
    while time.monotonic() < end:
        round_ += 1
        folder = place / f"commands-{round_}"
        for _ in range(4):
            process = start(folder)
            try:
                process.wait(random.uniform(0.2, 1.2) * took)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                part.tries += 1
            if process.wait() not in (0, -signal.SIGKILL):
                part.fail(f"it ended with {process.returncode}: {process.stderr and process.stderr.read()}")
        process = start(folder)
        said = process.communicate()[1]
        if (process.returncode, said) != (0, "") or numbers(folder) != numbers(place / "commands-whole"):
            part.fail(f"after kills it ended with {process.returncode}: {said}")
        shutil.rmtree(folder)
    return part


def soak(place: Path, seconds: float) -> Part:
    """Ask, save and load again and again: the memory of the process stays within 3 %."""
    part = Part("rounds of predict, save and load with flat memory")
    work = Save(place / "soak")
    images = digits().tasks[0].test.images

    def once() -> None:
        work.new.predict(images)
        work.new.save(work.folder)
        load_learner(work.folder).predict(images, 0)
        part.tries += 1

    work.start_again()
    for _ in range(30):
        once()
    first, end = memory(), time.monotonic() + seconds
    while time.monotonic() < end:
        once()
    grown = memory() / first - 1
    part.note = f"{seconds / 60:.3g} minutes, resident memory {100 * grown:+.1f} %"
    print(f"soak: {part.tries} rounds, {part.note}", flush=True)
    if grown > 0.03:
        part.fail(f"resident memory grew by {100 * grown:.1f} %")
    return part
