"""A run's folder says what is wrong with it; a checkpoint that cannot be used is one clear line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hashroute import load_scenario, run
from hashroute.recipe import recipe_for
from hashroute.training.run_folder import RunFolder, differences


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scenario = load_scenario("digits", 0.3)
    recipe = replace(recipe_for(scenario.image_shape, classes=2), epochs=(1,))
    run(replace(scenario, tasks=scenario.tasks[:2]), "hrn", recipe, folder=(folder := tmp_path_factory.mktemp("run")))
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> RunFolder:
    """A copy of a finished run."""
    shutil.copytree(finished, tmp_path / "run")
    return RunFolder(tmp_path / "run")


def write(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


def remove(*names: str) -> Callable[[Path], object]:
    return lambda folder: [(folder / name).unlink() for name in names]


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no log": (remove("epochs.jsonl"), "epochs.jsonl is missing"),
    "an empty log": (write("epochs.jsonl", ""), "no epoch is finished yet"),
    "half a line": (write("epochs.jsonl", '{"task": "a"}\n{"ta'), "the last line of epochs.jsonl is incomplete"),
    "a line of nonsense": (write("epochs.jsonl", "nonsense\n"), "a line of epochs.jsonl cannot be read"),
    "a line of another kind": (write("epochs.jsonl", "[1]\n"), "a line of epochs.jsonl cannot be read"),
    "an accuracy of nonsense": (
        write("epochs.jsonl", '{"accuracy": ["?"]}\n'),
        "a line of epochs.jsonl cannot be read",
    ),
    "samples of nonsense": (write("samples.json", "{"), "samples.json cannot be read"),
    "half a result": (write("result.json", "{"), "result.json cannot be read"),
    "another result": (write("result.json", "{}"), "result.json is damaged (its content lacks 'learner'"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_noted_and_the_rest_is_read(case: str, folder: RunFolder) -> None:
    damage, note = DAMAGE[case]
    damage(folder.path)
    record = folder.read()
    assert any(note in each for each in record.notes), record.notes
    assert record.settings.learner == "hrn"
    assert (record.result is None) == ("result.json" in note)
    assert record.size == sum(path.stat().st_size for path in folder.path.iterdir())


def test_a_matrix_with_other_numbers_of_values_has_gaps(folder: RunFolder) -> None:
    values = json.loads((folder.path / "result.json").read_text())
    values["accuracy"] = [[90.0], [80.0, 70.0, 60.0], [50.0]]
    (folder.path / "result.json").write_text(json.dumps(values))
    record = folder.read()
    assert (record.result, record.notes) == (None, ["its accuracy matrix has gaps"])
    assert record.accuracy == [[90.0, None], [80.0, 70.0]]


def test_a_run_without_a_result_is_known_from_its_log(folder: RunFolder) -> None:
    whole = folder.read()
    remove("result.json", "samples.json")(folder.path)
    record = folder.read()
    assert (record.result, record.notes, record.samples) == (None, [], [])
    assert record.accuracy == whole.accuracy
    assert record.decisions == whole.decisions
    log = (folder.path / "epochs.jsonl").read_text()
    (folder.path / "epochs.jsonl").write_text(log + '{"task": "being wri')
    assert folder.read().epochs == record.epochs, "a line that is being written does not count"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"tasks": 5}'])
def test_settings_that_cannot_be_read_are_one_line(content: str, folder: RunFolder) -> None:
    settings = folder.read().settings
    (folder.path / "settings.json").write_text(content)
    with pytest.raises(ValueError, match=r"is not the folder of a run: its settings\.json cannot be read"):
        folder.read()
    with pytest.raises(ValueError, match=r"is damaged|other settings|of an earlier version"):
        folder.begin(settings, resume=True)


def test_a_run_is_never_mixed_with_another(folder: RunFolder) -> None:
    settings = folder.read().settings
    with pytest.raises(ValueError, match="holds a run already: resume it, or delete the folder"):
        folder.begin(settings)
    for changes, message in (
        ({"seed": 7}, "seed: 0 there, 7 here"),
        ({"options": {**settings.options, "rank": 3}}, "options rank: 0 there, 3 here"),
        ({"recipe": {**settings.recipe, "backbone": "resnet18"}}, "recipe backbone"),
    ):
        with pytest.raises(ValueError, match="holds a run with other settings") as error:
            folder.begin(replace(settings, **changes), resume=True)
        assert message in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a checkpoint"),
        (b"nonsense", "is not a checkpoint"),
        ({"format": 1}, "has format 1, this version of hashroute reads 5: delete"),
        ([1], "is not a checkpoint"),
    ],
)
def test_a_checkpoint_that_cannot_be_used_is_one_line(content: Any, message: str, folder: RunFolder) -> None:
    settings = folder.read().settings
    remove("result.json")(folder.path)
    path = folder.path / "checkpoint.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(ValueError, match=message) as error:
        folder.begin(settings, resume=True)
    assert "\n" not in str(error.value)


def test_a_damaged_result_is_one_line(folder: RunFolder) -> None:
    settings = folder.read().settings
    (folder.path / "result.json").write_text(json.dumps({"learner": "hrn"}))
    with pytest.raises(ValueError, match=r"result\.json is damaged \(its content lacks 'seed'"):
        folder.read_result(settings)


def test_differences_name_what_differs() -> None:
    assert differences({"a": 1, "b": [2]}, {"a": 1, "b": [2]}) == ""
    assert differences({"a": 1, "b": "x" * 50}, {"a": 2, "b": 3}) == "a: 1 there, 2 here, b"
    assert differences({"a": {"b": 1}}, {"a": {"c": 1}}) == "a b: 1 there, None here, c: None there, 1 here"
