"""`hashroute inspect` shows what a model is; a folder without a model is one clear line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hashroute import Scenario, load_learner, load_scenario, run
from hashroute.cli import main
from hashroute.learners import learner_names
from hashroute.recipe import recipe_for
from hashroute.reporting.decisions import describe
from kept_models import write_shapes
from programs import run_script
from support import tensors_of

BUILT_IN = tuple(learner_names())


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a short run of a learner."""
    scenario = Scenario("digits", load_scenario("digits", 0.5).tasks[:2])
    settings = replace(recipe_for(scenario.image_shape, classes=2), epochs=(2,))
    made: dict[str, Path] = {}

    def folder(learner: str) -> Path:
        if learner not in made:
            made[learner] = tmp_path_factory.mktemp(learner)
            run(scenario, learner, settings, 3, folder=made[learner], command="a command")
        return made[learner]

    return folder


Inspect = Callable[..., tuple[int, str, str]]


@pytest.fixture
def inspect(hashroute_command: Inspect) -> Inspect:
    """Runs `hashroute inspect ...`."""
    return lambda *arguments: hashroute_command("inspect", *arguments)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_learner_is_described_as_it_is(name: str, folders: Any, inspect: Inspect) -> None:
    folder = folders(name)
    code, printed, said = inspect(folder, "--json")
    assert (code, said, printed.count("\n")) == (0, "", 1)
    found = json.loads(printed)
    learner = load_learner(folder)
    result = json.loads((folder / "result.json").read_text())
    assert (found["learner"], found["seed"], found["scenario"], found["command"]) == (name, 3, "digits", "a command")
    assert found["parameters"] == result["parameters"] == learner.parameter_counts()
    assert found["bytes_kept"] == result["bytes_kept"]
    assert found["decisions"] == result["decisions"]
    assert found["task_free"] == result["task_free"]
    assert [task["name"] for task in found["tasks"]] == ["0 or 1", "2 or 3"]
    assert [task["classes"] for task in found["tasks"]] == [["0", "1"], ["2", "3"]]
    assert [task["final"] for task in found["tasks"]] == result["accuracy"][-1]
    first = None if name == "joint" else result["accuracy"][0][0]
    assert found["tasks"][0]["right_after"] == first
    assert found["accuracy"] == pytest.approx(sum(result["accuracy"][-1]) / 2)
    assert found["epochs"] == len((folder / "epochs.jsonl").read_text().splitlines())
    assert sum(unit["parameters"] for unit in found["units"]) <= found["parameters"]["encoder"]
    assert bool(found["units"]) == (name not in ("hash-only", "closed-form"))
    model = (folder / "learner.json").stat().st_size + tensors_of(folder).stat().st_size
    assert found["bytes_on_disk"]["model"] == model < found["bytes_on_disk"]["folder"]

    code, printed, _ = inspect(folder)
    assert code == 0
    assert printed.startswith(f"{name} on digits, seed 3: 2 tasks, images of 1 x 8 x 8, {found['epochs']} epochs in ")
    assert f"accuracy: task-aware {found['accuracy']:.1f} %; task-free" in printed
    assert "repeat it: a command\n" in printed
    assert all(f"decision: {describe(decision)}\n" in printed for decision in found["decisions"])
    assert max(len(line) for line in printed.splitlines() if not line.startswith("decision")) <= 100


def test_units_of_the_hash_routed_network(folders: Any, inspect: Inspect) -> None:
    learner: Any = load_learner(folders("hrn-paper"))
    units = json.loads(inspect(folders("hrn-paper"), "--json")[1])["units"]
    bases = learner.encoder.bases
    assert [unit["unit"] for unit in units] == [0, 1, 2, 3]
    assert [unit["age"] for unit in units] == bases.ages.tolist()
    assert [unit["replacements"] for unit in units] == bases.replacements.tolist()
    assert [round(unit["basis_fill"] * bases.size) for unit in units] == bases.ranks.tolist()
    assert sum(unit["usage"] for unit in units) == pytest.approx(1)
    assert sum(unit["parameters"] for unit in units) == learner.parameter_counts()["encoder"]
    printed = inspect(folders("hrn-paper"))[1]
    for unit in units:
        assert f"{100 * unit['usage']:.0f} %" in printed
        assert f"{unit['age']:,} │" in printed


def test_units_of_hrn_name_their_tasks(folders: Any, inspect: Inspect) -> None:
    found = json.loads(inspect(folders("hrn"), "--json")[1])
    added = sum(decision["units_added"] for decision in found["decisions"])
    assert len(found["units"]) == added
    assert {task for unit in found["units"] for task in unit["tasks"]} == {"0 or 1", "2 or 3"}
    assert [unit["forked_from"] for unit in found["units"]][:2] == [None, None]


def test_a_page_about_it(folders: Any, inspect: Inspect, tmp_path: Path) -> None:
    code, out, err = inspect(folders("hrn"), "--json", "--html", tmp_path / "page")
    assert code == 0, err
    assert json.loads(out)["learner"] == "hrn", "the page is named elsewhere than on standard output"
    assert "page/report.html" in "".join(err.split())
    page = (tmp_path / "page" / "report.html").read_text()
    assert "2 or 3" in page
    size = sum(file.stat().st_size for file in folders("hrn").iterdir() if file.is_file())
    assert f">{size / 1000:,.0f}</td>" in page, "the size on disk"


