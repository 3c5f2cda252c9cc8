"""Feature hashing has the statistics that the paper's argument rests on; an unsigned hash would not."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from scipy import stats

from hashroute.nn.hashing import EvenHash, FeatureHash, integer_hash

SEEDS = range(400)


class UnsignedHash(FeatureHash):
    """The same buckets, every sign positive."""

    def table(self, length: int, device: torch.device | str = "cpu") -> torch.Tensor:
        return super().table(length, device) % self.features


def unit_vector(length: int, seed: int) -> torch.Tensor:
    vector = torch.randn(length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return vector / vector.norm()


def inner_products(kind: type[FeatureHash], features: int, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """phi(a) . phi(b) for many phi."""
    both = torch.stack([a, b])
    products = []
    for seed in SEEDS:
        hashed = kind(features, seed)(both)
        products.append(hashed[0] @ hashed[1])
    return torch.stack(products)


def signs_are_balanced(kind: type[FeatureHash]) -> bool:
    negative = sum(int((kind(64, seed).table(1000) >= 64).sum()) for seed in range(100))
    return bool(stats.binomtest(negative, 100 * 1000).pvalue > 1e-3)


def inner_product_is_unbiased(kind: type[FeatureHash]) -> bool:
    # Positive vectors: without signs every collision adds to the product.
    a, b = unit_vector(500, 1).abs(), unit_vector(500, 2).abs()
    products = inner_products(kind, 64, a, b)
    error = float(products.std()) / math.sqrt(len(products))
    return abs(float(products.mean() - a @ b)) < 4 * error


def different_hashes_are_orthogonal(kind: type[FeatureHash]) -> bool:
    x = torch.ones(1, 500, dtype=torch.float64)
    cosines = []
    for seed in SEEDS:
        v, w = kind(256, seed)(x)[0], kind(256, seed + 10_000)(x)[0]
        cosines.append(float(v @ w / (v.norm() * w.norm())))
    # The cosine of independent directions in s dimensions has mean 0 and deviation 1 / sqrt(s).
    return abs(np.mean(cosines)) < 4 / math.sqrt(256 * len(cosines)) and np.std(cosines) < 1.2 / math.sqrt(256)


def tail_bound_holds(kind: type[FeatureHash]) -> bool:
    """Pr(|v . phi'(x)| > eps) <= 2 exp(-(eps^2 / 2) / (|v|^2 |x|^2 / s + |v|_inf |x|_inf eps / 3))."""
    features, length = 512, 2000
    x = unit_vector(length, 3).abs()
    v = kind(features, 99_999)(unit_vector(length, 4).abs()[None])[0]
    v = v / v.norm()
    products = torch.stack([kind(features, seed)(x[None])[0] @ v for seed in range(2000)]).abs()
    checked = 0
    for epsilon in np.linspace(0.05, 0.5, 46):
        spread = 1 / features + float(v.abs().max() * x.abs().max()) * epsilon / 3
        bound = 2 * math.exp(-(epsilon**2) / 2 / spread)
        if 0.001 <= bound <= 0.5:
            checked += 1
            exceeding = int((products > epsilon).sum())
            if stats.binomtest(exceeding, len(products), bound, alternative="greater").pvalue < 1e-3:
                return False
    assert checked >= 5
    return True


PROMISES = [signs_are_balanced, inner_product_is_unbiased, different_hashes_are_orthogonal, tail_bound_holds]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_signed_hash_keeps_it_and_an_unsigned_one_does_not(promise: object) -> None:
    assert callable(promise)
    assert promise(FeatureHash)
    assert promise(EvenHash)
    assert not promise(UnsignedHash)


def test_buckets_are_uniform() -> None:
    pvalues = []
    for seed in range(50):
        counts = torch.bincount(FeatureHash(97, seed).table(9700) % 97, minlength=97)
        pvalues.append(stats.chisquare(counts.numpy()).pvalue)
    # p-values of uniform buckets are themselves uniform.
    assert stats.kstest(pvalues, "uniform").pvalue > 1e-3


def test_an_even_hash_fills_all_buckets_alike_and_mixes_no_more_than_it_must() -> None:
    for length in (1, 60, 97, 98, 9700, 9750):
        counts = torch.bincount(EvenHash(97, 3).table(length) % 97, minlength=97)
        assert counts.max() == -(-length // 97)
        assert counts.min() == length // 97
    values = torch.randn(4, 97, dtype=torch.float64)
    hashed = EvenHash(97, 3)(values)
    assert torch.equal(hashed.abs().sort(1).values, values.abs().sort(1).values)
    assert not torch.equal(EvenHash(97, 3).table(97), EvenHash(97, 4).table(97))


@pytest.mark.parametrize("kind", [FeatureHash, EvenHash])
def test_bucket_and_sign_are_independent(kind: type[FeatureHash]) -> None:
    table = kind(10, 5).table(20_000).numpy()
    observed = np.array(
        [[np.sum((table % 10 == bucket) & (table // 10 == sign)) for bucket in range(10)] for sign in (0, 1)]
    )
    assert stats.chi2_contingency(observed).pvalue > 1e-3


def test_variance_shrinks_like_one_over_features() -> None:
    a, b = unit_vector(500, 1), unit_vector(500, 2)
    variances = [float(inner_products(FeatureHash, features, a, b).var()) for features in (16, 64, 256)]
    for smaller, larger in zip(variances[1:], variances[:-1], strict=True):
        assert larger / smaller == pytest.approx(4, rel=0.4)


def test_hash_is_the_sum_that_defines_it() -> None:
    phi = FeatureHash(7, 3)
    x = unit_vector(50, 0)
    bits = integer_hash(3, np.arange(50))
    expected = [0.0] * 7
    for j in range(50):
        sign = -1 if int(bits[j]) & 1 else 1
        expected[(int(bits[j]) >> 32) % 7] += sign * float(x[j])
    torch.testing.assert_close(phi(x[None])[0], torch.tensor(expected, dtype=torch.float64))


def test_a_longer_table_continues_a_shorter_one() -> None:
    phi = FeatureHash(30, 1)
    assert torch.equal(phi.table(1000)[:10], phi.table(10))


def test_seeds_may_be_negative_or_large() -> None:
    tables = [tuple(FeatureHash(1000, seed).table(20).tolist()) for seed in (-1, 0, 1, 2**63, 2**64 - 2)]
    assert len(set(tables)) == 5


def test_tables_are_not_saved() -> None:
    phi = FeatureHash(300, 1)
    before = len(pickle.dumps(phi))
    table = phi.table(100_000)
    assert len(pickle.dumps(phi)) == before
    assert torch.equal(pickle.loads(pickle.dumps(phi)).table(100_000), table)


def test_a_hash_that_cancels_out_is_zero() -> None:
    phi = FeatureHash(1, 0)  # one bucket: equal numbers of both signs cancel
    signs = torch.where(phi.table(100) < 1, 1.0, -1.0)
    plus, minus = (signs > 0).nonzero()[0, 0], (signs < 0).nonzero()[0, 0]
    x = torch.zeros(2, 100)
    x[0, plus] = x[0, minus] = 0.1
    x[1, plus] = 1e-30  # small, but all there is
    assert phi.normalised(x).tolist() == [[0.0], [1.0]]
