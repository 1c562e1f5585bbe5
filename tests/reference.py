"""References that share no code with the package: closed forms in Python floats, and a forward score by score."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from extrapolate.rope import RopeSpec


def plain(rope: RopeSpec) -> list[float]:
    return [math.pow(rope.theta, -2 * i / rope.rotary_dim) for i in range(rope.rotary_dim // 2)]


def linear(rope: RopeSpec, factor: float) -> list[float]:
    return [f / factor for f in plain(rope)]


def ntk(rope: RopeSpec, factor: float) -> list[float]:
    """Pair i divided by s^(2i/(d-2)): the base change, written as what it does to each pair."""
    d = rope.rotary_dim
    return [f / math.pow(factor, 2 * i / (d - 2)) for i, f in enumerate(plain(rope))]


def ramp_ends(rope: RopeSpec, fast: float, slow: float, truncate: bool = True) -> tuple[float, float]:
    """The pairs that make ``fast`` and ``slow`` turns in training, as the YaRN authors round and clamp them."""
    d, length = rope.rotary_dim, rope.pretrained_length
    low = d * math.log(length / (fast * 2 * math.pi)) / (2 * math.log(rope.theta))
    high = d * math.log(length / (slow * 2 * math.pi)) / (2 * math.log(rope.theta))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    return max(low, 0), min(high, d - 1)


def yarn(
    rope: RopeSpec,
    factor: float,
    fast: float = 32,
    slow: float = 1,
    truncate: bool = True,
    mean: Callable[[float, float, float], float] = lambda f, s, x: f * (1 - x) + f / s * x,
) -> list[float]:
    """Pair by pair, from the paper's words; ``mean(f, s, x)`` is the speed a share x of the way from f to f/s."""
    low, high = ramp_ends(rope, fast, slow, truncate)
    frequencies = []
    for i, f in enumerate(plain(rope)):
        if i <= low:
            frequencies.append(f)
        elif i >= high:
            frequencies.append(f / factor)
        else:
            frequencies.append(mean(f, factor, (i - low) / (high - low)))
    return frequencies


def harmonic(f: float, s: float, x: float) -> float:
    """Linear in wavelength: 1/f is mixed with s/f."""
    return 1 / ((1 - x) / f + x * s / f)


def geometric(f: float, s: float, x: float) -> float:
    """Linear in the logarithm."""
    return math.exp((1 - x) * math.log(f) + x * math.log(f / s))


def mrrope(rope: RopeSpec, factor: float, progressive: bool, fast: float = 32, slow: float = 1) -> list[float]:
    """Pair by pair: the divisor of one is the divisor of the one before times its own radix s^(step)."""
    low, high = ramp_ends(rope, fast, slow)
    n = high - low
    frequencies, divisor = [], 1.0
    for i, f in enumerate(plain(rope)):
        if low < i <= high:
            k = i - low
            divisor *= math.pow(factor, 2 * k / (n * (n + 1)) if progressive else 1 / n)
        frequencies.append(f / divisor)
    return frequencies


