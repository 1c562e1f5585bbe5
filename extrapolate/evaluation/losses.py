"""Loss of every predicted token: the primary artefact, from which every perplexity is computed afterwards."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from extrapolate.errors import EvaluationError
from extrapolate.running import LOGITS_AT_ONCE, body_of, evaluating, input_device

Progress = Callable[[float], None]
"""Called with the tokens done since the last call; layers count as fractions of a pass."""


@torch.no_grad()
def token_losses(
    model: nn.Module | Callable[..., Any],
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    *,
    progress: Progress | None = None,
) -> Tensor:
    """Negative log-likelihood of each token given those before it.

    The body runs once over the whole length, the head in slices: memory does not grow with length × vocabulary.
    Log-softmax is in float32. No cache, no gradient. Padding is left out, and texts of different length run one after
    the other, so that it changes no number, whichever side it was on and whatever its id is. A model in training mode
    is put into evaluation mode meanwhile, so that no dropout is measured.

    Args:
        model: a causal language model, patched or not; or any callable with ``input_ids=`` that returns ``.logits``.
        input_ids: (batch, length), at least two tokens.
        attention_mask: (batch, length), 0 where a token is padding; padding may be on the left or on the right.
        progress: told how many tokens are done.

    Returns:
        (batch, length - 1) float32, nats, on the CPU: entry [b, t] is the loss of ``input_ids[b, t + 1]``. NaN where
        that token, or the one before it, is padding, so that padding cannot be averaged in unnoticed.

    Raises:
        EvaluationError: for another shape, an empty row, or padding in the middle of a text.
    """
    if input_ids.ndim != 2 or input_ids.shape[1] < 2:
        raise EvaluationError(f"input_ids must be (batch, length) with length at least 2, got {tuple(input_ids.shape)}")
    if attention_mask is not None and not bool((attention_mask != 0).all()):
        return _padded(model, input_ids, attention_mask != 0, progress)
    if not isinstance(model, nn.Module):  # anything that returns logits, such as a client of a served model
        return losses_of(model(input_ids=input_ids, use_cache=False).logits[:, :-1], input_ids[:, 1:])
    with evaluating(model):
        return _by_slices(model, input_ids.to(input_device(model)), progress)


def _by_slices(model: nn.Module, input_ids: Tensor, progress: Progress | None) -> Tensor:
    """Body once, head in slices; the whole at once for a model whose body and head cannot be told apart."""
    body = body_of(model)
    batch, length = input_ids.shape
    with _counted(body, batch * length, progress):
        output = body(input_ids=input_ids, use_cache=False, **({} if body is model else {"return_dict": True}))
    if hasattr(output, "logits"):  # no separable head, or a wrapper whose "base model" still has its own
        return losses_of(output.logits[:, :-1], input_ids[:, 1:])
    hidden = output.last_hidden_state  # (batch, length, hidden)
    losses = torch.empty(batch, length - 1)
    config: Any = model.config
    step = max(1, LOGITS_AT_ONCE // (batch * config.get_text_config().vocab_size))
    with _replaying(model, body, output) as replay:
        for start in range(0, length - 1, step):
            stop = min(start + step, length - 1)
            replay.hidden = hidden[:, start:stop]
            # the model's own forward, so that soft-capping, logit scales and biases of its head all apply
            logits = model(input_ids=input_ids[:, start:stop], use_cache=False, return_dict=True).logits
            losses[:, start:stop] = losses_of(logits, input_ids[:, start + 1 : stop + 1])
    return losses


@torch.no_grad()
def answer_losses(
    model: nn.Module, input_ids: Tensor, count: int, *, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """Loss and rank of the last tokens of a text, each given all that precede it.

    Args:
        model: a causal language model, patched or not.
        input_ids: (batch, length) without padding.
        count: how many tokens at the end are scored; below the length.
        chunk: tokens in one forward pass, what came before being in the cache; the whole text when left out.

    Returns:
        (batch, count) float32 losses, nats, and (batch, count) int64 ranks: how many tokens the model prefers to the
        right one. Rank 0 is what greedy decoding picks; of equal logits it picks the smallest id. On the CPU.
    """
    ids = input_ids.to(input_device(model))
    inputs, targets = ids[:, :-1], ids[:, -count:]
    with evaluating(model):
        logits = _last_logits(model, inputs, count, chunk or inputs.shape[1]).float()
    right = logits.gather(-1, targets[..., None].to(logits.device))
    smaller = torch.arange(logits.shape[-1], device=logits.device) < targets[..., None].to(logits.device)
    ranks = ((logits > right) | ((logits == right) & smaller)).sum(dim=-1)
    return losses_of(logits, targets), ranks.cpu()


def _last_logits(model: nn.Module, inputs: Tensor, count: int, chunk: int) -> Tensor:
    """(batch, count, vocabulary): logits behind the last inputs."""
    body = body_of(model)
    options: dict[str, Any] = {} if body is model else {"return_dict": True}
    # the last piece holds all that is scored
    early = torch.split(inputs[:, :-count], chunk, dim=1) if inputs.shape[1] > chunk else ()
    last = inputs[:, sum(part.shape[1] for part in early) :]
    cached: dict[str, Any] = {}
    for part in early:
        output = body(input_ids=part, use_cache=True, **options, **cached)
        name = "cache" if getattr(output, "cache", None) is not None else "past_key_values"  # renamed in 5.24
        cached = {name: getattr(output, name)}
    output = body(input_ids=last, use_cache=bool(early), **options, **cached)
    if hasattr(output, "logits"):
        found: Tensor = output.logits[:, -count:]
        return found
    with _replaying(model, body, output) as replay:
        replay.hidden = output.last_hidden_state[:, -count:]
        logits: Tensor = model(input_ids=last[:, -count:], use_cache=False, return_dict=True).logits
    return logits


def losses_of(logits: Tensor, targets: Tensor) -> Tensor:
    """(batch, n, vocabulary), (batch, n) → (batch, n) float32 on the CPU."""
    targets = targets.to(logits.device)
    flat = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
    return flat.view(targets.shape).cpu()


def _padded(
    model: nn.Module | Callable[..., Any], input_ids: Tensor, real: Tensor, progress: Progress | None
) -> Tensor:
    """Roll each row's padding to the right, cut it off, and put the losses back where they belong."""
    real = real.to(input_ids.device)
    batch, length = input_ids.shape
    counts = real.sum(dim=1)
    first = real.int().argmax(dim=1)
    index = torch.arange(length, device=input_ids.device)
    contiguous = (index >= first[:, None]) & (index < (first + counts)[:, None])
    if (counts == 0).any() or not torch.equal(contiguous, real):
        raise EvaluationError("attention_mask must mark one run of real tokens in each row, padding before or after it")
    source = (index + first[:, None]) % length
    rolled = input_ids.gather(1, source).masked_fill(index >= counts[:, None], 0)
    losses = torch.full((batch, length - 1), torch.nan)
    for count in sorted(set(counts.tolist())):  # texts of one length at a time: to some models the length matters
        if count < 2:
            continue
        rows = (counts == count).nonzero().flatten()
        for row, found in zip(rows.tolist(), token_losses(model, rolled[rows, :count], progress=progress), strict=True):
            start = int(first[row])
            losses[row, start : start + count - 1] = found
    return losses


