"""What else happens to folders: a disk that is really full, limits of file sizes, a wrong clock, other writers."""

from __future__ import annotations

import ctypes
import itertools
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from kills import WORKS, Learn, Save, Work, digits
from outcome import Child, Part, in_a_child, or_one_line

from hashroute import Model, load_learner

NEW_NAMES = 0x00020000
"""CLONE_NEWNS: mounts are seen by this process alone, and end with it."""
PRIVATE = (1 << 18) | 16384
"""MS_PRIVATE and MS_REC."""
YEARS = 20


def each_in_turn(works: list[Work], seconds: float, random: Random, once: Callable[[Work], None]) -> None:
    """Do something with each work in turn, until the time is over; at least once."""
    end = time.monotonic() + seconds
    for work in itertools.cycle(random.sample(works, len(works))):
        once(work)
        if time.monotonic() > end:
            return


def sizes(folder: Path) -> list[int]:
    """The bytes of all files in a folder."""
    return [path.stat().st_size for path in folder.rglob("*") if path.is_file()]


def limited_files(works: list[Work], seconds: float, random: Random) -> Part:
    """As after `ulimit -f`: no file may become larger than a random size."""
    part = Part("files cannot grow beyond a limit (ulimit -f)")

    def once(work: Work) -> None:
        work.start_again()
        most = random.randrange(2 * max([*sizes(work.folder), 20_000]))

        def limited() -> None:
            _, highest = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, highest))
            try:
                or_one_line(work.change)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (highest, highest))

        _settle(part, work, f"{work.name} with {most:,} bytes", limited)

    each_in_turn(works, seconds, random, once)
    return part


