"""The hash-routed network: a pool of units, and the path of each sample through it (section 3.2 of the paper).

Symbols: M units, features s, depth d, basis size m; a sample x, its hash vector h, its residue r over a unit's basis.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from hashroute import distributed
from hashroute.nn.bases import Bases
from hashroute.nn.growth import Growth
from hashroute.nn.hashing import FeatureHash, integer_hash, normalise
from hashroute.nn.replay import Recordings
from hashroute.nn.units import ChannelRule, ConvUnit, UnitSpec

DEFAULT_UNITS = (UnitSpec(16, 5, 3, 2, norm_groups=1),) * 2 + (UnitSpec(16, 2, 3, norm_groups=1),) * 2


Maps = list[tuple[NDArray[np.int64], Tensor]]
"""The maps of all samples. Maps of equal shape form a piece: the indices of its samples, and one tensor.

If processes share a batch, indices are those of all samples, and a piece has the maps of this process's samples.
"""


class Routing(NamedTuple):
    """The result of routing a batch of n samples through L levels."""

    features: Tensor
    """(n, s) H(x), the sum of a sample's residues."""
    residue_l1: Tensor
    """(n, L) |r|_1 of each level, 0 after a stop; carries gradients, for the residue penalty."""
    residue_l2: Tensor
    """(n, L) |r|_2 of each level, 0 after a stop; detached."""
    paths: Tensor
    """(n, L) the unit selected at each level, -1 after a stop."""

    def residue_penalty(self) -> Tensor:
        """The batch mean of the sum over levels of |r|_1, to be added to the loss, times lambda."""
        return self.residue_l1.sum(1).mean()


