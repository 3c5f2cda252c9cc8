"""Answers without a task: which head answers, and how hrn weighs what it remembers of data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from hashroute import Scenario, Task, load_learner
from hashroute.learners.trainer import Trainer
from hashroute.tasks import Split
from support import digits, fresh, learned


def negative(task: Task, name: str = "negative") -> Task:
    """The same task in white on black."""
    parts = {part: getattr(task, part) for part in ("train", "validation", "test")}
    turned = {part: Split(255 - split.images, split.labels) for part, split in parts.items()}
    return replace(task, name=name, dataset=name, class_names=("dark 0", "dark 1"), **turned)


@pytest.mark.parametrize("name", ["vc", "separate"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_head_whose_answer_is_far_above_its_others_answers(name: str, dtype: torch.dtype) -> None:
    """Not the one with the highest softmax, which is the third, nor the one with the highest logit, the second."""
    learner = fresh(name, 1)
    says = ([5.0, 5.0, -10.0], [9.0, 8.9, 8.8, 8.7], [3.0, -1.0, -1.0])
    for task, logits in zip(digits(3).tasks, says, strict=True):
        learner.learn(replace(task, class_names=tuple("abcd"[: len(logits)])))
        with torch.no_grad():
            learner.heads[-1][-1].weight.zero_()
            learner.heads[-1][-1].bias.copy_(torch.tensor(logits))
    answer = learner.to(dtype).predict(digits().tasks[0].test.images.to(dtype) / 255)
    assert answer.tasks.unique().tolist() == [0]
    assert answer.labels.unique().tolist() == [0]


@pytest.mark.parametrize("domains", [[0, 1, 2], [0, 1, 0], [0, 0, 0]])
@pytest.mark.parametrize("options", [{}, {"within": 0.0}, {"within": 9.0, "trust": 0.0, "trust_in_domains": 0.0}])
def test_logits_and_likelihoods_are_added_up(options: dict[str, float], domains: list[int]) -> None:
    learner = learned("hrn", 3, fixed_features=0)
    learner.options = replace(learner.options, **options)
    for entry, domain in zip(learner.entries, domains, strict=True):
        entry.domain = domain
    images = torch.cat([task.test.images[:20] for task in digits(3).tasks])
    answer = learner.predict(images)
    usual = learner.memories.usual
    likely = (learner.familiarity(images) * usual[:, 1] + usual[:, 0]) / learner.memory_hash.features
    every_logit = [learner.logits(images, task) for task in range(3)]
    asked = 0
    for row in range(len(images)):
        nats = likely[row].tolist()
        alike = [[nats[other] for other in range(3) if domains[other] == domain] for domain in domains]
        means = [fmean(each) for each in alike]
        scores = {}
        for task in range(3):
            inside, between = max(alike[task]) - nats[task], max(means) - means[task]
            if max(inside, between) <= learner.options.within + 1e-6 * (learner.options.within > 0):
                best, *others = every_logit[task][row].sort(descending=True).values.tolist()
                behind = learner.options.trust * inside + learner.options.trust_in_domains * between
                scores[task] = best - sum(others) / len(others) - behind
        asked += len(scores)
        found = int(answer.tasks[row])
        assert scores[found] >= max(scores.values()) - 1e-3
        assert answer.labels[row] == every_logit[found][row].argmax()
    assert len(images) <= asked <= 3 * len(images)
    assert (asked == len(images)) == (options.get("within") == 0)
    assert (asked == 3 * len(images)) == (options.get("within") == 9)


def test_the_shared_head_is_added_to_memory_and_head() -> None:
    learner = learned("hrn", 3)
    images = torch.cat([task.test.images[:20] for task in digits(3).tasks])
    found, prior = learner(images), learner.task_prior(images)
    shared = (0.3 * learner.shared.solution(learner.shared.fixed(images))).log_softmax(1)
    for task in range(3):
        with torch.no_grad():
            outputs = learner.heads[task](learner.encode(images, task))
        best, other = outputs.amax(1), outputs.amin(1)
        expected = (prior[:, task] + best - other)[:, None] + 4 * outputs.log_softmax(1)
        expected = expected + 4 * shared[:, 2 * task : 2 * task + 2]
        torch.testing.assert_close(found[:, 2 * task : 2 * task + 2], expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("most", [1, 2])
def test_with_many_tasks_the_most_promising_are_asked(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory and shared head say which. The scores of tasks that are asked do not depend on the others."""
    learner = learned("hrn", 3)
    learner.options = replace(learner.options, within=9.0)
    images = torch.cat([task.test.images[:20] for task in digits(3).tasks])
    every, prior = learner(images).unflatten(1, (3, 2)), learner.task_prior(images)
    shared = 4 * (0.3 * learner.shared.solution(learner.shared.fixed(images))).log_softmax(1)
    promise = prior + shared.unflatten(1, (3, 2)).amax(2)
    assert promise.isfinite().all(), "without a bound, all are asked"
    monkeypatch.setattr("hashroute.learners.candidates.MOST_ASKED", most)
    found = learner(images).unflatten(1, (3, 2))
    asked = found.isfinite().all(2)
    assert (asked.sum(1) == most).all()
    assert (promise.masked_fill(~asked, torch.inf).amin(1) > promise.masked_fill(asked, -torch.inf).amax(1)).all()
    torch.testing.assert_close(found[asked], every[asked])
    assert len(asked.double().unique(dim=0)) > 1, "not all images ask the same tasks"


