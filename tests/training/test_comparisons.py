"""Search, ablation, tables and figures: what they choose, count and say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from hashroute.cli import ablate
from hashroute.cli.app import main
from hashroute.cli.search import SearchSettings, choose, combinations
from hashroute.cli.search import _try as search_trial
from hashroute.data import dataset_status
from hashroute.learners import LEARNERS, find_learner
from hashroute.learners.base import options_from_dict, options_to_dict
from hashroute.recipe import Profile, result_name, tuned_options
from hashroute.reporting.figures import STYLES, accuracy_figure
from hashroute.reporting.tables import lead_rows, markdown, spread, summary, task_rows
from hashroute.scenarios import find_scenario, load_scenario, published_results, registry, scenario_names
from hashroute.tasks import Scenario, Split
from hashroute.training import metrics
from hashroute.training.run import learner_options

ROOT = Path(__file__).parents[2]
TUNED = ROOT / "hashroute" / "learners" / "tuned"
RESULTS = [path for path in sorted((ROOT / "results").glob("*.json")) if not path.stem.startswith("ablation")]


def content() -> dict[str, Any]:
    """A result file of two tasks: one learner with two seeds that forgets, one that learned at once, and separate."""
    common = {"parameters": [{"encoder": 10, "heads": 20}] * 2, "bytes_kept": [{"weights": 3000, "memory": 1000}] * 2}
    common |= {
        "version": 2,
        "images_per_second": [1000.0, 2000.0],
        "task_free": [{"all_classes": 50.0, "dataset": 75.0}] * 2,
    }
    return {
        "scenario": "fashion-mnist",
        "tasks": ["Fashion", "MNIST"],
        "learners": {
            "vc": {"seeds": [0, 1], "accuracy": [[[90.0, None], [60.0, 98.0]], [[92.0, None], [70.0, 96.0]]], **common},
            "separate": {"seeds": [0], "accuracy": [[[91.0, None], [91.0, 99.0]]], **common},
            "joint": {"seeds": [0], "accuracy": [[[None, None], [89.0, 97.0]]], **common},
        },
    }


def test_the_summary_says_what_the_matrices_hold() -> None:
    headers, rows = summary(content())
    said = {row[0]: dict(zip(headers, row, strict=True)) for row in rows}
    vc = said["vc"]
    assert (vc["final"], vc["right after"], vc["best-ever"]) == ("81.0 ± 2.8", "94.0 ± 0.0", "94.0 ± 0.0")
    assert (vc["forgetting"], vc["backward transfer"]) == ("26.0 ± 5.7", "-26.0 ± 5.7")
    assert vc["intransigence"] == "1.0", "only seeds that separate has, too, can be compared"
    assert (vc["no task given"], vc["data set found"], vc["kept, kB"]) == ("50.0 ± 0.0", "75.0 ± 0.0", "4")
    assert said["joint"]["final"] == "93.0"
    assert said["joint"]["forgetting"] == said["joint"]["intransigence"] == ""


def test_the_paper_stands_below_the_learner_it_speaks_of() -> None:
    headers, rows = task_rows(content())
    assert headers == ["learner", "Fashion", "MNIST", "mean"]
    assert rows[0] == ["vc", "91.0 / 65.0", "97.0 / 97.0", "94.0 / 81.0"]
    assert rows[1] == ["*vc, paper*", "*88.8 / 61.5*", "*98.0 / 98.0*", "*93.4 / 79.8*"]
    assert rows[-1] == ["joint", "89.0", "97.0", "93.0"]
    lines = markdown(headers, rows).splitlines()
    assert len({line.count("|") for line in lines}) == 1


def test_a_lead_is_counted_over_the_seeds_that_both_have() -> None:
    found = content()
    some, all_right = np.array([True, False] * 50), np.ones(100, bool)
    for name, seeds in (("vc", [some, some]), ("separate", [all_right])):
        found["learners"][name]["right"] = [[metrics.pack(right)] * 2 for right in seeds]
    headers, rows = lead_rows(found, "separate")
    assert headers[0] == "separate against"
    assert [(row[0], row[1], row[3]) for row in rows] == [("vc", "+50.00", "1")], "joint says nothing of its answers"
    low, high = map(float, rows[0][2].split(" to "))
    assert 40 < low < 50 < high < 60
    for name in ("vc", "separate", "joint"):
        entry = found["learners"][name]
        entry["right_after"] = [[metrics.pack(all_right)] * 2] * len(entry["seeds"])
    _, rows = lead_rows(found, "separate", "right_after")
    assert [row[:2] for row in rows] == [["vc", "+0.00"]], "joint was never asked after a task"


def test_the_help_names_every_scenario_and_learner(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    said = capsys.readouterr().out
    assert [name for name in (*scenario_names(), *LEARNERS) if name not in said] == []


def test_a_spread_needs_several_values() -> None:
    assert spread([98.76]) == "98.8"
    assert spread([1.0, 3.0], 2) == "2.00 ± 1.41"


def test_figures_are_pictures_and_the_same_each_time(tmp_path: Path) -> None:
    for name in ("one.png", "other.png"):
        accuracy_figure(content(), tmp_path / name)
    picture = (tmp_path / "one.png").read_bytes()
    assert picture[:4] == b"\x89PNG"
    assert len(picture) > 10_000
    assert picture == (tmp_path / "other.png").read_bytes()


def test_every_learner_has_a_colour_of_its_own() -> None:
    assert len({STYLES[name] for name in LEARNERS}) == len(LEARNERS)


# ------------------------------------------------------------------------ search


def test_a_search_never_looks_at_test_images(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load_scenario("digits")
    noise = torch.randint(256, (50, 1, 8, 8), dtype=torch.uint8)
    blind = Split(noise, torch.zeros(50, dtype=torch.int64))
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))

    @registry.register_scenario("blind")
    def blind_scenario() -> Scenario:
        return Scenario("digits", tuple(replace(task, test=blind) for task in scenario.tasks))

    found = []
    for name in ("digits", "blind"):
        settings = SearchSettings(scenario=name, fraction=0.3, tasks=2)
        found.append(search_trial(settings, "gpm", {"threshold": 0.9}, 0))
    assert found[0] == found[1]


def test_a_search_tries_all_and_takes_the_best_mean() -> None:
    assert combinations({"a": (1, 2), "b": (3,)}) == [{"a": 1, "b": 3}, {"a": 2, "b": 3}]
    trials = [
        {"learner": "ewc", "options": {"weight": weight}, "seed": seed, "final": final}
        for weight, finals in ((1.0, (90.0, 70.0)), (10.0, (82.0, 81.0)))
        for seed, final in enumerate(finals)
    ]
    assert choose(trials) == {"ewc": {"weight": 10.0}}


def test_a_search_is_written_down_and_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "deep" / "found.json"
    command = ["search", "digits", "--learners", "gpm", "--fraction", "0.2", "--tasks", "2", "--output", str(output)]
    assert main(command) == 0
    found = json.loads(output.read_text())
    assert len(found["trials"]) == len(find_learner("gpm").grid["threshold"])
    assert found["chosen"]["gpm"]["threshold"] in find_learner("gpm").grid["threshold"]
    assert found["tasks"] == ["0 or 1", "2 or 3"]
    found["trials"][0]["final"] = 1000.0  # a trial that is kept, not run again, is chosen now
    output.write_text(json.dumps(found))
    assert main(command) == 0
    assert json.loads(output.read_text())["chosen"]["gpm"] == found["trials"][0]["options"]
    capsys.readouterr()
    assert main([*command[:-2], "--output", str(output), "--seeds", "0"]) == 2
    assert main(["search", "digits", "--learners", "vc"]) == 2
    assert main([*command[:-4], "--tasks", "3", "--output", str(output)]) == 2
    (tmp_path / "other.json").write_text("[1]")
    assert main([*command[:-2], "--output", str(tmp_path / "other.json")]) == 2
    assert main(["bench", "digits", "--learners", "gpm", "--tuned", str(tmp_path / "other.json")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5
    assert "other tasks" in lines[2]
    options = learner_options("gpm", "digits", "default", (1, 8, 8), output)
    assert options == found["trials"][0]["options"]


def test_a_search_tries_the_values_that_are_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "found.json"
    command = ["search", "digits", "--learners", "gpm", "--fraction", "0.2", "--tasks", "2", "--output", str(output)]
    assert main([*command, "--values", "gpm.threshold=0.5,0.85"]) == 0
    found = json.loads(output.read_text())
    assert [trial["options"] for trial in found["trials"]] == [{"threshold": 0.5}, {"threshold": 0.85}]
    assert "--learners gpm --values gpm.threshold=0.5,0.85 --seeds 1" in found["command"]
    for _ in range(2):  # more values are added to those tried before, and so is the command
        assert main([*command, "--values", "gpm.threshold=0.6,0.85"]) == 0
    more = json.loads(output.read_text())
    assert more["trials"][:2] == found["trials"]
    assert [trial["options"] for trial in more["trials"][2:]] == [{"threshold": 0.6}]
    first, second = more["command"].split(" && ")
    assert first == found["command"]
    assert second == first.replace("0.5,0.85", "0.6,0.85")
    output.unlink()
    assert main([*command, "--values", "gpm.threshold=0.5", "gpm.samples=20,40"]) == 0
    whole = [trial["options"]["samples"] for trial in json.loads(output.read_text())["trials"]]
    assert whole == [20, 40]
    assert all(isinstance(value, int) for value in whole)
    capsys.readouterr()
    for wrong, said in {
        "0.5": "--values has '0.5': expected LEARNER.OPTION=VALUE, such as gpm.threshold=0.9",
        "ewc.weight=1": "--values has 'ewc.weight=1', of a learner that is not asked for: expected one of gpm",
        "gpm.threshold=much": "--values has 'gpm.threshold=much': expected numbers behind the =, with commas between",
        "gpm.samples=1.5": "--values has 'gpm.samples=1.5': expected whole numbers behind the =, with commas between",
        "gpm.weight=1": "GPMOptions has no option 'weight': expected one of threshold, increase, samples",
    }.items():
        assert main([*command, "--values", wrong]) == 2
        assert capsys.readouterr().err == f"hashroute: {said}\n"


PUBLISHED = ("pairwise-mnist", "fashion-mnist", "svhn-cifar100")
SHAPES = {"pairwise-mnist": (1, 28, 28), "fashion-mnist": (1, 28, 28)}


@pytest.mark.parametrize(
    ("scenario", "profile"),
    [(name, "paper") for name in PUBLISHED] + [(name, "default") for name in (*PUBLISHED, "split-cifar100", "mixed")],
)
def test_what_was_searched_for_is_what_comparisons_use(scenario: str, profile: Profile) -> None:
    name, shape = result_name(scenario, profile), SHAPES.get(scenario, (3, 32, 32))
    settings = find_scenario(scenario).recipe(shape, 2 if scenario == "pairwise-mnist" else 10, profile)
    files = [json.loads(file.read_text()) for file in sorted(TUNED.glob(f"{name}.*"))]
    assert files
    for found in files:
        assert choose(found["trials"]) == found["chosen"]
        assert found["recipe"] == settings.to_dict()
    chosen = {learner: options for found in files for learner, options in found["chosen"].items()}
    assert chosen == tuned_options(name)
    assert sum(len(found["chosen"]) for found in files) == len(chosen), "a learner was searched for twice"
    for learner, some in chosen.items():
        options = learner_options(learner, scenario, profile, shape)
        assert some.items() <= options.items()
        options_from_dict(find_learner(learner).Options, options)


# ------------------------------------------------------------------------ ablation


def test_a_sign_needs_two_standard_errors() -> None:
    baseline = {"seeds": [0, 1, 2], "long_term": [90.0, 91.0, 92.0], "seconds": [10.0, 10.0, 10.0]}
    better = {"seeds": [0, 1, 2], "long_term": [92.0, 93.1, 93.9], "seconds": [12.0, 12.1, 11.9]}
    mean, error, sign = ablate.difference(better, baseline, "long_term")
    assert (round(mean, 6), sign) == (2.0, "+")
    assert error == pytest.approx(0.0577, abs=1e-3)
    assert ablate.difference(better, baseline, "seconds")[2] == "-"
    noisy = {"seeds": [0, 1, 2], "long_term": [99.0, 80.0, 95.0]}
    assert ablate.difference(noisy, baseline, "long_term")[2] == ""
    single = {"seeds": [0], "long_term": [99.0]}
    assert ablate.difference(single, baseline, "long_term")[2] == "", "one seed has no spread, so no sign"


def test_the_ablation_has_the_papers_seven_rows() -> None:
    assert len(ablate.PAPER) == 7
    assert list(ablate.ROWS) == ["baseline", *ablate.PAPER]
    for change in ablate.ROWS.values():
        options_from_dict(find_learner("hrn-paper").Options, {**PUBLISHED_HRN, **change})


PUBLISHED_HRN = learner_options("hrn-paper", "pairwise-mnist", "paper", (1, 28, 28))


def test_an_ablation_is_written_down_and_gone_on_with(tmp_path: Path) -> None:
    if not dataset_status("mnist").sizes:
        pytest.skip("MNIST is not here")
    settings = ablate.AblateSettings(seeds=1, fraction=0.002, output=tmp_path / "ablation.json")
    console = Console(record=True, width=200, quiet=True)
    ablate.run_ablation(settings, console)
    found = json.loads(settings.output.read_text())
    assert all(row["seeds"] == [0] for row in found["rows"].values())
    seconds = found["rows"]["baseline"]["seconds"]
    ablate.run_ablation(settings, console)
    assert json.loads(settings.output.read_text())["rows"]["baseline"]["seconds"] == seconds
    assert len(ablate.ablation_rows(found)[1]) == 8


# ------------------------------------------------------------------------ what is committed


def missing_runs(scenario: str, found: dict[str, Any]) -> dict[str, int]:
    """How many runs of each learner are not in a table that should have all."""
    few = ("hrn", "gpm", "vc", "hash-only", "separate", "joint")
    learners = few if scenario == "split-cifar100" else LEARNERS
    wanted = dict.fromkeys(learners, 3 if scenario == "pairwise-mnist" else 2) | {"joint": 1}
    lacking = {name: count - len(found.get(name, {}).get("seeds", ())) for name, count in wanted.items()}
    return {name: count for name, count in lacking.items() if count > 0}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_committed_results_are_whole(path: Path) -> None:
    found = json.loads(path.read_text())
    scenario, tasks, profile = found["scenario"], found["tasks"], found["recipe"]["profile"]
    assert path.stem == result_name(scenario, profile)
    assert set(found["learners"]) <= set(LEARNERS)
    if profile == "paper":
        assert set(found["learners"]) == set(LEARNERS)
    else:
        assert not missing_runs(scenario, found["learners"])
    shape = (1, 28, 28) if "mnist" in scenario else (3, 32, 32)
    kept = {name: value for name, value in found["recipe"].items() if name not in ("profile", "fraction")}
    assert kept == find_scenario(scenario).recipe(shape, 2 if scenario == "pairwise-mnist" else 10, profile).to_dict()
    assert found["recipe"]["fraction"] == 1
    for name, entry in found["learners"].items():
        count = len(entry["seeds"])
        options = learner_options(name, scenario, profile, shape)
        assert entry["options"] == options_to_dict(options_from_dict(find_learner(name).Options, options)), name
        assert entry.get("version", 1) == find_learner(name).version, f"{name} gives other numbers now"
        for part in ("accuracy", "seconds", "images_per_second", "parameters", "bytes_kept", "task_free", "decisions"):
            assert len(entry[part]) == count, (name, part)
        for matrix in entry["accuracy"]:
            assert [len(row) for row in matrix] == [len(tasks)] * len(tasks)
            assert None not in matrix[-1]
    assert all(len(cells) == len(tasks) for cells in published_results(scenario).values())


@pytest.mark.parametrize("scenario", PUBLISHED)
def test_published_tables_have_strong_baselines(scenario: str) -> None:
    learners = json.loads((ROOT / "results" / f"{scenario}-paper.json").read_text())["learners"]
    best, forgotten = {}, {}
    for name in ("vc", "ewc", "ell", "gpm", "hash-only", "separate"):
        matrices = learners[name]["accuracy"]
        best[name] = np.mean([metrics.best_ever(matrix) for matrix in matrices], 0)
        forgotten[name] = np.mean([metrics.forgetting(matrix) for matrix in matrices])
    assert all(forgotten[name] < forgotten["vc"] for name in ("ewc", "ell", "gpm"))
    assert forgotten["hash-only"] == forgotten["separate"] == 0
    assert all(best[name].mean() > best["vc"].mean() - 3 for name in ("ewc", "ell"))
    if scenario == "pairwise-mnist":
        assert best["vc"].mean() >= 99.5
        assert np.mean([metrics.final(matrix) for matrix in learners["ewc"]["accuracy"]]) >= 98.5
    elif scenario == "fashion-mnist":
        assert best["vc"][0] >= 89
    else:
        assert best["vc"][1:].mean() >= 70


@pytest.mark.parametrize("scenario", ["pairwise-mnist", "fashion-mnist", "svhn-cifar100", "split-cifar100", "mixed"])
def test_our_own_tables_hold_what_hrn_is_made_for(scenario: str) -> None:
    content = json.loads((ROOT / "results" / f"{scenario}.json").read_text())
    learners = content["learners"]
    hrn, vc, ends = learners["hrn"], learners["vc"], {}
    for name, entry in learners.items():
        ends[name] = np.mean([metrics.final(matrix) for matrix in entry["accuracy"]])
    assert all(metrics.forgetting(matrix) == 0 for matrix in hrn["accuracy"])
    tasks = np.mean([metrics.at_the_end(matrix) for matrix in hrn["accuracy"]], 0)
    if scenario == "fashion-mnist":
        assert tasks[0] >= 90
        assert tasks[1] >= 99.2
    elif scenario == "svhn-cifar100":
        assert tasks[0] >= 89
        assert tasks[1:].mean() >= 78
    else:
        assert tasks.mean() >= {"pairwise-mnist": 99.8, "split-cifar100": 79, "mixed": 80}[scenario]

    def ahead(other: str, when: str = "right", number: int | None = None) -> tuple[float, float]:
        """The interval in which hrn is ahead of another, in all tasks or in one."""
        found = []
        for entry in (hrn, learners[other]):
            packed = dict(zip(entry["seeds"], entry[when], strict=True))
            kept = {seed: right for seed, right in packed.items() if right}
            found.append({seed: right if number is None else [right[number]] for seed, right in kept.items()})
        seeds = sorted(found[0].keys() & found[1].keys())
        assert seeds, f"no seed of {other} can be compared"
        _, low, high = metrics.ahead(*([each[seed] for seed in seeds] for each in found))
        return low, high

    for other in learners.keys() - {"hrn", "separate", "joint"}:
        assert ahead(other)[0] > 0 or min(ends["hrn"], ends[other]) > 99.8, other
    assert ahead("vc", "right_after")[1] > 0, "behind a plain network right after learning"
    assert ahead("separate")[0] > 0 or scenario != "mixed", "what was learned before does not help"
    for number, task in enumerate(content["tasks"]):
        low, high = ahead("separate", number=number)
        assert high >= 0, f"{task}: behind a fresh network"
        assert low > 0 or not number or not task.startswith("CIFAR"), f"{task}: what was learned before does not help"
    free = {name: np.mean([found["all_classes"] for found in entry["task_free"]]) for name, entry in learners.items()}
    assert max(free, key=lambda name: free[name]) == "hrn"
    if scenario in ("svhn-cifar100", "mixed"):
        assert np.mean([found["dataset"] for found in hrn["task_free"]]) > 95
    assert free["hrn"] >= 60 or scenario != "mixed"
    count = [np.mean([sum(each.values()) for each in entry["parameters"]]) for entry in (hrn, vc)]
    assert count[0] / count[1] < 1.3 or len(tasks) < 10
    encoder = vc["parameters"][0]["encoder"]
    for decisions in hrn["decisions"]:
        made = {decision["task"]: decision for decision in decisions}
        assert {each["action"] for name, each in made.items() if name.startswith("CIFAR")} <= {"fresh", "fork"}
        if scenario == "mixed":
            assert [made[f"{name}, part 2"]["looks_like"] for name in ("SVHN", "MNIST")] == ["SVHN", "MNIST"]
            assert made["MNIST"]["looks_like"] is None
        assert sum(each["bytes_added"] for each in decisions) < 2 * 4 * encoder * len(tasks), (
            "a Fisher and a copy a task"
        )


def test_training_is_not_much_slower_than_that_of_a_plain_network() -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "speed.json").read_text())
    ratios = [row["value"] for row in found if row["name"].startswith("speed of the learner hrn over vc")]
    assert len(ratios) == 4
    assert min(ratios) >= 0.7
