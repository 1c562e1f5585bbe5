"""A patched model as lm-evaluation-harness takes it; needs the extra ``extrapolate[lm_eval]``."""

from typing import Any

from torch import nn

from extrapolate.errors import ExtrapolateError
from extrapolate.models import patch, read_spec
from extrapolate.strategies import Strategy


def lm_eval_model(
    model: nn.Module,
    tokenizer: Any,
    strategy: Strategy | None = None,
    *,
    max_length: int | None = None,
    batch_size: int | str = 1,
    **options: Any,
) -> Any:
    """Patch a model and wrap it for lm-evaluation-harness: ``lm_eval.simple_evaluate(model=...)``.

    The model stays patched; ``.patch.restore()`` of what is returned gives it back.

    Args:
        model: a loaded causal language model.
        tokenizer: its tokenizer.
        strategy: any; the checkpoint as it is when left out.
        max_length: tokens of the longest model input; longer requests are cut from the left by the harness. When left
            out the pretrained length, times the strategy's factor where it has one.
        batch_size: of requests, or the harness's ``auto``.
        **options: further arguments of ``lm_eval.models.huggingface.HFLM``.

    Returns:
        The harness's model object, with the handle of the patch as ``patch`` (None without a strategy).

    Raises:
        ExtrapolateError: when lm-eval is not installed.
        ModelError: when the model cannot be patched.
    """
    try:
        from lm_eval.models.huggingface import HFLM
    except ImportError as error:
        raise ExtrapolateError(
            "lm_eval_model needs lm-evaluation-harness: pip install 'extrapolate[lm_eval]'"
        ) from error
    config: Any = model.config
    factor: Any = (strategy.parameters().get("factor") if strategy else None) or 1.0
    handle = None if strategy is None else patch(model, strategy)
    try:
        wrapped: Any = HFLM(
            pretrained=model,
            tokenizer=tokenizer,
            max_length=max_length or int(read_spec(config).pretrained_length * factor),
            batch_size=batch_size,
            backend="causal",
            **options,
        )
    except BaseException:
        if handle:
            handle.restore()
        raise
    wrapped.patch = handle
    return wrapped
