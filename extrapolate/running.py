"""How a model is run, whatever wraps it: its body, its mode, the device of its input, how much of its head at once."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

LOGITS_AT_ONCE = 2**24
"""Logits held at a time (64 MiB in float32), whatever the length and the vocabulary are."""


def body_of(model: Any) -> nn.Module:
    """The part of a language model that ends in hidden states; the model itself where none is found."""
    from transformers import PreTrainedModel  # two seconds, which a command's start is spared

    body: Any = getattr(model, "base_model", model)
    if body is model:
        with contextlib.suppress(Exception):  # models without one say so in several ways
            decoder = model.get_decoder()
            body = decoder if isinstance(decoder, PreTrainedModel) else model
    if body is model:  # its prefix names no part of it: the one part that is a model itself
        inner = [child for child in model.children() if isinstance(child, PreTrainedModel)]
        body = inner[0] if len(inner) == 1 else model
    found: nn.Module = body
    return found


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; each module returns to the mode it was in."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def input_device(model: nn.Module) -> torch.device:
    """Where token ids go: next to the input embedding. The CPU where accelerate holds the weights elsewhere."""
    embedding = model
    with contextlib.suppress(AttributeError, NotImplementedError):  # transformers finds it in most models, not in all
        embedding = model.get_input_embeddings() or model  # type: ignore[operator]
    parameter = next(embedding.parameters(), None)
    return torch.device("cpu") if parameter is None or parameter.is_meta else parameter.device
