"""Measure what the README claims of time and memory: ratios, side by side in one run.

Machines are noisy: the two sides of a ratio alternate, and the least time of each counts. Memory is the peak resident
set of a fresh process, read from the operating system.

python -m experiments.benchmark
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import pandas as pd
import torch
import transformers
from hydra.utils import to_absolute_path
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

import extrapolate as xt
from extrapolate.commands.names import run
from extrapolate.storage import write_atomic

DOCUMENT = "1981-Carter-1"


def curve(cfg: DictConfig) -> list[dict[str, Any]]:
    """A whole perplexity curve against one bare pass of body and head at its longest length."""
    checkpoint = xt.Checkpoint("smollm2", dtype="bfloat16")
    model: Any = checkpoint.model()
    documents = xt.load_documents(xt.Sotu(), checkpoint.tokenizer(), names=[DOCUMENT], min_tokens=cfg.length)
    step = cfg.length // cfg.curve_points
    evaluation = xt.Perplexity(lengths=list(range(step, cfg.length + 1, step)))
    one = documents[0].ids[None, : cfg.length]

    def whole_curve() -> None:
        scores = evaluation.scores(evaluation.measure(model, documents))
        assert len(scores) == cfg.curve_points

    def one_pass() -> None:
        xt.token_losses(model, one)

    @torch.no_grad()
    def stock_body() -> None:
        model.base_model(input_ids=one, use_cache=False)

    seconds = alternate({"curve": whole_curve, "pass": one_pass, "body": stock_body}, cfg.repeats)
    what = f"{cfg.curve_points} lengths to {cfg.length:,}"
    return [
        row(f"{what}: curve / one pass", seconds["curve"] / seconds["pass"], "×", "at most 1.05"),
        row("one pass of token_losses / stock body alone", seconds["pass"] / seconds["body"], "×", ""),
        row("one pass of token_losses", seconds["pass"], "s", ""),
    ]


def memory(cfg: DictConfig) -> list[dict[str, Any]]:
    """Peak resident memory of one SmolLM2 pass, everything included, against the logits it never holds."""
    code = (
        "import extrapolate as xt\n"
        "model, tokenizer = xt.load_model('smollm2', dtype='bfloat16')\n"
        f"(document,) = xt.load_documents(xt.Sotu(), tokenizer, names=['{DOCUMENT}'])\n"
        f"with xt.patched(model, xt.YaRN(factor=4)): xt.token_losses(model, document.ids[None, :{cfg.length}])\n"
    )
    peak = peak_of(code)
    all_logits = cfg.length * 49152 * 4 / 2**30
    return [
        row(f"SmolLM2, {cfg.length:,} tokens, bfloat16: peak resident memory", peak, "GiB", "at most 2 GB (1.86 GiB)"),
        row("float32 logits of all positions / that peak", all_logits / peak, "×", ""),
    ]


def bands(cfg: DictConfig) -> list[dict[str, Any]]:
    """Passes under strategies of positions against plain: time side by side, peak memory in fresh processes."""
    checkpoint = xt.Checkpoint("smollm2", dtype="bfloat16")
    model: Any = checkpoint.model()
    documents = xt.load_documents(xt.Sotu(), checkpoint.tokenizer(), names=[DOCUMENT], min_tokens=cfg.bands_length)
    one = documents[0].ids[None, : cfg.bands_length]
    group = xt.SelfExtend().at(checkpoint.spec(), cfg.bands_length)
    strategies = {"self_extend": group, "dual_chunk": xt.DualChunk(), "attention_sinks": xt.AttentionSinks()}

    def under(strategy: xt.Strategy) -> Callable[[], None]:
        def run() -> None:
            with xt.patched(model, strategy):
                xt.token_losses(model, one)

        return run

    sides: dict[str, Callable[[], None]] = {"plain": under(xt.Plain())}
    seconds = alternate(sides | {name: under(strategy) for name, strategy in strategies.items()}, cfg.repeats)
    what = f"{cfg.bands_length:,} tokens, bfloat16"
    rows = [row(f"plain, {what}", seconds["plain"], "s", "")]
    for name in strategies:
        goal = "at most 1.6" if name == "self_extend" else ""
        rows.append(row(f"{name} / plain, {what}", seconds[name] / seconds["plain"], "×", goal))
    code = (
        "import extrapolate as xt\n"
        "model, tokenizer = xt.load_model('smollm2', dtype='bfloat16')\n"
        f"(document,) = xt.load_documents(xt.Sotu(), tokenizer, names=['{DOCUMENT}'])\n"
        f"with xt.patched(model, xt.{{}}): xt.token_losses(model, document.ids[None, :{cfg.bands_length}])\n"
    )
    plain = peak_of(code.format("Plain()"))
    rows.append(row(f"plain, {what}: peak resident memory", plain, "GiB", ""))
    for name, strategy in strategies.items():
        more = (peak_of(code.format(repr(strategy))) - plain) * 2**10
        rows.append(row(f"{name}: more than that", more, "MiB", "at most 600 MB (572 MiB)"))
    return rows


def vocabulary(cfg: DictConfig) -> list[dict[str, Any]]:
    """Growth of resident memory over a pass of a tiny model with a vocabulary of 151,936."""
    prepare = (
        "import torch, transformers, extrapolate as xt\n"
        "config = transformers.LlamaConfig(vocab_size=151936, hidden_size=64, intermediate_size=128,"
        " num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)\n"
        "model = transformers.AutoModelForCausalLM.from_config(config).eval()\n"
        f"ids = torch.randint(0, 151936, (1, {cfg.vocabulary_length}))\n"
    )
    before = peak_of(prepare + "xt.token_losses(model, ids[:, :64])\n")
    after = peak_of(prepare + "xt.token_losses(model, ids)\n")
    logits = cfg.vocabulary_length * 151936 * 4 / 2**30
    return [
        row(
            f"vocabulary 151,936, {cfg.vocabulary_length:,} tokens: growth of memory",
            after - before,
            "GiB",
            "below 1 GB",
        ),
        row("its float32 logits, which are never held", logits, "GiB", ""),
    ]


def load(cfg: DictConfig) -> list[dict[str, Any]]:  # noqa: ARG001
    """A second load of the GGUF model against dequantising it anew."""

    def cached() -> None:
        xt.load_model("smollm2", dtype="bfloat16")

    def anew() -> None:
        from unittest import mock

        with tempfile.TemporaryDirectory() as empty, mock.patch.dict("os.environ", EXTRAPOLATE_CACHE=empty):
            xt.load_model("smollm2", dtype="bfloat16")

    cached()
    seconds = alternate({"cached": cached, "anew": anew}, 1)
    return [
        row("second load of the GGUF model", seconds["cached"], "s", "below 6"),
        row("first load / second load", seconds["anew"] / seconds["cached"], "×", ""),
    ]


def sweep(cfg: DictConfig) -> list[dict[str, Any]]:
    """What a sweep of 12 cells of SmolLM2 takes beside its measurements: imports, loading, writing, tables, figures."""
    lengths = [cfg.sweep_length // 4, cfg.sweep_length]
    settings = ["model=smollm2", "model.dtype=bfloat16", "data.documents=1", f"evaluation.lengths={lengths}"]
    whole, cells = swept("strategy=linear,ntk,yarn", "factor=2,4,8,16", *settings)
    assert len(cells) == 12
    what = f"sweep of 12 cells to {cfg.sweep_length:,} tokens"
    return [
        row(f"{what}: time that is no measurement", 100 * (whole - cells.sum()) / whole, "%", "at most 3"),
        row(f"{what}: its measurements", cells.sum(), "s", ""),
    ]


def processes(cfg: DictConfig) -> list[dict[str, Any]]:
    """Two joblib processes of half the cores each against one process of all, over 8 cells of the bundled model."""
    settings = ["strategy=ntk,yarn", "factor=2,4,8,16", "model=bundled", "data.documents=16"]
    settings.append(f"evaluation.lengths=[{cfg.processes_length}]")

    def side(name: str) -> Callable[[], None]:
        def run() -> None:
            _, cells = swept(*settings, f"hydra/launcher={name}")
            assert len(cells) == 8

        return run

    seconds = alternate({name: side(name) for name in ("basic", "joblib")}, cfg.repeats)
    what = f"sweep of 8 cells of the bundled model, 16 documents to {cfg.processes_length:,} tokens"
    return [
        row(f"{what}: two processes / one", seconds["joblib"] / seconds["basic"], "×", "at most 1"),
        row(f"{what}: one process", seconds["basic"], "s", ""),
    ]


def swept(*arguments: str) -> tuple[float, pd.Series]:
    """Seconds that a sweep took, imports included, and those of its cells' measurements."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "experiments.sweep", "-m", *arguments, f"results={folder}/results"]
        started = time.perf_counter()
        subprocess.run(command, cwd=folder, env=here(), check=True, capture_output=True)
        whole = time.perf_counter() - started
        return whole, xt.read_results(f"{folder}/results").groupby("key")["seconds"].first()


