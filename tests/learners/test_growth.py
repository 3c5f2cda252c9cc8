"""The growth of hrn: which units a task starts from, what a fork must gain, and that nothing is ever forgotten."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hashroute import Task, create_learner
from hashroute.learners import files
from hashroute.learners.growth import Decision
from hashroute.learners.hrn import HRN, HRNOptions
from hashroute.learners.learner import count_weights
from hashroute.learners.trainer import Trainer
from hashroute.nn.gaussian import GaussianMemories
from hashroute.tasks import Split
from support import Grower, assert_same, digits, fresh, learned, short_recipe


@cache
def _two_paths() -> Grower:
    return Grower((1, 8, 8), short_recipe(3)).learn(digits())


def two_paths() -> Any:
    """A learner with a path for each of two tasks."""
    return copy.deepcopy(_two_paths())


def paths(learner: HRN) -> list[int]:
    return [entry.path for entry in learner.entries]


def begin(learner: HRN, task: Task) -> Any:
    """The entry of a task that is about to be trained."""
    Trainer(learner).begin(task)
    return learner.entries[-1]


# ------------------------------------------------------------------------ nothing is forgotten


def learn_and_forget_nothing(learner: HRN, tasks: Sequence[Task]) -> None:
    before: list[Tensor] = []
    for index, task in enumerate(tasks):
        learner.learn(task)
        before.append(learner.logits(task.test.images, index))
        for earlier, logits in enumerate(before):
            assert torch.equal(learner.logits(tasks[earlier].test.images, earlier), logits)


@pytest.mark.parametrize("rank", [0, 1])
def test_nothing_is_forgotten_bit_for_bit(rank: int) -> None:
    learner = Grower((1, 8, 8), short_recipe(), HRNOptions(rank=rank))
    learn_and_forget_nothing(learner, digits(4).tasks)
    assert [decision.action for decision in learner.decisions] == ["fresh", "fork", "fork", "fork"]
    assert paths(learner) == [0, 1, 2, 3]


def test_nothing_is_forgotten_where_paths_are_reused() -> None:
    first, second, third = digits(3).tasks
    tasks = [first, second, replace(first, name="again"), third]
    learner = fresh("hrn", 3, max_units=4)
    learn_and_forget_nothing(learner, tasks)
    assert len(set(paths(learner))) < len(tasks), "no path is reused"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_saved_forest_grows_on_as_if_it_had_never_been_saved(rank: int, tmp_path: Path) -> None:
    *tasks, last = digits(4).tasks
    learner = Grower((1, 8, 8), short_recipe(), HRNOptions(rank=rank))
    for task in tasks:
        learner.learn(task)
    learner.save(tmp_path)
    description, state = files.read_model(tmp_path)
    again = files.build(Grower, description)
    files.load_state(again, state)
    copies = {"saved": again, "pickled": pickle.loads(pickle.dumps(learner)), "copied": copy.deepcopy(learner)}
    learner.learn(last)
    for each in copies.values():
        each.learn(last)
        assert [decision.action for decision in each.decisions] == ["fresh", "fork", "fork", "fork"]
        assert_same(each, learner)


# ------------------------------------------------------------------------ what a fork must gain


def test_growth_is_earned_and_the_same_task_twice_adds_nothing() -> None:
    task = digits(1).tasks[0]
    learner = fresh("hrn", 3).learn(task).learn(replace(task, name="again"))
    assert (len(learner.encoder), paths(learner), len(learner.memories)) == (1, [0, 0], 1)
    decision = learner.decisions[1]
    assert (decision.action, decision.looks_like, decision.parent) == ("reuse", "0 or 1", "0 or 1")
    assert decision.forked - decision.reused <= 2 * decision.error
    assert decision.distance < 5
    assert (decision.units_added, decision.bytes_added) == (0, 0)


def test_a_fork_that_gains_enough_stays() -> None:
    generator = torch.Generator().manual_seed(0)
    images = (torch.rand(1500, 1, 8, 8, generator=generator) * 255).to(torch.uint8)
    first = Task.from_data("first", (images, torch.arange(1500) % 2), (images[:50], torch.arange(50) % 2))
    differ = (images[:, 0, :, 1:].int() - images[:, 0, :, :-1].int()).abs().float().mean((1, 2))
    labels = (differ > differ.median()).long()
    second = Task.from_data("second", (images, labels), (images[:50], labels[:50]), ["smooth", "rough"])
    recipe = replace(short_recipe(augment=False), epochs=(1, 10))
    learner: Any = create_learner("hrn", (1, 8, 8), recipe, recognised=-9.0).learn(first).learn(second)
    decision = learner.decisions[1]
    assert decision.action == "fork", decision
    assert decision.forked - decision.reused > 2 * decision.error
    assert (paths(learner), len(learner.encoder), learner.encoder.parents) == ([0, 1], 2, [None, 0])
    assert decision.units_added == 2
    assert decision.bytes_added == 4 * learner.encoder.weights(1) + learner.memories.bytes_each
    assert decision.head_bytes == 4 * count_weights(learner.heads[1])


@pytest.mark.parametrize(
    ("gained", "lost", "new", "known"),
    [(0, 0, False, False), (5, 5, True, False), (10, 12, True, False), (4, 10, True, False), (2, 12, False, False)]
    + [(3, 0, True, False), (4, 1, True, False), (10, 0, True, True), (10, 8, True, False), (12, 2, True, True)],
)
def test_what_a_fork_must_gain(gained: int, lost: int, new: bool, known: bool) -> None:
    """Of 100 images the fork answers some right that reused units do not, and the other way round."""
    second = digits().tasks[1]
    learner = learned("hrn", 1)
    entry = begin(learner, second)
    images = second.train.images[:100]
    labels = learner.predict(images, 1)
    labels[:lost] = 1 - labels[:lost]
    right = torch.ones(100, dtype=torch.float64)
    right[100 - gained :] = 0
    learner.scratch["scores"] = right
    entry.held = replace(second, validation=Split(images, labels))
    for known_before, stays in ((False, new), (True, known)):
        decision = Decision("second", known=known_before, reused=100 - gained)
        assert learner.growth.earned(entry, decision) == stays
        assert decision.forked == pytest.approx(100 - lost)
        difference = torch.tensor([1.0] * gained + [-1.0] * lost + [0.0] * (100 - gained - lost))
        assert decision.error == pytest.approx(100 * difference.std().item() / 10)


def test_a_decision_says_what_was_tried() -> None:
    first, *others = fresh("hrn", 3).learn(digits(3)).decisions
    assert (first.tried, first.reused) == ({}, None)
    for decision in others:
        assert decision.reused == max(decision.tried.values())
        assert decision.parent in decision.tried


# ------------------------------------------------------------------------ heads


def test_a_fork_starts_with_a_new_head_or_with_one_that_knows_its_classes() -> None:
    first, second = digits().tasks
    learner = learned("hrn", 1, epochs=3)
    again = copy.deepcopy(learner)
    begin(learner, second)
    assert [learner.encoder.parents[path] for path in paths(learner)] == [None, 0]
    tried = learner.growth.tried_head()
    assert not any(torch.equal(weight, tried[name]) for name, weight in learner.heads[1].state_dict().items())
    learner.heads[1].load_state_dict(tried)  # the fork's units are its parent's still
    right = learner.predict(second.validation.images, 1) == second.validation.labels
    assert 100 * right.double().mean().item() == pytest.approx(learner.decisions[1].reused)
    assert right.double().mean() > 0.8
    begin(again, replace(first, name="again"))
    ours, theirs = (again.heads[index].state_dict() for index in (1, 0))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_head_starts_as_the_latest_one_of_its_classes() -> None:
    first, other = digits().tasks
    learner = fresh("hrn", 3, max_units=2).learn(first)
    learner.learn(replace(first, name="again", train=first.part(0.5).train))
    assert paths(learner) == [0, 0]
    assert not torch.equal(*(next(learner.heads[index].parameters()) for index in (0, 1)))
    unlike = copy.deepcopy(learner)
    begin(learner, replace(first, name="once more"))
    ours, latest = (learner.heads[index].state_dict() for index in (2, 1))
    assert all(torch.equal(ours[name], latest[name]) for name in ours)
    begin(unlike, other)
    heads = (unlike.heads[index].parameters() for index in (1, 2))
    assert not any(map(torch.equal, *heads)), "other classes start with a head of their own"


def test_heads_on_frozen_units_learn_smoothed_labels() -> None:
    second = digits().tasks[1]
    learner = learned("hrn", 1)
    learner.recipe = learner.objective.recipe = replace(
        learner.recipe, epochs=(1, 60), label_smoothing=0.5, head=replace(learner.recipe.head, dropout=(0.0,))
    )
    begin(learner, second)
    learner.heads[1].load_state_dict(learner.growth.tried_head())
    sure = learner.logits(second.train.images, 1).softmax(1).gather(1, second.train.labels[:, None])
    torch.testing.assert_close(sure.mean(), torch.tensor(0.75), rtol=0.0, atol=0.05)


def test_how_many_images_are_compared_and_remembered_and_heads_are_trained_as_long_as_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learner: Any = create_learner(
        "hrn", (1, 8, 8), replace(short_recipe(), epochs=(1, 4)), compared_images=7, remembered=30
    )
    seen: dict[str, list[int]] = {"write": [], "divergence": [], "loss": []}

    def count(owner: Any, name: str) -> None:
        method = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: [seen[name].append(len(given[0])), method(*given)][1])

    count(learner.memories, "write")
    learner.learn(digits().tasks[0])
    count(learner.memories, "divergence")
    count(learner.objective, "loss")
    begin(learner, digits().tasks[1])
    assert sum(seen["loss"]) == 4 * len(digits().tasks[1].train), "four epochs of all images"
    learner.learn(digits().tasks[1])
    assert (seen["write"], seen["divergence"]) == ([30, 30], [7])


# ------------------------------------------------------------------------ which units


def test_which_paths_may_be_forked() -> None:
    learner = fresh("hrn", 3)
    for _ in range(4):
        learner.encoder.grow()
    task = learner.Entry(0, "any", ("a", "b"))
    assert learner.growth.candidates(1, set(), task) == [3]
    assert learner.growth.candidates(3, {0, 3}, task) == [3]
    assert learner.growth.candidates(0, {0, 2}, task) == [3, 2]


def test_what_a_task_is_recognised_as(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three tasks the first is seen again: with the same classes, with others, and where all data is alike."""
    tasks = digits(3).tasks
    other = replace(tasks[0], name="other", class_names=("o", "i"))
    grown = Grower((1, 8, 8), short_recipe(), HRNOptions(recognised=-1e9)).learn(digits(3))
    assert paths(grown) == [0, 1, 2]
    for task, recognised, expected, taken_for, known in (
        (replace(tasks[0], name="again"), HRNOptions.recognised, (0, set()), "0 or 1", True),
        (other, HRNOptions.recognised, (0, {0}), "0 or 1", False),
        (other, 1e9, (0, {0, 1, 2}), "0 or 1", False),
        (replace(tasks[0], name="like 2 or 3", class_names=tasks[1].class_names), 1e9, (1, {0, 2}), "2 or 3", True),
        (replace(tasks[0], name="again"), -1e9, (0, set()), None, False),
    ):
        learner = copy.deepcopy(grown)
        learner.options = replace(learner.options, recognised=recognised)
        asked: list[Any] = []
        propose(monkeypatch, learner, lambda *given, asked=asked: asked.append(given[:2]) or [2])
        begin(learner, task)
        assert asked == [expected]
        assert (learner.decisions[-1].looks_like, learner.decisions[-1].known) == (taken_for, known)


