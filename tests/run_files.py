"""What several tests read from the files of runs and comparisons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def timeless(values: dict[str, Any]) -> dict[str, Any]:
    """A result, or the record of an epoch, without how long it took."""
    return {name: value for name, value in values.items() if name != "seconds"}


def comparison(path: Path) -> dict[str, Any]:
    """The content of a result file, without how long runs took; runs by name and seed."""
    content = read_json(path)
    return {**content, "runs": {f"{run['name']} {run['seed']}": timeless(run) for run in content["runs"]}}


def epochs(run: Path) -> list[dict[str, Any]]:
    """The log of a run, without how long epochs took."""
    return [timeless(json.loads(line)) for line in (run / "epochs.jsonl").read_text().splitlines()]


def logs(folder: Path) -> dict[str, bytes]:
    """The logs of all runs below a folder, by the name of the run's folder."""
    return {path.parent.name: path.read_bytes() for path in folder.glob("runs/*/*/epochs.jsonl")}


def check_whole(folder: Path) -> dict[str, bytes]:
    """See that every file with a final name is whole; returns the epochs that must never be trained again."""
    kept: dict[str, bytes] = {}
    files = [path for part in ("runs", "results") for path in (folder / part).rglob("*") if path.is_file()]
    for path in files:
        if path.suffix == ".json":
            read_json(path)
        elif path.suffix == ".jsonl":
            content = path.read_bytes()
            assert content == b"" or content.endswith(b"\n")
            lines = [json.loads(line) for line in content.splitlines()]
            if (path.parent / "result.json").exists():
                kept[path.parent.name] = content
            elif (path.parent / "checkpoint.pt").exists():
                checkpoint = torch.load(path.parent / "checkpoint.pt", weights_only=True)
                kept[path.parent.name] = content[: checkpoint["log_length"]]
                held = kept[path.parent.name].splitlines(keepends=True)
                assert len(kept[path.parent.name]) == checkpoint["log_length"]
                assert held[-1].endswith(b"\n")
                assert len(lines) - len(held) in (0, 1)
                assert sum(line["images"] for line in lines[: len(held)]) == checkpoint["result"]["images"]
        elif path.suffix == ".pt":
            assert (path.parent / "epochs.jsonl").exists()
            torch.load(path, weights_only=True)
        elif path.suffix == ".safetensors":
            load_file(path)
        else:
            assert path.suffix in (".lock", ".unfinished") or path.name == ".lock", f"what is {path}?"
    return kept


def assert_kept(kept: dict[str, bytes], folder: Path) -> None:
    """Epochs in a checkpoint were not trained again: they are still in the log, with their seconds."""
    now = check_whole(folder)
    for name, log in kept.items():
        assert now[name].startswith(log), f"{name} lost epochs that were in its checkpoint"


def assert_same_files(folder: Path, undisturbed: Path) -> None:
    """Everything that the same command wrote into two folders is the same, except how long things took."""
    for path in undisturbed.glob("results/*.json"):
        assert comparison(folder / "results" / path.name) == comparison(path)
    expected = sorted(run.relative_to(undisturbed) for run in undisturbed.glob("runs/*/*"))
    assert sorted(run.relative_to(folder) for run in folder.glob("runs/*/*")) == expected
    for name in expected:
        one, other = folder / name, undisturbed / name
        names = [{path.name for path in run.iterdir() if path.suffix != ".lock"} for run in (one, other)]
        assert names[0] == names[1]
        assert epochs(one) == epochs(other)
        assert timeless(read_json(one / "result.json")) == timeless(read_json(other / "result.json"))
        for file in ("settings.json", "learner.json", "samples.json"):
            assert (one / file).read_bytes() == (other / file).read_bytes(), f"{name}: {file}"
    assert not list(folder.rglob("*.unfinished"))
