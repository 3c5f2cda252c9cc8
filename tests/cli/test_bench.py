"""What `hashroute bench` runs, keeps, names and prints."""

from __future__ import annotations

import json
import os
import platform
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

import hashroute
from hashroute.learners import find_learner, learner_summaries
from hashroute.learners.registry import LEARNERS, import_plugins
from hashroute.scenarios import scenario_summaries
from hashroute.scenarios.registry import SCENARIOS
from run_files import comparison, epochs, read_json

QUICK = ("digits", "--epochs", "1", "--fraction", "0.5")
NAME = "digits-0.5-epochs=1"
FILE = Path("results") / f"{NAME}.json"
RUNS = Path("runs") / NAME

Command = Callable[..., tuple[int, str, str]]


def only_error(answer: tuple[int, str, str]) -> str:
    """The one line on standard error of a command that was refused."""
    code, printed, errors = answer
    assert (code, printed, errors.count("\n")) == (2, "", 1), errors
    assert errors.startswith("hashroute: ")
    return errors.removeprefix("hashroute: ").removesuffix("\n")


# -------------------------------------------------------------------- run again


def test_finished_runs_are_skipped_and_more_are_merged_in_order(bench: Command) -> None:
    def written(*names: str) -> list[int]:
        return [(RUNS / name / "result.json").stat().st_mtime_ns for name in names]

    assert bench(*QUICK, "--learners", "lwf")[0] == 0
    first, content = written("lwf-seed0"), FILE.read_text()
    code, printed, _ = bench(*QUICK, "--learners", "lwf")
    assert code == 0
    assert "1 of 1 runs are already there" in printed.splitlines()
    assert FILE.read_text() == content

    code, printed, _ = bench(*QUICK, "--learners", "lwf", "vc", "--seeds", "2")
    assert code == 0
    assert "1 of 4 runs are already there" in printed.splitlines()
    assert written("lwf-seed0") == first
    merged = comparison(FILE)
    assert list(merged["runs"]) == ["vc 0", "vc 1", "lwf 0", "lwf 1"]
    assert merged["runs"]["lwf 0"]["accuracy"] == json.loads(content)["runs"][0]["accuracy"]
    assert merged["runs"]["lwf 0"]["accuracy"] != merged["runs"]["lwf 1"]["accuracy"]

    FILE.unlink()  # now seed 1 comes from its folder, before seed 0 is run again
    for path in (RUNS / "lwf-seed0").iterdir():
        path.unlink()
    second = written("lwf-seed1", "vc-seed0", "vc-seed1")
    assert bench(*QUICK, "--learners", "lwf", "vc", "--seeds", "2")[0] == 0
    assert written("lwf-seed1", "vc-seed0", "vc-seed1") == second
    assert comparison(FILE) == merged


def test_an_unfinished_run_is_continued_only_on_request(bench: Command) -> None:
    assert bench(*QUICK, "--learners", "vc")[0] == 0
    FILE.unlink()
    (RUNS / "vc-seed0" / "result.json").unlink()
    error = only_error(bench(*QUICK, "--learners", "vc"))
    assert error.startswith(f"{RUNS}/vc-seed0 holds an unfinished run: add --resume")
    assert bench(*QUICK, "--learners", "vc", "--resume")[0] == 0


def test_other_images_under_the_same_name_are_refused_or_replaced(bench: Command) -> None:
    code, printed, _ = bench(*QUICK, "--learners", "vc", "ewc")
    assert code == 0
    assert "digits, images to train on / validate / test: 0 or 1 1" in printed
    images = hashroute.load_scenario("digits", 0.5).images
    assert comparison(FILE)["images"] == read_json(RUNS / "vc-seed0" / "settings.json")["images"] == images
    content = read_json(FILE)
    FILE.write_text(json.dumps({**content, "images": [[1, 2, 3]] * 5}))
    error = only_error(bench(*QUICK, "--learners", "vc", "--seeds", "2"))
    assert error.startswith(f"{FILE} holds results with other settings (images")
    assert error.endswith("or add --replace")
    assert bench(*QUICK, "--learners", "vc", "--replace")[0] == 0
    assert (comparison(FILE)["images"], list(comparison(FILE)["runs"])) == (images, ["vc 0"])


