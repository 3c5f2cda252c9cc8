"""Files that an export wrote, read with onnxruntime, and compared with the learner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hashroute import Learner

WITHIN = 1e-4


def session(runtime: Any, path: Path) -> Any:
    return runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def ask(file: Any, images: Tensor, task: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, answers and their tasks, from onnxruntime."""
    given = {"images": images.numpy(), "task": torch.tensor(task).numpy()}
    scores, answer, found = map(torch.from_numpy, file.run(["scores", "answer", "answer_task"], given))
    return scores, answer, found


def assert_same_answers(learner: Learner, file: Any, images: Tensor) -> None:
    """The file gives the learner's logits for every task, and its answers with and without a task."""
    starts = [0]
    for entry in learner.tasks:
        starts.append(starts[-1] + len(entry.class_names))
    for entry in learner.tasks:
        scores, answer, found = ask(file, images, entry.index)
        own = slice(starts[entry.index], starts[entry.index + 1])
        torch.testing.assert_close(scores[:, own], learner.logits(images, entry), rtol=0, atol=WITHIN)
        assert torch.equal(answer - starts[entry.index], learner.predict(images, entry))
        assert (found == entry.index).all()
        scores[:, own] = -torch.inf
        assert (scores == -torch.inf).all(), "classes of other tasks have scores"
    scores, answer, found = ask(file, images, -1)
    expected = learner.predict(images)
    # Scores are sums of weighted terms. Those of unlikely classes are large, but their probabilities are not.
    torch.testing.assert_close(scores, learner(images), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(scores.softmax(1), learner(images).softmax(1), rtol=0, atol=WITHIN)
    assert torch.equal(found, expected.tasks)
    assert torch.equal(answer, torch.tensor(starts)[expected.tasks] + expected.labels)
