"""Copies of a patched model: they compute the same, and neither's restore touches the other."""

import copy
import io
import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import pytest
import torch

import extrapolate as xt
from tests.conftest import logits, tiny_model, tokens
from tests.test_patch import same, snapshot

STRATEGIES = {
    "frequencies": xt.YaRN(factor=4),
    "following the length": xt.DynamicNTK(factor=2),
    "positions": xt.SelfExtend(group=4, window=32),
    "composed": xt.compose(xt.NTK(factor=2), xt.DualChunk(), xt.LogN()),
}


def through_torch(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "cloudpickle": lambda model: pickle.loads(cloudpickle.dumps(model)),
    "torch.save": through_torch,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_a_copy_of_a_patched_model_computes_the_same_and_stands_alone(strategy: xt.Strategy, how: str) -> None:
    model, ids = tiny_model(), tokens(100)
    stock, before = logits(model, ids), snapshot(model)
    xt.patch(model, strategy)
    expected = logits(model, ids)
    other = COPIES[how](model)
    assert torch.equal(logits(other, ids), expected)
    assert other.save_pretrained.args == (other,)  # of the copy, not of the original
    xt.unpatch(other)
    assert torch.equal(logits(other, ids), stock)
    assert torch.equal(logits(model, ids), expected), "the original is still patched"
    third = COPIES[how](model)
    xt.unpatch(model)
    assert torch.equal(logits(model, ids), stock)
    assert same(snapshot(model), before)
    assert torch.equal(logits(third, ids), expected), "the copy is still patched"
    xt.patch(third, xt.Plain())
    assert torch.equal(logits(third, ids), stock)


def test_a_copy_saves_itself_with_its_strategy_while_the_original_is_restored(tmp_path: Path) -> None:
    model = tiny_model()
    xt.patch(model, xt.YaRN(factor=4))
    other = pickle.loads(pickle.dumps(model))
    xt.unpatch(model)
    for name, each in (("copy", other), ("original", model)):
        each.save_pretrained(tmp_path / name)
    types = [xt.Checkpoint(str(tmp_path / name)).spec().shipped_type for name in ("copy", "original")]
    assert types == ["yarn", "default"]


def told_by_a_child(content: bytes, ids: torch.Tensor, answers: Any) -> None:
    """In a process of its own: the logits of a pickled model, patched and restored."""
    model = pickle.loads(content)
    patched = logits(model, ids)
    xt.unpatch(model)
    answers.put((patched.numpy(), logits(model, ids).numpy()))


@pytest.mark.parametrize("name", ["frequencies", "composed"])
def test_a_spawned_process_that_has_patched_nothing_runs_it(name: str) -> None:
    model, ids = tiny_model(), tokens(100)
    stock = logits(model, ids)
    xt.patch(model, STRATEGIES[name])
    spawn = multiprocessing.get_context("spawn")
    answers = spawn.Queue()
    child = spawn.Process(target=told_by_a_child, args=(pickle.dumps(model), ids, answers))
    child.start()
    patched, restored = answers.get(timeout=120)
    child.join()
    torch.testing.assert_close(torch.from_numpy(patched), logits(model, ids), rtol=0, atol=1e-4)
    torch.testing.assert_close(torch.from_numpy(restored), stock, rtol=0, atol=1e-4)
