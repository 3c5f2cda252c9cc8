"""Streams that nobody cuts into tasks: changes are noticed, known data is recognised, and few images are held."""

from __future__ import annotations

import copy
import gc
import weakref
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hashroute import create_learner, load_learner, load_scenario
from hashroute.learners.objectives import Rotation
from hashroute.learners.stream import (
    ChangeNoticed,
    EpisodeBegan,
    Event,
    Learned,
    Recognised,
    Skipped,
    StreamSettings,
)
from hashroute.learners.trainer import Trainer
from support import assert_one_clear_line, assert_same, fresh, learned, short_recipe

SETTINGS = StreamSettings(window=240, recent=96)
LEARN_ALL = StreamSettings(window=240, recent=96, known_well=float("inf"))
LENGTHS = (330, 280, 300)
PLAIN = {"epochs": 1, "fixed_features": 0}


@cache
def stream() -> tuple[Tensor, Tensor]:
    """Digits from 0 to 4, then from 5 to 9, then from 0 to 4 again, and their labels."""
    parts = [task.train for task in load_scenario("digits").tasks]
    images = torch.cat([part.images[:] for part in parts])
    labels = torch.cat([part.labels + 2 * pair for pair, part in enumerate(parts)])
    generator, rows = torch.Generator().manual_seed(0), []
    for low, length in zip((0, 5, 0), LENGTHS, strict=True):
        known = ((labels >= low) & (labels < low + 5)).nonzero()[:, 0]
        rows.append(known[torch.randint(len(known), (length,), generator=generator)])
    chosen = torch.cat(rows)
    return images[chosen], labels[chosen]


def observe(learner: Any, batch: int, *, labelled: bool = True, settings: StreamSettings = SETTINGS) -> list[Event]:
    images, labels = stream()
    events = []
    for some, named in zip(images.split(batch), labels.split(batch), strict=True):
        events += learner.observe(some, named if labelled else None, settings)
    return events + list(learner.close_stream())


@cache
def observed() -> tuple[Any, list[Event]]:
    learner = fresh("hrn", **PLAIN)
    return learner, observe(learner, 1000)


