"""The command of lm-evaluation-harness with one more model: any checkpoint of this toolkit under any strategy.

extrapolate harness ls tasks
extrapolate harness run --model extrapolate --model_args path=smollm2,strategy=yarn,factor=2 --tasks NAME

``--model_args`` takes the fields of a checkpoint (path, dtype, device, ...), a strategy's name and its fields,
``max_length``, and what the harness's own Hugging Face model takes.
"""

import sys
from dataclasses import fields
from typing import Any

from lm_eval.__main__ import cli_evaluate
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from lm_eval.utils import simple_parse_args_string

import extrapolate as xt
from extrapolate.strategies.names import build, kinds


@register_model("extrapolate")
class Patched(HFLM):  # type: ignore[misc]
    """Found by the harness under the name ``extrapolate``."""

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> Any:
        """From ``key=value,...`` of the command line."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> Any:
        """From a dictionary, and what the command adds, but for its device: it says cuda:0 on every machine."""
        added = {k: v for k, v in (additional_config or {}).items() if v is not None and k != "device"}
        options = {**added, **arg_dict}
        name = options.pop("strategy", "shipped")
        known = {field.name for field in fields(kinds()[name])} if name in kinds() else set()
        strategy = build({"strategy": name, **{key: options.pop(key) for key in known & set(options)}})
        of_checkpoint = {field.name for field in fields(xt.Checkpoint)}
        checkpoint = xt.Checkpoint(**{key: options.pop(key) for key in of_checkpoint & set(options)})
        return xt.lm_eval_model(checkpoint.model(), checkpoint.tokenizer(), strategy, **options)


__all__ = ["Patched", "cli_evaluate"]


def start() -> None:
    """The command, with the arguments of the command line."""
    if sys.argv[1:] in ([], ["--help"], ["-h"]):
        print(__doc__)
    cli_evaluate()
