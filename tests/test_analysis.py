"""Theory: linear attention with rotary embedding against the quadratic form written term by term."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import extrapolate as xt
from extrapolate.analysis import linear_attention
from extrapolate.rope import RopeSpec

SPEC = RopeSpec(8, 1e4, 64)


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def quadratic(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, inv_freq: list[float], a: float, causal: bool, neighbours: bool
) -> torch.Tensor:
    """Eq. 19 of RoFormer, one query and one key at a time, in float64."""
    pairs = len(inv_freq)
    out = torch.zeros_like(v)

    def phi(x: torch.Tensor) -> list[float]:
        return [value + 1 if value > 0 else math.exp(value) for value in x.tolist()]

    def turned(x: list[float], position: int) -> list[float]:
        y = list(x)
        for i, f in enumerate(inv_freq):
            first, second = (2 * i, 2 * i + 1) if neighbours else (i, i + pairs)
            c, s = math.cos(position * f), math.sin(position * f)
            y[first] = a * (x[first] * c - x[second] * s)
            y[second] = a * (x[second] * c + x[first] * s)
        return y

    for m in range(q.shape[0]):
        denominator = 0.0
        for n in range(m + 1 if causal else k.shape[0]):
            fq, fk = phi(q[m]), phi(k[n])
            denominator += sum(x * y for x, y in zip(fq, fk, strict=True))
            weight = sum(x * y for x, y in zip(turned(fq, m), turned(fk, n), strict=True))
            out[m] += weight * v[n]
        out[m] /= denominator
    return out


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("layout", ["half_split", "interleaved"])
@pytest.mark.parametrize("strategy", [xt.Plain(), xt.YaRN(factor=4), xt.NoPE()], ids=lambda s: s.name)
@pytest.mark.parametrize("width", [8, 12])  # all of the head rotates, or part of it
def test_it_equals_the_quadratic_form(causal: bool, layout: str, strategy: xt.Strategy, width: int) -> None:
    q, k, v = random(30, width, seed=0), random(30, width, seed=1), random(30, 5, seed=2)
    frequencies = strategy.frequencies(SPEC, 64)
    found = linear_attention(q, k, v, frequencies, causal=causal, layout=layout)  # type: ignore[arg-type]
    expected = quadratic(
        q, k, v, frequencies.inv_freq.tolist(), frequencies.attention_factor, causal, layout == "interleaved"
    )
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-5)  # phases are float32


@pytest.mark.parametrize("causal", [True, False])
def test_batches_heads_and_many_chunks(causal: bool) -> None:
    q, k, v = (random(2, 3, 300, 8, seed=seed).float() for seed in range(3))
    frequencies = xt.Plain().frequencies(SPEC, 64)
    found = linear_attention(q, k, v, frequencies, causal=causal)
    assert found.shape == v.shape
    assert found.dtype == torch.float32
    one_q, one_k, one_v = (x[1, 2].double() for x in (q, k, v))
    one = quadratic(one_q, one_k, one_v, frequencies.inv_freq.tolist(), 1.0, causal, False)
    torch.testing.assert_close(found[1, 2].double(), one, rtol=1e-4, atol=1e-4)


def test_a_causal_output_does_not_depend_on_what_follows() -> None:
    q, k, v = (random(200, 8, seed=seed) for seed in range(3))
    frequencies = xt.Plain().frequencies(SPEC, 64)
    whole, part = (linear_attention(q[:n], k[:n], v[:n], frequencies) for n in (200, 150))
    torch.testing.assert_close(whole[:150], part)


@given(st.integers(0, 60))
def test_it_depends_on_relative_positions_only(shift: int) -> None:
    q, k, v = (random(6, 8, seed=seed) for seed in range(3))
    frequencies = xt.Plain().frequencies(SPEC, 64)
    here = linear_attention(q, k, v, frequencies, causal=False)
    before = torch.full((shift, 8), -1e9, dtype=torch.float64)  # phi is 0 there: neither weight nor denominator
    there = linear_attention(
        torch.cat((before, q)), torch.cat((before, k)), torch.cat((before, v)), frequencies, causal=False
    )
    torch.testing.assert_close(there[shift:], here, rtol=1e-5, atol=1e-5)
