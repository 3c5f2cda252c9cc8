"""Memories, paths of frozen units, and the learner that is made of them: route, fork, freeze."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from hashroute import Scenario, Task, UnitSpec, create_learner, load_learner, load_scenario, run
from hashroute.data import DATASETS, dataset_status
from hashroute.learners.hrn import HRN, Decision, HRNOptions
from hashroute.nn.forest import Forest, _pool
from hashroute.nn.gaussian import IMAGES_A_DIRECTION, Memories, _cosines, edges
from hashroute.recipe import Recipe, recipe_for
from hashroute.tasks import Split

SPECS = (UnitSpec(4, 3, 1, 1, norm_groups=2, max_pool=2), UnitSpec(8, 3, 1, 1, norm_groups=2, max_pool=2))


def forest(paths: int = 1, seed: int = 0) -> Forest:
    torch.manual_seed(seed)
    grown = Forest((1, 8, 8), SPECS, 32, seed)
    for number in range(paths):
        grown.grow(None if number == 0 else number - 1)
    return grown


def digits(tasks: int = 3) -> Scenario:
    return Scenario("digits", load_scenario("digits").tasks[:tasks])


def short(epochs: int = 3, **changes: Any) -> Recipe:
    return replace(recipe_for((1, 8, 8), classes=2), epochs=(epochs,), **changes)


def learner(**options: Any) -> Any:
    torch.manual_seed(0)
    return create_learner("hrn", (1, 8, 8), short(), **options)


# ------------------------------------------------------------------------ memories


@hypothesis_settings(max_examples=25, deadline=None)
@given(st.integers(5, 30), st.integers(1, 4), st.integers(8, 130), st.integers(0, 2**16))
def test_a_memory_equals_a_direct_computation_in_float64(size: int, room: int, seen: int, seed: int) -> None:
    count = min(room, seen // IMAGES_A_DIRECTION)
    generator = torch.Generator().manual_seed(seed)

    def some(n: int) -> Tensor:
        spread = torch.linspace(0.2, 2, size, dtype=torch.float64)
        return torch.randn(n, size, generator=generator, dtype=torch.float64) * spread

    memories = Memories(size, room).double()
    data, others = [some(seen) + shift for shift in (0.0, 0.5)], some(7)
    for part in data:
        memories.write(part, part)
    found = memories.log_likelihood(others)
    for path, part in enumerate(data):
        mean = part.mean(0)
        values, vectors = torch.linalg.eigh(torch.cov(part.T))
        values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
        rest = max(values[count:].sum().item() / (size - count), 1e-10)
        kept = vectors[:, :count]
        variances = values[:count].clamp_min(rest)
        covariance = kept @ torch.diag(variances) @ kept.T + rest * (torch.eye(size) - kept @ kept.T)
        gaussian = torch.distributions.MultivariateNormal(mean, covariance)
        torch.testing.assert_close(found[:, path], gaussian.log_prob(others), rtol=1e-6, atol=1e-4)


def test_data_that_hardly_varies_is_scored_exactly() -> None:
    generator = torch.Generator().manual_seed(0)
    usual = torch.randn(3, 1, 1000, generator=generator)

    def some(kind: int, n: int = 400) -> Tensor:  # as from cameras that do not move
        moved = usual[kind] + 1e-3 * torch.randn(n, 1000, generator=generator)
        return torch.nn.functional.normalize(moved)

    memories, exact = Memories(1000, 16), Memories(1000, 16).double()
    for kind in range(3):
        seen, held_out = some(kind), some(kind, 100)
        memories.write(seen, held_out)
        exact.write(seen.double(), held_out.double())
    others = some(1, 200)
    found, expected = memories.log_likelihood(others)[:, 1], exact.log_likelihood(others.double())[:, 1]
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=0.1)
    torch.testing.assert_close(memories.usual.double(), exact.usual, rtol=0, atol=0.1)
    far = memories.divergence(others)
    torch.testing.assert_close(far[1].double(), exact.divergence(others.double())[1], rtol=0, atol=0.1)
    assert far[1] < 20 < min(far[0], far[2])


def test_own_data_is_familiar_and_other_data_is_not() -> None:
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(2, 5, 40, generator=generator)

    def some(kind: int, n: int = 400) -> Tensor:
        noise = 0.1 * torch.randn(n, 40, generator=generator)
        return torch.nn.functional.normalize(torch.randn(n, 5, generator=generator) @ directions[kind] + noise)

    memories = Memories(40, 8)
    for kind in (0, 1):
        memories.write(some(kind), some(kind, 200))
    for kind in (0, 1):
        known = ((memories.log_likelihood(some(kind)) - memories.usual[:, 0]) / memories.usual[:, 1]).mean(0)
        assert abs(known[kind]) < 0.3
        assert known[1 - kind] < -3


@hypothesis_settings(max_examples=25, deadline=None)
@given(st.integers(5, 30), st.integers(1, 4), st.integers(20, 130), st.integers(0, 2**16))
def test_a_divergence_equals_that_of_two_gaussians(size: int, room: int, seen: int, seed: int) -> None:
    count = min(room, seen // IMAGES_A_DIRECTION)
    generator = torch.Generator().manual_seed(seed)
    spread = torch.linspace(0.2, 2, size, dtype=torch.float64)
    data, batch = (torch.randn(seen, size, generator=generator, dtype=torch.float64) * spread for _ in range(2))
    batch = 0.7 * batch + 0.3
    memories = Memories(size, room).double()
    memories.write(data, data)
    assert not memories.directions[0, count:].any()
    kept = memories.directions[0, :count]
    outside = torch.eye(size) - kept.T @ kept

    def gaussian(mean: Tensor, along: Tensor, rest: Tensor) -> torch.distributions.MultivariateNormal:
        return torch.distributions.MultivariateNormal(mean, kept.T @ torch.diag(along) @ kept + rest * outside)

    remembered = gaussian(memories.means[0], memories.variances[0, :count], memories.rests[0])
    across = (outside @ torch.cov(batch.T)).trace()
    along = (batch @ kept.T).var(0) if count else batch.new_zeros(0)
    found = gaussian(batch.mean(0), along, across / (size - count))
    expected = torch.distributions.kl_divergence(found, remembered) - 0.5 * across / seen / memories.rests[0]
    torch.testing.assert_close(memories.divergence(batch)[0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("few", [50, 100, 200])
def test_a_memory_of_few_samples_knows_more_of_the_same_data(few: int) -> None:
    generator = torch.Generator().manual_seed(0)
    spread = torch.arange(1, 401).float().rsqrt()  # no two directions alike, none that stands out
    data = torch.nn.functional.normalize(torch.randn(2 * few, 400, generator=generator) * spread)
    other = torch.nn.functional.normalize(torch.randn(few, 400, generator=generator) * spread.flip(0))
    memories = Memories(400, 24)
    memories.write(data[:few], data[:few])
    limit = HRNOptions().recognised * 400
    assert memories.divergence(data[few:]) < limit
    assert memories.divergence(other) > 2 * limit


@pytest.mark.parametrize("few", [1, 2, 24])
def test_a_memory_of_a_few_samples_tells_more_of_the_same_data_from_other_data(few: int) -> None:
    generator = torch.Generator().manual_seed(0)
    same, other = torch.randn(2, 60, generator=generator) * 2
    data = torch.nn.functional.normalize(same + torch.randn(few + 200, 60, generator=generator))
    memories = Memories(60, 4)
    memories.write(data[:few], data[:2])
    memories.write(torch.nn.functional.normalize(other + torch.randn(200, 60, generator=generator)), data[:2])
    assert (memories.log_likelihood(data[few:]).argmax(1) == 0).double().mean() > 0.95
    assert memories.usual[0, 1] >= 30**0.5


def test_what_nothing_was_learned_of_is_not_asked() -> None:
    grower, images = learner(), digits(1).tasks[0].test.images
    assert grower.familiarity(images).shape == (len(images), 0)
    with pytest.raises(ValueError, match="has learned no task yet"):
        grower.unfamiliar(images)


def test_data_that_never_varies_is_not_far_from_itself() -> None:
    memories, same = Memories(20, 6), torch.ones(5, 20) / math.sqrt(20)
    memories.write(same, same)
    assert memories.divergence(same) < 1
    assert memories.divergence(-same) > 1000


def test_data_that_is_too_likely_is_other_data() -> None:
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(1200, 40, generator=generator)
    memories = Memories(40, 8)
    memories.write(data[:800], data[800:1000])
    own, calm = data[1000:], 0.3 * data[1000:]
    assert memories.log_likelihood(calm).mean() > memories.log_likelihood(own).mean()
    assert memories.divergence(own) < 2
    assert memories.divergence(calm) > 10


def test_edges_know_nothing_of_brightness_and_contrast_only_as_a_factor() -> None:
    images = torch.rand(3, 2, 16, 16)
    seen = edges(images)
    assert seen.shape == (3, 12, 8, 8)
    torch.testing.assert_close(edges(4 * images + 1), 2 * seen, rtol=1e-3, atol=1e-3)
    ramp = torch.arange(16.0).expand(1, 1, 16, 16)
    assert edges(ramp)[0].mean((1, 2)).tolist() == pytest.approx([1, 0, 0, 0, 0, 0])
    bowl = ramp.mT.square()  # steeper and steeper down, with a curvature of 2
    right, left, down, up, across, bent = edges(bowl)[0].mean((1, 2)).tolist()
    assert (right, left, up, across) == (0, 0, 0, 0)
    assert down > 1
    assert bent == pytest.approx(2**0.5)


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_edges_take_channels_apart(channels: int) -> None:
    """What is the same in all channels is in the first part alone, and what is taken apart is still all there."""
    grey = torch.rand(4, 1, 16, 16).expand(4, channels, 16, 16)
    seen = edges(grey).view(4, 6, channels, 8, 8)
    torch.testing.assert_close(seen[:, :, 0], edges(channels**0.5 * grey[:, :1]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(seen[:, :, 1:], torch.zeros_like(seen[:, :, 1:]), rtol=0, atol=2e-3)
    waves = _cosines(channels)
    torch.testing.assert_close(waves @ waves.T, torch.eye(channels, dtype=torch.float64))


def test_a_memory_of_few_or_equal_samples_is_still_one() -> None:
    memories = Memories(20, 6)
    memories.write(torch.randn(3, 20), torch.randn(1, 20))
    memories.write(torch.ones(5, 20) / math.sqrt(20), torch.ones(5, 20) / math.sqrt(20))
    assert memories.log_likelihood(torch.randn(4, 20)).isfinite().all()
    assert memories.divergence(torch.randn(4, 20)).isfinite().all()
    assert memories.usual.isfinite().all()
    with pytest.raises(ValueError, match="fewer than features=6"):
        Memories(6, 6)


# ------------------------------------------------------------------------ paths


@pytest.mark.parametrize("rank", [0, 1])
def test_a_fork_starts_from_its_parent_and_leaves_it_alone(rank: int) -> None:
    grown, images = forest(), torch.randn(6, 1, 8, 8)
    before = grown(images, 0).detach()
    grown.freeze(0)
    child = grown.grow(0, rank)
    torch.testing.assert_close(grown(images, child), before)
    optimizer = torch.optim.SGD([weight for weight in grown.parameters() if weight.requires_grad], 1.0)
    for _ in range(3):
        optimizer.zero_grad()
        grown(images, child)[:, 0].sum().backward()
        optimizer.step()
    assert torch.equal(grown(images, 0), before)
    assert not torch.allclose(grown(images, child), before)


def test_a_fork_of_low_rank_keeps_less_and_comes_back_from_its_state() -> None:
    grown, images = forest(), torch.randn(6, 1, 8, 8)
    for parent, rank in ((0, 1), (1, 2), (2, 0)):
        path = grown.grow(parent, rank)
        with torch.no_grad():
            for weight in grown.paths[path].parameters():
                weight += 0.1 * torch.randn_like(weight)
        grown.freeze(path)
    assert grown.weights(1) < grown.weights(2) < grown.weights(3) == grown.weights(0)
    again = Forest((1, 8, 8), SPECS, 32)
    again.grow_like(grown.config)
    again.load_state_dict(grown.state_dict())
    again.settle()
    for path in range(4):
        assert torch.equal(grown(images, path), again(images, path))
    saved = sum(tensor.numel() for tensor in grown.state_dict().values())
    assert saved == sum(grown.weights(path) for path in range(4)), "a parent's weights are kept twice"


def test_features_are_a_sum_of_the_hashes_of_all_levels() -> None:
    grown, images = forest(), torch.randn(5, 1, 8, 8)
    maps = list(grown.maps(images, 0))
    assert [tuple(each.shape[1:]) for each in maps] == [(1, 8, 8), (4, 4, 4), (8, 2, 2)]
    centred = [each - each.mean((1, 2, 3), keepdim=True) for each in maps]
    image, first, last = (phi.normalised(each) for phi, each in zip(grown.hashes, centred, strict=True))
    for each in (image, first, last):
        torch.testing.assert_close(each.norm(dim=1), torch.ones(5))
    torch.testing.assert_close(grown(images, 0), image / 4 + first / 2 + last)


def test_what_all_maps_have_in_common_is_no_feature() -> None:
    grown, images = forest(), torch.randn(5, 1, 8, 8)
    same = [phi.normalised(torch.ones(2, 8, 2, 2) * each) for phi, each in zip(grown.hashes, (1, 2, 3), strict=True)]
    assert all(each.norm() > 1 for each in same), "a constant map has a hash"
    with torch.no_grad():
        for unit in grown.paths[0].children():
            unit.blocks[0].norm = None
            unit.blocks[0].convolution.weight.zero_()
            unit.blocks[0].convolution.bias.fill_(0.1)
    image = images - images.mean((1, 2, 3), keepdim=True)
    torch.testing.assert_close(grown(images, 0), grown.hashes[0].normalised(image) / 4)


@pytest.mark.parametrize("sides", [(16, 16), (7, 7), (5, 3), (14, 9)])
def test_maps_are_pooled_as_the_library_does(sides: tuple[int, int]) -> None:
    maps = torch.randn(3, 2, *sides, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(_pool(maps), adaptive_avg_pool2d(maps, 4))


# ------------------------------------------------------------------------ the learner


class Grower(HRN):
    """Every fork stays."""

    def _earned(self, task: Task, number: int, decision: Decision) -> bool:
        super()._earned(task, number, decision)
        return True


def learn_and_forget_nothing(grower: HRN, tasks: Sequence[Task]) -> None:
    before: list[Tensor] = []
    for number, task in enumerate(tasks):
        grower.learn(task)
        before.append(grower.logits(task.test.images, number))
        for earlier, said in enumerate(before):
            assert torch.equal(grower.logits(tasks[earlier].test.images, earlier), said)


@pytest.mark.parametrize("rank", [0, 1])
def test_nothing_is_forgotten_bit_for_bit(rank: int) -> None:
    tasks = digits(4).tasks
    torch.manual_seed(0)
    grower = Grower((1, 8, 8), short(), HRNOptions(rank=rank))
    learn_and_forget_nothing(grower, tasks)
    assert [decision["action"] for decision in grower.decisions] == ["fresh", "fork", "fork", "fork"]
    assert grower.ways == [0, 1, 2, 3]


def test_nothing_is_forgotten_where_paths_are_reused() -> None:
    first, second, third = digits(3).tasks
    tasks = [first, second, replace(first, name="again"), third]
    grower = learner(max_units=4)
    learn_and_forget_nothing(grower, tasks)
    assert len(set(grower.ways)) < len(tasks), "no path is reused"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_saved_forest_grows_on_as_if_it_had_never_been_saved(rank: int, tmp_path: Path) -> None:
    *tasks, last = digits(4).tasks
    torch.manual_seed(0)
    grower = Grower((1, 8, 8), short(), HRNOptions(rank=rank))
    for task in tasks:
        grower.learn(task)
    grower.save(tmp_path)
    again = Grower.from_description(json.loads((tmp_path / "learner.json").read_text()))
    again.load_state(load_file(tmp_path / "model.safetensors"))
    copies = {"saved": again, "pickled": pickle.loads(pickle.dumps(grower)), "copied": copy.deepcopy(grower)}
    for each in (grower, *copies.values()):
        torch.manual_seed(7)
        each.learn(last)
    ours = grower.state()
    for way, each in copies.items():
        assert each.description() == grower.description(), way
        assert [decision["action"] for decision in each.decisions] == ["fresh", "fork", "fork", "fork"], way
        theirs = each.state()
        assert ours.keys() == theirs.keys(), way
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items()), way


def test_growth_is_earned_and_the_same_task_twice_adds_nothing() -> None:
    task = digits(1).tasks[0]
    grower = learner()
    grower.learn(task)
    grower.learn(replace(task, name="again"))
    assert len(grower.encoder) == 1
    assert grower.ways == [0, 0]
    decision = grower.decisions[1]
    assert (decision["action"], decision["looks_like"], decision["parent"]) == ("reuse", "0 or 1", "0 or 1")
    assert decision["why"] == "units of its own gain too little"
    assert decision["distance"] < 5
    assert (decision["units_added"], decision["bytes_added"]) == (0, 0)
    assert len(grower.memories) == 1
    assert "again: looks like 0 or 1" in decision["said"]


def test_tasks_of_other_classes_have_memories_of_their_own() -> None:
    grower = learner(recognised=1e9, max_units=2)
    for task in digits(2).tasks:
        grower.learn(task)
    assert grower.decisions[1]["looks_like"] == "0 or 1"
    assert (grower.ways, grower.known_as) == ([0, 0], [0, 1])


def test_a_fork_starts_with_a_new_head_or_with_one_that_knows_its_classes() -> None:
    first, second = digits(2).tasks
    grower = learner()
    grower.learn(first)
    again = copy.deepcopy(grower)
    grower.begin(second)
    assert [grower.encoder.parents[way] for way in grower.ways] == [None, 0]
    tried = grower.tried_head()
    assert not any(torch.equal(weight, tried[name]) for name, weight in grower.heads[1].state_dict().items())
    grower.heads[1].load_state_dict(tried)  # the fork's units are its parent's still
    right = grower.predict(second.validation.images, 1) == second.validation.labels
    assert 100 * right.double().mean().item() == pytest.approx(grower.decisions[1]["reused"])
    assert right.double().mean() > 0.8
    again.begin(replace(first, name="again"))
    ours, theirs = (again.heads[number].state_dict() for number in (1, 0))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_which_paths_may_be_forked() -> None:
    grower = learner()
    for _ in range(4):
        grower.encoder.grow()
    recent = {3: "the most recent units"}
    assert grower.candidates(1, set()) == recent
    assert grower.candidates(3, {0, 3}) == recent
    assert grower.candidates(0, {0, 2}) == {**recent, 2: "the most recent units of such data"}


def test_what_a_task_is_taken_for() -> None:
    """Of three tasks the first is seen again: with the same classes, with others, and where all data is alike."""
    tasks = digits(3).tasks
    other = replace(tasks[0], name="other", class_names=("o", "i"))
    grown = learner(recognised=-1e9)
    for each in tasks:
        grown.learn(each)
        if grown.ways[-1] != len(grown.tasks) - 1:  # a path for each, gained or not
            grown.ways[-1] = grown.encoder.grow()
            grown.encoder.freeze(grown.ways[-1])
    assert grown.ways == [0, 1, 2]
    for task, recognised, expected, taken_for, known in (
        (replace(tasks[0], name="again"), HRNOptions.recognised, (0, set()), "0 or 1", True),
        (other, HRNOptions.recognised, (0, {0}), "0 or 1", False),
        (other, 1e9, (0, {0, 1, 2}), "0 or 1", False),
        (replace(tasks[0], name="like 2 or 3", class_names=tasks[1].class_names), 1e9, (1, {0, 2}), "2 or 3", True),
        (replace(tasks[0], name="again"), -1e9, (0, set()), None, False),
    ):
        grower = copy.deepcopy(grown)
        grower.options = replace(grower.options, recognised=recognised)
        asked: list[Any] = []
        grower.candidates = lambda *given, asked=asked: asked.append(given) or {2: "any"}
        grower.begin(task)
        assert asked == [expected]
        assert (grower.decisions[-1]["looks_like"], grower.decisions[-1]["known"]) == (taken_for, known)


def four_to_nine() -> Task:
    """A task for which the hash of an image alone is not enough."""
    pairs = digits(5).tasks[2:]
    parts = {
        part: Split(
            torch.cat([getattr(pair, part).images for pair in pairs]),
            torch.cat([getattr(pair, part).labels + 2 * number for number, pair in enumerate(pairs)]),
        )
        for part in ("train", "validation")
    }
    return replace(pairs[0], name="4 to 9", class_names=tuple("456789"), **parts)


def test_units_made_for_the_same_classes_are_reused_but_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = four_to_nine(), digits(2).tasks[1]
    grower = learner()
    grower.learn(first)
    with monkeypatch.context() as patch:
        patch.setattr(HRN, "_earned", lambda *_: True)
        grower.learn(second)
    assert grower.ways == [0, 1]
    for weight in grower.encoder.paths[1].parameters():
        weight.zero_()  # the most recent units say nothing of an image
    again = replace(first, name="again")
    grower.begin(again)
    assert grower.encoder.parents[2] == 1
    assert int(grower.scratch["path"]) == 0
    assert grower.decisions[2]["parent"] == "2 or 3"
    while not grower.done():
        grower.train_epoch(again)
    grower.finish(again)
    assert (grower.decisions[2]["action"], grower.decisions[2]["parent"]) == ("reuse", "4 to 9")
    assert (grower.ways[2], len(grower.encoder)) == (0, 2)
    assert grower.decisions[2]["said"].endswith("nothing added")


def test_units_of_the_same_classes_are_not_forked_because_others_reuse_them(monkeypatch: pytest.MonkeyPatch) -> None:
    grower, (first, second, third) = learner(), digits(3).tasks
    monkeypatch.setattr(HRN, "_earned", lambda *_: True)
    for task in (first, second):
        grower.learn(task)
    grower.learn(third)
    grower.ways = [0, 0, 2]  # the second task reused the first one's units
    monkeypatch.setattr(grower.memories, "divergence", lambda _: torch.zeros(3))  # all data is alike
    asked = []
    monkeypatch.setattr(HRN, "candidates", lambda self, _, alike: asked.append(alike) or {len(self.encoder) - 1: ""})
    grower.begin(replace(first, name="again"))
    assert asked == [{2}]


def assert_the_same(one: HRN, other: HRN) -> None:
    assert one.description() == other.description()
    ours, theirs = one.state(), other.state()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.parametrize("moment", ["_train_head", "_start"])
def test_a_task_that_was_interrupted_while_it_was_looked_at_has_not_begun(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = digits(3).tasks
    grower = learner()
    grower.learn(tasks[0])
    before = copy.deepcopy(grower)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(HRN, moment, interrupt)
        with pytest.raises(KeyboardInterrupt):
            grower.begin(tasks[1])
    assert_the_same(grower, before)
    for task in tasks[1:]:
        grower.learn(task)
    assert len(grower.ways) == len(grower.kinds) == len(grower.known_as) == len(grower.decisions) == 3
    grower.predict(tasks[0].test.images)


@pytest.mark.parametrize("moment", ["write", "log_likelihood"])
def test_the_end_of_a_task_that_was_interrupted_can_be_done_again(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    for interrupted in (False, True):
        grower, (first, second) = learner(), digits(2).tasks
        grower.learn(first)
        grower.begin(second)
        while not grower.done():
            grower.train_epoch(second)
        if interrupted:

            def interrupt(*_: Any) -> None:
                raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                patch.setattr(Memories, moment, interrupt)
                with pytest.raises(KeyboardInterrupt):
                    grower.finish(second)
        grower.finish(second)
        ended.append(grower)
    assert_the_same(*ended)


def test_a_decision_says_what_was_tried() -> None:
    tasks = digits(3).tasks
    grower = learner()
    for task in tasks:
        grower.learn(task)
    first, *others = grower.decisions
    assert (first["tried"], first["forked_from"], first["reused"]) == ({}, None, None)
    for decision in others:
        assert decision["reused"] == max(decision["tried"].values())
        assert decision["forked_from"] in decision["tried"]
        assert decision["parent"] in decision["tried"]
        if decision["action"] == "fork":
            assert decision["parent"] == decision["forked_from"]


def test_pixels_that_are_no_numbers_are_named() -> None:
    task = digits(1).tasks[0]
    grower = learner()
    with pytest.raises(ValueError, match="has learned no task yet"):
        grower.encode(task.test.images)
    grower.learn(task)
    images = task.test.images[:5].float() / 255
    grower.predict(images)
    for wrong in (math.nan, math.inf, 255.0, -0.1):
        images[3, 0, 2, 2] = wrong
        for ask in (grower.predict, grower.encode, grower.unfamiliar, grower.familiarity):
            with pytest.raises(ValueError, match="image 3 has pixels that are not from 0 to 1"):
                ask(images)
    with pytest.raises(ValueError, match="image 1 has pixels that are not from 0 to 255"):
        grower.predict(task.test.images[:5].long() + torch.tensor([0, 300, 0, 0, 0])[:, None, None, None])


def test_a_task_must_end_before_the_next_begins() -> None:
    tasks = digits(2).tasks
    grower = learner()
    grower.begin(tasks[0])
    for start in (grower.begin, grower.learn):
        with pytest.raises(ValueError, match="'0 or 1' is still being learned: go on with learn"):
            start(tasks[1])


@pytest.mark.parametrize("change", ["classes", "images"])
def test_an_interrupted_task_does_not_go_on_with_other_data(change: str) -> None:
    first, second = digits(2).tasks
    grower = learner()
    grower.begin(first)
    fewer = Split(first.train.images[:-1], first.train.labels[:-1])
    other = {"classes": replace(second, name=first.name), "images": replace(first, train=fewer)}[change]
    with pytest.raises(ValueError, match="go on with learn\\(\\) of the same images, or call give_up"):
        grower.learn(other)


@pytest.mark.parametrize("late", [False, True])
def test_a_task_that_diverged_is_given_up_and_leaves_nothing_behind(
    late: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = digits(2).tasks
    grower = learner()
    grower.learn(first)
    before = copy.deepcopy(grower)

    def spoil() -> None:
        with torch.no_grad():
            next(grower.encoder.paths[1].parameters()).fill_(math.nan)

    with monkeypatch.context() as patch:
        if late:  # after the last step of an epoch, so that its loss does not show it
            step, batches = iter(range(10**6)), -(-len(second.train) // grower.recipe.batch_size)
            patch.setattr(grower, "after_step", lambda: spoil() if (next(step) + 1) % batches == 0 else None)
        else:
            patch.setattr(grower, "after_step", spoil)
        for _ in range(grower.recipe.epochs_of(1) + 1):
            with pytest.raises(ValueError, match="hrn diverged"):
                grower.learn(second)
        with pytest.raises(ValueError, match="let learn\\(\\) end, or call give_up\\(\\), then save"):
            grower.save(tmp_path)
    grower.give_up()
    assert_the_same(grower, before)
    grower.save(tmp_path)
    grower.learn(second)
    assert (grower.predict(second.test.images, 1) == second.test.labels).double().mean() > 0.8
    with pytest.raises(RuntimeError, match="nothing is being learned"):
        grower.give_up()


@pytest.mark.parametrize("name", ["hrn", "vc"])
def test_a_task_interrupted_in_an_epoch_goes_on_from_its_beginning(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = digits(2).tasks
    torch.manual_seed(0)
    grower: Any = create_learner(name, (1, 8, 8), short())
    grower.learn(first)
    batches = -(-len(second.train) // grower.recipe.batch_size)
    steps = []

    def stop() -> None:
        steps.append(grower.course.optimizer.param_groups[0]["lr"])
        if len(steps) == batches + 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(grower, "after_step", stop)
    with pytest.raises(KeyboardInterrupt):
        grower.learn(second)
    assert (grower.course.epoch, grower.course.schedule.last_epoch) == (1, batches)
    grower.learn(second)
    rates = steps[: batches + 3], steps[batches + 3 :]
    assert rates[0][batches:] == rates[1][:3], "rates begin anew, too"
    assert len(rates[1]) == 2 * batches
    assert grower.course is None
    assert [task.name for task in grower.tasks] == [first.name, second.name]
    assert (grower.predict(second.test.images, 1) == second.test.labels).double().mean() > 0.8


@pytest.mark.parametrize(("order", "silent"), [((0, 1), 0), ((0, 1), 1), ((1, 0), 0)])
def test_the_parent_is_the_path_on_which_a_head_does_best(
    order: tuple[int, ...], silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = digits(2).tasks
    monkeypatch.setattr(HRN, "_earned", lambda *_: True)
    grower = learner()
    grower.learn(first)
    grower.learn(second)
    for weight in grower.encoder.paths[silent].parameters():
        weight.zero_()  # these units say nothing of an image: its own hash is left
    hard = four_to_nine()
    alone = {}
    for path in (0, 1):
        one = copy.deepcopy(grower)
        monkeypatch.setattr(one, "candidates", lambda *_, path=path: {path: "the only one"})
        torch.manual_seed(1)
        one.begin(hard)
        assert one.decisions[2]["why"] == "the only one"
        alone[path] = one.decisions[2]["reused"]
    assert alone[0] != alone[1], "else this shows nothing"
    best = max(alone, key=lambda path: alone[path])
    monkeypatch.setattr(grower, "candidates", lambda *_: {path: f"path {path}" for path in order})
    torch.manual_seed(1)
    grower.begin(hard)
    assert grower.encoder.parents == [None, 0, best]
    assert grower.decisions[2]["reused"] == alone[best]
    assert grower.decisions[2]["why"] == f"path {best}, where a head does best"
    grower.heads[2].load_state_dict(grower.tried_head())
    labels = grower.predict(hard.validation.images, 2)
    assert 100 * (labels == hard.validation.labels).double().mean().item() == pytest.approx(alone[best])


def test_a_fork_that_gains_enough_stays() -> None:
    generator = torch.Generator().manual_seed(0)
    images = (torch.rand(3000, 1, 8, 8, generator=generator) * 255).to(torch.uint8)
    first = Task.from_data("first", (images, torch.arange(3000) % 2), (images[:50], torch.arange(50) % 2))
    agree = (images[:, 0, :, 1:].int() - images[:, 0, :, :-1].int()).abs().float().mean((1, 2))
    labels = (agree > agree.median()).long()
    second = Task.from_data("second", (images, labels), (images[:50], labels[:50]), ["smooth", "rough"])
    grower = learner(recognised=-9.0)
    for epochs, task in ((1, first), (10, second)):
        grower.recipe = short(epochs, augment=False)
        grower.learn(task)
    decision = grower.decisions[1]
    assert decision["action"] == "fork", decision
    assert decision["forked"] - decision["reused"] > 2 * decision["error"]
    assert (grower.ways, len(grower.encoder), grower.encoder.parents) == ([0, 1], 2, [None, 0])
    assert decision["units_added"] == 2
    kept = grower.bytes_kept()
    assert decision["bytes_added"] == 4 * grower.encoder.weights(1) + kept["memory"] // 2


def test_heads_on_frozen_units_learn_smoothed_labels() -> None:
    grower = learner()
    grower.recipe = replace(grower.recipe, label_smoothing=0.5)
    grower.learn(digits(1).tasks[0])
    labels = torch.arange(64) % 2
    apart = torch.randn(grower.feature_count())
    features = torch.randn(64, len(apart)) + 4 * (labels[:, None] - 0.5) * apart
    head = copy.deepcopy(grower.heads[0])
    grower._train_head(head, features, labels, 60)
    sure = head(features).softmax(1).gather(1, labels[:, None])
    torch.testing.assert_close(sure.mean(), torch.tensor(0.75), rtol=0.0, atol=0.05)


@pytest.mark.parametrize(
    ("gained", "lost", "new", "known"),
    [(0, 0, False, False), (5, 5, True, False), (10, 12, True, False), (4, 10, True, False), (2, 12, False, False)]
    + [(3, 0, True, False), (4, 1, True, False), (10, 0, True, True), (10, 8, True, False), (12, 2, True, True)],
)
def test_what_a_fork_must_gain(gained: int, lost: int, new: bool, known: bool) -> None:
    """Of 100 images the fork answers some right that reused units do not, and the other way round."""
    first, second = digits(2).tasks
    grower = learner()
    grower.learn(first)
    grower.begin(second)
    images = second.train.images[:100]
    labels = grower.predict(images, 1)
    labels[:lost] = 1 - labels[:lost]
    right = torch.ones(100, dtype=torch.float64)
    right[100 - gained :] = 0
    grower.scratch["right"] = right
    task = replace(second, validation=Split(images, labels))
    for known_before, stays in ((False, new), (True, known)):
        decision = Decision("second", known=known_before, reused=100 - gained)
        assert grower._earned(task, 1, decision) == stays
        assert decision.forked == pytest.approx(100 - lost)
        difference = torch.tensor([1.0] * gained + [-1.0] * lost + [0.0] * (100 - gained - lost))
        assert decision.error == pytest.approx(100 * difference.std().item() / 10)


def added(learner: HRN) -> int:
    """Bytes of units and memories, by what was decided."""
    total: int = sum(decision["bytes_added"] for decision in learner.decisions)
    each = next(learner.encoder.parameters()).element_size()
    units = each * sum(map(learner.encoder.weights, range(len(learner.encoder))))
    assert total == units + len(learner.memories) * learner.memories.bytes_each
    return total


def test_a_bound_admits_what_fits_and_nothing_more() -> None:
    tasks, most = digits(4).tasks, 0
    torch.manual_seed(0)
    free = Grower((1, 8, 8), short())
    for number, task in enumerate(tasks):
        free.learn(task)
        if number == 1:
            most = added(free)
    assert len(free.encoder) == 4
    for bound in ({"max_units": 5}, {"max_bytes": most}):
        torch.manual_seed(0)
        grower = Grower((1, 8, 8), short(), HRNOptions(**bound))
        for number, task in enumerate(tasks):
            grower.learn(task)
            if number == 1:
                assert added(grower) == most, "what the bound allows is used up"
        assert [decision["action"] for decision in grower.decisions] == ["fresh", "fork", "reuse", "reuse"]
        assert len(grower.encoder) == 2


def test_small_forks_fit_where_large_ones_do_not() -> None:
    first, second, _ = digits(3).tasks
    kept = {}
    for rank in (0, 1):
        grower = Grower((1, 8, 8), short(), HRNOptions(rank=rank))
        grower.learn(first)
        grower.learn(second)
        kept[rank] = added(grower)
        assert grower.encoder.fork_weights(rank) == grower.encoder.weights(1)
    assert kept[1] < kept[0]
    for rank, paths in ((0, 1), (1, 2)):
        grower = Grower((1, 8, 8), short(), HRNOptions(rank=rank, max_bytes=kept[1]))
        grower.learn(first)
        grower.learn(second)
        assert len(grower.encoder) == paths


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_units": 1}, "max_units of hrn is 1: expected at least 2, the units of one path"),
        ({"rank": -1}, "rank of hrn is -1: expected a whole number, at least 0"),
        ({"rank": 1.5}, "rank of hrn is 1.5: expected a whole number, at least 0"),
        ({"looked_at": 0}, "looked_at of hrn is 0: expected a whole number, at least 1"),
        ({"max_bytes": -1}, "max_bytes of hrn is -1: expected a whole number, at least 1"),
        ({"max_bytes": 1}, "max_bytes of hrn is 1: expected at least .*, the weight of the units of one path and of"),
        ({"rank": "4"}, "rank of hrn is '4': expected a whole number, at least 0"),
        ({"rank": True}, "rank of hrn is True: expected a whole number, at least 0"),
        ({"recognised": math.nan}, "recognised of hrn is nan: expected a number$"),
        ({"within": math.nan}, "within of hrn is nan: expected a number, at least 0"),
        ({"trust": math.inf}, "trust of hrn is inf: expected a number, at least 0"),
    ],
)
def test_options_that_cannot_be_are_named(options: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        learner(**options)


def test_whole_numbers_may_be_written_as_fractions() -> None:
    options = HRNOptions(rank=1.0, max_bytes=1e6, directions=4.0, memory_features=50.0)  # type: ignore[arg-type]
    assert options == HRNOptions(rank=1, max_bytes=10**6, directions=4, memory_features=50)
    grower = Grower((1, 8, 8), short(1), options)
    for task in digits(2).tasks:
        grower.learn(task)
    assert len(grower.encoder) == 2


def test_a_bound_in_bytes_holds_for_double_precision() -> None:
    tasks = digits(3).tasks
    torch.manual_seed(0)
    single = Grower((1, 8, 8), short(1))
    for task in tasks:
        single.learn(task)
    most = added(single)
    grower: Any = Grower((1, 8, 8), short(1), HRNOptions(max_bytes=most)).double()
    for task in tasks:
        grower.learn(task)
        assert added(grower) <= most
    assert [decision["action"] for decision in grower.decisions] == ["fresh", "reuse", "reuse"]
    tight = Grower((1, 8, 8), short(1), HRNOptions(max_bytes=most // 3)).double()
    with pytest.raises(ValueError, match=f"max_bytes of hrn is {most // 3}: expected at least {2 * (most // 3)}"):
        tight.learn(tasks[0])
    assert not tight.tasks


def test_of_units_made_for_the_same_data_and_classes_the_most_recent_are_tried() -> None:
    first, other, _ = digits(3).tasks
    grower = Grower((1, 8, 8), short(1))
    for task in (first, replace(first, name="part 2"), other, replace(first, name="part 3")):
        grower.learn(task)
    assert grower.ways == [0, 1, 2, 3]
    assert list(grower.decisions[3]["tried"]) == [other.name, "part 2"]


def test_a_model_is_not_saved_while_a_task_is_learned(tmp_path: Path) -> None:
    task = digits(1).tasks[0]
    grower = learner()
    grower.begin(task)
    with pytest.raises(ValueError, match="let learn\\(\\) end, or call give_up\\(\\), then save"):
        grower.save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_so_many_images_are_looked_at_and_remembered_and_heads_are_trained_as_long_as_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, list[int]] = {"write": [], "divergence": [], "_train_head": []}

    def count(kind: type, name: str, counted: Any) -> None:
        known = getattr(kind, name)
        monkeypatch.setattr(
            kind, name, lambda self, *given: [seen[name].append(counted(*given)), known(self, *given)][1]
        )

    count(Memories, "write", lambda data, _: len(data))
    count(Memories, "divergence", len)
    count(HRN, "_train_head", lambda *given: given[3])
    torch.manual_seed(0)
    settings = replace(short(), epochs=(1, 4))
    grower = HRN((1, 8, 8), settings, HRNOptions(looked_at=7, remembered=30))
    for task in digits(2).tasks:
        grower.learn(task)
    assert seen == {"write": [30, 30], "divergence": [7], "_train_head": [4]}


def test_a_head_goes_on_from_the_latest_one_of_its_classes() -> None:
    first, other = digits(2).tasks
    grower = learner(max_units=2)
    for task in (first, replace(first, name="again", train=first.part(0.5).train)):
        grower.learn(task)
    assert grower.ways == [0, 0]
    head, fresh = copy.deepcopy(grower.heads[0]), copy.deepcopy(grower.heads[0])
    grower._start_like(head, first, 0)
    grower._start_like(fresh, other, 0)
    for now, old, latest, same in zip(
        *(each.parameters() for each in (head, grower.heads[0], grower.heads[1], fresh)), strict=True
    ):
        assert torch.equal(now, latest)
        assert not torch.equal(old, latest)
        assert torch.equal(same, old), "other classes start with their own"


def test_what_is_unlike_everything_is_unfamiliar() -> None:
    grower, scenario = learner(), digits(2)
    for task in scenario.tasks:
        grower.learn(task)
    own = torch.cat([task.test.images for task in scenario.tasks])
    assert grower.unfamiliar(own).double().mean() < 0.05
    noise = torch.randint(256, own.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert grower.unfamiliar(noise).double().mean() > 0.9


def test_a_batch_is_near_its_own_data_and_far_from_other_data() -> None:
    grower, scenario = learner(), digits(2)
    first = scenario.tasks[0]
    with pytest.raises(ValueError, match="has learned no task yet"):
        grower.distances(first.test.images)
    for task in (*scenario.tasks, replace(first, name="again")):
        grower.learn(task)
    found = grower.distances(first.test.images)
    assert found.shape == (3,)
    assert found[0] == found[2] < found[1], "the same data and classes have one memory"
    limit = grower.options.recognised * grower.memory_hash.features
    assert found[0] < limit
    assert (grower.distances(255 - first.test.images) > limit).all()


@pytest.mark.parametrize("bound", ["max_units", "max_bytes"])
def test_a_bound_on_growth_is_never_passed(bound: str) -> None:
    path = learner()
    path.learn(digits(1).tasks[0])
    most = {"max_units": 2, "max_bytes": added(path)}[bound]
    grower = learner(**{bound: most})
    for task in [*digits(3).tasks, replace(digits(1).tasks[0], name="again")]:
        grower.learn(task)
        assert bound == "max_units" or added(grower) <= most
    assert len(grower.encoder) == 1
    assert [decision["action"] for decision in grower.decisions] == ["fresh", "reuse", "reuse", "reuse"]
    if bound == "max_units":
        assert grower.known_as == [0, 1, 2, 0], "data and classes that are known need no memory more"
    else:
        assert grower.known_as == [0, 0, 0, 0], "there is room for one"
        assert grower.decisions[1]["said"].endswith("nothing added")
        assert set(grower.predict(digits(1).tasks[0].test.images).tasks.tolist()) <= {0, 1, 2, 3}
    assert "bound" in grower.decisions[2]["why"]
    accuracy = (grower.predict(digits(3).tasks[2].test.images, 2) == digits(3).tasks[2].test.labels).float().mean()
    assert accuracy > 0.8


def test_with_no_task_given_unlike_data_finds_its_own_task() -> None:
    task = digits(1).tasks[0]
    negative = replace(
        task,
        name="negative",
        dataset="negative",
        class_names=("dark 0", "dark 1"),
        train=Split(255 - task.train.images, task.train.labels),
        validation=Split(255 - task.validation.images, task.validation.labels),
        test=Split(255 - task.test.images, task.test.labels),
    )
    outcome, grower = run(Scenario("two", (task, negative)), "hrn", short(6))
    free: Any = grower
    assert outcome.task_free["dataset"] > 95
    for number, each in enumerate((task, negative)):
        known = free.familiarity(each.test.images).mean(0)
        assert known[number] > -1
        assert known[1 - number] < -2


@pytest.mark.parametrize("kinds", [[0, 1, 2], [0, 1, 0], [0, 0, 0]])
@pytest.mark.parametrize("options", [{}, {"within": 0.0}, {"within": 9.0, "trust": 0.0, "trust_in_kinds": 0.0}])
def test_with_no_task_given_logits_and_likelihoods_are_added_up(options: dict[str, float], kinds: list[int]) -> None:
    grower, scenario = learner(**options), digits(3)
    for task in scenario.tasks:
        grower.learn(task)
    grower.kinds = kinds
    images = torch.cat([task.test.images[:30] for task in scenario.tasks])
    answer = grower.predict(images)
    likely = grower.memories.log_likelihood(grower._hashed(images))[:, grower.known_as] / grower.memory_hash.features
    asked = 0
    for row, image in enumerate(images):
        nats = likely[row].tolist()
        alike = [[nats[other] for other in range(3) if kinds[other] == kind] for kind in kinds]
        usual = [fmean(each) for each in alike]
        scores = {}
        for task in range(3):
            inside, between = max(alike[task]) - nats[task], max(usual) - usual[task]
            if max(inside, between) <= grower.options.within:
                logits = grower.logits(image[None], task)[0]
                best, *others = logits.sort(descending=True).values.tolist()
                behind = grower.options.trust * inside + grower.options.trust_in_kinds * between
                scores[task] = best - sum(others) / len(others) - behind
        asked += len(scores)
        found = int(answer.tasks[row])
        assert scores[found] >= max(scores.values()) - 1e-4
        assert answer.labels[row] == grower.predict(image[None], found)[0]
    assert len(images) <= asked <= 3 * len(images)
    assert (asked == len(images)) == (options.get("within") == 0)
    assert (asked == 3 * len(images)) == (options.get("within") == 9)


def test_data_taken_for_other_data_is_of_its_kind(tmp_path: Path) -> None:
    task = digits(1).tasks[0]
    grower = learner()
    for name, images in ((task.name, task.train.images), ("negative", 255 - task.train.images), ("again", None)):
        seen = (
            replace(task, name=name)
            if images is None
            else replace(task, name=name, train=Split(images, task.train.labels))
        )
        grower.learn(seen)
    assert grower.kinds == [0, 1, 0]
    folder = tmp_path / "model"
    grower.save(folder)
    again: Any = load_learner(folder)
    assert again.kinds == [0, 1, 0]


def test_the_first_task_can_be_asked_for_while_it_is_learned() -> None:
    task = digits(1).tasks[0]
    grower = learner()
    grower.begin(task)
    assert grower.predict(task.test.images).tasks.unique().tolist() == [0]


def test_images_too_small_to_bend_are_refused() -> None:
    with pytest.raises(ValueError, match="images of 2 x 9 pixels: expected at least 3 x 3"):
        create_learner("hrn", (1, 2, 9), short(backbone=(UnitSpec(4, 1),)))


def test_at_the_bound_the_head_of_the_same_classes_is_taken_over() -> None:
    task = digits(1).tasks[0]
    grower = learner(max_units=2)
    grower.learn(task)
    grower.begin(replace(task, name="again"))
    ours, theirs = (grower.heads[number].state_dict() for number in (1, 0))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert grower.predict(task.test.images).tasks.unique().tolist() == [0], "a task that is being learned is asked"


def test_decisions_are_in_the_log_and_in_the_outcome(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = []
    outcome, learned = run(digits(3), "hrn", short(), folder=tmp_path, on_epoch=records.append)
    grower: Any = learned
    assert [decision["task"] for decision in outcome.decisions] == ["0 or 1", "2 or 3", "4 or 5"]
    assert [record["decision"]["said"] for record in records if "decision" in record] == [
        decision["said"] for decision in outcome.decisions
    ]
    again: Any = load_learner(tmp_path)
    assert again.decisions == grower.decisions
    images = digits().tasks[1].test.images
    assert torch.equal(again.familiarity(images), grower.familiarity(images))
    assert set(records[-1]["flow"]) == {"0 or 1", "2 or 3", "4 or 5"}
    assert all(len(steps) == 1 and steps[0][3] == 1 for steps in records[-1]["flow"].values()), "all go one way"


def test_a_memory_weighs_no_more_than_the_units_of_its_path() -> None:
    small = [short(backbone=(UnitSpec(channels, 3, 1, 1),)) for channels in (2, 4, 17, 40, 64, 70)]
    cases = [((1, 8, 8), settings) for settings in (short(), *small)]
    for shape, settings in (*cases, ((3, 32, 32), recipe_for((3, 32, 32)))):
        grower: Any = create_learner("hrn", shape, settings)
        units = sum(weight.numel() for weight in grower.encoder.new_units().parameters())
        assert 0 < grower.memories.bytes_each <= 4 * units


def test_it_learns_one_task_after_the_other() -> None:
    with pytest.raises(ValueError, match="2 tasks at once"):
        learner().learn(*digits(2).tasks)


def test_real_data_sets_are_told_apart_by_their_memories() -> None:
    if any(not dataset_status(dataset).sizes for dataset in DATASETS):
        pytest.skip("the data sets are not here")
    tasks = load_scenario("mixed").tasks
    grower: Any = create_learner("hrn", (3, 32, 32), replace(recipe_for((3, 32, 32)), epochs=(8,)))
    limit = grower.options.recognised * grower.memory_hash.features
    found: dict[str, set[str]] = {}
    for task in tasks:
        far = grower.memories.divergence(grower._hashed(task.train.images[:500])).tolist() if found else []
        found[task.name] = {other.name.split()[0] for other, away in zip(tasks, far, strict=False) if away <= limit}
        if task.name == "Fashion":
            assert grower.unfamiliar(task.validation.images).double().mean() > 0.7, "single images are unlike all, too"
        grower.memories.write(grower._hashed(task.train.images[:2000]), grower._hashed(task.validation.images))
        assert grower.unfamiliar(task.test.images[::20]).double().mean() < 0.03
    assert found["SVHN"] == found["CIFAR 0-9"] == found["MNIST"] == found["Fashion"] == set()
    assert found["SVHN, part 2"] == {"SVHN"}
    assert found["MNIST, part 2"] == {"MNIST"}
    for name in ("CIFAR 10-19", "CIFAR 20-29", "CIFAR 30-39", "CIFAR 40-49"):
        assert found[name] == {"CIFAR"}, name


@pytest.mark.slow
def test_real_data_sets_are_told_apart() -> None:
    if any(not dataset_status(dataset).sizes for dataset in DATASETS):
        pytest.skip("the data sets are not here")
    tasks = {task.name: task for task in load_scenario("mixed").tasks}
    torch.manual_seed(0)
    grower: Any = create_learner("hrn", (3, 32, 32), replace(recipe_for((3, 32, 32)), epochs=(1, 5, 1, 5, 1)))
    for name in ("SVHN", "CIFAR 0-9", "MNIST", "CIFAR 10-19", "SVHN, part 2", "MNIST, part 2"):
        grower.learn(tasks[name])
    said = {decision["task"]: decision for decision in grower.decisions}
    assert said["SVHN, part 2"]["looks_like"] == "SVHN"
    assert said["MNIST, part 2"]["looks_like"] == "MNIST"
    assert said["MNIST"]["looks_like"] is None
    assert said["CIFAR 10-19"]["action"] == "fork"
    assert said["CIFAR 10-19"]["forked"] > said["CIFAR 10-19"]["reused"], "and not only because it may be behind"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SVHN", "CIFAR 0-9"])
def test_the_same_task_twice_adds_nothing_though_there_is_much_to_learn(name: str) -> None:
    if any(not dataset_status(dataset).sizes for dataset in DATASETS):
        pytest.skip("the data sets are not here")
    (task,) = (task for task in load_scenario("mixed").tasks if task.name == name)
    torch.manual_seed(0)
    grower: Any = create_learner("hrn", (3, 32, 32), replace(recipe_for((3, 32, 32)), epochs=(8,)))
    grower.learn(task)
    grower.learn(replace(task, name="again"))
    assert grower.decisions[1]["looks_like"] == name
    assert (grower.decisions[1]["units_added"], grower.decisions[1]["bytes_added"]) == (0, 0)
    assert (len(grower.encoder), len(grower.memories)) == (1, 1)