def test_two_versions_of_a_learner_are_not_mixed(bench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench(*QUICK, "--learners", "vc", "ewc")[0] == 0
    before = comparison(FILE)
    monkeypatch.setattr(find_learner("vc"), "version", 7)
    more = (*QUICK, "--learners", "vc", "--seeds", "2")
    assert "holds results with other settings (vc: version: 1 there, 7 here)" in only_error(bench(*more))
    assert comparison(FILE) == before
    other = bench(*QUICK, "--learners", "vc", "--results", "others", "--resume")
    assert f"{RUNS}/vc-seed0 holds a run with other settings (version: 1 there, 7 here)" in other[2]
    assert bench(*more, "--replace")[0] == 0
    after = comparison(FILE)
    assert {run["version"] for name, run in after["runs"].items() if name.startswith("vc")} == {7}
    assert after["runs"]["ewc 0"] == before["runs"]["ewc 0"], "what was not asked for stays"


def test_replaced_runs_are_done_again(bench: Command) -> None:
    assert bench(*QUICK, "--learners", "vc", "ewc")[0] == 0
    before = {name: (RUNS / name / "result.json").stat().st_mtime_ns for name in ("vc-seed0", "ewc-seed0")}
    numbers = comparison(FILE)
    assert bench(*QUICK, "--learners", "vc", "--replace")[0] == 0
    assert (RUNS / "vc-seed0" / "result.json").stat().st_mtime_ns > before["vc-seed0"]
    assert (RUNS / "ewc-seed0" / "result.json").stat().st_mtime_ns == before["ewc-seed0"]
    assert comparison(FILE) == numbers


# -------------------------------------------------------------------- names


def test_runs_are_named_by_options_that_differ_from_the_defaults(bench: Command) -> None:
    assert bench(*QUICK, "--learners", "hrn", "vc")[0] == 0
    given = ("--learners", "hrn", "--options", "hrn.max_units=2", "hrn.rank=1")
    code, printed, _ = bench(*QUICK, *given)
    assert code == 0
    assert bench(*QUICK, "--learners", "hrn", "--options", "hrn.rank=0")[0] == 0, "the default has no name of its own"
    name = "hrn(rank=1, max_units=2)"
    assert f"│ {name} │" in printed
    found = comparison(FILE)
    assert list(found["runs"]) == ["hrn 0", f"{name} 0", "vc 0"]
    run = found["runs"][f"{name} 0"]
    assert (run["learner"], run["options"]["max_units"], run["options"]["rank"]) == ("hrn", 2, 1)
    assert sum(made["units_added"] for made in run["decisions"]) == 2
    assert sorted(path.name for path in RUNS.iterdir()) == ["hrn-rank=1,max_units=2-seed0", "hrn-seed0", "vc-seed0"]
    for part in found["command"].split(" && "):
        program, *arguments = shlex.split(part)
        assert program == "hashroute"
        assert bench(*arguments[1:], "--runs", "again", "--results", "again")[0] == 0
    assert comparison(Path("again") / f"{NAME}.json")["runs"] == found["runs"], "the commands repeat the comparison"


RECIPES = {
    "--epochs 2 1": ("epochs=2,1", {"epochs": [2, 1]}),
    "--epochs 1 --batch-size 64": ("epochs=1-batch_size=64", {"batch_size": 64}),
    "--epochs 1 --learning-rate 0.01": ("epochs=1-learning_rate=0.01", {"learning_rate": 0.01}),
    "--epochs 1 --no-augment": ("epochs=1-augment=false", {"augment": False}),
    "--epochs 1 --augment": ("epochs=1", {"augment": True}),
    "--epochs 1 --backbone resnet18x0.125": ("epochs=1-backbone=resnet18x0.125", {"backbone": "resnet18x0.125"}),
}


@pytest.mark.parametrize("given", RECIPES)
def test_the_recipe_can_be_changed_and_names_the_results(given: str, bench: Command) -> None:
    suffix, values = RECIPES[given]
    code, _, errors = bench("digits", "--fraction", "0.3", "--learners", "hash-only", "vc", *given.split())
    assert code == 0, errors
    found = comparison(Path("results") / f"digits-0.3-{suffix}.json")
    assert values.items() <= found["recipe"].items()
    for flag in given.split("--")[1:]:
        assert f"--{flag.strip()}" in found["command"]
    settings = read_json(Path("runs") / f"digits-0.3-{suffix}" / "vc-seed0" / "settings.json")
    assert settings["recipe"] == found["recipe"]


def test_without_labels_features_are_judged(bench: Command) -> None:
    code, printed, errors = bench(*QUICK, "--learners", "hash-only", "--objective", "rotation")
    assert code == 0, errors
    assert "digits: features, judged with few labels" in printed
    whole = json.loads((Path("results") / "digits-rotation-0.5-epochs=1.json").read_text())
    assert len(whole["runs"][0]["features"]) == 5
    assert "--objective rotation" in whole["command"]


def test_images_of_a_folder_can_have_any_size(bench: Command, tmp_path: Path) -> None:
    for place in range(60):
        task, label = f"task {place % 2}", f"class {place // 2 % 2}"
        (tmp_path / "mine" / task / label).mkdir(parents=True, exist_ok=True)
        colour = (place, 255 * (place // 2 % 2), 0)
        Image.new("RGB", (20, 10), colour).save(tmp_path / "mine" / task / label / f"{place}.png")
    arguments = ("folders", "--folder", "mine", "--learners", "vc", "--epochs", "1")
    assert bench(*arguments, "--size", "12")[0] == 0
    assert bench(*arguments)[0] == 0
    shapes = {
        path.parent.parent.name: read_json(path)["image_shape"] for path in tmp_path.glob("runs/*/*/learner.json")
    }
    assert shapes == {"folders-mine-size=12-epochs=1": [3, 12, 12], "folders-mine-epochs=1": [3, 32, 32]}
    found = comparison(Path("results") / "folders-mine-size=12-epochs=1.json")
    assert "--folder mine --size 12" in found["command"]
    assert found["folder"] == str(tmp_path / "mine")


def test_a_run_names_versions_and_the_command_that_repeats_just_it(bench: Command) -> None:
    assert bench(*QUICK, "--learners", "vc", "hash-only", "--seeds", "2")[0] == 0
    run = RUNS / "hash-only-seed1"
    settings = read_json(run / "settings.json")
    assert settings["versions"] == {
        "hashroute": hashroute.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    program, command, *arguments = shlex.split(settings["command"])
    assert (program, command) == ("hashroute", "bench")
    assert bench(*arguments, "--runs", "again", "--results", "again")[0] == 0
    assert epochs(Path("again") / NAME / "hash-only-seed1") == epochs(run)
    assert sorted(path.name for path in (Path("again") / NAME).iterdir()) == ["hash-only-seed0", "hash-only-seed1"]


# -------------------------------------------------------------------- one fails

PLUGIN = """
from hashroute import register_learner
from hashroute.learners.plain import Vanilla


@register_learner("stumbling")
class Stumbling(Vanilla):
    def loss(self, batch):
        if batch.task.index == 1:
            raise RuntimeError("cannot count to two")
        return super().loss(batch)
"""


def with_plugin(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`hashroute bench` in a process that finds the plugin in its folder."""
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, "-m", "hashroute", "bench", *QUICK, "--plugins", "my_plugin", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_a_failing_learner_does_not_end_the_others_and_continues_when_mended(tmp_path: Path) -> None:
    plugin, run = tmp_path / "my_plugin.py", tmp_path / RUNS / "stumbling-seed0"
    plugin.write_text(PLUGIN)
    failed = with_plugin(tmp_path, "--learners", "stumbling", "vc")
    assert (failed.returncode, failed.stderr) == (1, "")
    error = RUNS / "stumbling-seed0" / "error.txt"
    assert f"stumbling, seed 0, failed: RuntimeError: cannot count to two (see {error})" in failed.stdout.splitlines()
    assert "Traceback" not in failed.stdout
    traceback = (tmp_path / error).read_text()
    assert traceback.startswith("Traceback")
    assert traceback.endswith("RuntimeError: cannot count to two\n")
    assert list(comparison(tmp_path / FILE)["runs"]) == ["vc 0"]
    length = torch.load(run / "checkpoint.pt", weights_only=True)["log_length"]
    kept = (run / "epochs.jsonl").read_bytes()[:length]
    assert len(kept.splitlines()) == 1

    plugin.write_text(PLUGIN.replace('raise RuntimeError("cannot count to two")', "pass"))
    mended = with_plugin(tmp_path, "--learners", "stumbling", "vc", "--resume")
    assert (mended.returncode, mended.stderr) == (0, "")
    assert "failed" not in mended.stdout
    assert (run / "epochs.jsonl").read_bytes().startswith(kept)
    runs = comparison(tmp_path / FILE)["runs"]
    assert list(runs) == ["vc 0", "stumbling 0"]
    named = {"learner": "vc", "name": "vc"}
    assert {**runs["stumbling 0"], **named} == runs["vc 0"], "it is a copy of vc"


def test_a_plugin_is_found_in_the_present_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    (tmp_path / "in_this_folder.py").write_text("found = True\n")
    import_plugins(["in_this_folder.py"])
    assert sys.modules["in_this_folder"].found


# -------------------------------------------------------------------- for programs


@pytest.mark.slow
def test_json_lines_hold_every_epoch_and_result_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "my_plugin.py").write_text(PLUGIN)
    process = with_plugin(tmp_path, "--learners", "stumbling", "hrn", "hrn-paper", "--json", "--jobs", "2")
    assert (process.returncode, process.stderr) == (1, "")
    lines = [json.loads(line) for line in process.stdout.splitlines()]
    assert lines.pop() == {"results": str(FILE)}
    for name, count in (("stumbling", 1), ("hrn", 5), ("hrn-paper", 5)):
        folder = tmp_path / RUNS / f"{name}-seed0"
        who = {"learner": name, "seed": 0}
        *told, last = [line for line in lines if line.items() >= who.items()]
        assert told == [who | json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]
        assert len(told) == count
        if name == "stumbling":
            problem = f"RuntimeError: cannot count to two (see {RUNS / f'{name}-seed0' / 'error.txt'})"
            assert last == {**who, "error": problem}
        else:
            assert last == {**who, "result": read_json(folder / "result.json")}
    assert len(lines) == 1 + 5 + 5 + 3


def test_json_lines_tell_of_runs_that_were_finished_before(bench: Command) -> None:
    assert bench(*QUICK, "--learners", "hash-only")[0] == 0
    FILE.unlink()
    code, printed, _ = bench(*QUICK, "--learners", "hash-only", "--json")
    assert code == 0
    result = read_json(RUNS / "hash-only-seed0" / "result.json")
    assert [json.loads(line) for line in printed.splitlines()] == [
        {"learner": "hash-only", "seed": 0, "result": result},
        {"results": str(FILE)},
    ]


def test_tensorboard_files_are_written_into_the_folder_of_the_run(bench: Command) -> None:
    pytest.importorskip("tensorboard")
    assert bench(*QUICK, "--learners", "vc", "--track", "tensorboard")[0] == 0
    (events,) = (RUNS / "vc-seed0").glob("tensorboard/events.out.tfevents.*")
    content = events.read_bytes()
    for name in (b"loss", b"train_accuracy", b"validation_accuracy", b"test_accuracy/task_4"):
        assert name in content


# -------------------------------------------------------------------- help and mistakes


def test_the_help_explains_every_scenario_and_learner(bench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, printed, _ = bench("--help")
    assert code == 0
    text = " ".join(printed.replace("│", " ").split())
    for name, summary in {**learner_summaries(), **scenario_summaries()}.items():
        assert f"- {name}: {summary}" in text


MISTAKES: dict[str, str] = {
    "digits --learners nobody": "there is no learner 'nobody': expected one of ",
    "nowhere": "nowhere",
    "digits --seeds 0": "--seeds is 0: expected at least 1",
    "digits --jobs 0": "--jobs is 0: expected at least 1",
    "digits --epochs 1 0": "--epochs is 0: expected at least 1",
    "digits --batch-size 0": "--batch-size is 0: expected at least 1",
    "digits --learning-rate -1": "--learning-rate is -1.0: expected a number above 0",
    "digits --learning-rate nan": "--learning-rate is nan: expected a number above 0",
    "digits --augment --no-augment": "--augment and --no-augment are both given",
    "digits --backbone vgg": "there is no backbone 'vgg'",
    "digits --size 16": "--folder and --size belong to the scenario folders",
    "folders --folder nowhere --size 0": "--size is 0: expected at least 1",
    "folders --folder nowhere": "nowhere",
    "folders": "the scenario folders has no folder: add --folder FOLDER, with your images as TASK/CLASS/*",
    "digits --fraction 0": "--fraction is 0",
    "digits --fraction 1.5": "--fraction is 1.5",
    "digits --plugins no_such_plugin": "plugin 'no_such_plugin' cannot be imported",
    "digits --device toaster": "device 'toaster' is not available",
    "digits --recipe paper": "scenario 'digits' has no published recipe",
    "digits --tuned nowhere.json": "nowhere.json",
    "digits --options rank=4": "--options has 'rank=4': expected LEARNER.OPTION=VALUE, for example gpm.threshold=0.9",
    "digits --learners vc --options hrn.rank=4": "for a learner that is not used: expected one of vc",
    "digits --options hrn.rang=4": "hrn has no option 'rang': expected one of rank, max_units",
    "digits --options hrn.rank=some": "rank of hrn is 'some': expected a whole number, at least 0",
}


@pytest.mark.parametrize("arguments", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(arguments: str, bench: Command, tmp_path: Path) -> None:
    assert MISTAKES[arguments] in only_error(bench(*arguments.split()))
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_result_file_is_one_line(bench: Command) -> None:
    FILE.parent.mkdir()
    FILE.write_text("[1]")
    assert f"{FILE} is not a result file" in only_error(bench(*QUICK, "--learners", "vc"))


def test_memory_that_runs_out_is_one_line(bench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "large_scenario.py").write_text(
        "from hashroute import register_scenario\n"
        "@register_scenario('large')\n"
        "def large():\n    import torch\n    return torch.empty(2**60)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    code, printed, errors = bench("large", "--plugins", "large_scenario")
    del SCENARIOS["large"]
    assert (code, printed) == (2, "")
    assert errors.startswith("hashroute: there is not enough memory: use smaller images")
    assert errors.count("\n") == 1


def test_memory_that_does_not_hold_torch_is_one_line(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (400 * 2**20, 400 * 2**20))

    command = [sys.executable, "-m", "hashroute", "bench", *QUICK, "--learners", "vc"]
    where = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=where, capture_output=True, text=True, timeout=600, preexec_fn=limit
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("hashroute: there is not enough memory: ")
    assert done.stderr.count("\n") == 1


GONE = """
from pathlib import Path
from hashroute import register_learner
from hashroute.learners.plain import Vanilla

@register_learner("gone")
class Gone(Vanilla):
    def after_task(self, task):
        for path in Path("results").glob("*.json"):
            path.unlink()
        raise OSError(28, "No space")
"""


def test_results_that_are_gone_are_not_promised(
    bench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone.py").write_text(GONE)
    monkeypatch.syspath_prepend(tmp_path)
    quick = ("digits", "--epochs", "1", "--fraction", "0.3")
    code, printed, _ = bench(*quick, "--learners", "gone", "--plugins", "gone")
    del LEARNERS["gone"]
    assert code == 1
    assert "results in" not in printed
    assert "is missing: it was removed, or the disk is full" in printed
