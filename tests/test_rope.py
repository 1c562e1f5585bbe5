"""RoPE's laws: three forms of one rotation, norms kept, scores that depend on the distance only."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from extrapolate.rope import Frequencies, Layout, base_frequencies, cos_sin, rotate, rotate_complex, unit_circle

LAYOUTS: tuple[Layout, Layout] = ("half_split", "interleaved")
layout_of = st.sampled_from(LAYOUTS)
dim_of = st.sampled_from([2, 8, 16, 64, 128])
factor_of = st.sampled_from([1.0, 1.1386294361, 0.7])


def heads(seed: int, length: int, head_dim: int) -> torch.Tensor:
    return torch.randn(2, 3, length, head_dim, generator=torch.Generator().manual_seed(seed))


def frequencies(dim: int, theta: float = 1e4, factor: float = 1.0) -> Frequencies:
    return Frequencies(base_frequencies(theta, dim), factor)


@pytest.mark.parametrize("dim", [16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("theta", [1e4, 1e5, 5e5, 1e6])
def test_base_frequencies_equal_the_closed_form_in_float64(dim: int, theta: float) -> None:
    expected = torch.tensor([theta ** (-2 * i / dim) for i in range(dim // 2)], dtype=torch.float64)
    torch.testing.assert_close(base_frequencies(theta, dim).double(), expected, rtol=1e-6, atol=0)


@given(st.integers(0, 999), dim_of, st.integers(0, 8), layout_of, factor_of, st.integers(0, 5000))
@settings(deadline=None)
def test_the_real_and_the_complex_form_agree(
    seed: int, dim: int, rest: int, layout: Layout, factor: float, start: int
) -> None:
    x = heads(seed, 7, dim + rest)
    positions = torch.arange(start, start + 7)
    f = frequencies(dim, factor=factor)
    real = rotate(x, *cos_sin(f, positions), layout)
    torch.testing.assert_close(rotate_complex(x, unit_circle(f, positions), layout), real, rtol=1e-5, atol=1e-5)
    assert torch.equal(real[..., dim:], x[..., dim:])  # partial rotary: the rest passes


@given(st.integers(0, 999), dim_of, st.integers(0, 5000))
@settings(deadline=None)
def test_the_layouts_are_one_rotation_up_to_the_order_of_dimensions(seed: int, dim: int, start: int) -> None:
    x = heads(seed, 5, dim)
    tables = cos_sin(frequencies(dim), torch.arange(start, start + 5))
    order = torch.arange(dim).view(2, -1).T.flatten()  # 0, d/2, 1, d/2 + 1, ...
    torch.testing.assert_close(
        rotate(x[..., order], *tables, "interleaved"), rotate(x, *tables, "half_split")[..., order]
    )


@given(st.integers(0, 999), dim_of, layout_of, factor_of)
@settings(deadline=None)
def test_norms_are_kept_up_to_the_attention_factor(seed: int, dim: int, layout: Layout, factor: float) -> None:
    x = heads(seed, 9, dim)
    turned = rotate(x, *cos_sin(frequencies(dim, factor=factor), torch.arange(100, 109)), layout)
    torch.testing.assert_close(turned.norm(dim=-1), factor * x.norm(dim=-1), rtol=1e-5, atol=1e-5)


@given(st.integers(0, 999), dim_of, layout_of, st.integers(0, 500), st.integers(0, 500), st.integers(0, 500))
@settings(deadline=None)
def test_the_score_depends_on_the_distance_only(
    seed: int, dim: int, layout: Layout, m: int, n: int, shift: int
) -> None:
    q, k = heads(seed, 1, dim), heads(seed + 1, 1, dim)
    f = frequencies(dim)

    def score(query_at: int, key_at: int) -> torch.Tensor:
        turned_q = rotate(q, *cos_sin(f, torch.tensor([query_at])), layout)
        turned_k = rotate(k, *cos_sin(f, torch.tensor([key_at])), layout)
        return (turned_q * turned_k).sum(-1)

    torch.testing.assert_close(score(m + shift, n + shift), score(m, n), rtol=1e-3, atol=2e-3)


def test_a_pair_turns_by_position_times_frequency() -> None:
    x = torch.tensor([1.0, 0.0])
    turned = rotate(x.view(1, 2), *cos_sin(Frequencies(torch.tensor([torch.pi / 2])), torch.tensor([1])), "interleaved")
    torch.testing.assert_close(turned, torch.tensor([[0.0, 1.0]]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_phases_are_float32_whatever_is_rotated(dtype: torch.dtype) -> None:
    positions = torch.tensor([30_001])
    f = frequencies(64, 1e5)
    exact = positions[:, None].double() * base_frequencies(1e5, 64).double()
    cos, sin = cos_sin(f, positions.to(torch.int32))
    assert cos.dtype == sin.dtype == torch.float32
    torch.testing.assert_close(cos.double(), exact.cos(), rtol=0, atol=4e-3)  # half an ulp of 30001 is 1e-3 rad
    x = torch.ones(1, 64, dtype=dtype)
    assert rotate(x, cos, sin).dtype == dtype


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="layout must be"):
        rotate(torch.ones(1, 2), torch.ones(1, 1), torch.ones(1, 1), "other")  # type: ignore[arg-type]
