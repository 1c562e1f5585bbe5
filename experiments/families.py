"""Every RoPE language model of transformers, tried on a tiny random model of each: which seams can be patched.

python -m experiments.families
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
import torch
import transformers
from hydra.utils import to_absolute_path
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import track
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, model_type_to_module_name
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import extrapolate as xt
from extrapolate.attention.seat import seats
from extrapolate.commands.names import run
from extrapolate.models.families import RotarySeam, find_rotary
from extrapolate.storage import write_atomic

SMALL = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "original_max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "sliding_window": 16,
    "attention_chunk_size": 16,
    # other words for the same
    "d_model": 64,
    "n_embd": 64,
    "n_inner": 64,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 64,
    "n_ctx": 64,
    "num_layers": 4,
    "ffn_hidden_size": 64,
    "rotary_dim": 8,
    # mixtures of experts
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "moe_num_experts": 4,
    "moe_k": 2,
    "shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    # multi-head latent attention
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "qk_head_dim": 16,
    # state-space and linear-attention layers
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_n_groups": 1,
    "mamba_d_ssm": 128,
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "mamba_d_state": 8,
    "ssm_state_size": 8,
    "n_groups": 1,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    # images and sounds, where a model has them
    "patch_size": 4,
    "image_size": 16,
    "depth": 1,
}
"""What a config becomes, in so far as it has the field."""

LATENT = {"head_dim": 8, "num_key_value_heads": 4}
"""Of architectures that take the rotated part of a head for the whole."""

FULL = {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}

OWN: dict[str, dict[str, Any]] = {
    "axk1": LATENT,
    "axk2": LATENT,
    "bamba": {"attn_layer_indices": [1, 3]},
    "bailing_hybrid": {
        **LATENT,
        "num_expert_group": 1,
        "num_experts_per_token": 2,
        "linear_head_dim": 16,
        "linear_num_heads": 4,
    },
    "blt": {"vocab_size": 260, "encoder_hash_byte_group_vocab": 64},
    "blt_local_decoder": {"vocab_size": 260, "hidden_size_global": 64},
    "blt_local_encoder": {"vocab_size": 260, "hidden_size_global": 64},
    "blt_patcher": {"vocab_size": 260},
    "cohere_compass_text": {"rope_parameters": FULL},
    "dbrx": {
        "n_heads": 4,
        "n_layers": 2,
        "max_seq_len": 64,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 32},
    },
    "deepseek_v2": {**LATENT, "topk_method": "greedy"},
    "deepseek_v3": LATENT,
    "deepseek_v32": LATENT,
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2},
    "dots3_note_audio_encoder": {"adapter_input_size": 64, "adapter_out_dim": 64},
    "dots3_note_vision_encoder": {"adapter_in_dim": 64, "adapter_out_dim": 64},
    "dots3_note_text": {
        "num_key_value_heads": 4,
        "head_dim": 32,
        "qk_nope_head_dim": 24,
        "index_head_dim": 16,
        "index_n_heads": 2,
        "index_topk": 16,
    },
    "gemma3n_text": {
        "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": 128,
        "hidden_size_per_layer_input": 16,
        "laurel_rank": 8,
    },
    "gemma4_text": {"vocab_size_per_layer_input": 128, "hidden_size_per_layer_input": 16, "global_head_dim": 32},
    "gemma4_unified_text": {"global_head_dim": 32},
    "glm_moe_dsa": LATENT,
    "granitemoehybrid": {"position_embedding_type": "rope", "layer_types": ["mamba", "attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "full_attention"]},
    "longcat_flash": {**LATENT, "num_layers": 2, "ffn_hidden_size": 64, "expert_ffn_hidden_size": 32},
    "mimo_v2_flash": {"head_dim": 24},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 64,
        "indexer_compress_ratio": 4,
        "ple_embed_dim": 64,
        "ngram_vocab_size_base": 64,
        "make_ngram_vocab_size_divisible_by": 8,
        "split_ngram_parts": 1,
        "hc_lowrank": 8,
    },
    "roformer": {"is_decoder": True},
    "youtu": LATENT,
    "zamba2": {
        "layer_types": ["mamba", "hybrid", "mamba", "hybrid"],
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "mamba_headdim": 32,
        "n_mamba_heads": 4,
        "kv_channels": 16,
        "num_key_value_heads": 4,
        "use_mem_rope": True,
        "hybrid_layer_ids": [1, 3],
        "chunk_size": 16,
    },
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16},
}
"""What single architectures need besides, each to be built at all."""


NOT_BUILT = {
    "gemma3n": "needs the package timm for its image tower; its language model is gemma3n_text",
}
"""Architectures with rotary embeddings of which no tiny model is made here, and why."""


@dataclass(frozen=True)
class Family:
    """What was found out of an architecture.

    Attributes:
        model_type: transformers' name for it.
        seams: its rotary embeddings; none for a model without.
        layouts: how its attention pairs dimensions, as seen at the attention seam.
        frequencies: why frequencies cannot be changed; None when they can.
        attention: why positions cannot be changed; None when they can.
    """

    model_type: str
    seams: tuple[RotarySeam, ...] = ()
    layouts: tuple[str, ...] = ()
    frequencies: str | None = None
    attention: str | None = None


def architectures() -> list[str]:
    """Causal language models of transformers whose code speaks of rotary embeddings."""
    root = Path(transformers.__file__).parent / "models"
    found = []
    for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        source = "".join(p.read_text() for p in (root / model_type_to_module_name(name)).glob("modeling_*.py"))
        if re.search(r"inv_freq|rotary_emb|apply_rotary", source):
            found.append(name)
    return found


def tiny_config(config_class: Any, changes: Mapping[str, Any] | None = None) -> Any:
    """A config of a class, a few layers of a few heads; every layer type that it has by default occurs."""
    default = config_class()
    fields = default.to_dict()
    small: dict[str, Any] = {name: value for name, value in SMALL.items() if name in fields}
    for name in ("layer_types", "mlp_layer_types"):
        if fields.get(name):
            kinds = list(dict.fromkeys(fields[name]))
            small[name] = (kinds * 4)[: max(4, len(kinds))]
    for name, value in vars(default).items():
        if isinstance(value, transformers.PreTrainedConfig):
            small[name] = tiny_config(type(value), OWN.get(value.model_type))
    return config_class(**{**small, **(changes or {})})


def tiny_model(model_type: str, **changes: Any) -> Any:
    """A random model of an architecture, in evaluation mode; weights are large, so that a wrong rotation shows."""
    config = tiny_config(CONFIG_MAPPING[model_type], {**OWN.get(model_type, {}), **changes})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim >= 2 and parameter.requires_grad:
                    parameter.normal_(std=0.2)
                    continue
                # Zaya's keys are multiplied by one that starts at 0
                if not name.endswith("bias") and not parameter.any():
                    parameter.fill_(1.0)
                if parameter.requires_grad:  # weights of norms start alike, and what is alike commutes with a rotation
                    parameter.mul_(1 + 0.3 * torch.randn_like(parameter))
    return model.eval()


def length_of(model: Any) -> int | None:
    """What to give as pretrained length: RecurrentGemma's config names none."""
    return None if getattr(model.config.get_text_config(), "max_position_embeddings", None) else 64


