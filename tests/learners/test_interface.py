"""What every learner promises: answers by task and without one, copies, and facts about itself."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hashroute import Learner, create_learner
from hashroute.learners import files, learner_names
from hashroute.learners.trainer import Trainer
from support import assert_same, digits, fresh, learned

NAMES = learner_names()
COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda learner: pickle.loads(pickle.dumps(learner)),
}


def learning(name: str) -> Any:
    """A learner after one task and one of two epochs of the next."""
    learner = learned(name, 1)
    trainer = Trainer(learner)
    trainer.begin(digits().tasks[1])
    trainer.run_epoch()
    return learner


@pytest.mark.parametrize("name", NAMES)
def test_a_task_is_asked_for_by_name_index_or_entry(name: str) -> None:
    learner = learned(name)
    for index, task in enumerate(digits().tasks):
        images = task.test.images
        logits = learner.logits(images, index)
        assert logits.shape == (len(images), task.classes)
        assert torch.equal(learner.predict(images, index), logits.argmax(1))
        entry = learner.find_task(task.name)
        assert entry is learner.tasks[index]
        assert (entry.index, entry.name, entry.class_names) == (index, task.name, task.class_names)
        for way in (task.name, entry):
            assert torch.equal(learner.logits(images, way), logits)
            assert torch.equal(learner.predict(images, way), learner.predict(images, index))
            assert torch.equal(learner.encode(images, way), learner.encode(images, index))


@pytest.mark.parametrize("name", NAMES)
def test_forward_agrees_with_predict(name: str) -> None:
    learner, scenario = learned(name, 3), digits(3)
    images = torch.cat([task.test.images[:20] for task in scenario.tasks])
    assert torch.equal(learner(images, 1), learner.logits(images, 1))
    scores, answer = learner(images), learner.predict(images)
    assert scores.shape == (60, 6)
    assert torch.equal(scores.argmax(1), 2 * answer.tasks + answer.labels)
    for task in range(3 if name != "hrn" else 0):  # within a task, scores differ as logits do
        rows = scores[:, 2 * task].isfinite()
        own, logits = scores[rows, 2 * task : 2 * task + 2], learner.logits(images, task)[rows]
        torch.testing.assert_close(own[:, 0] - own[:, 1], logits[:, 0] - logits[:, 1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_task_free_features_are_those_of_the_task_an_image_is_assigned_to(name: str) -> None:
    learner = learned(name, 3)
    images = torch.cat([task.test.images[:20] for task in digits(3).tasks])
    features, found = learner.encode(images), learner.predict(images).tasks
    for index in found.unique().tolist():
        assigned = found == index
        torch.testing.assert_close(features[assigned], learner.encode(images[assigned], index))


@pytest.mark.parametrize("name", NAMES)
def test_asking_changes_nothing(name: str) -> None:
    learner, images = learned(name).train(), digits().tasks[1].test.images
    before = {key: tensor.clone() for key, tensor in files.state_of(learner).items()}
    torch.manual_seed(5)
    random_state = torch.get_rng_state()
    first = learner.predict(images)
    learner.encode(images)
    learner(images)
    entry = learner.tasks[0]
    for fact in (learner.paths, learner.known_by, learner.analyse):
        fact(images, entry)
    learner.unit_facts()
    assert all(torch.equal(tensor, before[key]) for key, tensor in files.state_of(learner).items())
    assert torch.equal(torch.get_rng_state(), random_state)
    again = learner.predict(images)
    assert torch.equal(again.tasks, first.tasks)
    assert torch.equal(again.labels, first.labels)


@pytest.mark.parametrize("moment", ["fresh", "learning", "learned"])
@pytest.mark.parametrize("name", NAMES)
def test_all_members_of_a_learner_can_be_read(name: str, moment: str) -> None:
    make = {"fresh": lambda name: create_learner(name, (1, 8, 8)), "learning": learning, "learned": learned}[moment]
    learner = make(name)
    members = dict(inspect.getmembers(learner))
    assert {"tasks", "decisions", "device", "objective", "kept"} <= members.keys()
    assert repr(learner)


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("name", NAMES)
def test_a_copy_is_the_same_and_learns_the_same(name: str, way: str) -> None:
    learner, images = learned(name), digits(3).tasks[0].test.images
    other = COPIES[way](learner)
    assert_same(learner, other)
    assert torch.equal(learner(images), other(images))
    for each in (learner, other):
        each.learn(digits(3, 0.3).tasks[2])
    assert_same(learner, other)
    new = fresh(name, 1)
    copied = COPIES[way](new)
    for each in (new, copied):
        each.learn(digits(1, 0.3).tasks[0])
    assert_same(new, copied)


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("name", NAMES)
def test_a_copy_made_while_a_task_is_learned_ends_it_in_the_same_way(name: str, way: str) -> None:
    learner = learning(name)
    other = COPIES[way](learner)
    for each in (learner, other):
        each.learn(digits().tasks[1])
    assert_same(learner, other)


@pytest.mark.parametrize("name", NAMES)
def test_a_learner_that_nobody_holds_is_freed_at_once(name: str) -> None:
    learner = copy.deepcopy(learned(name))
    learner.predict(digits(2).tasks[0].test.images[:4])
    gc.disable()
    try:
        seen = weakref.ref(learner)
        del learner
        assert seen() is None, "it holds itself: its memory is free only when Python looks for such cycles"
    finally:
        gc.enable()


@pytest.mark.parametrize("name", NAMES)
def test_a_learner_says_what_it_weighs(name: str) -> None:
    learner = learned(name)
    counts, sizes = learner.parameter_counts(), learner.bytes_kept()
    assert counts["heads"] == sum(weight.numel() for weight in learner.heads.parameters())
    assert (counts["heads"] > 0) == learner.trained
    assert counts["encoder"] == sum(weight.numel() for weight in learner.encoder.parameters())
    assert sizes["weights"] == 4 * sum(counts.values())
    stored = [*learner.buffers(), *learner.kept.values()]
    assert sizes["memory"] == sum(tensor.numel() * tensor.element_size() for tensor in stored)
    assert not any(tensor.requires_grad for tensor in learner.kept.values()), "kept tensors keep a graph alive"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_a_task_is_left_when_it_is_learned_but_what_is_kept(name: str) -> None:
    learner = learned(name)
    assert (learner.training_state, learner.scratch) == (None, {})
    assert all(entry.held is None for entry in learner.tasks)
    with pytest.raises(RuntimeError, match="task '0 or 1' is not being learned: its images are gone"):
        _ = learner.tasks[0].data
    saved = sum(tensor.numel() * tensor.element_size() for tensor in files.state_of(learner).values())
    assert len(pickle.dumps(learner)) < saved + 30_000, "a learner that is done carries more than its state"


@pytest.mark.parametrize("name", ["hash-only", "separate", "hrn", "packnet"])
def test_some_forget_exactly_nothing(name: str) -> None:
    learner = fresh(name)
    before: list[Tensor] = []
    for task in digits(3).tasks:
        learner.learn(task)
        for index, logits in enumerate(before):
            assert torch.equal(learner.logits(digits(3).tasks[index].test.images, index), logits)
        before.append(learner.logits(task.test.images, task.name))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ewc", {"weight": 0.0}),
        ("ell", {"code_weight": 0.0, "distillation": 0.0}),
        ("gpm", {"threshold": 0.0}),
        ("si", {"weight": 0.0}),
        ("lwf", {"distillation": 0.0}),
    ],
)
def test_no_protection_is_the_plain_network_bit_for_bit(name: str, options: dict[str, Any]) -> None:
    def weights(learner: Learner) -> list[Tensor]:
        return list(learner.state_dict().values())

    plain = weights(learned("vc", 3))
    assert all(map(torch.equal, plain, weights(learned(name, 3, **options))))
    assert not all(map(torch.equal, plain, weights(learned(name, 3)))), "protection does nothing"
