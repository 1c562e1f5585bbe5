"""Whether a model's attention can run in bands, told from a few tokens, and what each layer needs for it."""

import copy
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from extrapolate.attention.plan import Banded
from extrapolate.attention.run import NAME, register
from extrapolate.attention.seat import PROBE, Probe, Seat, Turn
from extrapolate.errors import ModelError, first_line
from extrapolate.models.installed import Installed, install
from extrapolate.models.layers import index_of
from extrapolate.models.rotary import PatchedRotary
from extrapolate.rope import Layout, cos_sin
from extrapolate.running import body_of, evaluating, input_device
from extrapolate.strategies.base import Strategy
from extrapolate.strategies.plain import Plain
from extrapolate.strategies.shipped import Shipped

PROBE_TOKENS = 16
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
"""Of the examination, relative; 0.1 for dtypes of half the size."""


def banded(
    model: nn.Module,
    strategy: Strategy,
    indices: frozenset[int] | None,
    length: int | None,
    stock: Installed,
    rotaries: Mapping[str, PatchedRotary],
) -> Installed:
    """Examine a model's attention on a few tokens and give each layer its seat.

    Three passes under plain RoPE, whatever the checkpoint ships and its buffers hold: with the model's own attention;
    with our function, which sees how each layer rotates; with the identity for a rotary module, where rotating in our
    function must give the same queries, keys and hidden states. A layer that does not come through our function and
    uses the tables gives others then.

    Args:
        model: in the state that ``stock`` and ``rotaries`` describe or any other.
        strategy: to run.
        indices: of the layers that run it, the others as shipped; None: what each of the tables says.
        length: declared, or None.
        stock: what the model was loaded with.
        rotaries: of the patch, which return the identity.

    Raises:
        ModelError: by the model's name, when no layer comes through our function, one does not rotate in a known
            way, or the hidden states differ. The model is then half patched: the caller restores it.
    """
    who = type(model).__name__
    register()
    plain = replace(stock, modules={**stock.modules, **{name: r.under(Plain()) for name, r in rotaries.items()}})
    install(model, plain)
    expected = _hidden(model)
    configs = _rerouted(stock.configs)
    install(model, replace(plain, configs=configs))
    turned: dict[int, list[tuple[Tensor, Tensor]]] = {}  # in the order of the calls: a layer may be run repeatedly
    tables = [found for rotary in rotaries.values() for found in rotary.tables.values()]
    bare = Seat(Banded(Plain(), tables[0].spec), None)

    def note(module: nn.Module, query: Tensor, key: Tensor) -> Seat:
        turned.setdefault(id(module), []).append((query, key))
        return bare

    try:
        _hidden(model, note)
    except ModelError as error:
        if turned or error.__cause__ is None:  # it says itself what it is
            raise
        raise ModelError(f"{who}: no layer calls transformers' attention interface ({error})") from error
    install(model, Installed({**stock.modules, **rotaries}, {}, configs))
    positions = torch.arange(PROBE_TOKENS)
    ladders = [cos_sin(Plain().frequencies(found.spec, PROBE_TOKENS), positions) for found in tables]
    references = [Banded(Plain(), found.spec) for found in tables]
    seen: dict[int, tuple[int, Turn | None]] = {}

    def recognise(module: nn.Module, query: Tensor, key: Tensor) -> Seat:
        if not turned.get(id(module)):
            raise ModelError(f"{who}: {type(module).__name__} reaches the attention function in some passes only")
        rotated = turned[id(module)].pop(0)
        best, which, turn = min(
            (_miss((query, key), rotated, turn, ladder), which, n)
            for which, ladder in enumerate(ladders)
            if 2 * ladder[0].shape[-1] <= query.shape[-1]
            for n, turn in enumerate(_turns(query.shape[-1], ladder[0].shape[-1]))
        )
        if not best < TOLERANCE.get(query.dtype, 0.1):
            raise ModelError(
                f"{who}: {type(module).__name__} rotates queries and keys in no known way (half-split and interleaved "
                f"pairs were tried; the nearest is {best:.3g} off), so its positions cannot be changed"
            )
        seen[id(module)] = which, _turns(query.shape[-1], ladders[which][0].shape[-1])[turn]
        return Seat(references[which], seen[id(module)][1])

    again = _hidden(model, recognise)
    names = {id(module): name for name, module in model.named_modules()}
    if not seen:
        raise ModelError(
            f"{who}: no layer calls transformers' attention interface, so positions cannot be changed; Llama, Qwen, "
            "Mistral, Gemma and their like do (looked for ALL_ATTENTION_FUNCTIONS.get_interface in every layer)"
        )
    if all(turn is None for _, turn in seen.values()):
        raise ModelError(
            f"{who}: no layer uses the tables of {', '.join(rotaries)}, so {strategy!r} would change nothing"
        )
    aside = _aside(model, [names[i] for i in seen])
    if aside:
        raise ModelError(
            f"{who}: {len(aside)} layer{'s do' if len(aside) > 1 else ' does'} not call transformers' attention "
            f"interface ({', '.join(sorted(set(aside.values())))}), so positions cannot be changed in all of them"
        )
    off = _distance(again, expected)
    if not off < TOLERANCE.get(expected.dtype, 0.1):
        raise ModelError(
            f"{who}: in bands its hidden states are {off:.3g} off its own; something in its attention is not "
            "understood, or a layer that rotates does not call transformers' attention interface"
        )
    kept = dict(stock.configs)
    own = [Banded(found.strategy, found.spec, length, configs=kept) for found in tables]
    left = [Banded(Shipped(), found.spec, length, configs=kept) for found in tables]
    seats = {}
    for i, (which, turn) in seen.items():
        name = names[i]
        runs = indices is None or index_of(model.get_submodule(name), name) in indices
        seats[name] = Seat((own if runs else left)[which], turn)
    return Installed({**stock.modules, **rotaries}, seats, configs)