def four_to_nine() -> Task:
    """A task for which the hash of an image alone is not enough."""
    pairs = digits(5).tasks[2:]
    parts = {
        part: Split(
            torch.cat([getattr(pair, part).images for pair in pairs]),
            torch.cat([getattr(pair, part).labels + 2 * index for index, pair in enumerate(pairs)]),
        )
        for part in ("train", "validation")
    }
    return replace(pairs[0], name="4 to 9", class_names=tuple("456789"), **parts)


def propose(monkeypatch: pytest.MonkeyPatch, learner: Any, candidates: Any) -> None:
    """Units that are tried, in place of those that look best."""
    monkeypatch.setattr(learner.Growth, "candidates", staticmethod(candidates))


def silence(learner: HRN, path: int) -> None:
    """Units that say nothing about an image: its own hash is left."""
    with torch.no_grad():
        for weight in learner.encoder.paths[path].parameters():
            weight.zero_()


def test_units_made_for_the_same_classes_are_reused_but_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = four_to_nine(), digits().tasks[1]
    learner = Grower((1, 8, 8), short_recipe(3)).learn(first).learn(second)
    monkeypatch.setattr(Grower.Growth, "always", False)
    assert paths(learner) == [0, 1]
    silence(learner, 1)
    again = replace(first, name="again")
    begin(learner, again)
    assert learner.encoder.parents[2] == 1
    assert learner.decisions[2].parent == "2 or 3"
    learner.learn(again)
    decision = learner.decisions[2]
    assert (decision.action, decision.parent, decision.units_added, decision.bytes_added) == ("reuse", "4 to 9", 0, 0)
    assert (paths(learner)[2], len(learner.encoder)) == (0, 2)


