"""What single operations of a step cost, the usual way against ours: benchmarks/results/operations.json.

usage: python benchmarks/operations.py      (make bench)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from speed import medians

from hashroute.nn.bases import Selection
from hashroute.nn.hashing import FeatureHash
from hashroute.nn.units import _convolve, _dropout_mask, _max_pool

RESULTS = Path(__file__).parent / "results" / "operations.json"


def main() -> None:
    """Sizes are those of the published SVHN/CIFAR setting: batch 64, maps of 10,404 numbers, hashes of 2,800."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    maps, hashed = torch.randn(64, 10_404), F.normalize(torch.randn(64, 2800), dim=1)
    images, weight, bias = torch.randn(128, 1, 28, 28), torch.randn(16, 1, 5, 5, requires_grad=True), torch.zeros(16)
    bases, basis = torch.randn(6, 3, 2800), torch.randint(6, (64,))
    phi, leaf = FeatureHash(2800, 0), maps.clone().requires_grad_()
    large = torch.randn(128, 32, 32, 32)
    last = large.contiguous(memory_format=torch.channels_last)
    table = phi.table(10_404)
    buckets, signs = table % 2800, torch.where(table < 2800, 1.0, -1.0)

    def convolve(function: Callable[..., torch.Tensor]) -> Callable[[], None]:
        return lambda: function(images, weight, bias, 3, 2).sum().backward()

    def gathered_residues() -> torch.Tensor:
        own = bases[basis]
        return hashed - torch.bmm(torch.bmm(own, hashed[:, :, None]).mT, own)[:, 0]

    pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "dropout: F.dropout / four masks from one draw": (
            lambda: F.dropout(maps, 0.5),
            lambda: maps * _dropout_mask(maps, 0.5),
        ),
        "largest value of a map: vector_norm(inf) / amax and amin": (
            lambda: torch.linalg.vector_norm(maps, ord=float("inf"), dim=1),
            lambda: torch.maximum(maps.amax(1), -maps.amin(1)),
        ),
        "finite: isfinite of the map / of its largest value": (
            lambda: torch.isfinite(maps).all(),
            lambda: torch.isfinite(hashed[:, 0]).all(),
        ),
        "hash and its gradient: times sign, then add / add both signs apart": (
            lambda: leaf.new_zeros(64, 2800).index_add(1, buckets, leaf * signs).backward(hashed),
            lambda: phi(leaf).backward(hashed),
        ),
        "2 x 2 max-pooling alone, channels first: F.max_pool2d / numbers compared side by side": (
            torch.no_grad()(lambda: F.max_pool2d(large, 2)),
            torch.no_grad()(lambda: _max_pool(large, 2)),
        ),
        "2 x 2 max-pooling alone, channels last: F.max_pool2d / numbers compared side by side": (
            torch.no_grad()(lambda: F.max_pool2d(last, 2)),
            torch.no_grad()(lambda: _max_pool(last, 2)),
        ),
        "residues: a basis for each sample / one masked product": (
            gathered_residues,
            lambda: Selection(basis, bases, basis).residues(hashed),
        ),
        "one-channel convolution and its gradient: conv2d / one product": (convolve(F.conv2d), convolve(_convolve)),
    }
    rows = []
    for name, (usual, ours) in pairs.items():
        before, after = medians(30, usual, ours)
        rows.append({"name": name, "milliseconds": [round(1e3 * before, 3), round(1e3 * after, 3)]})
        print(f"{name}: {1e3 * before:.2f} / {1e3 * after:.2f} ms")
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