@pytest.mark.parametrize("name", ["hrn", "separate"])
def test_an_image_alone_gets_the_scores_that_it_gets_among_others(name: str) -> None:
    learner = learned(name, 3)
    images = torch.cat([task.test.images[:60] for task in digits(3).tasks])
    alone = torch.cat([learner(image[None]) for image in images[::20]])
    torch.testing.assert_close(alone, learner(images)[::20], rtol=1e-4, atol=1e-3)


def test_unlike_data_finds_its_own_task() -> None:
    task = digits().tasks[0]
    both = (task, negative(task))
    learner = fresh("hrn", 6).learn(Scenario("two", both))
    for index, each in enumerate(both):
        assert (learner.predict(each.test.images).tasks == index).double().mean() > 0.95
        known = learner.familiarity(each.test.images).mean(0)
        assert known[index] > -1
        assert known[1 - index] < -2


def test_data_recognised_as_other_data_is_of_its_domain(tmp_path: Path) -> None:
    task = digits().tasks[0]
    learner = fresh("hrn", 3).learn(task).learn(negative(task)).learn(replace(task, name="again"))
    assert [entry.domain for entry in learner.entries] == [0, 1, 0]
    learner.save(tmp_path)
    again: Any = load_learner(tmp_path)
    assert [entry.domain for entry in again.entries] == [0, 1, 0]


def test_tasks_of_other_classes_have_memories_of_their_own() -> None:
    learner = fresh("hrn", 3, recognised=1e9, max_units=2).learn(digits())
    assert learner.decisions[1].looks_like == "0 or 1"
    assert [(entry.path, entry.memory) for entry in learner.entries] == [(0, 0), (0, 1)]


def test_the_first_task_can_be_asked_for_while_it_is_learned() -> None:
    task = digits().tasks[0]
    learner = fresh("hrn", 3)
    Trainer(learner).begin(task)
    assert learner.predict(task.test.images).tasks.unique().tolist() == [0]


def test_nothing_is_compared_before_a_task_is_learned() -> None:
    learner, images = fresh("hrn", 3), digits().tasks[0].test.images
    assert learner.familiarity(images).shape == (len(images), 0)
    for ask in (learner.unfamiliar, learner.distances):
        with pytest.raises(ValueError, match="hrn has learned no task yet: it has nothing to compare images with"):
            ask(images)


def test_what_is_unlike_everything_is_unfamiliar() -> None:
    learner = learned("hrn")
    own = torch.cat([task.test.images for task in digits().tasks])
    assert learner.unfamiliar(own).double().mean() < 0.05
    noise = torch.randint(256, own.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert learner.unfamiliar(noise).double().mean() > 0.9


def test_a_batch_is_near_its_own_data_and_far_from_other_data() -> None:
    first = digits().tasks[0]
    learner = learned("hrn").learn(replace(first, name="again"))
    found = learner.distances(first.test.images)
    assert found.shape == (3,)
    assert found[0] == found[2] < found[1], "the same data and classes have one memory"
    limit = learner.options.recognised * learner.memory_hash.features
    assert found[0] < limit
    assert (learner.distances(255 - first.test.images) > limit).all()


def test_the_memories_of_a_loaded_learner_are_those_that_were_saved(tmp_path: Path) -> None:
    learner, images = learned("hrn", 3), digits().tasks[1].test.images
    learner.save(tmp_path)
    again: Any = load_learner(tmp_path)
    assert again.decisions == learner.decisions
    assert torch.equal(again.familiarity(images), learner.familiarity(images))
    assert torch.equal(again.distances(images), learner.distances(images))