class HashRoutedNetwork(nn.Module):
    """A pool of convolution units through which each sample is routed by its hash.

    Args:
        image_shape: channels, height and width of the images; other heights and widths work too.
        units: the specs of the M units; by default the four of the paper's pairwise MNIST.
        features: s, the length of every hash vector; by default 300 for images of up to 1,024 numbers, else 2,000.
        depth: d. A sample goes through at most d - 1 units.
        basis_size: m, the most vectors that a unit's basis can hold.
        tau_depth: a sample stops where its residue is shorter than this.
        tau_empty: an empty unit is initialised where no projection is longer than this, while there are empty units.
        tau_expand: a basis grows where the projection on it is shorter than this, while it is not full.
        max_age: alpha, the number of selections before a basis vector is first replaced; may be infinite.
        aging_rate: rho, by which the maximum age is multiplied at each replacement.
        last_residue: True sums d residues, as the paper's equation does; False d - 1, as its Algorithm 1 does.
        channels: how units take maps of different channel counts: "slice" or "chunk-sum" (see ConvUnit).
        gradient_regularisation: scale each sample's share of a unit's weight gradient by min(1, |r|).
        seed: of the hash functions and of the choice among empty units. Weights follow torch.manual_seed.
        grow: when a training batch adds a unit (see Growth); by default never. Call `train_new_units(optimizer)` before
            each step of the optimiser: it trains new units from then on.
        output: what a pass returns: "routing", a `Routing`; or "features", its features alone, as in `nn.Sequential`.

    In a group of processes (`torch.distributed`), each passes its own samples at the same time. In train mode, hash
    vectors are gathered: bases evolve as in one process that has the samples of all, rank by rank.
    """

    unknown_batches: Tensor
    """() only with `grow`: training batches in a row with too many unknown hash vectors."""

    @torch.inference_mode(False)
    def __init__(
        self,
        image_shape: Sequence[int] = (1, 28, 28),
        units: Sequence[UnitSpec] = DEFAULT_UNITS,
        *,
        features: int | None = None,
        depth: int = 3,
        basis_size: int = 3,
        tau_depth: float = 1e-5,
        tau_empty: float = 0.2,
        tau_expand: float = 1e-2,
        max_age: float = 5.0,
        aging_rate: float = 1.2,
        last_residue: bool = True,
        channels: ChannelRule = "slice",
        gradient_regularisation: bool = True,
        seed: int = 0,
        grow: Growth | None = None,
        output: Literal["routing", "features"] = "routing",
    ) -> None:
        super().__init__()
        if features is None:
            features = 300 if math.prod(image_shape) <= 1024 else 2000
        self.image_shape = tuple(int(size) for size in image_shape)
        self.features = features = int(features)
        self.depth = depth = int(depth)
        self.tau_depth = float(tau_depth)
        self.last_residue = last_residue
        self.channels = channels
        self.gradient_regularisation = gradient_regularisation
        self.seed = seed = int(seed)
        self.grow = grow
        self.output = output
        self._recordings = Recordings()
        for name, value in (("tau_depth", tau_depth), ("tau_empty", tau_empty), ("tau_expand", tau_expand)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} is {value}: expected a number from 0 to 1")
        for name, number in (("features", features), ("basis_size", basis_size)):
            if number < 1:
                raise ValueError(f"{name} is {number}: expected at least 1")
        if self.levels < 1:
            raise ValueError(f"depth is {depth}: expected at least {1 if last_residue else 2}")
        if not aging_rate > 1:
            raise ValueError(f"aging_rate is {aging_rate}: expected a number above 1")
        if not max_age > 0:
            raise ValueError(f"max_age is {max_age}: expected a number above 0, or infinity")
        if channels not in ("slice", "chunk-sum"):
            raise ValueError(f"channels is {channels!r}: expected 'slice' or 'chunk-sum'")
        if output not in ("routing", "features"):
            raise ValueError(f"output is {output!r}: expected 'routing' or 'features'")
        if len(self.image_shape) != 3:
            raise ValueError(f"image_shape is {self.image_shape}: expected (channels, height, width)")
        if len(units) < self.levels:
            raise ValueError(
                f"there are {len(units)} units for depth {depth}: expected at least {self.levels}, because a path "
                "never visits a unit twice; add units or lower depth"
            )
        kinds = units if grow is None else (*units, *grow.units)
        self.max_channels = max([self.image_shape[0], *(spec.channels_out for spec in kinds)])
        self.image_hash = FeatureHash(features, _seed(seed, 0))
        self.hashes: list[FeatureHash] = []
        self.units = nn.ModuleList()
        self.bases = Bases(
            0,
            int(basis_size),
            features,
            tau_empty=float(tau_empty),
            tau_expand=float(tau_expand),
            max_age=float(max_age),
            aging_rate=float(aging_rate),
            seed=seed,
        )
        if grow is not None:
            self.register_buffer("unknown_batches", torch.zeros((), dtype=torch.long))
        self.add_units(units)

    @property
    def levels(self) -> int:
        """How many residues are summed: d, or d - 1 without the last one."""
        return self.depth if self.last_residue else self.depth - 1

    @torch.inference_mode(False)
    def add_units(self, specs: Sequence[UnitSpec], optimizer: Optimizer | None = None) -> None:
        """Add empty units, at any time; they are used when no other unit fits.

        With an optimizer that holds this network's weights, the new ones join the same parameter group, and the state
        of the old ones stays as it is.
        """
        if optimizer is not None:
            self._place_in(optimizer)  # an error now rather than when units have been added
        added = [self._new_unit(spec, f"unit {number}") for number, spec in enumerate(specs, len(self.units))]
        self._check_channels([*self.units, *added, *self._later_units()])
        for unit in added:
            self.units.append(unit.to(self.bases.vectors).train(self.training))
            self.hashes.append(FeatureHash(self.features, _seed(self.seed, len(self.units))))
        self.bases.add(len(added))
        if optimizer is not None:
            self._join(optimizer, added)

    def train_new_units(self, optimizer: Optimizer) -> None:
        """Let an optimiser that holds weights of this network also train the units after the last one that it holds.

        A network with `grow` adds units in its forward pass, so this is called between that and each step. The new
        weights join as in `add_units`; without new units nothing happens.
        """
        held = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
        new: list[ConvUnit] = []
        for unit in reversed(list(self._units())):
            if any(id(weight) in held for weight in unit.parameters()):
                break
            new.insert(0, unit)
        self._join(optimizer, new)

    def _join(self, optimizer: Optimizer, units: Sequence[ConvUnit]) -> None:
        """Insert the weights of units into an optimiser, behind those of this network that it holds."""
        group, place = self._place_in(optimizer)
        # As in an optimiser made for the grown network: their states are interchangeable.
        group[place:place] = [weight for unit in units for weight in unit.parameters()]

    def forward(self, images: Tensor) -> Routing | Tensor:
        """images: (n, channels, height, width), floating point. In train mode bases evolve; in eval nothing changes.

        In eval mode, while no unit has a basis, the features are the hash vectors of the images.
        """
        if torch.compiler.is_compiling():  # the way depends on the data: there is no graph to compile
            result: Routing | Tensor = torch.compiler.disable(self.forward)(images)
            return result
        self._check_images(images)
        with torch.autocast(images.device.type, enabled=False):  # bases need the precision that the network has
            routing = self._route(images)
        return routing if self.output == "routing" else routing.features

    def _route(self, images: Tensor) -> Routing:
        """Algorithm 1 for a batch, level by level."""
        batch = distributed.layout(len(images), self.training)
        n = batch.total
        rows = torch.arange(n, device=images.device)  # the samples still on their way, in batch order
        maps: Maps = [(_array(rows), images)]
        hashed, largest = self.image_hash.scaled(images)
        _check_finite(largest, rows[: len(images)], "of the images holds NaN or Inf: expected finite numbers")
        hashed, alive = normalise(batch.gather(hashed, maps[0][0]))
        used = torch.zeros(n, len(self.units), dtype=torch.bool, device=images.device)
        share = images.new_ones(n)  # min(1, |r|) over the basis of the unit that a sample last went through
        features = images.new_zeros(n, self.features)
        norms_l1 = [images.new_zeros(n) for _ in range(self.levels)]
        norms_l2 = images.new_zeros(n, self.levels)
        paths = torch.full((n, self.levels), -1, device=images.device)
        best = []  # |p|^2 of all hash vectors that were compared with bases
        if not self.training and not self.bases.ranks.any():
            return Routing(hashed, torch.stack(norms_l1, 1), norms_l2, paths)
        repeated = self._recordings.repeated(hashed) if self.training else None
        recording = self._recordings.new(hashed) if self.training and repeated is None else None

        for level in range(self.levels):
            rows, hashed = _keep(alive, rows, hashed)
            if len(rows) == 0:
                break
            if repeated is not None:
                selection = repeated.selections[level]
            else:
                met = used if len(rows) == n else used[rows]
                selection = self.bases.select(hashed.detach(), met, evolve=self.training)
            if recording is not None:
                recording.selections.append(selection)
            (residue, size), units = selection.residues(hashed), selection.units
            best.append(selection.best)
            if not self.training:  # with fewer units in use than levels, none may be left
                rows, residue, size, units = _keep(units >= 0, rows, residue, size, units)
            features = _add_rows(features, rows, residue)
            norms_l1[level] = _add_rows(norms_l1[level], rows, residue.abs().sum(1))
            norms_l2[rows, level] = size
            paths[rows, level] = units
            used[rows, units] = True
            if level == self.levels - 1:
                break

            rows, units, size = _keep(size >= self.tau_depth, rows, units, size)
            if len(rows) == 0:
                break
            entering = share.index_copy(0, rows, size.clamp_max(1.0))
            hashed, alive, maps = self._through_units(rows, units, maps, share, entering, batch)
            share = entering

        if recording is not None:
            recording.keep(features)
            if self.grow is not None and best:
                self._grow_if_due(self.grow, torch.cat(best))
        routing = Routing(features, torch.stack(norms_l1, 1), norms_l2, paths)
        return routing if batch.alone else Routing(*(each[batch.start : batch.stop] for each in routing))

    def _grow_if_due(self, rule: Growth, best: Tensor) -> None:
        """Add a unit if too many hash vectors were unknown for long enough. best: (k,) their longest |p|^2."""
        unknown = int((best < self.bases.tau_empty**2).sum())
        self.unknown_batches.copy_((self.unknown_batches + 1) * (unknown > rule.share * len(best)))
        if self.unknown_batches >= rule.patience and len(self.units) < rule.most:
            self.add_units([rule.units[len(self.units) % len(rule.units)]])
            distributed.copy_from_first(self.units[-1].parameters())
            self.unknown_batches.zero_()

    def _through_units(
        self, rows: Tensor, units: Tensor, maps: Maps, share: Tensor, entering: Tensor, batch: distributed.Layout
    ) -> tuple[Tensor, Tensor, Maps]:
        """Send each sample through its unit and hash what comes out.

        rows, units: (k,) the samples that go on and their units. maps: the maps of all samples.
        share, entering: (n,) by how much the unit before, and this one, scale a sample's weight gradient.
        batch: which samples are this process's; it computes the maps of these, perhaps of none.
        Returns their hash vectors, which of these are not zero, and their new maps.
        """
        regularise = self.gradient_regularisation and self.training and torch.is_grad_enabled()
        still = regularise & (entering == 0)  # no weight gradient, and nothing to divide by
        entering.masked_fill_(still, 1.0)

        # One group for each unit and shape of maps (and for samples that give their unit no weight gradient).
        going = np.full(len(share), -1)
        going[_array(rows)] = _array(units * 2 + still[rows])
        groups: dict[tuple[int, torch.Size], Maps] = defaultdict(list)
        for samples, piece in maps:
            keys = going[samples]
            for key in np.unique(keys[keys >= 0]).tolist():
                inside = np.flatnonzero(keys == key)
                part = piece
                if len(inside) < len(samples):
                    own = inside if batch.alone else np.flatnonzero(keys[batch.owns(samples)] == key)
                    part = piece[_index(own, piece)]
                groups[key, piece.shape[1:]].append((samples[inside], part))

        maps, hashes, sizes, order = [], [], [], []
        for (key, _), parts in groups.items():
            samples = np.concatenate([samples for samples, _ in parts])
            piece = parts[0][1] if len(parts) == 1 else torch.cat([part for _, part in parts])
            number, frozen = divmod(key, 2)
            own = samples if batch.alone else samples[batch.owns(samples)]
            if regularise and piece.requires_grad:
                index = _index(own, share)
                piece = _scale_gradient(piece, share[index] / entering[index])
            unit = self.units[number]
            with batch.computing(samples):
                piece = functional_call(unit, _detached(unit), piece) if frozen else unit(piece)
            maps.append((samples, piece))
            order.append(own)
            hashed, largest = self.hashes[number].scaled(piece)
            hashes.append(hashed)
            sizes.append(largest)

        own = np.concatenate(order) - batch.start
        _check_finite(torch.cat(sizes), _index(own, rows), "left its unit with NaN or Inf: lower the learning rate")
        hashed, own = torch.cat(hashes), np.argsort(own)
        if (own[1:] < own[:-1]).any():  # back into batch order
            hashed = hashed[_index(own, rows)]
        hashed, alive = normalise(batch.gather(hashed, _array(rows)))
        if regularise:
            hashed = _scale_gradient(hashed, entering[rows])
        return hashed, alive, maps

    # ---------------------------------------------------------------- state

    @property
    def config(self) -> dict[str, Any]:
        """The settings as plain values, units added later included: `from_config` builds the same network from them."""
        config = {
            "image_shape": list(self.image_shape),
            "units": [replace(unit.spec, in_channels=unit.in_channels).to_dict() for unit in self._units()],
            "features": self.features,
            "depth": self.depth,
            "basis_size": self.bases.size,
            "tau_depth": self.tau_depth,
            "tau_empty": self.bases.tau_empty,
            "tau_expand": self.bases.tau_expand,
            "max_age": self.bases.max_age,
            "aging_rate": self.bases.aging_rate,
            "last_residue": self.last_residue,
            "channels": self.channels,
            "gradient_regularisation": self.gradient_regularisation,
            "seed": self.seed,
        }
        config |= {} if self.grow is None else {"grow": self.grow.to_dict()}
        return config if self.output == "routing" else {**config, "output": self.output}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> HashRoutedNetwork:
        """A fresh network with the settings that `config` gave."""
        units = [UnitSpec.from_dict(spec) for spec in config["units"]]
        grow = Growth.from_dict(config["grow"]) if config.get("grow") else None
        return cls(**{**config, "units": units, "grow": grow})

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> HashRoutedNetwork:
        """The network that a state was saved from, with all units that it had."""
        network = cls.from_config(_described(state, ""))
        network.to(state["bases.vectors"])
        network.load_state_dict(state)
        return network

    def get_extra_state(self) -> Tensor:
        """The settings as a tensor of bytes: a saved state describes itself, and stays a flat dict of tensors."""
        return torch.frombuffer(bytearray(json.dumps(self.config).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Nothing to set: the description was compared before."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if any(name.startswith(prefix) for name in state_dict):
            self._check_described(_described(state_dict, prefix))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _check_described(self, theirs: dict[str, Any]) -> None:
        """Raise an error if a state was saved with other settings than these. Heights and widths of images are free."""
        theirs = {"grow": None, **theirs}
        for name, own in {"grow": None, **self.config}.items():
            given = own if name == "output" else theirs[name]
            if name == "image_shape":
                given, own = given[:1], own[:1]
            # A number of another precision is the same number.
            same = math.isclose(given, own, rel_tol=1e-6) if isinstance(own, float) else given == own
            if not same:
                if name == "units" and len(given) != len(own):
                    name, given, own = "number of units", len(given), len(own)
                raise ValueError(
                    f"this state is from another architecture: its {name} is {given}, this network's is {own}: "
                    "rebuild the saved network with HashRoutedNetwork.from_state_dict(state)"
                )

    # ---------------------------------------------------------------- checks

    def _units(self) -> Iterator[ConvUnit]:
        return (unit for unit in self.units if isinstance(unit, ConvUnit))

    def _new_unit(self, spec: UnitSpec, name: str) -> ConvUnit:
        default = self.image_shape[0] if self.channels == "chunk-sum" else self.max_channels
        return ConvUnit(spec, spec.in_channels or default, self.channels, name)

    def _later_units(self) -> list[ConvUnit]:
        """Two of each unit that growth may add, without weights: they must fit the others and one another."""
        specs = () if self.grow is None else self.grow.units * 2
        with torch.device("meta"):
            return [self._new_unit(spec, "a unit of grow") for spec in specs]

    def _check_channels(self, units: Sequence[ConvUnit]) -> None:
        """Check that every unit can take the image and the maps of every other unit."""
        for taker in units:
            rule = (
                f"multiples of {taker.in_channels}" if self.channels == "chunk-sum" else f"at most {taker.in_channels}"
            )
            sources = [("the image", self.image_shape[0])]
            sources += [(giver.name, giver.spec.channels_out) for giver in units if giver is not taker]
            for name, channels in sources:
                if not taker.takes(channels):
                    raise ValueError(
                        f"{name} has {channels} channels and {taker.name} takes {rule}: "
                        f"change one, or build the network with in_channels in the spec of {taker.name}"
                    )

    def _check_images(self, images: Tensor) -> None:
        channels = self.image_shape[0]
        if not isinstance(images, Tensor):
            raise ValueError(f"images are a {type(images).__name__}: expected a torch.Tensor; see torch.as_tensor")
        if images.dim() != 4 or images.shape[1] != channels or images.numel() == 0:
            raise ValueError(
                f"images have shape {tuple(images.shape)}: expected (batch, {channels}, height, width), batch not empty"
            )
        expected = self.bases.vectors.dtype
        if images.dtype == torch.uint8:
            raise ValueError(
                f"images are {images.dtype}: expected {expected}; convert them with images.to({expected}) / 255"
            )
        if images.dtype != expected:
            raise ValueError(f"images are {images.dtype}: expected {expected}; convert them with images.to({expected})")

    def _place_in(self, optimizer: Optimizer) -> tuple[list[nn.Parameter], int]:
        """The parameter group of an optimiser with weights of this network, and the place behind the last of them."""
        own = {id(weight) for weight in self.units.parameters()}
        for group in optimizer.param_groups:
            parameters: list[nn.Parameter] = group["params"]
            places = [place for place, weight in enumerate(parameters) if id(weight) in own]
            if places:
                return parameters, places[-1] + 1
        raise ValueError("the optimizer holds no weight of this network: pass the one that trains it, or none")


class _ScaleGradient(torch.autograd.Function):
    """The identity, whose backward pass multiplies the gradient of each sample by its factor."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, factors: Tensor) -> Tensor:
        ctx.save_for_backward(factors)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (factors,) = ctx.saved_tensors
        return gradient * factors.view(-1, *[1] * (gradient.dim() - 1)), None


def _scale_gradient(values: Tensor, factors: Tensor) -> Tensor:
    scaled: Tensor = _ScaleGradient.apply(values, factors)  # type: ignore[no-untyped-call]
    return scaled


def _keep(mask: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The rows of each tensor where the mask is true."""
    return tensors if mask.all() else tuple(tensor[mask] for tensor in tensors)


def _add_rows(total: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    """total with values added in these rows."""
    return total + values if len(rows) == len(total) else total.index_add(0, rows, values)


def _check_finite(largest: Tensor, rows: Tensor, problem: str) -> None:
    """Raise an error that names the first of these samples whose largest value is not finite."""
    if not torch.isfinite(largest).all():
        raise ValueError(f"sample {int(rows[~torch.isfinite(largest)].min())} {problem}")


def _array(tensor: Tensor) -> NDArray[np.int64]:
    array: NDArray[np.int64] = tensor.numpy(force=True)
    return array


def _index(array: NDArray[np.int64], like: Tensor) -> Tensor:
    return torch.from_numpy(array).to(like.device)


def _detached(unit: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach() for name, weight in unit.named_parameters()}


def _seed(seed: int, number: int) -> int:
    """The seed of the hash function of the image (number 0) or of a unit (its index plus 1)."""
    return int(integer_hash(seed, number)[0])


def _described(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The settings in a state."""
    try:
        config: dict[str, Any] = json.loads(bytes(state[f"{prefix}_extra_state"].tolist()))
        return config
    except (KeyError, AttributeError, ValueError):
        raise ValueError(
            "this is not the state of a HashRoutedNetwork: it does not describe its architecture; "
            "save network.state_dict() as it is"
        ) from None