def _aside(model: Any, names: list[str]) -> dict[str, str]:
    """Attention modules, by name, that stand where those of other layers do but did not come through our function."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    places = {re.sub(r"\.\d+\.", ".*.", name) for name in names}
    found = {}
    for name, module in model.named_modules():
        index = index_of(module, name)
        kind = str(kinds[index]) if index is not None and 0 <= index < len(kinds) else ""
        other = any(word in kind for word in ("linear", "conv", "mamba", "recurrent"))  # no attention by positions
        if name not in names and re.sub(r"\.\d+\.", ".*.", name) in places and not other:
            found[name] = type(module).__name__
    return found


def _turns(width: int, pairs: int) -> list[Turn | None]:
    """How an attention module may turn heads of a width, most usual first; None: it does not."""
    starts = dict.fromkeys([0, width - 2 * pairs])  # at the end: the decoupled part of multi-head latent attention
    layouts: tuple[Layout, ...] = ("half_split", "interleaved")
    found = [Turn(layout, start, back) for back in (False, True) for start in starts for layout in layouts]
    return [turn for turn in found if turn.start >= 0] + [None]


def _miss(
    unrotated: tuple[Tensor, Tensor], rotated: tuple[Tensor, Tensor], turn: Turn | None, ladder: tuple[Tensor, Tensor]
) -> float:
    """How far queries and keys, turned this way, are from those that the model itself turned."""
    cos, sin = (table.to(unrotated[0].device) for table in ladder)
    return max(
        _distance(x if turn is None else turn.apply(x, cos, sin), y) for x, y in zip(unrotated, rotated, strict=True)
    )


def _rerouted(configs: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of the configs that choose our attention function; who shares one goes on sharing it."""
    copies = {id(config): copy.copy(config) for config in configs.values()}
    for config in copies.values():
        for field, value in vars(config).items():
            if id(value) in copies:  # the text part of a larger config
                config.__dict__[field] = copies[id(value)]
        config.__dict__["_attn_implementation_internal"] = NAME
    return {name: copies[id(config)] for name, config in configs.items()}


def _distance(found: Tensor, expected: Tensor) -> float:
    """Norm of the difference relative to that of ``expected``; infinite for other shapes."""
    if found.shape != expected.shape:
        return math.inf
    return float((found.float() - expected.float()).norm() / expected.float().norm().clamp_min(1e-30))


def _hidden(model: Any, probe: Probe | None = None) -> Tensor:
    """Last hidden states (1, T, hidden) of a few tokens."""
    vocabulary = int(model.config.get_text_config().vocab_size)
    token = PROBE.set(probe)
    try:
        output = trial(model, (torch.arange(PROBE_TOKENS)[None] * 7 + 3) % vocabulary, "examine its attention")
    finally:
        PROBE.reset(token)
    found: Tensor = output.last_hidden_state if hasattr(output, "last_hidden_state") else output.logits
    return found


@torch.no_grad()
def trial(model: Any, tokens: Tensor, purpose: str) -> Any:
    """What a model's body makes of (1, T) tokens, in evaluation mode.

    Raises:
        ModelError: when it fails, with the purpose.
    """
    try:
        with evaluating(model):
            return body_of(model)(input_ids=tokens.to(input_device(model)), use_cache=False)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"{type(model).__name__}: a pass of {tokens.shape[1]} tokens to {purpose} failed: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error