def test_units_of_the_same_classes_are_not_forked_because_others_reuse_them(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, first = Grower((1, 8, 8), short_recipe()).learn(digits(3)), digits(3).tasks[0]
    learner.entries[1].path = 0  # the second task reused the first one's units
    learner.options = replace(learner.options, recognised=1e9)  # all data is alike
    asked = []
    propose(monkeypatch, learner, lambda _, similar, __: asked.append(similar) or [2])
    begin(learner, replace(first, name="again"))
    assert asked == [{2}]


def test_of_units_made_for_the_same_data_and_classes_the_most_recent_are_tried() -> None:
    first, other = digits().tasks
    learner = Grower((1, 8, 8), short_recipe(1))
    for task in (first, replace(first, name="part 2"), other, replace(first, name="part 3")):
        learner.learn(task)
    assert paths(learner) == [0, 1, 2, 3]
    assert list(learner.decisions[3].tried) == [other.name, "part 2"]


@pytest.mark.parametrize(("order", "silent"), [((0, 1), 0), ((0, 1), 1), ((1, 0), 0)])
def test_the_parent_is_the_path_on_which_a_head_scores_best(
    order: tuple[int, ...], silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = two_paths()
    silence(learner, silent)
    hard = four_to_nine()
    alone = {}
    for path in (0, 1):
        one = copy.deepcopy(learner)
        propose(monkeypatch, one, lambda *_, path=path: [path])
        begin(one, hard)
        alone[path] = one.decisions[2].reused
    assert alone[0] != alone[1], "else this shows nothing"
    best = max(alone, key=lambda path: alone[path])
    propose(monkeypatch, learner, lambda *_: list(order))
    begin(learner, hard)
    assert learner.encoder.parents == [None, 0, best]
    assert learner.decisions[2].reused == alone[best]
    learner.heads[2].load_state_dict(learner.growth.tried_head())
    labels = learner.predict(hard.validation.images, 2)
    assert 100 * (labels == hard.validation.labels).double().mean().item() == pytest.approx(alone[best])


# ------------------------------------------------------------------------ interruptions


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_task_interrupted_while_heads_are_tried_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learned("hrn", 1)
    before = copy.deepcopy(learner)
    with monkeypatch.context() as patch:
        patch.setattr(learner.objective, "loss", interrupt)
        with pytest.raises(KeyboardInterrupt):
            learner.learn(digits().tasks[1])
    assert_same(learner, before)
    assert_same(learner.learn(digits().tasks[1]), learned("hrn"))


@pytest.mark.parametrize("moment", ["write", "log_likelihood"])
def test_the_end_of_a_task_that_was_interrupted_can_be_done_again(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learned("hrn", 1)
    with monkeypatch.context() as patch:
        patch.setattr(GaussianMemories, moment, interrupt)
        with pytest.raises(KeyboardInterrupt):
            learner.learn(digits().tasks[1])
    assert_same(learner.learn(digits().tasks[1]), learned("hrn"))
