"""The options of hrn: bounds on units and bytes are never exceeded, and values that cannot be are refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from hashroute import UnitSpec, create_learner
from hashroute.learners.hrn import HRN, HRNOptions
from hashroute.learners.trainer import Trainer
from hashroute.recipe import recipe_for
from support import Grower, accuracy, digits, fresh, short_recipe


def added(learner: HRN) -> int:
    """Bytes of units and memories, by what was decided."""
    total = sum(decision.bytes_added for decision in learner.decisions)
    each = next(learner.encoder.parameters()).element_size()
    units = each * sum(map(learner.encoder.weights, range(len(learner.encoder))))
    assert total == units + len(learner.memories) * learner.memories.bytes_each
    return total


@pytest.mark.parametrize("bound", ["max_units", "max_bytes"])
def test_a_bound_on_growth_is_never_exceeded(bound: str) -> None:
    tasks = digits(3).tasks
    most = {"max_units": 2, "max_bytes": added(fresh("hrn", 3).learn(tasks[0]))}[bound]
    learner = fresh("hrn", 3, **{bound: most})
    for task in [*tasks, replace(tasks[0], name="again")]:
        learner.learn(task)
        assert bound == "max_units" or added(learner) <= most
    assert len(learner.encoder) == 1
    assert [decision.action for decision in learner.decisions] == ["fresh", "reuse", "reuse", "reuse"]
    memories = [entry.memory for entry in learner.entries]
    if bound == "max_units":
        assert memories == [0, 1, 2, 0], "data and classes that are known need no memory more"
    else:
        assert memories == [0, 0, 0, 0], "there is room for one"
        assert learner.decisions[1].bytes_added == 0
        assert set(learner.predict(tasks[0].test.images).tasks.tolist()) <= {0, 1, 2, 3}
    assert accuracy(learner, tasks[2]) > 0.8


def test_a_bound_admits_what_fits_and_nothing_more() -> None:
    tasks, most = digits(4).tasks, 0
    free = Grower((1, 8, 8), short_recipe())
    for index, task in enumerate(tasks):
        free.learn(task)
        if index == 1:
            most = added(free)
    assert len(free.encoder) == 4
    for bound in ({"max_units": 5}, {"max_bytes": most}):
        learner = Grower((1, 8, 8), short_recipe(), HRNOptions(**bound))
        for index, task in enumerate(tasks):
            learner.learn(task)
            if index == 1:
                assert added(learner) == most, "what the bound allows is used up"
        assert [decision.action for decision in learner.decisions] == ["fresh", "fork", "reuse", "reuse"]
        assert len(learner.encoder) == 2


def test_small_forks_fit_where_large_ones_do_not() -> None:
    kept = {}
    for rank in (0, 1):
        learner = Grower((1, 8, 8), short_recipe(), HRNOptions(rank=rank)).learn(digits())
        kept[rank] = added(learner)
        assert learner.encoder.fork_weights(rank) == learner.encoder.weights(1)
    assert kept[1] < kept[0]
    for rank, paths in ((0, 1), (1, 2)):
        options = HRNOptions(rank=rank, max_bytes=kept[1])
        assert len(Grower((1, 8, 8), short_recipe(), options).learn(digits()).encoder) == paths


def test_a_bound_in_bytes_holds_for_double_precision() -> None:
    tasks = digits(3).tasks
    most = added(Grower((1, 8, 8), short_recipe(1)).learn(digits(3)))
    learner: Any = Grower((1, 8, 8), short_recipe(1), HRNOptions(max_bytes=most)).double()
    for task in tasks:
        learner.learn(task)
        assert added(learner) <= most
    assert [decision.action for decision in learner.decisions] == ["fresh", "reuse", "reuse"]
    tight = Grower((1, 8, 8), short_recipe(1), HRNOptions(max_bytes=most // 3)).double()
    with pytest.raises(ValueError, match=f"max_bytes of Grower is {most // 3}: expected at least {2 * (most // 3)}"):
        tight.learn(tasks[0])
    assert not tight.tasks


def test_at_the_bound_the_head_of_the_same_classes_is_taken_over() -> None:
    task = digits().tasks[0]
    learner = fresh("hrn", 3, max_units=2).learn(task)
    Trainer(learner).begin(replace(task, name="again"))
    ours, theirs = (learner.heads[index].state_dict() for index in (1, 0))
    assert all(ours[name].equal(theirs[name]) for name in ours)
    assert learner.predict(task.test.images).tasks.unique().tolist() == [0], "a task that is being learned is asked"


def test_a_memory_takes_no_more_bytes_than_the_units_of_its_path() -> None:
    small = [short_recipe(backbone=(UnitSpec(channels, 3, 1, 1),)) for channels in (2, 4, 17, 40, 64, 70)]
    cases = [((1, 8, 8), recipe) for recipe in (short_recipe(), *small)]
    for shape, recipe in (*cases, ((3, 32, 32), recipe_for((3, 32, 32)))):
        learner: Any = create_learner("hrn", shape, recipe)
        units = sum(weight.numel() for weight in learner.backbone.new_levels().parameters())
        ranges = 19  # numbers about what is usual, whatever the size of a memory
        assert 0 < learner.memories.bytes_each <= 4 * (units + ranges)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_units": 1}, "max_units of hrn is 1: expected at least 2, the units of one path"),
        ({"rank": -1}, "rank of hrn is -1: expected a whole number, at least 0"),
        ({"rank": 1.5}, "rank of hrn is 1.5: expected a whole number, at least 0"),
        ({"compared_images": 0}, "compared_images of hrn is 0: expected a whole number, at least 1"),
        ({"max_bytes": -1}, "max_bytes of hrn is -1: expected a whole number, at least 1"),
        ({"max_bytes": 1}, "max_bytes of hrn is 1: expected at least .*, the bytes of the units of one path and of a"),
        ({"rank": "4"}, "rank of hrn is '4': expected a whole number, at least 0"),
        ({"rank": True}, "rank of hrn is True: expected a whole number, at least 0"),
        ({"recognised": math.nan}, "recognised of hrn is nan: expected a number$"),
        ({"within": math.nan}, "within of hrn is nan: expected a number, at least 0"),
        ({"trust": math.inf}, "trust of hrn is inf: expected a number, at least 0"),
    ],
)
def test_options_that_cannot_be_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fresh("hrn", 3, **options)


def test_whole_numbers_may_be_written_as_fractions() -> None:
    options = HRNOptions(rank=1.0, max_bytes=1e6, directions=4.0, memory_features=50.0)  # type: ignore[arg-type]
    assert options == HRNOptions(rank=1, max_bytes=10**6, directions=4, memory_features=50)
    assert len(Grower((1, 8, 8), short_recipe(1), options).learn(digits()).encoder) == 2


def test_images_too_small_to_bend_are_refused() -> None:
    with pytest.raises(ValueError, match="images of 2 x 9 pixels: expected at least 3 x 3"):
        create_learner("hrn", (1, 2, 9), short_recipe(backbone=(UnitSpec(4, 1),)))
