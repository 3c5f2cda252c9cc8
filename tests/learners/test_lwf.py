"""lwf: the answers of old heads to new images are held."""

from __future__ import annotations

import torch

from support import digits, fresh


def test_answers_of_old_heads_to_new_images_are_held() -> None:
    first, second = digits().tasks

    def moved(distillation: float) -> float:
        learner = fresh("lwf", 4, distillation=distillation).learn(first)
        before = learner.logits(second.test.images, 0).log_softmax(1)
        learner.learn(second)
        return float((learner.logits(second.test.images, 0).log_softmax(1) - before).abs().mean())

    assert moved(4.0) < moved(0.0) / 3


def test_ell_without_codes_is_lwf_bit_for_bit() -> None:
    tasks = digits(3, 0.5)
    one = fresh("lwf", distillation=2.0, temperature=3.0).learn(tasks)
    other = fresh("ell", code_weight=0.0, distillation=2.0, temperature=3.0).learn(tasks)
    assert all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))
