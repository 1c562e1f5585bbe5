"""Absolute, relative, rotary: the comparison RoFormer makes, on one body, trained short and measured long.

Every model is the same Llama trained on the same batches; they differ only in how they know of positions. RoPE is the
body's own; all others have its rotation taken out (``NoPE``) and their signal put in: vectors added to the embeddings,
or a bias added to attention scores, each made by transformers' own code for it. An encoding that cannot run past its
table is reported as such.

python -m experiments.position_encodings
"""

import contextlib
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import pandas as pd
import torch
from hydra.utils import instantiate, to_absolute_path
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from torch import Tensor, nn
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.xglm.modeling_xglm import XGLMSinusoidalPositionalEmbedding

import extrapolate as xt
from experiments import training
from extrapolate.commands.names import run as command
from extrapolate.errors import EvaluationError
from extrapolate.storage import digest, new_folder

log = logging.getLogger("extrapolate")

BUCKETS, FARTHEST = 32, 128
"""T5's relative buckets, and the distance from which all are one."""


class Signal(nn.Module):
    """What a model is told of positions; nothing unless a subclass says otherwise."""

    scale = 1.0
    """Factor on the token embeddings."""

    def added(self, length: int) -> Tensor | None:  # noqa: ARG002
        """(T, hidden) to add to the embeddings."""
        return None

    def bias(self, length: int) -> Tensor | None:  # noqa: ARG002
        """(heads, T, T) to add to the attention scores, query by key."""
        return None


class Learned(Signal):
    """One trained vector a position, as in GPT-2: there is none past the table."""

    def __init__(self, positions: int, hidden: int) -> None:
        super().__init__()
        self.table = nn.Embedding(positions, hidden)
        nn.init.normal_(self.table.weight, std=0.02)

    def added(self, length: int) -> Tensor:
        """The first rows of the table.

        Raises:
            EvaluationError: when the text is longer than the table.
        """
        if length > self.table.num_embeddings:
            raise EvaluationError(f"learned: has {self.table.num_embeddings} positions, cannot run at length {length}")
        found: Tensor = self.table(torch.arange(length))
        return found


class Sinusoidal(Signal):
    """Vaswani et al.'s fixed sines and cosines (arXiv 1706.03762), as in XGLM, which scales embeddings by sqrt(d)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden, self.scale = hidden, math.sqrt(hidden)

    def added(self, length: int) -> Tensor:
        """Computed anew for every length."""
        found: Tensor = XGLMSinusoidalPositionalEmbedding.get_embedding(length, self.hidden)
        return found


class T5Bias(Signal):
    """T5's trained bias for each head and bucket of relative positions (arXiv 1910.10683)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.table = nn.Embedding(BUCKETS, heads)
        nn.init.normal_(self.table.weight, std=0.02)

    def bias(self, length: int) -> Tensor:
        """One number a head and distance; all far distances share one."""
        index = torch.arange(length)
        bucket = T5Attention._relative_position_bucket(
            index[None, :] - index[:, None], bidirectional=False, num_buckets=BUCKETS, max_distance=FARTHEST
        )
        found: Tensor = self.table(bucket).permute(2, 0, 1)
        return found


class ALiBi(Signal):
    """Press et al.'s linear penalty on distance, a slope for each head (arXiv 2108.12409), as in BLOOM."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.slopes: Tensor = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]  # (heads,)

    def bias(self, length: int) -> Tensor:
        """``-slope·(m - n)``."""
        index = torch.arange(length)
        return -self.slopes[:, None, None] * (index[:, None] - index[None, :])


class Positioned(nn.Module):
    """A Llama without rotation that knows of positions what its signal tells it."""

    def __init__(self, body: Any, signal: Signal) -> None:
        super().__init__()
        self.body, self.signal, self.config = body, signal, body.config

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> Any:
        """As the body's own forward, (batch, T) token ids."""
        length = input_ids.shape[1]
        x = self.body.get_input_embeddings()(input_ids) * self.signal.scale
        added, bias = self.signal.added(length), self.signal.bias(length)
        if added is not None:
            x = x + added
        if bias is None:
            return self.body(inputs_embeds=x, use_cache=use_cache)
        mask = torch.full((length, length), -torch.inf).triu(1) + bias
        return self.body(inputs_embeds=x, attention_mask=mask[None].to(x.dtype), use_cache=use_cache)


ENCODINGS = ("learned", "sinusoidal", "t5_bias", "alibi", "rope", "none")


def build(name: str, shape: dict[str, Any], tokenizer: Any, length: int, seed: int) -> Any:
    """A model with one of :data:`ENCODINGS`; the body's weights are the same for all."""
    # the name in the config is part of what a checkpoint is recognised by
    body = training.fresh_llama(shape, tokenizer, seed, max_position_embeddings=length, position_encoding=name)
    config = body.config
    if name == "rope":
        return body
    xt.patch(body, xt.NoPE())
    signals: dict[str, Callable[[], Signal]] = {
        "learned": lambda: Learned(length, config.hidden_size),
        "sinusoidal": lambda: Sinusoidal(config.hidden_size),
        "t5_bias": lambda: T5Bias(config.num_attention_heads),
        "alibi": lambda: ALiBi(config.num_attention_heads),
        "none": Signal,
    }
    return Positioned(body, signals[name]())