class _Replay(nn.Module):
    """Stands in for a model's body while its head runs: returns a slice of hidden states that is already computed."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output
        self.hidden: Tensor = output.last_hidden_state

    def forward(self, *_: Any, **__: Any) -> Any:
        kind: Any = type(self.output)
        return kind(last_hidden_state=self.hidden)


@contextlib.contextmanager
def _replaying(model: nn.Module, body: nn.Module, output: Any) -> Iterator[_Replay]:
    """Swap the body for a replay of its output; put back in any case."""
    parent, _, name = next(path for path, module in model.named_modules() if module is body).rpartition(".")
    holder = model.get_submodule(parent)
    replay = _Replay(output)
    setattr(holder, name, replay)
    try:
        yield replay
    finally:
        setattr(holder, name, body)


@contextlib.contextmanager
def _counted(body: nn.Module, tokens: int, progress: Progress | None) -> Iterator[None]:
    """Report each finished decoder layer as its share of the pass, through hooks that are gone afterwards."""
    stacks = [m for m in body.modules() if isinstance(m, nn.ModuleList)] if progress else []
    layers = max(stacks, key=len, default=nn.ModuleList())

    def report(*_: Any) -> None:  # returns None: anything else would replace the layer's output
        if progress:
            progress(tokens / len(layers))

    hooks = [layer.register_forward_hook(report) for layer in layers]
    try:
        yield
        if progress and not hooks:
            progress(tokens)
    finally:
        for hook in hooks:
            hook.remove()
