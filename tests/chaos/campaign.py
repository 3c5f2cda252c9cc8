"""A campaign of kills, faults and hostile files: `make chaos`. It prints its seed and writes what it counted."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from random import Random

RESULT = Path(__file__).with_name("result.json")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    parser.add_argument("--result", type=Path, default=RESULT)
    parser.add_argument("--only", choices=["kills", "files"], help="one half of the campaign")
    given = parser.parse_args()
    if "chaos" not in os.environ.get("LD_PRELOAD", ""):
        return start_with_shim()
    import torch
    from kills import kill_commands, kill_everywhere, read_while_saving, soak
    from mutations import KINDS
    from outcome import Part, read_mutated

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # Pillow warns of damaged images
    print(f"seed {given.seed}, {given.minutes:g} minutes", flush=True)
    random, parts, seconds = Random(given.seed), [], 60 * given.minutes / (1 if given.only else 2)
    with tempfile.TemporaryDirectory(prefix="chaos-") as place:
        if given.only != "files":
            parts += kill_everywhere(Path(place), 0.7 * seconds, random)
            parts.append(read_while_saving(Path(place), 0.1 * seconds))
            parts.append(soak(Path(place), 0.1 * seconds))
            if given.minutes >= 1:
                parts.append(kill_commands(Path(place), 0.1 * seconds, random))
        if given.only != "kills":
            for name, kind in KINDS.items():
                part, folder = Part(name), Path(place) / kind.__name__
                folder.mkdir()
                read_mutated(part, kind(folder, random), seconds / len(KINDS), random)
                parts.append(part)
    found = {
        "seed": given.seed,
        "minutes": given.minutes,
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}",
        "parts": [asdict(part) for part in parts],
    }
    given.result.write_text(json.dumps(found, indent=1) + "\n")
    for part in parts:
        print(f"{part.name}: {part.tries:,} tries, {part.failures} failures")
    return int(any(part.failures for part in parts))


def start_with_shim() -> int:
    """Start this program again with the library that disturbs calls."""
    from kills import build_shim

    with tempfile.TemporaryDirectory(prefix="chaos-shim-") as folder:
        library = build_shim(Path(folder))
        environment = {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
        return subprocess.run([sys.executable, *sys.argv], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