@torch.no_grad()
def losses_by_position(model: Any, documents: Tensor) -> Tensor:
    """Loss of each position 1…T-1, averaged over documents (n, T): (T-1,) float64, nats."""
    total = torch.zeros(documents.shape[1] - 1, dtype=torch.float64)
    for document in documents:
        logits = model(input_ids=document[None], use_cache=False).logits[0, :-1].float()
        total += nn.functional.cross_entropy(logits, document[1:], reduction="none").double()
    return total / len(documents)


def measure(name: str, model: Any, documents: Tensor, trained: int, factors: list[int]) -> list[dict[str, Any]]:
    """A model's losses at each multiple of its trained length, one row for each: one pass at the longest serves all.

    RoPE is measured under NTK and YaRN as well, at the largest factor.
    """
    longest = trained * max(factors)
    ways: dict[str, xt.Strategy | None] = {name: None}
    if name == "rope":
        s = max(factors)
        ways |= {f"rope, NTK ×{s}": xt.NTK(factor=s), f"rope, YaRN ×{s}": xt.YaRN(factor=s)}
    rows: list[dict[str, Any]] = []
    for curve, strategy in ways.items():
        length = longest
        with contextlib.nullcontext() if strategy is None else xt.patched(model, strategy):
            try:
                losses = losses_by_position(model, documents[:, :longest])
            except EvaluationError as error:
                reason, length = str(error), trained
                losses = losses_by_position(model, documents[:, :trained])
        for factor in factors:
            end = factor * trained
            row = {"encoding": curve, "factor": factor, "length": end}
            if end <= length:
                mean, last = losses[: end - 1].mean().item(), losses[end // 2 : end - 1].mean().item()
                rows.append({**row, "loss": mean, "loss_of_last_half": last, "status": "ok"})
            else:
                rows.append({**row, "loss": math.nan, "loss_of_last_half": math.nan, "status": reason})
        rows[-1]["losses"] = losses  # of the curve, for the figure
    return rows


def run(cfg: DictConfig) -> pd.DataFrame:
    """Train and measure every encoding asked for; a model that is trained already is only measured."""
    unknown = set(cfg.encodings) - set(ENCODINGS)
    if unknown:
        raise SystemExit(f"error: unknown encodings {', '.join(sorted(unknown))}; there are {', '.join(ENCODINGS)}")
    folder = Path(to_absolute_path(cfg.output))
    recipe: training.Recipe = instantiate(cfg.recipe)
    shape: Any = OmegaConf.to_container(cfg.model, resolve=True)
    texts, held_out = training.split(cfg.held_out_digit)
    tokenizer = training.train_tokenizer(texts[: cfg.texts], cfg.vocabulary)
    text = training.stream(texts[: cfg.texts], tokenizer)
    long = [ids for ids in training.texts_of(held_out, tokenizer) if ids.numel() >= recipe.length * max(cfg.factors)]
    documents = torch.stack([ids[: recipe.length * max(cfg.factors)] for ids in long[: cfg.documents]])
    windows = training.held_out_windows(long, recipe.length)
    rows = []
    for name in cfg.encodings:
        model = build(name, shape, tokenizer, recipe.length, recipe.seed)
        records = training.fit(model, text, windows, recipe, folder / name, name)
        for row in measure(name, model, documents, recipe.length, list(cfg.factors)):
            rows.append(
                {**row, "held_out_loss": records[-1]["held_out"], "training_seconds": training.seconds_of(records)}
            )
        log.info("%s: held-out loss %.3f", name, records[-1]["held_out"])
    return pd.DataFrame(rows)


@hydra.main(version_base="1.3", config_path="../conf", config_name="position_encodings")
def main(cfg: DictConfig) -> None:
    """Train, measure, print, draw, store."""
    table = run(cfg)
    folder = Path(to_absolute_path(cfg.output))
    trained = int(cfg.recipe.length)
    curves = {row["encoding"]: row["losses"] for row in table.to_dict("records") if isinstance(row["losses"], Tensor)}
    long = pd.concat(
        [
            pd.DataFrame({"curve": name, "position": range(1, len(losses) + 1), "loss": losses.tolist()})
            for name, losses in curves.items()
        ]
    )
    table = table.drop(columns="losses")
    with new_folder(folder / digest(OmegaConf.to_container(cfg, resolve=True))[:12]) as aside:
        table.to_csv(aside / "scores.csv", index=False)
        long.to_csv(aside / "loss_by_position.csv", index=False)
        figure = xt.plots.loss_by_position(long, trained_length=trained, first=trained // 8)
        figure.savefig(aside / "loss_by_position.png", dpi=200)
    wide = table.pivot_table(index="encoding", columns="length", values="loss_of_last_half", sort=False, dropna=False)
    console = Console()
    console.print("loss of the last half of each length, nats a token")
    console.print(wide.round(3).to_string())
    for row in table[table["status"] != "ok"].drop_duplicates("encoding").to_dict("records"):
        console.print(f"[yellow]{row['status']}[/yellow]")
    console.print(str(folder), soft_wrap=True, highlight=False)


if __name__ == "__main__":
    command(main, "position_encodings")
