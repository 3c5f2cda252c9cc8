"""Files that atheris makes: it keeps those that reach new lines of the readers, and changes them further."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

from outcome import MOST_WAITING, Part, or_one_line

MOST_MEGABYTES = 1536
"""Resident memory of the process, at most: torch alone takes a third of it."""


def guided(place: Path, seconds: float, random: Random) -> Part:
    """Read files that atheris makes, in a process of its own."""
    part = Part("data files and lists that reach new lines of their readers (atheris)", "file")
    if importlib.util.find_spec("atheris") is None:
        part.note = "not tried: atheris is not installed"
        return part
    corpus = place / "corpus"
    corpus.mkdir()
    command = [sys.executable, __file__, str(corpus), f"-max_total_time={int(seconds)}", "-print_final_stats=1"]
    command += [f"-timeout={MOST_WAITING}", f"-rss_limit_mb={MOST_MEGABYTES}", f"-seed={random.randrange(1, 2**31)}"]
    command += ["-max_len=20000", f"-artifact_prefix={place}/"]
    environment = {**os.environ, "LD_PRELOAD": ""}
    done = subprocess.run(command, env=environment, cwd=place, capture_output=True, text=True, errors="replace")
    counted = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
    part.tries = int(counted[1]) if counted else 0
    if done.returncode or not counted:
        part.fail(f"atheris ended with {done.returncode}: {done.stdout[-1000:]}{done.stderr[-400:]}")
    print(f"{part.name}: {part.tries:,} files, {part.failures} failures", flush=True)
    return part


def fuzz(corpus: Path) -> None:
    """Let atheris make files; the first byte chooses the reader."""
    import atheris

    with atheris.instrument_imports(include=["hashroute"]):
        from hashroute.data.readers import read_cifar_names, read_cifar_split, read_idx_split, read_svhn_split
        from hashroute.learners.files import read_description
        from hashroute.model.sources import open_sources
        from hashroute.training.result import Comparison

    from mutations import data_contents, list_contents

    inside = corpus.with_name("read")
    inside.mkdir()
    contents = data_contents()
    whole = inside / "labels"
    whole.write_bytes(contents["idx labels"])
    readers: list[tuple[str, Callable[[Path], object]]] = [
        ("a.gz", lambda path: read_idx_split(path, whole, 10)),
        ("a", lambda path: read_cifar_split(path, 10)),
        ("a", read_cifar_names),
        ("a.mat", read_svhn_split),
        ("a.csv", open_sources),
        ("a.jsonl", open_sources),
        ("learner.json", lambda path: read_description(path.parent)),
        ("a.json", Comparison.read),
    ]
    for place, content in enumerate([*contents.values(), *list_contents().values()]):
        for number in range(len(readers)):
            (corpus / f"seed-{place}-{number}").write_bytes(bytes([number]) + content)

    def read_one(content: bytes) -> None:
        name, reader = readers[content[0] % len(readers) if content else 0]
        path = inside / name
        path.write_bytes(content[1:])
        or_one_line(lambda: reader(path))

    atheris.Setup([sys.argv[0], *sys.argv[2:], str(corpus)], read_one)
    atheris.Fuzz()


if __name__ == "__main__":
    fuzz(Path(sys.argv[1]))