def ntk_fixed(rope: RopeSpec, factor: float) -> list[float]:
    """As vLLM has it: the base times s, and everything divided by s^(2/d)."""
    d = rope.rotary_dim
    return [math.pow(rope.theta * factor, -2 * i / d) / math.pow(factor, 2 / d) for i in range(d // 2)]


def ntk_mixed(rope: RopeSpec, factor: float, b: float) -> list[float]:
    pairs = rope.rotary_dim // 2
    a = math.log(factor) / math.pow(pairs, b)
    return [f / math.exp(a * math.pow(i + 1, b)) for i, f in enumerate(plain(rope))]


def giraffe_power(rope: RopeSpec, power: float) -> list[float]:
    d = rope.rotary_dim
    return [f * math.pow((d - 2 * i) / d, power) for i, f in enumerate(plain(rope))]


def giraffe_truncate(rope: RopeSpec, a: float, b: float, rho: float) -> list[float]:
    """By the turns a pair makes over the pretrained length."""
    one = 2 * math.pi / rope.pretrained_length
    turns = [f / one for f in plain(rope)]
    return [t * one if t >= b else rho * one if t > a else 0.0 for t in turns]


def fope(rope: RopeSpec) -> list[float]:
    return [0.0 if 2 * math.pi / f > rope.pretrained_length else f for f in plain(rope)]


def proportional(rope: RopeSpec, p: float) -> list[float]:
    pairs = rope.rotary_dim // 2
    return [f if i + 1 <= p * pairs else 0.0 for i, f in enumerate(plain(rope))]


def resonance(frequencies: list[float]) -> list[float]:
    return [2 * math.pi / round(2 * math.pi / f) if f else 0.0 for f in frequencies]


def by_turns(rope: RopeSpec, factor: float, few: float, many: float) -> list[float]:
    """Pair by pair, by wavelength: short ones kept, long ones divided, a mix between that is linear in 1/wavelength."""
    frequencies = []
    for f in plain(rope):
        wavelength = 2 * math.pi / f
        if wavelength < rope.pretrained_length / many:
            frequencies.append(f)
        elif wavelength > rope.pretrained_length / few:
            frequencies.append(f / factor)
        else:
            smooth = (rope.pretrained_length / wavelength - few) / (many - few)
            frequencies.append((1 - smooth) * f / factor + smooth * f)
    return frequencies


def dynamic_ntk(rope: RopeSpec, factor: float, length: int) -> list[float]:
    d = rope.rotary_dim
    grown = rope.theta
    if length > rope.pretrained_length:
        grown *= (factor * length / rope.pretrained_length - (factor - 1)) ** (d / (d - 2))
    return [math.pow(grown, -2 * i / d) for i in range(d // 2)]


# Relative positions, pair by pair: query index i, key index j <= i, in a text of n tokens; None where j is not seen


def self_extend(rope: RopeSpec, n: int, i: int, j: int, group: int | None, window: int | None) -> float:
    window = rope.pretrained_length // 4 if window is None else window
    if group is None:
        group = 1
        while n > rope.pretrained_length and 3 * (window * group + n - window) > 2 * rope.pretrained_length * group:
            group += 1
    if i - j < window or group == 1:
        return i - j
    return (i // group + window - window // group) - j // group


def rerope(rope: RopeSpec, i: int, j: int, window: int | None, k: float = math.inf) -> float:
    window = rope.pretrained_length // 4 if window is None else window
    return i - j if i - j < window else window + (i - j - window) / k


def dual_chunk(i: int, j: int, chunk: int, local: int) -> float:
    size = chunk - local
    apart = i // size - j // size
    query = {0: i % size, 1: min(i % size + size, chunk)}.get(apart, chunk)
    return query - j % size


def string(i: int, j: int, shift: int, local: int) -> float:
    return i - j if i - j < shift else i - j - shift + local


def lm_infinite(i: int, j: int, first: int, local: int, limit: int) -> float | None:
    return min(i - j, limit) if i - j < local or j < first else None


def attention_sinks(i: int, j: int, sinks: int, window: int) -> float | None:
    """By what the cache holds when the query comes, in order."""
    cache = [*range(min(sinks, i + 1)), *range(max(sinks, i + 1 - window), i + 1)]
    return cache.index(i) - cache.index(j) if j in cache else None


def log_n(rope: RopeSpec, i: int) -> float:
    return max(1.0, math.log(i + 1, rope.pretrained_length))


@torch.no_grad()
def brute_force_logits(
    model: Any,
    ids: Tensor,
    inv_freq: list[float],
    attention_factor: float = 1.0,
    relative: Tensor | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """Logits of a Llama, Qwen2, Qwen3 or Mistral in float64, where each attention score is ``t·a²·<R(rel)·q, k>``.

    It knows no cos/sin cache, no KV cache, no attention kernel and no patch: only the weights and a table of relative
    positions.

    Args:
        model: a tiny model; only its weights and config are used.
        ids: (length,).
        inv_freq: d/2 frequencies.
        attention_factor: a.
        relative: (length, length) query × key relative positions, NaN where a key is not seen; query - key when left
            out.
        scale: (length,) t of each query; 1 when left out.
    """
    w = {name: value.double() for name, value in model.state_dict().items()}
    config = model.config
    n = ids.numel()
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = config.head_dim
    if relative is None:
        index = torch.arange(n)
        relative = index[:, None] - index[None, :]
    causal = torch.ones(n, n, dtype=torch.bool).tril() & ~relative.isnan()
    phase = relative.double().nan_to_num()[..., None] * torch.tensor(inv_freq, dtype=torch.float64)  # (n, n, d/2)
    cos, sin = phase.cos(), phase.sin()
    times = torch.ones(n, dtype=torch.float64) if scale is None else scale.double()

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps) * weight

    x = w["model.embed_tokens.weight"][ids]
    for layer in range(config.num_hidden_layers):
        p = f"model.layers.{layer}."
        h = norm(x, w[p + "input_layernorm.weight"])
        q, k, v = (
            (h @ w[f"{p}self_attn.{name}_proj.weight"].T + w.get(f"{p}self_attn.{name}_proj.bias", 0)).view(
                n, count, head_dim
            )
            for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
        )
        if f"{p}self_attn.q_norm.weight" in w:
            q = norm(q, w[p + "self_attn.q_norm.weight"])
            k = norm(k, w[p + "self_attn.k_norm.weight"])
        mixed = torch.empty(n, heads, head_dim, dtype=torch.float64)
        for head in range(heads):
            qh, kh, vh = q[:, head], k[:, head * kv_heads // heads], v[:, head * kv_heads // heads]
            half = phase.shape[-1]
            a, b, c, d = qh[:, None, :half], qh[:, None, half:], kh[None, :, :half], kh[None, :, half:]
            # <R(rel) q, k> of each pair: (a cos - b sin) c + (b cos + a sin) d
            score = ((a * cos - b * sin) * c + (b * cos + a * sin) * d).sum(-1)
            score = score * times[:, None] * attention_factor**2 / math.sqrt(head_dim)
            weight = score.masked_fill(~causal, -math.inf).softmax(-1)
            mixed[:, head] = weight @ vh
        x = x + mixed.flatten(1) @ w[p + "self_attn.o_proj.weight"].T
        h = norm(x, w[p + "post_attention_layernorm.weight"])
        gate = torch.nn.functional.silu(h @ w[p + "mlp.gate_proj.weight"].T)
        x = x + (gate * (h @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
    logits: Tensor = norm(x, w["model.norm.weight"]) @ w["lm_head.weight"].T
    return logits
