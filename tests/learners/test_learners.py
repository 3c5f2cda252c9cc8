"""Every registered learner keeps the common promises, and each kind does what its paper says."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torch.func import functional_call

from hashroute import (
    Learner,
    Scenario,
    Task,
    create_learner,
    load_learner,
    load_scenario,
    register_learner,
    run,
)
from hashroute.data import dataset_status
from hashroute.learners import LEARNERS
from hashroute.learners.base import LearnedTask, augment
from hashroute.learners.gpm import extend_basis
from hashroute.learners.plain import Vanilla
from hashroute.recipe import Recipe, recipe_for
from hashroute.scenarios import find_scenario, scenario_names, scenario_recipe
from hashroute.tasks import Split
from hashroute.training import metrics
from hashroute.training.run import flow, learner_options, task_free_accuracy
from hashroute.training.samples import samples
from support import NEEDS

BUILT_IN = tuple(LEARNERS)


def digits(tasks: int = 2) -> Scenario:
    return Scenario("digits", load_scenario("digits").tasks[:tasks])


def short(epochs: int = 2, **changes: Any) -> Recipe:
    return replace(recipe_for((1, 8, 8), classes=2), epochs=(epochs,), **changes)


def learned(name: str, scenario: Scenario | None = None, seed: int = 0, **options: Any) -> Any:
    """A learner after all tasks of a scenario."""
    scenario = scenario or digits()
    torch.manual_seed(seed)
    learner = create_learner(name, scenario.image_shape, short(), seed, **options)
    for task in scenario.tasks:
        learner.learn(task)
    return learner


def same_weights(one: Learner, other: Learner) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


# ------------------------------------------------------------------------ all of them


def check_promises(scenario: Scenario, name: str, settings: Any, folder: Path) -> None:
    """It runs, saves, loads, predicts the same, and says what it weighs."""
    outcome, learner = run(scenario, name, settings, folder=folder)
    again = load_learner(folder)
    count = len(scenario.tasks)
    assert len(outcome.accuracy) == count
    assert all(value is not None and 0 <= value <= 100 for value in outcome.accuracy[-1])
    free = learner.predict(scenario.tasks[0].test.images)
    assert torch.equal(free.tasks, again.predict(scenario.tasks[0].test.images).tasks)
    assert set(free.tasks.tolist()) <= set(range(count))
    for number, task in enumerate(scenario.tasks):
        images = task.test.images[:100]
        logits = learner.logits(images, number)
        assert logits.shape == (len(images), task.classes)
        assert torch.equal(logits, again.logits(images, task.name))
        assert torch.equal(learner.predict(images, number), logits.argmax(1))
        assert torch.equal(learner.encode(images, number), again.encode(images, number))
    assert not any(tensor.requires_grad for tensor in learner.memory.values()), "memory keeps a graph alive"
    assert outcome.parameters["heads"] > 0
    assert outcome.parameters["encoder"] == sum(weight.numel() for weight in learner.encoder.parameters())
    assert outcome.bytes_kept["weights"] == 4 * sum(outcome.parameters.values())
    assert outcome.images == sum(
        learner.recipe.epochs_of(number) * len(task.train) for number, task in enumerate(scenario.tasks)
    )
    assert set(outcome.task_free) == {"all_classes", "dataset"}
    assert all(0 <= share <= 100 for share in outcome.task_free.values())
    at_once = outcome.accuracy[0][0] is None
    for number, (right, right_after) in enumerate(zip(outcome.right, outcome.right_after, strict=True)):
        assert 100 * metrics.unpack(right).mean() == pytest.approx(outcome.accuracy[-1][number])
        first = outcome.accuracy[-1 if at_once else number][number]
        assert 100 * metrics.unpack(right_after).mean() == pytest.approx(first)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_learner_runs_saves_loads_and_predicts_the_same(name: str, tmp_path: Path) -> None:
    check_promises(digits(3), name, short(), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [name for name in scenario_names() if name not in ("digits", "folders")])
@pytest.mark.parametrize("name", BUILT_IN)
def test_every_learner_on_every_scenario(name: str, scenario: str, tmp_path: Path) -> None:
    missing = [dataset for dataset in NEEDS[scenario] if not dataset_status(dataset).sizes]
    if missing:
        pytest.skip(f"not here: {', '.join(missing)}")
    tasks = load_scenario(scenario, 0.01)
    profile = "paper" if find_scenario(scenario).published_recipe else "default"
    settings = scenario_recipe(tasks, profile)
    check_promises(tasks, name, replace(settings, epochs=(1,)), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [name for name in scenario_names() if name not in ("digits", "folders")])
def test_a_whole_scenario_fits_in_two_gigabytes(scenario: str) -> None:
    if any(not dataset_status(dataset).sizes for dataset in NEEDS[scenario]):
        pytest.skip(f"not here: {', '.join(NEEDS[scenario])}")
    script = f"""