def full_tmpfs(works: list[Work], place: Path, seconds: float, random: Random) -> Part:
    """A disk of the size of a folder and a little more; later it has more room. Only root can mount one."""
    part, library = Part("a real disk (tmpfs) that runs full"), ctypes.CDLL(None, use_errno=True)
    if library.unshare(NEW_NAMES) or library.mount(None, b"/", None, PRIVATE, None):
        part.note = "not tried: only root can mount a disk"
        return part
    disk = place / "disk"
    disk.mkdir()

    def once(work: Work) -> None:
        pages = 1 + sum(-(-size // 4096) for size in sizes(work.before)) + random.randrange(1, 60)
        subprocess.run(["mount", "-t", "tmpfs", f"-osize={4 * pages}k", "chaos", str(disk)], check=True)
        home, work.folder = work.folder, disk / work.name
        try:
            work.start_again()
        except OSError:  # not even the folder has room
            return
        else:
            part.tries += 1
            status, text = in_a_child(lambda: or_one_line(work.change))
            if status:
                part.fail(f"{work.name} on {4 * pages} kB: {text or status}")
            subprocess.run(["mount", "-oremount,size=64m", str(disk)], check=True)
            status, text = in_a_child(work.check)
            if status:
                part.fail(f"after {work.name} on {4 * pages} kB: {text or status}")
        finally:
            work.folder = home
            subprocess.run(["umount", str(disk)], check=True)

    each_in_turn(works, seconds, random, once)
    return part


def wrong_clock(works: list[Work], seconds: float, random: Random, library: Any) -> Part:
    """The clock is set back, or forth, before the work and again before the check; files have times of any year."""
    part = Part("the clock is set back or forth, files have wrong times")
    span = YEARS * 365 * 24 * 3600

    def at_another_time(work: Callable[[], object]) -> Callable[[], object]:
        shift = random.choice([-1, -3600, -span, random.randrange(-span, span)])

        def shifted() -> None:
            library.chaos_set_clock(ctypes.c_long(shift))
            work()

        return shifted

    def once(work: Work) -> None:
        work.start_again()
        for path in work.folder.rglob("*"):
            os.utime(path, (random.randrange(span), time.time() + random.randrange(-span, span)))
        _settle(part, work, f"{work.name} at another time", at_another_time(work.change), at_another_time(work.check))

    each_in_turn(works, seconds, random, once)
    return part


def two_writers(works: list[Work], seconds: float, random: Random) -> Part:
    """Two processes change one folder at once: one of them may be refused in one line."""
    part = Part("two processes change one folder at once")

    def once(work: Work) -> None:
        work.start_again()
        delay = random.choice([0, 0, random.random()])

        def second() -> None:
            time.sleep(delay)
            or_one_line(work.change)

        writers = [Child(lambda: or_one_line(work.change)), Child(second)]
        part.tries += 1
        for writer in writers:
            status, text = writer.wait()
            if status:
                part.fail(f"{work.name}: {text or status}")
        status, text = in_a_child(work.check)
        if status:
            part.fail(f"after {work.name}: {text or status}")

    each_in_turn(works, seconds, random, once)
    return part


def _settle(
    part: Part, work: Work, what: str, change: Callable[[], object], check: Callable[[], object] | None = None
) -> None:
    """Count a try: a change in a process, then a check in another one."""
    part.tries += 1
    for step, action in ((what, change), (f"after {what}", check or work.check)):
        status, text = in_a_child(action)
        if status:
            part.fail(f"{step}: {text or status}")


def read_while_saving(place: Path, seconds: float) -> Part:
    """Two processes save into one folder while this one loads from it."""
    part = Part("loads while two processes save")
    work = Save(place / "reading")
    work.start_again()
    old = load_learner(work.folder)
    end = time.monotonic() + seconds

    def save(model: Any) -> None:
        while time.monotonic() < end + 1:
            model.save(work.folder)

    writers = [Child(lambda model=model: save(model)) for model in (old, work.new)]
    while time.monotonic() < end:
        part.tries += 1
        try:
            found = load_learner(work.folder)
            torch.testing.assert_close(found.state_dict(), work.expected[len(found.tasks)], rtol=0, atol=0)
        except Exception as error:
            part.fail(repr(error))
    for writer in writers:
        status, text = writer.wait()
        if status:
            part.fail(f"a process that saved has failed: {text or status}")
    return part


def read_while_changing(place: Path, seconds: float, random: Random) -> Part:
    """One process renames, learns, undoes and forgets while this one asks."""
    part = Part("answers while another process changes the model")
    work = Learn(place / "changing")
    work.start_again()
    images, end = work.tasks[0].test.images[:2], time.monotonic() + seconds
    known = work.tasks[0].name
    expected = Model(work.folder).predict(images, known)

    def change() -> None:
        while time.monotonic() < end + 1:
            model = Model(work.folder)
            model.learn(work.tasks[2], epochs=1, progress=False)
            model.rename(work.tasks[2].name, "other")
            model.undo() if random.random() < 0.5 else model.rename("other", work.tasks[2].name)
            model.forget(work.tasks[2].name)

    writer, reader = Child(change), Model(work.folder)
    while time.monotonic() < end:
        part.tries += 1
        try:
            assert reader.predict(images, known) == expected, "another answer"
            reader.predict(images)
            Model(work.folder).tasks()
        except Exception as error:
            part.fail(repr(error))
    status, text = writer.wait()
    if status:
        part.fail(f"the process that changes the model has failed: {text or status}")
    return part


def many_tasks(place: Path, tasks: int, seconds: float) -> Part:
    """A model learns hundreds of tasks, as many as the time allows: old answers stay, and nothing is damaged."""
    part = Part("tasks of one model, whose first task answers as before")
    folder, few = place / "many", digits(5, 0.05).tasks
    model, expected, end = Model(folder), None, time.monotonic() + seconds
    for number in range(tasks):
        task = few[number % len(few)]
        model.learn((task.train.images, task.train.labels), f"task {number}", epochs=1, progress=False)
        part.tries += 1
        last = number == tasks - 1 or time.monotonic() > end
        if number % 50 == 0 or last:
            images = few[0].test.images[:3]
            answers = Model(folder).predict(images, "task 0")
            expected = expected or answers
            if answers != expected or Model(folder).verify():
                part.fail(f"after {number + 1} tasks: {answers} where there was {expected}")
            Model(folder).predict(images)
        if last:
            break
    part.note = "" if part.tries == tasks else f"the time was over before {tasks} tasks"
    model.forget(f"task {part.tries - 1}")
    model.undo()
    if len(Model(folder).tasks()) != part.tries - 2 or Model(folder).verify():
        part.fail("after a task is forgotten and a lesson undone")
    shutil.rmtree(folder)
    return part


def fault_works(place: Path) -> list[Work]:
    """The works that faults happen to."""
    return [kind(place / "faults") for kind in WORKS]
