"""The paper, one sample at a time, in plain loops: the slow and literal oracle for tests of the fast code.

It shares the hash tables and the weights with a HashRoutedNetwork and nothing else: bases, counters and ages are its
own. Where the paper leaves something open, a comment says what was settled.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from hashroute.nn.hashing import FeatureHash, integer_hash
from hashroute.nn.network import HashRoutedNetwork, Routing
from hashroute.nn.units import ConvUnit, UnitSpec

EPSILON = 1e-6
"""Smaller values count as zero: no hash, no new basis vector."""


@dataclass
class Basis:
    """B_k of one unit, and the counters of Algorithm 4."""

    maximum_age: float
    """alpha"""
    vectors: list[Tensor] = field(default_factory=list)
    counters: list[int] = field(default_factory=list)
    """c, a low projection counter for each vector"""
    age: int = 0
    """a"""

    def project(self, h: Tensor) -> Tensor:
        """p = B h, as a vector of the space that h lives in."""
        B = torch.stack(self.vectors)
        return (B @ h) @ B

    def magnitude(self, h: Tensor) -> float:
        """|B h|. Our choice: negligible values are 0, so that rounding does not decide ties."""
        size = float(torch.linalg.vector_norm(torch.stack(self.vectors) @ h))
        return size if size > EPSILON else 0.0


@dataclass
class Walk:
    """The state of one sample: the variables of Algorithm 1."""

    H: Tensor
    """the output so far"""
    h: Tensor
    """the current hash vector"""
    y: Tensor
    """(channels, height, width) the current feature map"""
    J: list[int] = field(default_factory=list)
    """the used units, in order"""
    residues: list[Tensor] = field(default_factory=list)
    going: bool = True


class Reference:
    """Algorithms 1 to 4 on the weights and hash functions of a network. Counts what happens in `events`.

    If the network grows, it must have seen the same batch before: the weights of a new unit are its.
    """

    def __init__(self, network: HashRoutedNetwork) -> None:
        self.network = network
        self.bases = [Basis(network.bases.max_age) for _ in network.units]
        self.initialisations = 0
        self.known: list[bool] = []
        """whether a unit knew each hash vector of the present batch"""
        self.unknown_batches = 0
        self.events: Counter[str] = Counter()

    def __call__(self, images: Tensor, by_level: bool = False) -> Routing:
        """Route a batch: sample by sample, as the paper does, or all samples one level after the other.

        images: (n, channels, height, width). Bases evolve in train mode only.
        """
        self.known = []
        walks = [self.start(image) for image in images]
        levels = range(self.network.levels)
        if by_level:
            for level in levels:
                for walk in walks:
                    self.advance(walk, level)
        else:
            for walk in walks:
                for level in levels:
                    self.advance(walk, level)
        if self.network.training and self.known:
            self.grow()
        return self.collect(walks)

    # ------------------------------------------------ Algorithm 1: hash-routed inference

    def start(self, x: Tensor) -> Walk:
        """The lines before the loop. Settled: h_0 is normalised like every other hash vector, as in the equation."""
        return Walk(H=x.new_zeros(self.network.features), h=self.hash(self.network.image_hash, x), y=x)

    def advance(self, walk: Walk, level: int) -> None:
        """The body of the loop over j."""
        if not walk.going:
            return
        if not walk.h.any():  # settled: a zero map stops before selection
            self.events["zero map" if walk.J else "zero image"] += 1
            walk.going = False
            return
        h = walk.h.detach()
        i, initialised = self.select(h, walk.J)
        if i is None:  # settled: a sample with no free unit stops
            self.events["exhausted"] += 1
            walk.going = False
            return
        if initialised:
            r = torch.zeros_like(walk.h)
        else:
            r = walk.h - self.bases[i].project(walk.h)
            if self.network.training:
                self.expand(h, i)
                self.update(h, i)
        size = float(torch.linalg.vector_norm(r.detach()))
        if size < EPSILON:  # settled: rounding noise has no direction
            r, size = torch.zeros_like(r), 0.0
        walk.H = walk.H + r
        walk.residues.append(r)
        walk.J.append(i)
        if level == self.network.levels - 1:  # what the last unit would compute is thrown away
            return
        if size < self.network.tau_depth:
            self.events["early stop"] += 1
            walk.going = False
        else:
            unit = self.network.units[i]
            assert isinstance(unit, ConvUnit)
            walk.y = self.convolve(unit, walk.y, min(1.0, size))
            walk.h = self.hash(self.network.hashes[i], walk.y)

    def hash(self, phi: FeatureHash, y: Tensor) -> Tensor:
        """h = phi(y / |y|_inf), divided by its 2-norm."""
        x = y.flatten()
        if not x.any():
            return x.new_zeros(phi.features)
        x = x / x.abs().max()
        table = phi.table(len(x), x.device)  # bucket h(j), plus s where the sign xi(j) is -1
        v = x.new_zeros(phi.features).index_add(0, table % phi.features, torch.where(table < phi.features, x, -x))
        norm = torch.linalg.vector_norm(v)
        return v / norm if norm > EPSILON else torch.zeros_like(v)

    def collect(self, walks: list[Walk]) -> Routing:
        """The batch as the network returns it."""
        n, levels = len(walks), self.network.levels
        zero = walks[0].H.new_zeros(())
        l1 = [[r.abs().sum() for r in walk.residues] + [zero] * (levels - len(walk.residues)) for walk in walks]
        l2 = walks[0].H.new_zeros(n, levels)
        paths = torch.full((n, levels), -1)
        for row, walk in enumerate(walks):
            for level, r in enumerate(walk.residues):
                l2[row, level] = torch.linalg.vector_norm(r.detach())
                paths[row, level] = walk.J[level]
        return Routing(
            torch.stack([walk.H for walk in walks]), torch.stack([torch.stack(row) for row in l1]), l2, paths
        )

    # ------------------------------------------------ Algorithm 2: unit selection and initialisation

    def select(self, h: Tensor, J: list[int]) -> tuple[int | None, bool]:
        """The unit for h, and whether h initialised it."""
        initialised = [k for k, basis in enumerate(self.bases) if basis.vectors]
        empty = [k for k, basis in enumerate(self.bases) if not basis.vectors]
        best, magnitude = None, -1.0
        for k in initialised:
            if k not in J:
                projected = self.bases[k].magnitude(h)
                if projected > magnitude:
                    best, magnitude = k, projected
        # settled: also when every initialised unit is used already; and in eval empty units stay empty
        if self.network.training and empty and (best is None or magnitude < self.network.bases.tau_empty):
            draw = int(integer_hash(self.network.bases.seed, self.initialisations)[0])
            best = empty[draw % len(empty)]
            self.bases[best].vectors.append(h)
            self.bases[best].counters.append(0)
            self.initialisations += 1
            self.events["initialise"] += 1
            self.known.append(True)
            return best, True
        self.known.append(magnitude >= self.network.bases.tau_empty)
        return best, False

    # ------------------------------------------------ Algorithm 3: unit expansion

    def expand(self, h: Tensor, i: int) -> None:
        """Add the normalised residue if the projection is short and the basis not full."""
        basis = self.bases[i]
        if len(basis.vectors) == self.network.bases.size:
            return
        r = h - basis.project(h)
        if basis.magnitude(h) < self.network.bases.tau_expand and torch.linalg.vector_norm(r) >= EPSILON:
            basis.vectors.append(gram_schmidt(h, basis.vectors))
            basis.counters.append(0)
            self.events["expand"] += 1

    # ------------------------------------------------ Algorithm 4: unit update

    def update(self, h: Tensor, i: int) -> None:
        """Age the basis; at its maximum age replace the vector that projections were lowest on most often."""
        basis = self.bases[i]
        if basis.age >= basis.maximum_age:  # settled: alpha becomes fractional, so not "="
            k = basis.counters.index(max(basis.counters))
            others = basis.vectors[:k] + basis.vectors[k + 1 :]
            left = h
            for v in others:
                left = left - (v @ h) * v
            if torch.linalg.vector_norm(left) >= EPSILON:
                basis.vectors[k] = gram_schmidt(h, others)
            basis.maximum_age *= self.network.bases.aging_rate
            basis.age = 0
            basis.counters[k] = 0
            self.events["replace"] += 1
        else:
            basis.age += 1
            projections = [max(abs(float(v @ h)), EPSILON) for v in basis.vectors]
            basis.counters[projections.index(min(projections))] += 1

    # ------------------------------------------------ growth, which the paper leaves to the user

    def grow(self) -> None:
        """Add an empty unit after enough batches in a row with too many hash vectors that no unit knew."""
        rule = self.network.grow
        if rule is None:
            return
        if self.known.count(False) > rule.share * len(self.known):
            self.unknown_batches += 1
        else:
            self.unknown_batches = 0
        if self.unknown_batches >= rule.patience and len(self.bases) < rule.most:
            self.bases.append(Basis(self.network.bases.max_age))
            self.unknown_batches = 0
            self.events["grow"] += 1

    # ------------------------------------------------ f_k, with the regularised weight gradient

    def convolve(self, unit: ConvUnit, y: Tensor, scale: float) -> Tensor:
        """f_k(y), this sample's share of the weight gradient times min(1, |r|). y: (channels, height, width)."""
        weights: dict[str, Tensor] = dict(unit.named_parameters())
        if self.network.gradient_regularisation and self.network.training:
            weights = {name: scaled_gradient(weight, scale) for name, weight in weights.items()}
        y = y[None]
        for number, spec in enumerate(unit.spec.blocks()):
            own = {name.removeprefix(f"blocks.{number}."): weight for name, weight in weights.items()}
            if number == 0 and unit.channels == "chunk-sum":
                y = sum(
                    (self.block(spec, own, chunk) for chunk in y.split(unit.in_channels, dim=1)),
                    start=y.new_zeros(()),
                )
            else:
                y = self.block(spec, own, y)
        return y[0]

    def block(self, spec: UnitSpec, weights: dict[str, Tensor], y: Tensor) -> Tensor:
        """Convolution, norm, activation, pooling, dropout."""
        weight = weights["convolution.weight"][:, : y.shape[1]]
        y = F.conv2d(y, weight, weights["convolution.bias"], spec.stride, spec.padding)
        if spec.norm_groups:
            y = F.group_norm(y, spec.norm_groups, weights["norm.weight"], weights["norm.bias"])
        y = F.leaky_relu(y) if spec.activation == "leaky_relu" else F.relu(y)
        if spec.max_pool > 1:
            y = F.max_pool2d(y, spec.max_pool)
        return F.dropout(y, spec.dropout, self.network.training)


def gram_schmidt(h: Tensor, vectors: list[Tensor]) -> Tensor:
    """What is left of h against orthonormal vectors, normalised. Settled: twice, for the sake of rounding."""
    for _ in range(2):
        for v in vectors:
            h = h - (v @ h) * v
        h = h / torch.linalg.vector_norm(h)
    return h


def scaled_gradient(weight: Tensor, scale: float) -> Tensor:
    """The same weight, through which the gradient comes back scaled."""
    weight = weight.view_as(weight)
    if weight.requires_grad:
        weight.register_hook(lambda gradient: gradient * scale)
    return weight
