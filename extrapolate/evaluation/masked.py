"""Losses of masked tokens: what perplexity is for a model that sees both sides."""

import torch
from torch import Tensor, nn

from extrapolate.errors import EvaluationError
from extrapolate.evaluation.losses import losses_of
from extrapolate.running import evaluating, input_device


def masked_losses(
    model: nn.Module, input_ids: Tensor, mask_token_id: int, *, every: int = 8, batch_size: int = 8
) -> Tensor:
    """The loss of each token of a text when it is masked, for an encoder such as RoFormer.

    ``every`` passes: pass r masks the tokens r, r + every, r + 2·every, … at once, so each token is scored exactly
    once and sees all but one in ``every`` of the others. ``every`` of at least the length masks one token at a time:
    the pseudo-log-likelihood of Salazar et al. (2020, arXiv 1910.14659), in as many passes as there are tokens.
    ``masked_losses(...).double().mean().exp()`` is their pseudo-perplexity, of one text.

    Args:
        model: a masked language model.
        input_ids: (batch, length) token ids without padding.
        mask_token_id: what stands for a masked token, ``tokenizer.mask_token_id``.
        every: distance between tokens masked in one pass.
        batch_size: rows in one forward pass; changes speed and memory, not numbers.

    Returns:
        (batch, length) float32, nats.

    Raises:
        EvaluationError: naming the argument, the value and the rule.
    """
    if input_ids.ndim != 2 or input_ids.shape[1] < 1:
        raise EvaluationError(f"input_ids must be (batch, length) of at least 1 token, got {tuple(input_ids.shape)}")
    for name, value in (("every", every), ("batch_size", batch_size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise EvaluationError(f"{name} must be a whole number of at least 1, got {value!r}")
    if bool((input_ids == mask_token_id).any()):
        raise EvaluationError(f"input_ids hold mask_token_id {mask_token_id} already; a masked token has no loss")
    rows, length = input_ids.shape
    every = min(every, length)
    phase = torch.arange(length) % every
    losses = torch.empty(rows, length)
    work = [(row, r) for row in range(rows) for r in range(every)]
    with evaluating(model), torch.no_grad():
        for start in range(0, len(work), batch_size):
            part = work[start : start + batch_size]
            masks = torch.stack([phase == r for _, r in part])
            ids = input_ids[[row for row, _ in part]].cpu()
            logits = model(ids.masked_fill(masks, mask_token_id).to(input_device(model))).logits
            for (row, _), mask, logit, target in zip(part, masks, logits, ids, strict=True):
                losses[row, mask] = losses_of(logit[mask.to(logit.device)][None], target[None, mask])[0]
    return losses
