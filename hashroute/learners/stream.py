"""Streams that nobody cuts into tasks: a learner notices that data has changed, and recognises what it has seen before.

Images are held in one buffer, the window. Whenever it is full, and at the end of an episode, images of the episode are
learned as a task and dropped. No other image is ever held.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hashroute.learners.entries import TaskEntry
from hashroute.learners.inputs import ImagesLike, as_images, check_images
from hashroute.nn.change import LOOKS, ChangeDetector
from hashroute.tasks import Split, Task, check_labels
from hashroute.user_data import read_data, to_uint8

if TYPE_CHECKING:
    from hashroute.learners.hrn import HRN

UNLABELLED = ("images",)
"""The classes of a task that is learned without labels."""


@dataclass(frozen=True)
class StreamSettings:
    """How a stream is observed."""

    window: int = 1000
    """Images that are held, at most."""
    recent: int = 200
    """Latest images that are compared with the episode so far. They are not learned before as many have come after
    them."""
    known_well: float = 98.0
    """Images of known classes are not learned if the mean score of the present answers is at least this; for
    classification, accuracy in percent."""

    def __post_init__(self) -> None:
        if type(self.recent) is not int or self.recent < 2 * LOOKS or self.recent % LOOKS:
            raise ValueError(
                f"recent of a stream is {self.recent!r}: expected a multiple of {LOOKS}, at least {2 * LOOKS}"
            )
        if type(self.window) is not int or self.window < 2 * self.recent:
            raise ValueError(
                f"window of a stream is {self.window!r}: expected a whole number of images, "
                f"at least {2 * self.recent}, twice those that are recent"
            )
        if type(self.known_well) not in (int, float) or self.known_well != self.known_well:
            raise ValueError(f"known_well of a stream is {self.known_well!r}: expected a score, such as 98.0")


@dataclass(frozen=True)
class EpisodeBegan:
    """An episode began. Images are counted from 0, since the stream began."""

    episode: int
    image: int
    """Its first image that the learner takes to be of this episode."""


@dataclass(frozen=True)
class ChangeNoticed:
    """The data has changed: the present episode is over. The recent images are dropped, as they are of both."""

    image: int
    """How many images had come when it was noticed."""
    divergence: float
    """Of the recent images from the episode, in nats."""


@dataclass(frozen=True)
class Recognised:
    """The data of an episode was compared with all that is remembered."""

    episode: int
    task: str | None
    """The learned task whose data it is like; None for new data."""
    divergence: float | None
    """From the most similar remembered data, in nats; None if nothing is remembered yet."""


@dataclass(frozen=True)
class Learned:
    """Images of an episode were learned and dropped."""

    episode: int
    task: str
    """The name of the task that they became."""
    images: int
    score: float | None
    """The mean score of the answers to these images before, if the learner knew their classes."""
    decision: Any
    """What the learner decided about the task, such as a fork."""


@dataclass(frozen=True)
class Skipped:
    """Images of an episode were dropped and not learned: they are known well, or too few are left at its end."""

    episode: int
    images: int
    score: float | None
    """The mean score of the answers to them, if the learner knows their classes."""


Event = EpisodeBegan | ChangeNoticed | Recognised | Learned | Skipped


@dataclass
class StreamState:
    """A stream that is being observed."""

    settings: StreamSettings
    labelled: bool
    detector: ChangeDetector
    images: Tensor = field(repr=False)
    """(window, channels, height, width) the window, uint8."""
    labels: Tensor = field(repr=False)
    held: int = 0
    """Images in the window."""
    looked: int = 0
    """Images in the window that were looked at."""
    seen: int = 0
    """Images of the stream that were looked at."""
    episode: int = 0
    began: int = 0
    """The first image of the episode."""
    compared: bool = False
    """Whether the episode was compared with what is remembered."""
    task: str | None = None
    """The task that was learned last from the episode, or that it was recognised as."""
    parts: int = 0
    """Tasks that were learned from the episode."""

    def add(self, images: Tensor, labels: Tensor) -> None:
        """Put images at the end of the window."""
        rows = slice(self.held, self.held + len(images))
        self.images[rows], self.labels[rows] = to_uint8(images), labels
        self.held = rows.stop

    def drop(self, count: int) -> None:
        """Drop the oldest images of the window."""
        for part in (self.images, self.labels):
            part[: self.held - count] = part[count : self.held].clone()
        self.held -= count
        self.looked -= count

    def begin(self) -> EpisodeBegan:
        """Begin an episode with the next images."""
        self.episode, self.began = self.episode + 1, self.seen
        self.compared, self.task, self.parts = False, None, 0
        return EpisodeBegan(self.episode, self.began)


class Stream:
    """Observes a stream with a learner that remembers what data was like. The learner keeps the state."""

    def __init__(self, learner: HRN) -> None:
        self.learner = learner

    def observe(self, images: ImagesLike, labels: Any, settings: StreamSettings | None) -> list[Event]:
        """Take the next images; see `Learner.observe`."""
        batch = self._read(images, labels)
        state, events = self._state(labels is not None, settings), list[Event]()
        if not state.episode:
            events.append(state.begin())
        start, step = 0, state.detector.step
        while start < len(batch):
            if state.held == state.settings.window:
                events += self._learn(state.held - state.settings.recent)
            room = min(step - (state.held - state.looked), state.settings.window - state.held)
            rows = slice(start, start + room)
            start, part = rows.stop, batch[rows]
            state.add(part.images[:], part.labels)
            if state.held - state.looked == step:
                events += self._look()
        return events

    def close(self) -> list[Event]:
        """End the stream; see `Learner.close_stream`."""
        state = self.learner.stream
        if state is None:
            return []
        events = self._learn(state.held)
        self.learner.stream = None
        return events

    # ---------------------------------------------------------------- parts

    @property
    def _present(self) -> StreamState:
        assert self.learner.stream is not None, "observe begins a stream"
        return self.learner.stream

    def _read(self, images: ImagesLike, labels: Any) -> Split:
        """Images and labels of a batch, checked; labels are 0 if there are none."""
        learner, found = self.learner, as_images(images)
        check_images(found, learner.image_shape)
        if learner.training_state is not None:
            raise ValueError(f"{learner.name} is learning a task: let learn() end, or call abort(), then observe")
        if learner.stream is not None and learner.stream.labelled != (labels is not None):
            now, before = ("without", "with") if labels is None else ("with", "without")
            raise ValueError(
                f"images came {now} labels, those before {before} labels: expected the same in one stream; "
                "close_stream() ends it"
            )
        if labels is None:
            return Split(found, torch.zeros(len(found), dtype=torch.int64))
        try:
            batch = Split(*read_data((found, labels)))
        except ValueError as error:
            raise ValueError(f"the batch cannot be used: {error}") from None
        check_labels(batch, "the stream")
        return batch

    def _state(self, labelled: bool, settings: StreamSettings | None) -> StreamState:
        """The stream that is being observed; a new one if there is none."""
        learner = self.learner
        if learner.stream is None:
            chosen = settings or StreamSettings()
            features, directions = learner.memory_hash.features, learner.memories.directions.shape[1]
            learner.stream = StreamState(
                chosen,
                labelled,
                ChangeDetector(features, directions, learner.recognition_limit, chosen.recent),
                torch.empty(chosen.window, *learner.image_shape, dtype=torch.uint8),
                torch.empty(chosen.window, dtype=torch.int64),
            )
        if settings not in (None, learner.stream.settings):
            raise ValueError(f"the stream has {learner.stream.settings}: call close_stream() to begin one with others")
        return learner.stream

    def _look(self) -> list[Event]:
        """Look at the latest images: has the data changed, and what is it?"""
        learner, state = self.learner, self._present
        events: list[Event] = []
        changed = state.detector.look(learner.hashed(state.images[state.looked : state.held]))
        state.seen += state.held - state.looked
        state.looked = state.held
        if changed:
            events.append(ChangeNoticed(state.seen, state.detector.divergence))
            try:
                events += self._learn(max(0, state.held - state.settings.recent))
            finally:
                state.drop(state.held)  # it is not known which of these are still of the episode
                began = state.begin()
            events.append(began)
        elif not state.compared and state.detector.full:
            events.append(self._recognise())
        if not self._learns:
            state.drop(state.held)
        return events

    def _recognise(self) -> Recognised:
        """Compare the recent images with the data of every task."""
        learner, state, divergence = self.learner, self._present, None
        if learner.tasks:
            distances = learner.divergence_of(state.detector.recent)
            divergence = distances.min().item()
            if divergence <= learner.recognition_limit:
                latest = int((distances == divergence).nonzero()[-1])  # several tasks may share a memory
                state.task = learner.tasks[latest].name
        state.compared = True
        return Recognised(state.episode, state.task, divergence)

    @property
    def _learns(self) -> bool:
        """Whether images are learned. Without labels, an objective that names classes has nothing to learn from."""
        return self._present.labelled or not self.learner.objective.names_classes

    def _learn(self, count: int) -> list[Event]:
        """Learn the oldest images of the window as a task, unless they are known well or too few; then drop them."""
        learner, state = self.learner, self._present
        if not self._learns or not count:
            state.drop(count)
            return []
        split, class_names = self._named(Split(state.images[:count].clone(), state.labels[:count].clone()))
        known, score = self._known, None
        if known is not None and known.class_names == class_names:
            score = learner.objective.score_factor * learner.scores(split, known).double().mean().item()
        well = score is not None and score >= state.settings.known_well
        if well or (state.parts and count < state.settings.recent):
            state.drop(count)
            return [Skipped(state.episode, count, score)]
        try:
            learner.learn(Task.without_test(self._name(), split, class_names), progress=False)
        except BaseException:  # the stream goes on without these images
            if learner.training_state is not None:
                learner.abort()
            raise
        finally:
            state.drop(count)
        state.task, state.parts = learner.tasks[-1].name, state.parts + 1
        return [Learned(state.episode, state.task, count, score, learner.decisions[-1])]

    @property
    def _known(self) -> TaskEntry | None:
        """The task that the present episode continues."""
        task = self._present.task
        return None if task is None else self.learner.find_task(task)

    def _named(self, split: Split) -> tuple[Split, tuple[str, ...]]:
        """The images with labels that are places among class names, and these names.

        A rare class may be missing by chance. So the classes are those of the task that the episode continues, if these
        are hardly more.
        """
        known = self._known
        if not self._present.labelled:
            return split, UNLABELLED
        values, found = split.labels.unique(return_inverse=True)
        names = tuple(map(str, values.tolist()))
        if known is None or not set(names) <= set(known.class_names) or 2 * len(names) < len(known.class_names):
            return Split(split.images, found), names
        columns = torch.tensor([known.class_names.index(name) for name in names])
        return Split(split.images, columns[found]), known.class_names

    def _name(self) -> str:
        """A name for the next task."""
        state, used = self._present, {entry.name for entry in self.learner.tasks}
        if state.parts == 0:
            return next(name for name in map("episode {}".format, itertools.count(state.episode)) if name not in used)
        first = str(state.task).partition(", part ")[0]
        return f"{first}, part {state.parts + 1}"