def here() -> dict[str, str]:
    """The environment of a command that finds these modules from another folder."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}


def alternate(sides: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Least seconds of each side, run in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            started = time.perf_counter()
            side()
            seconds[name].append(time.perf_counter() - started)
    return {name: min(values) for name, values in seconds.items()}


def peak_of(code: str) -> float:
    """Peak resident memory of a fresh Python process that runs ``code``, in GiB."""
    # getrusage would begin at the peak of the process that started this one; Linux's VmHWM begins anew
    report = (
        "\nimport pathlib, re, resource; status = pathlib.Path('/proc/self/status')"
        "\nfound = re.search(r'VmHWM:\\s+(\\d+)', status.read_text() if status.exists() else '')"
        "\nprint('PEAK', found[1] if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True)
    kibibytes = int(done.stdout.rsplit("PEAK", 1)[1])
    return kibibytes / 2**20 if sys.platform != "darwin" else kibibytes / 2**30  # macOS reports bytes


def row(what: str, value: float, unit: str, goal: str) -> dict[str, Any]:
    """One measured number."""
    return {"what": what, "value": value, "unit": unit, "goal": goal}


@hydra.main(version_base="1.3", config_path="../conf", config_name="benchmark")
def main(cfg: DictConfig) -> None:
    """Run the benchmarks, print and store them."""
    transformers.utils.logging.disable_progress_bar()
    console = Console()
    every = {"curve": curve, "memory": memory, "bands": bands, "vocabulary": vocabulary, "load": load}
    every |= {"sweep": sweep, "processes": processes}
    names = list(cfg.only) if cfg.only else list(every)
    unknown = set(names) - set(every)
    if unknown:
        raise SystemExit(f"error: unknown benchmark {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    measured = []
    for name in names:
        console.print(f"[dim]{name} …[/dim]")
        measured += every[name](cfg)
    machine = f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
    table = Table(title=f"{machine}, torch {torch.__version__}")
    for column in ("measured", "value", "goal"):
        table.add_column(column, justify="right" if column == "value" else "left")
    for item in measured:
        table.add_row(item["what"], f"{item['value']:.3g} {item['unit']}", item["goal"])
    console.print(table)
    path = Path(to_absolute_path(cfg.output))
    write_atomic(path, json.dumps(measured, indent=1, ensure_ascii=False).encode())
    console.print(str(path))


if __name__ == "__main__":
    run(main, "benchmark")