import resource
from hashroute import create_learner, load_scenario
from hashroute.scenarios import scenario_recipe
from hashroute.training.workers import one_thread

one_thread()
scenario = load_scenario({scenario!r})
learner = create_learner("hrn", scenario.image_shape, scenario_recipe(scenario))
for number, task in enumerate(scenario.tasks[:2]):
    learner.begin(task)
    learner.train_epoch(task.part(0.1))
    learner.finish(task)
    learner.predict(task.test.images, number)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=True)
    assert 100e3 < float(process.stdout) < 2e6  # kilobytes


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(name: str) -> None:
    one, other = (run(digits(), name, short(1), 1)[0] for _ in range(2))
    assert one.accuracy == other.accuracy
    assert one.task_free == other.task_free
    first, second = (run(digits(1), name, short(1), seed)[1].encode(digits(1).tasks[0].test.images) for seed in (1, 2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", BUILT_IN)
def test_predicting_changes_nothing(name: str) -> None:
    scenario = digits()
    learner = run(scenario, name, short(1))[1]
    before = {key: tensor.clone() for key, tensor in learner.state().items()}
    learner.predict(scenario.tasks[1].test.images)
    learner.encode(scenario.tasks[1].test.images)
    assert all(torch.equal(tensor, before[key]) for key, tensor in learner.state().items())


@pytest.mark.parametrize("name", ["vc", "separate"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_with_no_task_given_the_head_far_above_its_others_answers(name: str, dtype: torch.dtype) -> None:
    """Not the one with the highest softmax, which is the third, nor the one with the highest logit, the second."""
    learner = create_learner(name, (1, 8, 8), short(1))
    says = ([5.0, 5.0, -10.0], [9.0, 8.9, 8.8, 8.7], [3.0, -1.0, -1.0])
    for task, logits in zip(digits(3).tasks, says, strict=True):
        learner.learn(replace(task, class_names=tuple("abcd"[: len(logits)])))
        head: Any = learner.heads[-1]
        with torch.no_grad():
            head[-1].weight.zero_()
            head[-1].bias.copy_(torch.tensor(logits))
    answer = learner.to(dtype).predict(digits(1).tasks[0].test.images.to(dtype) / 255)
    assert answer.tasks.unique().tolist() == [0]
    assert answer.labels.unique().tolist() == [0]


@pytest.mark.parametrize("name", ["hash-only", "separate"])
def test_controls_forget_exactly_nothing(name: str) -> None:
    scenario = digits(3)
    torch.manual_seed(0)
    learner = create_learner(name, scenario.image_shape, short())
    said: list[Tensor] = []
    for task in scenario.tasks:
        learner.learn(task)
        for number, before in enumerate(said):
            assert torch.equal(learner.logits(scenario.tasks[number].test.images, number), before)
        said.append(learner.logits(task.test.images, task.name))


@pytest.mark.parametrize(
    ("name", "options"),
    [("ewc", {"weight": 0.0}), ("ell", {"code_weight": 0.0, "distillation": 0.0}), ("gpm", {"threshold": 0.0})],
)
def test_no_protection_is_the_plain_network_bit_for_bit(name: str, options: dict[str, Any]) -> None:
    scenario = digits(3)
    plain = learned("vc", scenario)
    assert same_weights(plain, learned(name, scenario, **options))
    assert not same_weights(plain, learned(name, scenario)), "protection, where it is asked for, does nothing"


def test_images_from_0_to_1_are_taken_like_bytes() -> None:
    learner, images = learned("vc"), digits().tasks[0].test.images
    torch.testing.assert_close(learner.logits(images / 255, 0), learner.logits(images, 0))


# ------------------------------------------------------------------------ ewc


def looped_fisher(learner: Any, task: Task, number: int, rows: list[int], empirical: bool) -> dict[str, Tensor]:
    """The Fisher information, one sample and one class at a time."""
    fisher = {name: torch.zeros_like(weight) for name, weight in learner.encoder.named_parameters()}
    for row in rows:
        image = learner.scale(task.train.images[row : row + 1], number)
        labels = [int(task.train.labels[row])] if empirical else range(task.classes)
        for label in labels:
            likely = learner.heads[number](learner.encoder(image)).log_softmax(1)[0, label]
            share = 1.0 if empirical else likely.exp().item()
            gradients = torch.autograd.grad(likely, list(learner.encoder.parameters()))
            for (name, _), gradient in zip(learner.encoder.named_parameters(), gradients, strict=True):
                fisher[name] += share * gradient.square() / len(rows)
    return fisher


@pytest.mark.parametrize("empirical", [False, True])
def test_fisher_information_equals_a_loop_over_samples(empirical: bool) -> None:
    scenario = digits(1)
    learner, task = learned("ewc", scenario, empirical=empirical, samples=20), scenario.tasks[0]
    rows = torch.linspace(0, len(task.train) - 1, 20).round().long().tolist()
    expected = looped_fisher(learner, task, 0, rows, empirical)
    for name, fisher in learner.fisher(task, 0, chunk=7).items():
        torch.testing.assert_close(fisher, expected[name], rtol=1e-4, atol=1e-9)
        assert torch.equal(learner.memory[f"fisher.{name}"] > 0, fisher > 0)


def test_one_quadratic_stands_for_the_penalties_of_all_tasks() -> None:
    scenario = digits(3)
    torch.manual_seed(0)
    learner: Any = create_learner("ewc", scenario.image_shape, short(), weight=50.0)
    penalties = []
    for number, task in enumerate(scenario.tasks):
        learner.learn(task)
        centre = {name: weight.detach().clone() for name, weight in learner.encoder.named_parameters()}
        penalties.append((learner.fisher(task, number), centre))
    with torch.no_grad():
        for weight in learner.encoder.parameters():
            weight += 0.01 * torch.randn_like(weight)
    weights = dict(learner.encoder.named_parameters())
    literal = sum(
        25.0 * (fisher[name] * (weights[name] - centre[name]).square()).sum()
        for fisher, centre in penalties
        for name in weights
    )
    expected = torch.autograd.grad(literal, list(weights.values()))
    for weight in weights.values():
        weight.grad = torch.zeros_like(weight)
    learner.before_step()
    for weight, gradient in zip(weights.values(), expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-3, atol=1e-5)


def test_online_ewc_keeps_the_latest_weights_and_a_decayed_sum() -> None:
    scenario = digits(2)
    torch.manual_seed(0)
    learner: Any = create_learner("ewc", scenario.image_shape, short(), online=True, decay=0.5)
    learner.learn(scenario.tasks[0])
    first = {name: tensor.clone() for name, tensor in learner.memory.items()}
    learner.learn(scenario.tasks[1])
    second = learner.fisher(scenario.tasks[1], 1)
    for name, weight in learner.encoder.named_parameters():
        assert torch.equal(learner.memory[f"centre.{name}"], weight)
        torch.testing.assert_close(learner.memory[f"fisher.{name}"], 0.5 * first[f"fisher.{name}"] + second[name])


def test_a_heavy_penalty_holds_the_weights_that_matter() -> None:
    def moved(weight: float) -> float:
        scenario = digits(2)
        torch.manual_seed(0)
        learner: Any = create_learner("ewc", scenario.image_shape, short(), weight=weight)
        learner.learn(scenario.tasks[0])
        kept = {name: tensor.clone() for name, tensor in learner.memory.items()}
        learner.learn(scenario.tasks[1])
        return sum(
            (kept[f"fisher.{name}"] * (now - kept[f"centre.{name}"]).square()).sum().item()
            for name, now in learner.encoder.named_parameters()
        )

    assert moved(1e4) < moved(0.0) / 10


# ------------------------------------------------------------------------ gpm


def test_updates_are_orthogonal_to_what_old_tasks_put_in() -> None:
    scenario = digits(2)
    torch.manual_seed(0)
    learner: Any = create_learner("gpm", scenario.image_shape, short(), threshold=0.95)
    learner.learn(scenario.tasks[0])
    bases = {name: basis.clone() for name, basis in learner.memory.items()}
    before = {name: weight.detach().clone() for name, weight in learner.encoder.named_parameters()}
    learner.learn(scenario.tasks[1])
    after = dict(learner.encoder.named_parameters())
    changed = 0.0
    for number, (convolution, _) in enumerate(learner._layers()):
        prefix = next(name for name, weight in after.items() if weight is convolution.weight).removesuffix("weight")
        change = torch.cat(
            [
                (after[f"{prefix}weight"] - before[f"{prefix}weight"]).flatten(1),
                (after[f"{prefix}bias"] - before[f"{prefix}bias"])[:, None],
            ],
            1,
        )
        assert bases[f"basis.{number}"].shape[1] > 0
        assert (change @ bases[f"basis.{number}"]).abs().max() < 1e-5
        changed += change.abs().max().item()
    assert changed > 1e-3, "nothing was learned at all"
    for name in after:
        if ".norm." in name:
            assert torch.equal(after[name], before[name])


def test_everything_protected_means_nothing_forgotten() -> None:
    scenario = digits(2)
    torch.manual_seed(0)
    learner: Any = create_learner("gpm", scenario.image_shape, short(), threshold=1.0)
    learner.learn(scenario.tasks[0])
    images = scenario.tasks[0].train.images[:50]
    before = learner.logits(images, 0)
    learner.learn(scenario.tasks[1])
    torch.testing.assert_close(learner.logits(images, 0), before, rtol=1e-2, atol=1e-2)


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.integers(2, 12), st.integers(1, 3), st.floats(0.3, 0.999), st.integers(0, 2**16))
def test_a_basis_grows_by_as_little_as_holds_the_share(size: int, tasks: int, share: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    basis = torch.zeros(size, 0)
    for _ in range(tasks):
        samples = torch.randn(size, 3 * size, generator=generator, dtype=torch.float64)
        samples *= torch.rand(size, 1, generator=generator, dtype=torch.float64)
        energy = samples @ samples.T
        grown = extend_basis(basis, energy, share).float()
        torch.testing.assert_close(grown.T @ grown, torch.eye(grown.shape[1]), rtol=0, atol=1e-5)
        held = [((part.double().T @ energy @ part.double()).trace() / energy.trace()).item() for part in (basis, grown)]
        assert held[1] >= share - 1e-5
        assert grown.shape[1] <= size
        old = basis.double()
        torch.testing.assert_close(grown.double() @ (grown.double().T @ old), old, rtol=0, atol=1e-5)
        if grown.shape[1] > basis.shape[1]:
            assert held[0] < share + 1e-9, "it grew though it held enough"
            rest = torch.eye(size, dtype=torch.float64) - old @ old.T
            largest = torch.linalg.eigvalsh(rest @ energy @ rest).flip(0)[: grown.shape[1] - basis.shape[1] - 1]
            assert held[0] + largest.sum().item() / energy.trace().item() < share + 1e-5, "it grew by too much"
        basis = grown


# ------------------------------------------------------------------------ ell


def test_old_heads_train_through_distillation_only() -> None:
    scenario = digits(2)

    def heads(**options: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        torch.manual_seed(0)
        learner = create_learner("ell", scenario.image_shape, short(), **options)
        learner.learn(scenario.tasks[0])
        before = {name: weight.clone() for name, weight in learner.heads[0].state_dict().items()}
        learner.learn(scenario.tasks[1])
        return before, learner.heads[0].state_dict()

    before, after = heads(distillation=0.0, code_weight=1.0)
    assert all(torch.equal(before[name], after[name]) for name in before)
    before, after = heads(distillation=1.0, code_weight=0.0)
    assert not all(torch.equal(before[name], after[name]) for name in before)
    assert short().weight_decay > 0
    before, after = heads(distillation=1e-25, code_weight=0.0)  # too weak to move a weight: nor does weight decay
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("name", BUILT_IN)
def test_heads_of_all_learners_see_features_of_one_size_and_learn_smoothed_labels(name: str) -> None:
    scenario = digits()
    settings = short(head=replace(short().head, dropout=(0.0,)), augment=False)
    assert (settings.feature_scale, settings.label_smoothing) == (0.25, 0.1)
    torch.manual_seed(0)
    learner: Any = create_learner(name, scenario.image_shape, settings)
    learner.learn(scenario.tasks[0])
    batch = learner._batch(scenario.tasks[0], 0, torch.arange(20))
    features = learner.features(batch.images, 0).detach()
    seen = learner.heads[0][0](features)
    torch.testing.assert_close(seen.square().mean(1).sqrt(), torch.full((20,), 0.25), rtol=1e-2, atol=0.0)
    torch.testing.assert_close(seen.mean(1), torch.zeros(20), rtol=0.0, atol=1e-5)
    centred = features - features.mean(1, keepdim=True)
    assert F.cosine_similarity(seen, centred).min() > 0.999

    found, logits = learner.loss(batch)
    if name == "hrn-paper":
        found = learner.errors(logits, batch.labels)  # its loss has a penalty more
    likely = logits.log_softmax(1)
    smooth = 0.9 * F.one_hot(batch.labels, logits.shape[1]) + 0.1 / logits.shape[1]
    torch.testing.assert_close(found, -(smooth * likely).sum(1).mean())


def test_models_from_before_features_were_scaled_answer_as_they_did(tmp_path: Path) -> None:
    scenario = digits(1)
    for name in ("vc", "hrn"):
        torch.manual_seed(0)
        learner = create_learner(name, scenario.image_shape, short(feature_scale=0.0, label_smoothing=0.0))
        learner.learn(scenario.tasks[0])
        learner.save(tmp_path / name)
        described = json.loads((tmp_path / name / "learner.json").read_text())
        for setting in ("feature_scale", "label_smoothing"):
            assert described["recipe"].pop(setting) == 0
        (tmp_path / name / "learner.json").write_text(json.dumps(described))
        images = scenario.tasks[0].test.images
        assert torch.equal(load_learner(tmp_path / name).logits(images, 0), learner.logits(images, 0))


def test_published_heads_see_features_as_they_are_and_those_of_hashes_scaled_to_one() -> None:
    settings = find_scenario("pairwise-mnist").published_recipe
    sizes = {}
    for name in ("vc", "separate", "hash-only", "hrn"):
        learner = create_learner(name, (1, 28, 28), settings)
        learner.add_task(LearnedTask("a task", ("a", "b")))
        first: Any = learner.heads[0][0]  # type: ignore[index]
        sizes[name] = getattr(first, "size", None)
    assert sizes == {"vc": None, "separate": None, "hash-only": 1.0, "hrn": 1.0}
    assert settings.label_smoothing == 0.0


def test_the_loss_of_ell_is_that_of_its_paper() -> None:
    scenario = digits(3)
    torch.manual_seed(0)
    settings = short(head=replace(short().head, dropout=(0.0,)), augment=False)
    learner: Any = create_learner("ell", scenario.image_shape, settings, code_weight=0.3, distillation=0.7)
    learner.learn(scenario.tasks[0])
    learner.learn(scenario.tasks[1])
    encoder = {name: weight.clone() for name, weight in learner.encoder.state_dict().items()}
    heads = [{name: weight.clone() for name, weight in head.state_dict().items()} for head in learner.heads]
    learner.begin(scenario.tasks[2])
    learner.train_epoch(scenario.tasks[2])
    learner.train()
    batch = learner._batch(scenario.tasks[2], 2, torch.arange(10))
    found, _ = learner.loss(batch)

    before = functional_call(learner.encoder, encoder, (batch.images,))
    features = learner.encoder(batch.images)
    expected = F.cross_entropy(learner.heads[2](features), batch.labels, label_smoothing=settings.label_smoothing)
    for old in range(2):
        taught = functional_call(learner.heads[old], heads[old], (before,))
        soft = (taught / 2).softmax(1)
        expected = expected - 0.7 * 4 * (soft * (learner.heads[old](features) / 2).log_softmax(1)).sum(1).mean()
        weight, bias = learner.memory[f"code.{old}.weight"], learner.memory[f"code.{old}.bias"]
        codes = [(part @ weight.T + bias).sigmoid() for part in (features, before)]
        expected = expected + 0.3 / 2 * (codes[0] - codes[1]).square().sum(1).mean()
    torch.testing.assert_close(found, expected)


def test_autoencoders_are_under_complete_and_keep_what_the_head_needs() -> None:
    scenario = digits(1)
    torch.manual_seed(0)
    learner: Any = create_learner("ell", scenario.image_shape, short(6), code_size=20)
    learner.learn(scenario.tasks[0])
    assert learner.memory["code.0.weight"].shape == (20, 128)
    assert set(learner.memory) == {"code.0.weight", "code.0.bias"}
    with pytest.raises(ValueError, match="expected fewer than the 128 features"):
        learned("ell", code_size=128)


# ------------------------------------------------------------------------ hash-routed


def test_units_are_added_before_the_tasks_that_ask_for_them() -> None:
    learner = learned("hrn-paper", digits(3), units_added=(0, 2, 1))
    assert len(learner.encoder.units) == 7
    first = [unit.spec for unit in learner.encoder.units][:4]
    assert all(unit.spec in first for unit in learner.encoder.units)


def test_a_run_of_the_hash_routed_network_says_how_it_routes() -> None:
    scenario = digits(3)
    records: list[dict[str, Any]] = []
    outcome, learner = run(scenario, "hrn-paper", short(), on_epoch=records.append)
    assert len(outcome.routing) == 3
    for number, routing in enumerate(outcome.routing):
        assert abs(sum(routing["usage"]) - 1) < 1e-9
        assert all(0 <= fill <= 1 for fill in routing["basis_fill"])
        assert 1 <= routing["paths"] <= len(scenario.tasks[number].test)
        assert len(routing["unchanged_paths"]) == number
    assert all({"usage", "basis_fill", "ages", "paths", "loss"} <= record.keys() for record in records)
    paths: Any = learner
    same = paths.paths(scenario.tasks[0].test.images, 0)
    assert same.shape == (len(scenario.tasks[0].test), 2)
    assert paths.encoder.bases.ages.tolist() == records[-1]["ages"] == outcome.routing[-1]["ages"]
    assert [list(record.get("flow", ())) for record in records[1::2]] == [
        [task.name for task in scenario.tasks[:known]] for known in (1, 2, 3)
    ]
    for level, unit, then, share in records[-1]["flow"]["0 or 1"]:
        assert level == 0
        assert share == ((same[:, 0] == unit) & (same[:, 1] == then)).double().mean().item() > 0


def test_flow_counts_images_that_stop_on_the_way() -> None:
    paths = torch.tensor([[0, 1, 2], [0, 1, -1], [0, -1, -1], [3, 1, 2]])
    assert flow(paths) == [(0, 0, -1, 0.25), (0, 0, 1, 0.5), (0, 3, 1, 0.25), (1, 1, -1, 0.25), (1, 1, 2, 0.5)]


@pytest.mark.parametrize("evaluate_on", ["test", "validation"])
@pytest.mark.parametrize("name", ["hrn", "hrn-paper", "vc"])
def test_a_run_keeps_samples_of_what_it_was_measured_on(name: str, evaluate_on: Any, tmp_path: Path) -> None:
    scenario = digits(3)
    learner: Any = run(scenario, name, short(), folder=tmp_path, evaluate_on=evaluate_on)[1]
    kept = json.loads((tmp_path / "samples.json").read_text())
    assert [sample["task"] for sample in kept] == [task.name for task in scenario.tasks for _ in range(2)]
    assert all(one["label"] != other["label"] for one, other in zip(kept[::2], kept[1::2], strict=True))
    for sample in kept:
        number = learner.task_number(sample["task"])
        shown = Image.open(io.BytesIO(base64.b64decode(sample["image"].removeprefix("data:image/png;base64,"))))
        images = torch.from_numpy(np.array(shown))[None, None]
        split = getattr(scenario.tasks[number], evaluate_on)
        (row,) = (split.images == images).flatten(1).all(1).nonzero()[0].tolist()
        names = scenario.tasks[number].class_names
        assert sample["label"] == names[split.labels[row]]
        assert sample["predicted"] == names[learner.predict(images, number)[0]]
        answer = learner.predict(images)
        assert sample["task_free"] == {
            "task": scenario.tasks[answer.tasks[0]].name,
            "label": scenario.tasks[answer.tasks[0]].class_names[answer.labels[0]],
        }
        if name == "hrn-paper":
            assert sample["known_by"] == "units"
            assert sample["path"] == learner.paths(images, number)[0].tolist()
            assert sample["path"][0] == np.argmax(sample["projections"])  # the best one takes the image
            assert max(sample["projections"]) <= 1
        elif name == "hrn":
            assert (sample["known_by"], sample["path"]) == ("memories", learner.paths(images, number)[0].tolist())
            assert sample["projections"] == pytest.approx(learner.familiarity(images)[0].tolist(), abs=1e-3)
        else:
            assert (sample["known_by"], sample["path"], sample["projections"]) == (None, None, None)


def test_samples_of_many_tasks_are_evenly_chosen() -> None:
    task = digits(1).tasks[0]
    scenario = Scenario("many", tuple(replace(task, name=str(number)) for number in range(23)))
    learner = create_learner("hash-only", (1, 8, 8), short())
    for each in scenario.tasks:
        learner.add_task(LearnedTask(each.name, each.class_names))
    found = samples(learner, [(each, each.test) for each in scenario.tasks])
    assert [sample["task"] for sample in found] == [str(number) for number in range(0, 23, 2) for _ in range(2)]


def test_published_options_are_those_of_the_paper() -> None:
    options = learner_options("hrn-paper", "svhn-cifar100", "paper", (3, 32, 32))
    learner: Any = create_learner("hrn-paper", (3, 32, 32), find_scenario("svhn-cifar100").published_recipe, **options)
    network = learner.encoder.config
    assert (network["features"], network["aging_rate"], network["channels"]) == (2800, 10.0, "chunk-sum")
    assert (network["last_residue"], learner.options.residue_weight, len(network["units"])) == (False, 0.5, 6)
    assert all(spec["in_channels"] == 3 for spec in network["units"])


# ------------------------------------------------------------------------ joint, and what runs measure


def test_joint_ends_with_all_tasks_though_some_have_fewer_epochs() -> None:
    scenario = digits(2)
    torch.manual_seed(0)
    learner = create_learner("joint", (1, 8, 8), replace(short(), epochs=(3, 1)))
    learner.begin(*scenario.tasks)
    images = []
    while not learner.done():
        images.append(learner.train_epoch(*scenario.tasks).images)
    assert images == [len(scenario.tasks[0].train)] * 2 + [sum(len(task.train) for task in scenario.tasks)]


def test_joint_learns_all_at_once() -> None:
    outcome, learner = run(digits(3), "joint", short(6))
    assert outcome.accuracy[:2] == [[None] * 3] * 2
    assert min(value or 0 for value in outcome.accuracy[-1]) > 80
    assert len(learner.tasks) == 3


def test_a_class_that_comes_again_is_the_same_class_with_no_task_given() -> None:
    task = digits(1).tasks[0]
    again = replace(task, name="0 or 1, new images")
    learner = learned("vc", Scenario("twice", (task, again)))
    found = task_free_accuracy(learner, [(task, task.test), (again, again.test)])
    assert found["dataset"] == 100
    assert found["all_classes"] > 95
    other = replace(again, dataset="elsewhere")
    found = task_free_accuracy(learner, [(task, task.test), (other, other.test)])
    assert 40 < found["dataset"] < 60  # both heads see the same images: each is right half of the time
    few = Split(other.test.images[:1], other.test.labels[:1])
    found = task_free_accuracy(learner, [(task, task.test), (other, few)])
    taken = (learner.predict(task.test.images).tasks == 0).sum() + (learner.predict(few.images).tasks == 1).sum()
    assert found["dataset"] == pytest.approx(100 * taken.item() / (len(task.test) + 1)), "of all images"


def test_validation_runs_never_look_at_test_images() -> None:
    scenario = digits(2)
    noise = torch.randint(256, scenario.tasks[0].test.images.shape, dtype=torch.uint8)
    blind = [replace(task, test=Split(noise, torch.zeros(len(noise), dtype=torch.int64))) for task in scenario.tasks]
    one = run(scenario, "hrn", short(1), evaluate_on="validation")[0]
    other = run(Scenario("digits", tuple(blind)), "hrn", short(1), evaluate_on="validation")[0]
    assert one.accuracy == other.accuracy
    assert one.task_free == other.task_free


def test_augmented_images_are_the_image_mirrored_and_shifted() -> None:
    image = torch.randint(1, 256, (1, 2, 6, 6), dtype=torch.uint8)
    torch.manual_seed(0)
    seen = set()
    for changed in augment(image.repeat(400, 1, 1, 1), frozenset({"flip", "shift"})):
        matches = []
        for mirrored in (False, True):
            padded = F.pad(image[0].flip(2) if mirrored else image[0], (2, 2, 2, 2))
            for down in range(5):
                for right in range(5):
                    if torch.equal(padded[:, down : down + 6, right : right + 6], changed):
                        matches.append((mirrored, down, right))
        assert len(matches) == 1
        seen.add(matches[0])
    assert len(seen) == 50
    assert torch.equal(augment(image, frozenset()), image)


# ------------------------------------------------------------------------ one's own, and mistakes


def test_a_learner_of_ones_own_is_found_by_name() -> None:
    @register_learner("frozen-after-first")
    class Frozen(Vanilla):
        def before_step(self) -> None:
            if len(self.tasks) > 1:
                for weight in self.encoder.parameters():
                    weight.grad = None

    try:
        outcome, learner = run(digits(3), "frozen-after-first", short())
        assert learner.name == "frozen-after-first"
        assert len({row[0] for row in outcome.accuracy}) == 1  # nothing of the encoder moved
        with pytest.raises(ValueError, match="already"):
            register_learner("frozen-after-first")(Frozen)
    finally:
        del LEARNERS["frozen-after-first"]


def test_mistakes_are_said_in_one_line(tmp_path: Path) -> None:
    scenario = digits(1)
    learner = learned("vc", scenario)
    task = scenario.tasks[0]
    with pytest.raises(ValueError, match="learned before"):
        learner.learn(task)
    with pytest.raises(ValueError, match="no task '7 or 8': expected 0 or 1"):
        learner.predict(task.test.images, "7 or 8")
    with pytest.raises(ValueError, match=r"expected \(number, 1, 8, 8\)"):
        learner.predict(torch.zeros(2, 3, 8, 8), 0)
    small = Split(task.train.images[:, :, :4, :4], task.train.labels)
    with pytest.raises(ValueError, match=r"images of shape \(1, 4, 4\)"):
        learner.learn(Task("small", small, small, small, task.class_names))
    with pytest.raises(ValueError, match="no learner 'nobody': expected one of hrn"):
        create_learner("nobody", (1, 8, 8))
    with pytest.raises(ValueError, match="no option 'wait': expected one of weight"):
        create_learner("ewc", (1, 8, 8), wait=1.0)
    for ask in (learner.predict, learner.encode, lambda images: learner.predict(images, 0)):
        with pytest.raises(ValueError, match="images are bool: expected a tensor of uint8, or of numbers from 0 to 1"):
            ask(task.test.images > 100)
        with pytest.raises(ValueError, match="images are ndarray: expected a tensor"):
            ask(task.test.images.numpy())
    with pytest.raises(ValueError, match="learned no task yet"):
        create_learner("vc", (1, 8, 8)).predict(task.test.images)
    learner.save(tmp_path)
    described = json.loads((tmp_path / "learner.json").read_text())
    (tmp_path / "learner.json").write_text(json.dumps({**described, "format": 99}))
    with pytest.raises(ValueError, match="format 99"):
        load_learner(tmp_path)


def test_a_diverging_learner_says_so() -> None:
    with pytest.raises(ValueError, match="diverged"):
        run(digits(1), "vc", short(1, learning_rate=1e30, one_cycle=False))


@pytest.mark.parametrize("name", [name for name in LEARNERS if name != "joint"])
def test_a_task_can_be_given_up(name: str, tmp_path: Path) -> None:
    first, second, third = digits(3).tasks
    torch.manual_seed(0)
    learner = create_learner(name, (1, 8, 8), short(2))
    learner.learn(first)
    learner.begin(second)
    learner.train_epoch(second)
    learner.give_up()
    learner.learn(third)
    assert [task.name for task in learner.tasks] == [first.name, third.name]
    assert len(learner.heads) == 2
    assert (learner.predict(third.test.images, third.name) == third.test.labels).double().mean() > 0.7
    learner.save(tmp_path)
    again = load_learner(tmp_path)
    for task in (first, third):
        assert torch.equal(again.logits(task.test.images, task.name), learner.logits(task.test.images, task.name))


@pytest.mark.parametrize(
    "shape", [(1, 4, 4), (1, 8, 8), (1, 20, 31), (1, 28, 28), (3, 32, 32), (3, 32, 48), (3, 64, 64)]
)
def test_heads_are_as_large_for_every_learner(shape: tuple[int, ...]) -> None:
    settings = recipe_for(shape)
    assert create_learner("vc", shape, settings).encoder(torch.zeros(1, *shape)).shape[1] == settings.features


def test_images_that_are_too_small_are_named() -> None:
    with pytest.raises(ValueError, match="images are of 3 x 9 pixels: expected at least 4 x 4"):
        recipe_for((1, 3, 9))


@pytest.mark.parametrize("name", BUILT_IN)
def test_features_with_no_task_given_are_those_of_the_task_an_image_is_taken_for(name: str) -> None:
    scenario = digits(3)
    learner = learned(name, scenario)
    images = torch.cat([task.test.images[:20] for task in scenario.tasks])
    features, found = learner.encode(images), learner.predict(images).tasks
    for number in range(3):
        taken = found == number
        if taken.any():
            torch.testing.assert_close(features[taken], learner.encode(images[taken], number))


@pytest.mark.parametrize("name", BUILT_IN)
def test_pixels_may_be_of_any_precision(name: str) -> None:
    scenario = digits(2)
    learner, images = learned(name, scenario), scenario.tasks[0].test.images[:20]
    expected = learner.logits(images, 0)
    for kind in (torch.float32, torch.float64):
        torch.testing.assert_close(learner.logits(images.to(kind) / 255, 0), expected)
    assert torch.equal(learner.predict(images.double() / 255).tasks, learner.predict(images).tasks)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_learner_of_double_precision_learns_and_stays_so(name: str, tmp_path: Path) -> None:
    *tasks, last = digits(3).tasks
    torch.manual_seed(0)
    learner = create_learner(name, (1, 8, 8), short(1)).double()
    learner.learn(*tasks) if learner.at_once else [learner.learn(task) for task in tasks]
    learner.save(tmp_path)
    again = load_learner(tmp_path)
    logits = learner.logits(last.test.images, 0)
    assert logits.dtype == torch.float64
    assert torch.equal(again.logits(last.test.images, 0), logits)
    if not learner.at_once:
        again.learn(last)
    state = [*again.state().values(), again.logits(last.test.images, len(again.tasks) - 1)]
    assert {tensor.dtype for tensor in state if tensor.is_floating_point()} == {torch.float64}


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["hrn", "vc"])
def test_a_learner_of_half_precision_answers(name: str, precision: torch.dtype) -> None:
    learner = learned(name)
    images = digits(1).tasks[0].test.images
    given, free = learner.predict(images, 0), learner.predict(images)
    learner.to(precision)
    assert (learner.predict(images, 0) == given).double().mean() > 0.95
    assert (learner.predict(images).tasks == free.tasks).double().mean() > 0.9


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "joint"])
def test_a_saved_learner_goes_on_as_if_it_had_never_been_saved(name: str, tmp_path: Path) -> None:
    *tasks, last = digits(3).tasks
    learner = learned(name, Scenario("two", tasks))
    learner.save(tmp_path)
    others = learner, load_learner(tmp_path)
    for each in others:
        torch.manual_seed(7)
        each.learn(last)
    assert others[0].description() == others[1].description()
    assert same_weights(*others)
    assert others[0].memory.keys() == others[1].memory.keys()
    assert all(torch.equal(kept, others[1].memory[key]) for key, kept in others[0].memory.items())


@pytest.mark.parametrize("scenario", ["pairwise-mnist", "fashion-mnist", "svhn-cifar100"])
def test_settings_come_back_from_json(scenario: str) -> None:
    settings = find_scenario(scenario).published_recipe
    assert Recipe.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


@pytest.mark.parametrize(
    ("scenario", "features"),
    [("pairwise-mnist", 288), ("fashion-mnist", 288), ("svhn-cifar100", 1584)],
)
def test_how_many_features_published_plain_encoders_give(scenario: str, features: int) -> None:
    settings = find_scenario(scenario).published_recipe
    shape = (3, 32, 32) if scenario == "svhn-cifar100" else (1, 28, 28)
    learner = create_learner("vc", shape, settings)
    assert learner.encoder(torch.zeros(2, *shape)).shape == (2, features)