def test_a_saved_learner_that_is_no_run_is_described_too(folders: Any, inspect: Inspect, tmp_path: Path) -> None:
    load_learner(folders("hrn-paper")).save(tmp_path)
    code, printed, said = inspect(tmp_path, "--json")
    assert (code, said) == (0, "")
    found = json.loads(printed)
    assert (found["accuracy"], found["command"], found["epochs"]) == (None, None, 0)
    assert len(found["units"]) == 4
    code, printed, _ = inspect(tmp_path)
    assert code == 0
    assert printed.startswith("hrn-paper, seed 3: 2 tasks, images of 1 x 8 x 8\n")


def test_without_a_result_accuracy_comes_from_the_log(folders: Any, inspect: Inspect, tmp_path: Path) -> None:
    shutil.copytree(folders("vc"), tmp_path, dirs_exist_ok=True)
    before = json.loads(inspect(tmp_path, "--json")[1])
    (tmp_path / "result.json").unlink()
    assert json.loads(inspect(tmp_path, "--json")[1])["tasks"] == before["tasks"]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


DAMAGE: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no description": ("learner.json", Path.unlink, "holds no model, learner.json is missing"),
    "no weights": ("*.safetensors", Path.unlink, "safetensors is missing"),
    "half a description": ("learner.json", cut, "learner.json is damaged"),
    "a list": ("learner.json", lambda path: path.write_text("[]"), "learner.json is damaged"),
    "half the weights": ("*.safetensors", cut, "is damaged, its content has changed"),
    "another format": ("learner.json", lambda path: change(path, format=99), "has format 99"),
    "another size": ("learner.json", lambda path: change(path, image_shape=[3, 8, 8]), "that cannot be read"),
    "unknown option": ("learner.json", lambda path: change(path, options={"wait": 1}), "has the unknown entry 'wait'"),
    "unknown learner": ("learner.json", lambda path: change(path, learner="mine"), "there is no learner 'mine'"),
    "half a result": ("result.json", cut, "result.json cannot be read"),
    "half a log": ("epochs.jsonl", cut, "the last line of epochs.jsonl is incomplete"),
    "a result of nonsense": ("result.json", lambda path: change(path, accuracy=[5]), "result.json is damaged"),
    "another run's result": (
        "result.json",
        lambda path: change(path, accuracy=[[90.0]]),
        "its accuracy matrix has gaps",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_folder_is_one_clear_line(case: str, folders: Any, inspect: Inspect, tmp_path: Path) -> None:
    shutil.copytree(folders("vc"), tmp_path / "run")
    file, damage, message = DAMAGE[case]
    (place,) = (tmp_path / "run").glob(file)
    damage(place)
    for options in ([], ["--json"]):
        code, printed, said = inspect(tmp_path / "run", *options)
        assert (code, printed) == (2, "")
        assert said.startswith("hashroute: ")
        assert message in said
        assert said.count("\n") == 1


def test_a_folder_that_is_not_there(inspect: Inspect, tmp_path: Path) -> None:
    code, _, said = inspect(tmp_path / "nowhere")
    assert (code, said.count("\n")) == (2, 1)
    assert "nowhere does not exist: expected a folder that Learner.save or a finished run wrote" in said


def test_a_model_that_is_kept_has_a_command_of_its_own(inspect: Inspect, tmp_path: Path) -> None:
    write_shapes(tmp_path / "round", "circle", "cross", count=8)
    assert main(["learn", str(tmp_path / "kept"), str(tmp_path / "round"), "--epochs", "1"]) == 0
    code, _, said = inspect(tmp_path / "kept")
    assert (code, said.count("\n")) == (2, 1)
    assert f"is a model of hashroute learn: list what it knows with hashroute tasks {tmp_path / 'kept'}" in said


def test_a_learner_of_ones_own_needs_its_plugin(folders: Any, tmp_path: Path) -> None:
    shutil.copytree(folders("vc"), tmp_path / "run")
    for name in ("learner", "settings"):
        change(tmp_path / "run" / f"{name}.json", learner="mine")
    (tmp_path / "my_plugin.py").write_text(
        "from hashroute import register_learner\nfrom hashroute.learners.plain import Vanilla\n\n\n"
        '@register_learner("mine")\nclass Mine(Vanilla):\n    """Nothing but my own."""\n'
    )
    (tmp_path / "both.py").write_text(
        "from hashroute.cli import main\n"
        'plugins = ["--plugins", "my_plugin"]\n'
        'assert main(["inspect", "run", "--json", *plugins]) == main(["report", "run", *plugins]) == 0\n'
    )
    told = run_script(tmp_path / "both.py", tmp_path)
    assert json.loads(told.splitlines()[0])["learner"] == "mine"
    assert "Nothing but my own." in (tmp_path / "report" / "report.html").read_text()
