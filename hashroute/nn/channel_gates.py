"""Gates on the channels of an encoder: a factor for each output channel of its convolutions and linear layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hashroute.nn.backbones import layers_of

NORMS = (nn.GroupNorm, nn.LayerNorm, nn.modules.batchnorm._BatchNorm)

SCALES = (2.0**-30, 2.0**30)
"""Of what the carried gates are multiples. An activation passes at least one of the two on as it is."""


class ChannelGates:
    """Gates of an encoder, as factors of its weights: nothing else of the encoder changes.

    A gate acts on all weights that lead to its channel. A norm that takes the output of a layer as it is shares the
    gates of this layer. So a channel whose gate is 0 is 0, and has no influence on the statistics of a group norm. All
    other norms have no gates.

    Args:
        encoder: a module from maps (n, *shape) to features.
        shape: of the maps of one image.
    """

    def __init__(self, encoder: nn.Module, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)
        names = {module: name for name, module in encoder.named_modules()}
        self.layers = [names[layer] for layer in layers_of(encoder)]
        """Names of the layers whose channels have gates, in order."""
        self.widths = [len(layer.weight) for layer in layers_of(encoder)]
        self.norms: dict[str, int] = {}
        """Places of the layers whose gates norms share, by the norm's name."""
        made: list[tuple[Tensor, int]] = []
        seen: dict[str, set[int]] = {}

        def after_layer(place: int, given: Tensor, output: Tensor) -> None:  # noqa: ARG001
            made.append((output, place))

        def after_norm(name: str, given: Tensor, output: Tensor) -> None:  # noqa: ARG001
            owners = [place for layer_output, place in made if layer_output is given]
            seen.setdefault(name, set()).update(owners or [-1])

        with self._hooks(encoder, after_layer, after_norm):
            _run(encoder, self.shape, 0.0)
        for name, owners in seen.items():
            weight: Any = encoder.get_submodule(name).weight
            (owner, *others) = owners
            if not others and owner >= 0 and (weight is None or len(weight) == self.widths[owner]):
                self.norms[name] = owner

    @property
    def count(self) -> int:
        """How many gates there are."""
        return sum(self.widths)

    def weights(self, encoder: nn.Module, gates: Tensor) -> dict[str, Tensor]:
        """The weights of the encoder with gates (count,), by name, where they differ from its own."""
        parts = gates.split(self.widths)
        gated = {}
        for name, place in [*zip(self.layers, range(len(parts)), strict=True), *self.norms.items()]:
            for part, weight in encoder.get_submodule(name).named_parameters(recurse=False):
                gated[f"{name}.{part}"] = weight * _column(parts[place], weight)
        return gated

    def influence(self, encoder: nn.Module, gates: Tensor) -> dict[str, Tensor]:
        """How much the features depend on each weight and statistic if these gates (count,) are set: from 0 to 1.

        A weight between two channels counts as the smaller one of their gates, every other weight of a channel as its
        gate. All else, such as a norm without gates, counts as 1.
        """
        found = {name: torch.ones((), dtype=gates.dtype, device=gates.device) for name in encoder.state_dict()}
        parts, inputs = gates.split(self.widths), self._inputs(encoder, gates)
        for name, place in self.norms.items():
            for part, tensor in encoder.get_submodule(name).state_dict().items():
                if tensor.dim():
                    found[f"{name}.{part}"] = _column(parts[place], tensor)
        for place, name in enumerate(self.layers):
            layer: Any = encoder.get_submodule(name)
            groups = getattr(layer, "groups", 1)
            taken = inputs[place].view(groups, -1).repeat_interleave(len(layer.weight) // groups, 0)
            between = torch.minimum(parts[place][:, None], taken)
            found[f"{name}.weight"] = between.view(*between.shape, *[1] * (layer.weight.dim() - 2))
            if layer.bias is not None:
                found[f"{name}.bias"] = parts[place]
        return found

    def _inputs(self, encoder: nn.Module, gates: Tensor) -> list[Tensor]:
        """For each layer, the gates of the channels that it takes. The encoder itself carries them there."""
        parts = gates.split(self.widths)
        found = [gates.new_zeros(()) for _ in parts]
        layers = layers_of(encoder)

        def after_layer(place: int, given: Tensor, output: Tensor) -> Tensor:
            axis = 1 if isinstance(layers[place], nn.Conv2d) else -1
            largest = given.movedim(axis, 0).flatten(1).amax(1) / scale
            found[place] = torch.maximum(found[place], largest.clamp(0, 1))
            carried: Tensor = (scale * parts[place]).expand_as(output.movedim(axis, -1)).movedim(-1, axis).contiguous()
            return carried

        def after_norm(name: str, given: Tensor, output: Tensor) -> Tensor:
            return given if name in self.norms else torch.full_like(output, scale)

        for scale in SCALES:
            with self._hooks(encoder, after_layer, after_norm):
                _run(encoder, self.shape, scale)
        return found

    @contextmanager
    def _hooks(
        self,
        encoder: nn.Module,
        after_layer: Callable[[int, Tensor, Tensor], Tensor | None],
        after_norm: Callable[[str, Tensor, Tensor], Tensor | None],
    ) -> Iterator[None]:
        """Call functions with the input and the output of every layer and norm; what they return is the output."""
        places = {name: place for place, name in enumerate(self.layers)}
        hooks = []
        for name, module in encoder.named_modules():
            if name in places:
                function: Any = partial(after_layer, places[name])
            elif isinstance(module, NORMS):
                function = partial(after_norm, name)
            else:
                continue
            hooks.append(module.register_forward_hook(lambda _, given, output, call=function: call(given[0], output)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


@torch.no_grad()
def _run(encoder: nn.Module, shape: Sequence[int], value: float) -> None:
    """Give the encoder one image of a value, in eval mode."""
    training = encoder.training
    weight = next(encoder.parameters(), torch.empty(0))
    encoder.eval()(torch.full((1, *shape), value, dtype=weight.dtype, device=weight.device))
    encoder.train(training)


def _column(part: Tensor, like: Tensor) -> Tensor:
    """A number for each first index of a tensor, so that their product is defined."""
    return part.view(-1, *[1] * (like.dim() - 1))