def of(kind: type, events: list[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


# ------------------------------------------------------------------------ what is decided


def test_changes_are_noticed_soon_and_known_data_is_recognised() -> None:
    _, events = observed()
    first, second = (event.image for event in of(ChangeNoticed, events))
    assert LENGTHS[0] < first <= LENGTHS[0] + SETTINGS.recent
    assert LENGTHS[0] + LENGTHS[1] < second <= LENGTHS[0] + LENGTHS[1] + SETTINGS.recent
    assert of(EpisodeBegan, events) == [EpisodeBegan(1, 0), EpisodeBegan(2, first), EpisodeBegan(3, second)]
    names = [event.task for event in of(Recognised, events)]
    assert names[:2] == [None, None]
    assert names[2] is not None
    assert names[2].startswith("episode 1")


def test_episodes_are_learned_in_parts_of_the_window() -> None:
    learner, events = observed()
    parts = of(Learned, events)
    assert [part.task for part in parts] == [task.name for task in learner.tasks]
    assert parts[0].images == SETTINGS.window - SETTINGS.recent
    assert max(part.images for part in parts) <= SETTINGS.window
    assert {class_name for task in learner.tasks for class_name in task.class_names} == set("0123456789")
    for task, low in (("episode 1", 0), ("episode 2", 5)):
        entry = learner.find_task(task)
        assert entry.class_names == tuple(map(str, range(low, low + 5)))
        assert entry.held is None


def test_how_the_stream_is_cut_into_batches_does_not_matter() -> None:
    learner = fresh("hrn", **PLAIN)
    assert observe(learner, 41) == observed()[1]
    assert_same(learner, observed()[0])


def test_what_is_known_well_is_skipped_and_otherwise_learned_further() -> None:
    images, labels = stream()
    learner = copy.deepcopy(observed()[0])
    first = slice(0, SETTINGS.window)
    for known_well, expected in ((0.0, Skipped), (101.0, Learned)):
        settings = StreamSettings(window=240, recent=96, known_well=known_well)
        events = learner.observe(images[first], labels[first], settings) + learner.close_stream()
        assert len(of(expected, events)) == 1, events
        assert 0 <= of(expected, events)[0].score <= 100
    assert of(Learned, events)[0].decision.known


def test_a_class_that_is_missing_by_chance_stays_a_class() -> None:
    images, labels = stream()
    learner = copy.deepcopy(observed()[0])
    rows = (labels[:240] != 3).nonzero()[:, 0]
    learner.observe(images[rows], labels[rows], LEARN_ALL)
    (event,) = learner.close_stream()
    assert learner.find_task(event.task).class_names == tuple("01234")


def test_a_saved_learner_recognises_the_stream_but_has_no_image_of_it(tmp_path: Path) -> None:
    images, labels = stream()
    learner = copy.deepcopy(observed()[0])
    learner.observe(images[:200], labels[:200], SETTINGS)
    learner.save(tmp_path / "model")
    loaded = load_learner(tmp_path / "model")
    assert loaded.stream is None
    (found,) = of(Recognised, loaded.observe(images[:100], labels[:100], SETTINGS))
    assert loaded.find_task(found.task).class_names == tuple("01234")


def test_without_labels_data_is_recognised_and_nothing_is_learned() -> None:
    learner = copy.deepcopy(observed()[0])
    before = copy.deepcopy(learner)
    events = observe(learner, 50, labelled=False)
    digits = ["".join(learner.find_task(event.task).class_names) for event in of(Recognised, events)]
    assert digits == ["01234", "56789", "01234"]
    assert not of(Learned, events)
    assert_same(learner, before)


def test_an_objective_without_labels_learns_a_stream_without_labels() -> None:
    learner = create_learner("hrn", (1, 8, 8), short_recipe(1), objective=Rotation)
    events = learner.observe(stream()[0][:250], settings=SETTINGS)
    assert [event.task for event in of(Learned, events)] == ["episode 1"]
    assert learner.tasks[0].class_names == ("images",)


# ------------------------------------------------------------------------ what is held


def images_of(objects: Any) -> int:
    """How many images the tensors among these objects have room for."""
    tensors = [each for each in objects if type(each) is Tensor and each.shape[-3:] == (1, 8, 8)]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    return sum(storages.values()) // 64


def test_only_the_window_is_held_and_it_is_dropped() -> None:
    learner = copy.deepcopy(observed()[0])
    stream()
    gc.collect()
    before = {id(each) for each in gc.get_objects()}
    images, labels = (each.clone() for each in stream())
    given = weakref.ref(images)
    learner.observe(images, labels, SETTINGS)
    assert learner.stream is not None
    assert 0 < learner.stream.held <= SETTINGS.window
    del images, labels
    gc.collect()
    assert given() is None, "the batch is still held"
    assert images_of(each for each in gc.get_objects() if id(each) not in before) == SETTINGS.window
    learner.close_stream()
    gc.collect()
    assert images_of(each for each in gc.get_objects() if id(each) not in before) == 0


def test_where_nothing_is_learned_no_image_outlives_the_next_look() -> None:
    learner = copy.deepcopy(observed()[0])
    for some in stream()[0].split(30):
        learner.observe(some, settings=SETTINGS)
        assert learner.stream is not None
        assert learner.stream.held < learner.stream.detector.step


# ------------------------------------------------------------------------ what goes wrong


class Stopped(Rotation):
    """Someone stops the training."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG002
        raise KeyboardInterrupt


def test_a_stream_goes_on_after_learning_was_interrupted() -> None:
    learner = create_learner("hrn", (1, 8, 8), short_recipe(1), objective=Stopped)
    with pytest.raises(KeyboardInterrupt):
        learner.observe(stream()[0], settings=SETTINGS)
    assert learner.training_state is None
    assert learner.stream is not None
    assert learner.stream.held == SETTINGS.recent
    learner.objective = Rotation(learner.recipe)
    assert learner.tasks == []
    assert of(Learned, learner.observe(stream()[0][:200], settings=SETTINGS))


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (
            torch.zeros(5, 1, 9, 9),
            torch.zeros(5).long(),
            r"images are of shape \(5, 1, 9, 9\): expected \(number, 1, 8",
        ),
        (torch.zeros(1, 8, 8), torch.zeros(1).long(), r"expected \(number, 1, 8, 8\); give one image as image\[None\]"),
        ("images", torch.zeros(5).long(), "images are str: expected a tensor or an array"),
        (torch.full((5, 1, 8, 8), 7.0), torch.zeros(5).long(), "has pixels that are not from 0 to 1"),
        (torch.zeros(5, 1, 8, 8), torch.zeros(4).long(), "5 images and 4 labels, expected one label for each"),
        (torch.zeros(5, 1, 8, 8), ["a"] * 5, "labels are <U1, expected whole numbers"),
        (torch.zeros(5, 1, 8, 8), torch.zeros(5), "labels of task 'the stream' are torch.float32"),
        (torch.zeros(5, 1, 8, 8), None, "images came without labels, those before with labels"),
        (torch.zeros(0, 1, 8, 8), torch.zeros(0).long(), "there are no images"),
    ],
)
def test_a_wrong_batch_is_refused_and_changes_nothing(images: Any, labels: Any, message: str) -> None:
    learner = fresh("hrn")
    learner.observe(*(each[:20] for each in stream()))
    assert_one_clear_line(lambda: learner.observe(images, labels), message)
    assert learner.stream.held == 20


def test_settings_are_those_of_the_whole_stream() -> None:
    learner = fresh("hrn")
    learner.observe(*(each[:20] for each in stream()), SETTINGS)
    assert_one_clear_line(lambda: learner.observe(*stream(), StreamSettings()), "call close_stream")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"recent": 100}, "recent of a stream is 100: expected a multiple of 8"),
        ({"window": 300}, "window of a stream is 300: expected a whole number of images, at least 400"),
        ({"known_well": "all"}, "known_well of a stream is 'all': expected a score"),
    ],
)
def test_impossible_settings_are_one_line(settings: dict[str, Any], message: str) -> None:
    assert_one_clear_line(lambda: StreamSettings(**settings), message)


def test_a_learner_that_is_learning_a_task_does_not_observe() -> None:
    learner = fresh("hrn", **PLAIN)
    Trainer(learner).begin(load_scenario("digits").tasks[0])
    assert_one_clear_line(lambda: learner.observe(*stream()), "call abort")
    assert learner.training_state is not None


def test_a_learner_that_remembers_no_data_says_so() -> None:
    assert_one_clear_line(lambda: learned("vc").observe(stream()[0]), "vc does not remember what data was like")
