"""Sample images of every task, with the answers of a learner."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

from PIL import Image
from torch import Tensor

from hashroute.learners.learner import Learner
from hashroute.learners.randomness import evenly_spaced_indices
from hashroute.tasks import Split, Task

PER_TASK = 2
MOST = 24
LARGEST = 96
"""Height and width of a picture, at most."""


def samples(learner: Learner, data: Sequence[tuple[Task, Split]]) -> list[dict[str, Any]]:
    """Two images of each task, or of evenly spaced tasks if there are many: answers, paths, and familiarity."""
    found = []
    for index in evenly_spaced_indices(len(data), MOST // PER_TASK).tolist():
        (task, split), entry = data[index], learner.tasks[index]
        rows = split.labels.argsort(stable=True)[evenly_spaced_indices(len(split), PER_TASK)]  # of different classes
        images, labels = split.images[rows], split.labels[rows].tolist()
        predicted = learner.predict(images, entry).tolist()
        free_tasks, free_labels = (part.tolist() for part in learner.predict(images))
        paths, known = learner.paths(images, entry), learner.known_by(images, entry)
        for place, image in enumerate(images):
            taken_for = data[free_tasks[place]][0]
            label, free_label = task.class_names[labels[place]], taken_for.class_names[free_labels[place]]
            correct = (taken_for.dataset, free_label) == (task.dataset, label)
            found.append(
                {
                    "task": task.name,
                    "image": data_address(image),
                    "label": label,
                    "predicted": task.class_names[predicted[place]],
                    "task_free": {"task": taken_for.name, "label": free_label, "correct": correct},
                    "path": None if paths is None else paths[place].tolist(),
                    "known_by": None if known is None else known.parts,
                    "projections": None if known is None else [round(v, 4) for v in known.values[place].tolist()],
                }
            )
    return found


def data_address(image: Tensor) -> str:
    """A picture as a data URL of a PNG. image: uint8 of (channels, height, width)."""
    channels = image[:3].permute(1, 2, 0) if len(image) >= 3 else image[0]
    content = io.BytesIO()
    picture = Image.fromarray(channels.contiguous().numpy())
    picture.thumbnail((LARGEST, LARGEST))
    picture.save(content, "PNG")
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
