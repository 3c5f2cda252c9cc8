"""The fast network equals the paper's algorithms, step by step."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hashroute import Growth, HashRoutedNetwork, Routing, UnitSpec
from hashroute.nn.reference import Reference

TOLERANCE = 1e-9
EVENTS = ("initialise", "expand", "replace", "early stop", "zero image", "zero map", "exhausted", "grow")
RESIDUE_WEIGHT = 0.1

SLICE_UNITS = (
    UnitSpec(4, 3, 1, 1, norm_groups=2),
    UnitSpec(6, 3, 2, 1, activation="relu", in_channels=6),
    UnitSpec(3, 2, 1, 1, then=UnitSpec(5, 3, 1, 1, norm_groups=1, max_pool=2)),
)
CHUNK_UNITS = (
    UnitSpec(4, 3, 2, 1, norm_groups=1),
    UnitSpec(6, 3, 1, 1, activation="relu"),
    UnitSpec(2, 2, 1, 1, then=UnitSpec(4, 3, 1, 1)),
)


@dataclass(frozen=True)
class Case:
    """A network, how its data comes, and for how long."""

    network: dict[str, Any]
    batch: int
    steps: int = 60
    channels: int = 2
    seed: int = 0
    dead: bool = False
    """Whether units with a ReLU have biases so low that most of their maps are zero."""


@dataclass
class Stream:
    """8 x 8 images around a few centres that drift; some are zero, some come close to an earlier one."""

    case: Case
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.case.seed)
        self.centres = self.draw(6, self.case.channels, 8, 8)

    def draw(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def batch(self) -> torch.Tensor:
        n = self.case.batch
        self.centres += 0.05 * self.draw(*self.centres.shape)
        spread = torch.tensor([0.02, 0.3, 1.0])[torch.randint(3, (n,), generator=self.generator)]
        which = torch.randint(len(self.centres), (n,), generator=self.generator)
        images = self.centres[which] + spread[:, None, None, None] * self.draw(n, self.case.channels, 8, 8)
        images[torch.rand(n, generator=self.generator) < 0.05] = 0
        return images


def compare_outputs(fast: Routing, slow: Routing) -> None:
    assert torch.equal(fast.paths, slow.paths)
    for ours, theirs in zip(fast[:3], slow[:3], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)


def compare_bases(network: HashRoutedNetwork, reference: Reference) -> None:
    bases = network.bases
    assert bases.ranks.tolist() == [len(basis.vectors) for basis in reference.bases]
    assert bases.ages.tolist() == [basis.age for basis in reference.bases]
    assert bases.limits.tolist() == [
        2**62 if math.isinf(basis.maximum_age) else math.ceil(basis.maximum_age) for basis in reference.bases
    ]
    assert int(bases.initialisations) == reference.initialisations
    if network.grow is not None:
        assert int(network.unknown_batches) == reference.unknown_batches
    for unit, basis in enumerate(reference.bases):
        rank = len(basis.vectors)
        assert bases.counters[unit].tolist() == basis.counters + [0] * (bases.size - rank)
        assert not bases.vectors[unit, rank:].any()
        if rank:
            torch.testing.assert_close(bases.vectors[unit, :rank], torch.stack(basis.vectors), rtol=0, atol=TOLERANCE)


def gradients(network: HashRoutedNetwork, routing: Routing, head: torch.Tensor) -> list[torch.Tensor | None]:
    """Weight gradients of a loss that sees every feature, with the residue penalty."""
    network.zero_grad()
    loss = (routing.features @ head).square().sum(1).mean() + RESIDUE_WEIGHT * routing.residue_penalty()
    if loss.requires_grad:
        loss.backward()
    return [None if weight.grad is None else weight.grad.clone() for weight in network.parameters()]


def compare_gradients(fast: list[torch.Tensor | None], slow: list[torch.Tensor | None]) -> None:
    for ours, theirs in zip(fast, slow, strict=True):
        # A unit that no sample convolved with has no gradient in one, and none or zero in the other.
        ours = torch.zeros(()) if ours is None else ours
        theirs = torch.zeros(()) if theirs is None else theirs
        torch.testing.assert_close(*torch.broadcast_tensors(ours.double(), theirs.double()), rtol=0, atol=TOLERANCE)


def run_both(case: Case) -> Counter[str]:
    """Train on both sides at once, comparing all there is after every step; returns how often what happened."""
    torch.manual_seed(case.seed)
    network = HashRoutedNetwork((case.channels, 8, 8), **case.network, seed=case.seed).double()
    if case.dead:
        with torch.no_grad():
            for unit in network.units:
                if unit.spec.activation == "relu":
                    unit.blocks[0].convolution.bias -= 2
    reference = Reference(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    stream = Stream(case)
    head = stream.draw(network.features, 4)
    usage = torch.zeros(100, dtype=torch.long)
    for step in range(case.steps):
        images = stream.batch()
        fast = network(images)
        ours = gradients(network, fast, head)
        slow = reference(images, by_level=case.batch > 1)
        compare_outputs(fast, slow)
        compare_gradients(ours, gradients(network, slow, head))
        compare_bases(network, reference)
        usage += torch.bincount(fast.paths[fast.paths >= 0], minlength=len(usage))
        assert network.bases.usage.tolist() == usage[: len(network.units)].tolist()
        if (step < 20 or step % 50 == 0) and network.bases.ranks.any():
            network.eval()
            images = torch.cat([images, stream.batch(), stream.batch(), stream.batch()])
            compare_outputs(network(images), reference(images))
            network.train()
        network.train_new_units(optimizer)
        optimizer.step()
    return reference.events


FIXED = {
    "one sample at a time, paper's Algorithm 1": Case(
        dict(units=SLICE_UNITS * 2, features=24, last_residue=False, tau_empty=0.0, tau_expand=0.5, depth=7), batch=1
    ),
    "one sample at a time, chunk-sum, bases of one vector": Case(
        dict(units=CHUNK_UNITS * 2, features=16, channels="chunk-sum", basis_size=1, tau_empty=0.9, tau_depth=0.4),
        batch=1,
        seed=1,
    ),
    "batches, many replacements": Case(
        dict(units=SLICE_UNITS * 2, features=32, tau_expand=0.7, tau_depth=0.3, max_age=2.5, aging_rate=1.02),
        batch=7,
        seed=2,
    ),
    "batches, chunk-sum, deep": Case(
        dict(
            units=CHUNK_UNITS * 2,
            features=20,
            channels="chunk-sum",
            tau_empty=0.0,
            tau_expand=0.9,
            basis_size=4,
            depth=5,
        ),
        batch=5,
        seed=3,
    ),
    "batches, never stopping early, never replacing": Case(
        dict(
            units=SLICE_UNITS,
            features=32,
            tau_depth=0.0,
            tau_empty=0.95,
            tau_expand=1.0,
            max_age=math.inf,
            basis_size=6,
        ),
        batch=6,
        seed=4,
    ),
    "batches, no gradient regularisation": Case(
        dict(
            units=CHUNK_UNITS * 2,
            features=32,
            channels="chunk-sum",
            last_residue=False,
            gradient_regularisation=False,
            tau_empty=0.5,
            tau_expand=0.3,
            depth=4,
            aging_rate=1.1,
        ),
        batch=8,
        seed=5,
        dead=True,
    ),
    "growing, batches": Case(
        dict(
            units=SLICE_UNITS,
            features=32,
            tau_empty=0.8,
            tau_depth=0.2,
            grow=Growth(SLICE_UNITS, most=20, share=0.3, patience=2),
        ),
        batch=6,
        seed=6,
    ),
    "growing, one sample at a time, chunk-sum": Case(
        dict(
            units=CHUNK_UNITS,
            features=24,
            channels="chunk-sum",
            tau_empty=0.5,
            tau_expand=0.3,
            grow=Growth(CHUNK_UNITS[:2], most=12, share=0.0, patience=1),
        ),
        batch=1,
        seed=7,
    ),
}

events_of = cache(lambda name: run_both(FIXED[name]))


@pytest.mark.parametrize("name", FIXED)
def test_fast_equals_reference(name: str) -> None:
    assert events_of(name)["initialise"] > 0


def test_everything_that_can_happen_happened() -> None:
    total = sum((events_of(name) for name in FIXED), Counter())
    assert {event: total[event] for event in EVENTS if total[event] < 20} == {}


@pytest.mark.parametrize("channels", ["slice", "chunk-sum"])
def test_a_large_batch_through_a_fresh_network(channels: str) -> None:
    units = SLICE_UNITS if channels == "slice" else CHUNK_UNITS
    network = dict(units=units * 3, features=32, channels=channels, tau_empty=0.5, tau_expand=0.3, basis_size=4)
    events = run_both(Case(network, batch=128, steps=2))
    assert events["initialise"] == 9
    assert events["replace"] > 20


@pytest.mark.slow
@pytest.mark.parametrize("name", FIXED)
def test_fast_equals_reference_for_long(name: str) -> None:
    run_both(replace(FIXED[name], steps=500))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    channels = draw(st.sampled_from(["slice", "chunk-sum"]))
    last_residue = draw(st.booleans())
    depth = draw(st.integers(1 if last_residue else 2, 6))
    count = draw(st.integers(depth if last_residue else depth - 1, 8))
    units = (SLICE_UNITS if channels == "slice" else CHUNK_UNITS) * 3
    threshold = st.one_of(st.just(0.0), st.floats(0.01, 0.99))
    grow = st.builds(Growth, st.just(units[:3]), st.integers(1, 20), st.floats(0, 0.5), st.integers(1, 5))
    network = dict(
        units=units[:count],
        features=draw(st.integers(10, 64)),  # more than a basis can span: else projections tie at 1
        depth=depth,
        basis_size=draw(st.integers(1, 8)),
        tau_depth=draw(st.one_of(st.just(1e-5), threshold)),
        tau_empty=draw(threshold),
        tau_expand=draw(threshold),
        max_age=draw(st.one_of(st.just(math.inf), st.floats(0.1, 20))),
        aging_rate=draw(st.floats(1.01, 10)),
        last_residue=last_residue,
        channels=channels,
        gradient_regularisation=draw(st.booleans()),
        grow=draw(st.one_of(st.none(), grow)),
    )
    return Case(
        network,
        batch=draw(st.sampled_from([1, 1, 3, 8, 33])),
        steps=200,
        seed=draw(st.integers(0, 1000)),
        dead=draw(st.booleans()),
    )


@pytest.mark.slow
def test_fast_equals_reference_for_drawn_settings() -> None:
    total: Counter[str] = Counter()

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases())
    def check(case: Case) -> None:
        total.update(run_both(case))

    check()
    assert {event: total[event] for event in EVENTS if total[event] < 20} == {}
