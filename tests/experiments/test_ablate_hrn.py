"""The variants of hrn in its ablation are what their rows are called, and hrn otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.neighbors import NearestCentroid

from hashroute import Comparison, create_learner, load_scenario
from hashroute.learners.growth import Decision, Growth
from hashroute.learners.hrn import HRN
from hashroute.learners.options import options_from_dict, options_to_dict
from hashroute.learners.trainer import Trainer
from hashroute.nn.hashing import FeatureHash
from hashroute.scenarios import find_scenario
from hashroute.training import metrics
from support import import_file

FILE = Path(__file__).parents[2] / "experiments" / "ablate_hrn.py"


@pytest.fixture(scope="module")
def ablation() -> Any:
    return import_file(FILE)


def learned(kind: type[HRN], monkeypatch: pytest.MonkeyPatch, tasks: int = 3, **options: Any) -> Any:
    """A learner of this kind after some tasks, all forks kept."""
    monkeypatch.setattr(Growth, "earned", lambda *_: True)
    learner = create_learner(kind, (1, 8, 8), epochs=1, **options)
    for task in load_scenario("digits").tasks[:tasks]:
        learner.learn(task)
    return learner


def paths(learner: Any) -> list[int]:
    return [entry.path for entry in learner.tasks]


def weights(learner: Any, path: int, level: int) -> torch.Tensor:
    kept: torch.Tensor = learner.encoder.paths[path][level].blocks[0].convolution.weight
    return kept


def test_which_units_are_trained(ablation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_scenario("digits").tasks[0]
    whole = learned(HRN, monkeypatch)
    assert whole.encoder.parents == [None, 0, 1]
    assert not torch.equal(weights(whole, 0, 0), weights(whole, 1, 0))
    last = learned(ablation.LastLevel, monkeypatch)
    assert torch.equal(weights(last, 0, 0), weights(last, 2, 0))
    assert not torch.equal(weights(last, 0, 1), weights(last, 1, 1))
    lower, upper = (sum(w.numel() for w in last.encoder.paths[0][level].parameters()) for level in (0, 1))
    assert last.parameter_counts()["encoder"] == lower + 3 * upper
    assert last.bytes_kept()["weights"] == whole.bytes_kept()["weights"] - 4 * 2 * lower
    shared = learned(ablation.Shared, monkeypatch)
    assert (len(shared.encoder), paths(shared)) == (1, [0, 0, 0])
    assert [decision.action for decision in shared.decisions] == ["fresh", "reuse", "reuse"]
    assert not torch.equal(weights(shared, 0, 0), weights(whole, 0, 0)), "it was trained further"
    fresh = learned(ablation.Fresh, monkeypatch)
    assert (fresh.encoder.parents, paths(fresh)) == ([None] * 3, [0, 1, 2])
    monkeypatch.undo()
    behind = Decision("second", reused=100.0)
    fresh.scratch = {"scores": torch.ones(len(task.validation))}
    fresh.tasks[0].held = task
    assert fresh.growth.earned(fresh.tasks[0], behind), "however far behind it is"
    assert behind.forked is not None
    for learner in (whole, last, shared, fresh):
        written = sum(decision.bytes_added for decision in learner.decisions)
        kept = 4 * learner.parameter_counts()["encoder"] + len(learner.memories) * learner.memories.bytes_each
        assert written == kept, "decisions record what was added"


def test_a_fork_can_start_with_the_head_trained_on_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, same in ((HRN, False), (import_file(FILE.with_name("forks.py")).TrainedHead, True)):
        learner = learned(kind, monkeypatch, 1)
        Trainer(learner).begin(load_scenario("digits").tasks[1])
        assert learner.encoder.parents == [None, 0]
        for name, weight in learner.heads[1].state_dict().items():
            assert torch.equal(weight, learner.scratch[f"head.{name}"]) == same


def test_which_features_are_used(ablation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_scenario("digits").tasks[0]
    whole = learned(HRN, monkeypatch, 1)
    first_task = whole.tasks[0]
    images = whole.normalise(task.test.images[:20], first_task)
    image, first, last = whole.encoder.hashed(images, 0)
    torch.testing.assert_close(whole.features(images, first_task), image / 4 + first / 2 + last)
    for kind, expected in ((ablation.Alike, image + first + last), (ablation.LastHash, last)):
        torch.testing.assert_close(kind.features(whole, images, first_task), expected)
    kept = ablation.NotCentred.features(whole, images, first_task)
    assert (next(whole.encoder.hashed(images + 1, 0)) - image).abs().max() < 1e-5, "without its mean, no different"
    raw = [
        (hashed := phi(each.flatten(1))) / hashed.norm(dim=1, keepdim=True)
        for phi, each in zip(whole.encoder.hashes, whole.encoder.maps(images, 0), strict=True)
    ]
    torch.testing.assert_close(kept, raw[0] / 4 + raw[1] / 2 + raw[2])
    assert (kept - whole.features(images, first_task)).abs().max() > 0.01
    uneven = learned(ablation.Uneven, monkeypatch, 1)
    assert [type(phi) for phi in uneven.encoder.hashes] == [FeatureHash] * 3
    assert [phi.seed for phi in uneven.encoder.hashes] == [phi.seed for phi in whole.encoder.hashes]


def test_residues_are_beside_what_the_parent_knew(ablation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learned(ablation.Residues, monkeypatch)
    assert list(learner.directions) == [0, 1, 2]
    images = learner.normalise(load_scenario("digits").tasks[1].test.images[:20], learner.tasks[1])
    known = learner.directions[0]
    left = [each - (each @ v.T) @ v for each, v in zip(learner.encoder.hashed(images, 1), known, strict=True)]
    torch.testing.assert_close(learner.features(images, learner.tasks[1]), ablation.sum_by_halves(left))
    for level, v in zip(left, known, strict=True):
        assert (level @ v.T).abs().max() < 1e-5
    beside = sum(4 * v.numel() for levels in learner.directions.values() for v in levels)
    assert learner.bytes_kept()["memory"] - HRN.bytes_kept(learner)["memory"] == beside


@pytest.mark.parametrize("kind", ["TaskBefore", "MostFamiliar", "AnyParent", "Probed"])
def test_which_units_are_forked(kind: str, ablation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learned(getattr(ablation, kind), monkeypatch)
    assert [len(decision.tried) for decision in learner.decisions] == [0, 1, 1], "one path may be forked"
    assert len(learner.encoder) == 3
    if kind == "TaskBefore":
        assert learner.encoder.parents == [None, 0, 1]
        learner.tasks[1].path = 0  # as if the second task reused the first units
        assert learner.growth.candidates(2, {1}, learner.tasks[2]) == [0]


def test_class_means_choose_the_units_that_tell_classes_apart(ablation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learned(ablation.Probed, monkeypatch)
    task = load_scenario("digits").tasks[4]
    Trainer(learner).begin(task)
    images, labels = task.train.images, task.train.labels
    shares = []
    for path in range(3):
        with torch.no_grad():
            features = learner.encoder(learner.normalise(images, learner.tasks[3]), path).double().numpy()
        shares.append(NearestCentroid().fit(features[::2], labels[::2]).score(features[1::2], labels[1::2]))
    assert len(set(shares)) > 1
    assert learner.decisions[-1].tried.keys() == {learner.tasks[shares.index(max(shares))].name}


@pytest.mark.parametrize("name", ["split-cifar100", "split-cifar100-begin", "mixed"])
def test_committed_rows_are_of_the_present_variants(name: str, ablation: Any) -> None:
    found = Comparison.read(ablation.FOLDER / f"ablation-hrn-{name}.json")
    recipe = find_scenario(found.scenario).recipe((3, 32, 32), 10)
    assert found.recipe == {**recipe.to_dict(), "epochs": [ablation.EPOCHS]}
    assert found.fraction == 1
    assert list(found.learners) == list(ablation.ROWS[name])
    whole = {run.seed: metrics.final(run.accuracy) for run in found.learners["hrn"]}
    for row, runs in found.learners.items():
        kind, given = ablation.ROWS[name][row]
        options = options_to_dict(options_from_dict(HRN, {**ablation.NO_SHARED_HEAD, **given}))
        for run in runs:
            assert (run.learner, run.version, run.options) == (kind.name, HRN.version, options), row
            if row != "no fork: units shared and trained on":
                assert metrics.forgetting(run.accuracy) == 0, row
            if row in ("no fork: units shared and trained on", "fork from nothing"):
                assert metrics.final(run.accuracy) < whole[run.seed] - 3, row


def test_a_scenario_of_the_ablation_is_a_sweep(ablation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ablation.ROWS, "digits", {"hrn": (HRN, {}), "parent: drawn": (ablation.AnyParent, {})})
    monkeypatch.setattr(ablation, "EPOCHS", 1)
    for rows in (["parent: drawn"], ["hrn", "parent: drawn"]):
        assert ablation.sweep_of("digits", rows, 1, 0.3, tmp_path).run() == []
    found = Comparison.read(tmp_path / "ablation-hrn-digits.json")
    assert list(found.learners) == ["hrn", "parent: drawn"]
    assert found.command == "python experiments/ablate_hrn.py --seeds 1 --fraction 0.3"
    assert len(found.learners["parent: drawn"][0].decisions[1]["tried"]) == 1
