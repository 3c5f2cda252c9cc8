"""hat: gates of its own for each task, and updates that leave alone what old tasks use."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hashroute.learners.hat import compensation
from hashroute.learners.trainer import Trainer
from hashroute.nn.channel_gates import ChannelGates
from support import accuracy, digits, fresh, learned


class Mixed(nn.Module):
    """Layers of many kinds: in groups, next to each other, over channels that come last, with and without norms."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.mix = nn.Linear(8, 8)
        self.grouped = nn.Conv2d(8, 12, 3, 2, 1, groups=2, bias=False)
        self.beside = nn.Conv2d(8, 4, 3, 2, 1)
        self.late_norm = nn.GroupNorm(2, 16)
        self.last = nn.Linear(16 * 16, 10)

    def forward(self, maps: Tensor) -> Tensor:
        """maps: (n, 1, 8, 8)."""
        maps = nn.functional.gelu(self.norm(self.first(maps)))
        maps = maps + self.mix(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).tanh()
        maps = torch.cat([self.grouped(maps), self.beside(maps)], 1)
        features: Tensor = self.last(nn.functional.relu6(self.late_norm(maps)).flatten(1))
        return features[:, :, None, None]


def mixed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Mixed())


BACKBONES: dict[str, Any] = {"small": "small", "residual": "resnet18x0.125", "own": mixed()}


def make_binary(learner: Any) -> None:
    """Set the gates of the latest task to exactly 0 or 1."""
    with torch.no_grad():
        embedding = learner.encoder.embeddings[-1]
        embedding.copy_(embedding.sign())
    gates = learner.eval().gates(learner.tasks[-1])
    assert set(gates.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("backbone", BACKBONES)
def test_binary_gates_forget_exactly_nothing(backbone: str) -> None:
    learner = fresh("hat", 1, backbone=BACKBONES[backbone])
    tasks, before = digits(3, 0.3).tasks, []
    for task in tasks:
        weights = [weight.clone() for weight in learner.encoder.levels.parameters()]
        learner.learn(task)
        make_binary(learner)
        for index, logits in enumerate(before):
            assert torch.equal(learner.logits(tasks[index].test.images, index), logits)
        before.append(learner.logits(task.test.images, task.name))
        changed = [not torch.equal(*pair) for pair in zip(weights, learner.encoder.levels.parameters(), strict=True)]
        assert any(changed), "nothing was learned at all"


def test_as_trained_it_forgets_next_to_nothing() -> None:
    first, second = digits().tasks
    learner, plain = fresh("hat", 6).learn(first), fresh("vc", 6).learn(first)
    shifts = []
    for each in (learner, plain):
        before = each.logits(first.test.images, 0)
        each.learn(second)
        shifts.append((each.logits(first.test.images, 0) - before).abs().mean().item())
        assert accuracy(each, second) > 0.9
    assert shifts[0] < shifts[1] / 10


def test_gates_are_factors_of_channels_and_of_their_norms() -> None:
    encoder: Any = mixed().eval()
    gates = ChannelGates(encoder, (1, 8, 8))
    assert gates.layers == ["0.first", "0.mix", "0.grouped", "0.beside", "0.last"]
    assert gates.norms == {"0.norm": 0}, "late_norm follows two layers"
    assert gates.count == 8 + 8 + 12 + 4 + 10
    closed = torch.ones(gates.count)
    closed[[0, 3]] = 0.0
    seen: list[Tensor] = []
    encoder[0].norm.register_forward_hook(lambda *each: seen.append(each[2]))
    torch.func.functional_call(encoder, gates.weights(encoder, closed), (torch.rand(2, 1, 8, 8),))
    assert (seen[0].abs().amax((0, 2, 3)) > 0).tolist() == [False, True, True, False, True, True, True, True]


def test_influence_is_the_smaller_gate_of_two_channels() -> None:
    encoder: Any = mixed().eval()
    gates = ChannelGates(encoder, (1, 8, 8))
    values = torch.linspace(0.05, 0.95, gates.count)
    first, mix, grouped, beside, last = values.split(gates.widths)
    found = gates.influence(encoder, values)
    assert found.keys() == encoder.state_dict().keys()
    torch.testing.assert_close(found["0.first.weight"], first.view(8, 1, 1, 1))
    torch.testing.assert_close(found["0.norm.running_mean"], first)
    torch.testing.assert_close(found["0.mix.weight"], torch.minimum(mix[:, None], first))
    larger = torch.maximum(first, mix).view(2, 4).repeat_interleave(6, 0)  # of two that are added
    assert (found["0.grouped.weight"][..., 0, 0] >= torch.minimum(grouped[:, None], larger)).all()
    torch.testing.assert_close(found["0.beside.bias"], beside)
    torch.testing.assert_close(found["0.last.weight"], last[:, None].expand(-1, 256))
    assert found["0.late_norm.weight"] == 1, "a norm without gates is frozen"


def test_the_slope_grows_within_an_epoch_and_gradients_do_not_depend_on_it() -> None:
    learner, slopes = fresh("hat", s_max=50.0), []

    def loss(batch: Any, usual: Any = learner.loss) -> Any:
        slopes.append(learner._slope)
        return usual(batch)

    learner.loss = loss
    trainer = Trainer(learner)
    trainer.begin(digits().tasks[0])
    for _ in range(2):
        trainer.run_epoch()
    half = len(slopes) // 2
    torch.testing.assert_close(slopes[:half], torch.linspace(1 / 50, 50, half).tolist())
    assert slopes[half:] == slopes[:half]
    embedding = torch.linspace(-1, 1, 9, dtype=torch.float64, requires_grad=True)
    expected = 50 * embedding.sigmoid() * (1 - embedding.sigmoid())
    for slope in (0.02, 1.0, 20.0):
        (gradient,) = torch.autograd.grad((slope * embedding).sigmoid().sum(), embedding)
        torch.testing.assert_close(gradient * compensation(embedding, slope, 50.0), expected)


def test_sparsity_closes_gates() -> None:
    def opened(sparsity: float) -> float:
        learner = learned("hat", 1, 15, sparsity=sparsity)
        return learner.gates(learner.tasks[0]).mean().item()

    assert opened(50.0) < opened(0.0) - 0.1


def test_settings_out_of_range_get_one_line() -> None:
    with pytest.raises(ValueError, match=r"^s_max of hat is 1.0: expected a number above 1$"):
        fresh("hat", s_max=1.0)