def look_at(model_type: str) -> Family:
    """Try both seams on a tiny model."""
    if model_type in NOT_BUILT:
        return Family(model_type, frequencies=NOT_BUILT[model_type], attention=NOT_BUILT[model_type])
    model = tiny_model(model_type)
    try:
        seams = tuple(find_rotary(model))
    except xt.ModelError as error:
        if "has no rotary embedding" in str(error):
            return Family(model_type)
        return Family(model_type, frequencies=str(error), attention=str(error))
    layouts: list[str] = []
    refusals: list[str | None] = []
    for strategy in (xt.Linear(factor=4), xt.ReRoPE(window=17)):
        try:
            with xt.patched(model, strategy, pretrained_length=length_of(model)) as handle:
                layouts = [seat.turn.layout for seat in seats(handle.model).values() if seat.turn is not None]
            refusals.append(None)
        except xt.ModelError as error:
            refusals.append(str(error).partition(": ")[2] or str(error))
    return Family(model_type, seams, tuple(dict.fromkeys(layouts)), *refusals)


def page(families: Iterable[Family]) -> str:
    """The families as a Markdown page."""
    every = list(families)
    rotary = [family for family in every if family.seams or family.frequencies]
    usable = [sum(getattr(family, seam) is None for family in rotary) for seam in ("frequencies", "attention")]
    lines = [
        "# Architectures",
        "",
        f"Made by `python -m experiments.families` with transformers {transformers.__version__}: a tiny random model "
        "of each causal language model whose code has a rotary embedding.",
        "",
        f"**{len(rotary)} architectures with rotary embeddings: frequencies can be changed in {usable[0]}, "
        f"positions in {usable[1]}.**",
        "",
        "| architecture | layer types with frequencies of their own | d | tables | pairs | frequencies | positions |",
        "|---|---|---|---|---|---|---|",
    ]
    for family in rotary:
        kinds = ", ".join(dict.fromkeys(seam.layer_type or "" for seam in family.seams)).strip(", ")
        cells = [
            f"`{family.model_type}`",
            kinds,
            ", ".join(dict.fromkeys(str(2 * seam.pairs) for seam in family.seams)),
            ", ".join(dict.fromkeys(seam.form.replace("_", " ") for seam in family.seams)),
            ", ".join(layout.replace("_", " ") for layout in family.layouts),
            "yes" if family.frequencies is None else family.frequencies,
            "yes" if family.attention is None else family.attention,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    without = [f"`{family.model_type}`" for family in every if family not in rotary]
    others = [f"`{name}`" for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name not in {f.model_type for f in every}]
    lines += [
        "",
        "No rotary embedding, though their code speaks of one: " + ", ".join(without) + ".",
        "",
        "No rotary embedding in their code: " + ", ".join(others) + ".",
        "",
    ]
    return "\n".join(lines)


@hydra.main(version_base="1.3", config_path="../conf", config_name="families")
def main(cfg: DictConfig) -> None:
    """Look at every architecture and write the page."""
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    console = Console()
    found = [look_at(name) for name in track(architectures(), "architectures", console=console, transient=True)]
    path = Path(to_absolute_path(cfg.output))
    write_atomic(path, page(found).encode())
    console.print(str(path), soft_wrap=True, highlight=False)


if __name__ == "__main__":
    run(main, "families")
