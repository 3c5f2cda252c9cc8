"""A campaign of kills, faults and hostile files: `make chaos`. It prints its seed and writes what it counted.

It has two halves, each in processes of its own: what happens to folders, and what files hold. At its end it writes
result.json and the table in docs/reliability.md.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

RESULT = Path(__file__).with_name("result.json")
ROOT = Path(__file__).parents[2]
HALVES = ("kills", "files")
SHORT = 2
"""Minutes; a shorter campaign leaves out what needs more: kills of commands, many tasks, memory, pages, atheris."""
TASKS = 300
"""Tasks that one model learns, if there is time."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--jobs", type=int, default=2, help="processes, as many for either half")
    parser.add_argument("--only", choices=HALVES, help="one half of the campaign")
    parser.add_argument("--beside", action="store_true", help="leave out what one process does for all")
    given = parser.parse_args()
    if "chaos" not in os.environ.get("LD_PRELOAD", ""):
        return start_with_shim()
    print(f"seed {given.seed}, {given.minutes:g} minutes {given.only or ''}", flush=True)
    parts = run_half(given) if given.only else run_all(given)
    write(given, parts)
    if given.only is None:
        for part in parts:
            print(f"{part['name']}: {part['tries']:,} tries, {part['failures']} failures. {part['note']}")
        if given.result == RESULT:
            subprocess.run([sys.executable, ROOT / "docs" / "make_pages.py", "reliability.md"], check=True)
    return int(any(part["failures"] for part in parts))


def write(given: argparse.Namespace, parts: list[dict[str, Any]]) -> None:
    """Write what was counted so far."""
    found = {
        "seed": given.seed,
        "minutes": given.minutes,
        "jobs": given.jobs,
        "machine": f"{os.cpu_count()} cores, {versions()}",
        "parts": parts,
    }
    given.result.write_text(json.dumps(found, indent=1) + "\n")


def versions() -> str:
    """Of Python and torch."""
    from importlib.metadata import version

    return f"Python {platform.python_version()}, torch {version('torch')}"


def start_with_shim() -> int:
    """Start this program again with the library that disturbs calls."""
    with tempfile.TemporaryDirectory(prefix="chaos-shim-") as folder:
        library, source = Path(folder) / "shim.so", Path(__file__).with_name("shim.c")
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
        environment = {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
        return subprocess.run([sys.executable, *sys.argv], env=environment).returncode


def run_all(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Both halves at once, each in half of the processes; the parts of all."""
    from outcome import Part

    with tempfile.TemporaryDirectory(prefix="chaos-halves-") as folder:
        results, processes = [], []
        for number in range(max(2, given.jobs)):
            results.append(Path(folder) / f"{number}.json")
            command = [
                sys.executable,
                __file__,
                "--minutes",
                str(given.minutes),
                "--seed",
                str(given.seed + number // 2),
            ]
            command += ["--only", HALVES[number % 2], "--result", str(results[-1]), *["--beside"][: number // 2]]
            processes.append(subprocess.Popen(command))
        codes = [process.wait() for process in processes]
        parts = merged([result for result in results if result.exists()])
        if lost := [code for code in codes if code not in (0, 1)]:
            part = Part("processes of this campaign, which must not end early", tries=len(codes))
            part.fail(f"they ended with {lost}")
            parts.append(asdict(part))
        return parts


def merged(results: list[Path]) -> list[dict[str, Any]]:
    """The parts of several processes, each once."""
    parts: dict[str, dict[str, Any]] = {}
    for part in [part for result in results for part in json.loads(result.read_text())["parts"]]:
        whole = parts.setdefault(part["name"], part)
        if whole is not part:
            for name in ("tries", "failures", "refused", "described"):
                whole[name] += part[name]
            for name in ("slowest", "grown"):
                whole[name] = max(whole[name], part[name])
    return list(parts.values())


def run_half(given: argparse.Namespace) -> list[dict[str, Any]]:
    """One half of the campaign; its parts, which are also written as they come."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # Pillow warns of damaged images
    half = happen_to_folders if given.only == "kills" else change_files
    parts: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="chaos-") as place:
        for part in half(Path(place), given.minutes, Random(given.seed), given.beside):
            parts.append(asdict(part))
            write(given, parts)
    return parts


def happen_to_folders(place: Path, minutes: float, random: Random, beside: bool) -> Iterator[Any]:
    """Kills and faults."""
    import faults
    from kills import kill_commands, kill_everywhere

    begun, seconds, works = time.monotonic(), 60 * minutes, faults.fault_works(place)
    if minutes >= SHORT and not beside:
        yield faults.many_tasks(place, TASKS, 0.25 * seconds)
        yield kill_commands(place, 0.05 * seconds, random)
    yield faults.limited_files(works, 0.02 * seconds, random)
    yield faults.full_tmpfs(works, place, 0.02 * seconds, random)
    yield faults.wrong_clock(works, 0.02 * seconds, random, ctypes.CDLL(None))
    yield faults.two_writers(works, 0.02 * seconds, random)
    yield faults.read_while_saving(place, 0.02 * seconds)
    yield faults.read_while_changing(place, 0.02 * seconds, random)
    yield from kill_everywhere(works, seconds - (time.monotonic() - begun), random)


def change_files(place: Path, minutes: float, random: Random, beside: bool) -> Iterator[Any]:
    """Ten of thirty minutes of asking, saving and loading; then files of every kind."""
    from kills import soak
    from mutations import KINDS
    from outcome import Part, read_mutated

    begun, seconds = time.monotonic(), 60 * minutes
    if minutes >= SHORT and not beside:
        from guided import guided
        from pages import scripts_in_names

        yield guided(place, 0.06 * seconds, random)
        yield scripts_in_names(place, 0.03 * seconds, random)
        yield soak(place, seconds / 3)
    left = seconds - (time.monotonic() - begun)
    for kind in KINDS:
        part, folder = Part(kind.name, "file"), place / kind.files.__name__
        folder.mkdir()
        read_mutated(part, kind.files(folder, random), kind.share * left, random)
        print(f"{part.name}: {part.tries:,} files, {part.failures} failures, {part.note}", flush=True)
        yield part


if __name__ == "__main__":
    sys.exit(main())
