"""Every YAML composes, instantiates, and spells out every field of what it builds."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.errors import InstantiationException
from hydra.utils import instantiate

import extrapolate as xt

CONF = Path(__file__).parent.parent / "conf"


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


@pytest.fixture(autouse=True)
def _conf() -> Iterator[None]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


@pytest.mark.parametrize("name", options("model"))
def test_every_model_instantiates_and_spells_out_every_field(name: str) -> None:
    cfg = compose("sweep", [f"model={name}", *(["model.path=some/model"] if name == "hf" else [])])
    checkpoint = instantiate(cfg.model)
    assert isinstance(checkpoint, xt.Checkpoint)
    keys = yaml.safe_load((CONF / "model" / f"{name}.yaml").read_text())
    assert set(keys) == {"_target_", *(field.name for field in dataclasses.fields(xt.Checkpoint))}


def test_the_checkpoints_of_the_field_are_there() -> None:
    paths = {compose("sweep", [f"model={n}"]).model.path for n in options("model") if n != "hf"}
    for part in (
        "smollm2",
        "meta-llama/Llama-2-7b",
        "Meta-Llama-3-8B",
        "Llama-3.1-8B",
        "Qwen2.5-0.5B",
        "Qwen2.5-7B",
        "Qwen3-8B",
        "Mistral-7B",
        "TinyLlama-1.1B",
        "OLMo-1B",
    ):
        assert sum(part in path for path in paths) == 1, part


@pytest.mark.parametrize("name", options("data"))
def test_every_corpus_instantiates_and_spells_out_every_field(name: str) -> None:
    missing = {"local": ["data.source.path=texts"], "hf": ["data.source.path=some/set"]}.get(name, [])
    cfg = compose("sweep", [f"data={name}", *missing])
    source = instantiate(cfg.data.source)
    assert hasattr(source, "texts")
    keys = yaml.safe_load((CONF / "data" / f"{name}.yaml").read_text())
    assert set(keys) == {"name", "source", "names", "documents", "seed"}
    assert keys["name"] == name
    assert set(keys["source"]) == {"_target_", *(field.name for field in dataclasses.fields(source))}


@pytest.mark.parametrize("name", options("strategy"))
@pytest.mark.parametrize("factor", [2, 4.0])
def test_every_strategy_instantiates(name: str, factor: float) -> None:
    missing = {"longrope": ["strategy.long_factor=[1,2,4]"]}.get(name, [])
    strategy = instantiate(compose("sweep", [f"strategy={name}", f"factor={factor}", *missing]).strategy)
    assert isinstance(strategy, xt.Strategy)
    assert strategy.name == {"compose": "yarn+resonance"}.get(name, name)
    assert strategy.parameters().get("factor", factor) == factor


def test_strategies_compose_on_the_command_line() -> None:
    chosen = ["strategy=compose", "strategy@strategy.first=ntk", "+strategy@strategy.third=plain", "factor=2"]
    with pytest.raises(InstantiationException, match="ntk ×2 and plain both set the frequencies"):
        instantiate(compose("sweep", chosen).strategy)
    strategy = instantiate(compose("sweep", [*chosen[:2], "strategy.first.factor=3"]).strategy)
    assert strategy == xt.compose(xt.NTK(factor=3), xt.Resonance())


@pytest.mark.parametrize("name", options("evaluation"))
def test_every_evaluation_instantiates_and_spells_out_every_field(name: str) -> None:
    evaluation = instantiate(compose("sweep", [f"evaluation={name}"]).evaluation)
    assert evaluation.name == name
    keys = yaml.safe_load((CONF / "evaluation" / f"{name}.yaml").read_text())
    assert set(keys) == {"_target_", *(field.name for field in dataclasses.fields(evaluation))}


@pytest.mark.parametrize("name", options("experiment"))
def test_every_experiment_composes_and_has_its_own_folder(name: str) -> None:
    cfg = compose("sweep", [f"experiment={name}"], return_hydra_config=True)
    assert cfg.name == name
    assert cfg.results == f"results/{name}"
    instantiate(cfg.evaluation)
    instantiate(cfg.model)
    instantiate(cfg.data.source)
    for strategy in cfg.hydra.sweeper.params.strategy.split(","):
        assert strategy.strip() in options("strategy")


def test_the_experiments_are_what_the_readme_says() -> None:
    quick, figure = (compose("sweep", [f"experiment={n}"]) for n in ("quickstart", "smollm2_32k"))
    assert (quick.factor, min(quick.evaluation.lengths), max(quick.evaluation.lengths)) == (2, 1024, 16384)
    assert (figure.factor, len(figure.evaluation.lengths), max(figure.evaluation.lengths)) == (4, 64, 32768)
    assert list(figure.data.names) == ["1981-Carter-1", "1980-Carter-1"]
