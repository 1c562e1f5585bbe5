"""Names that do not exist are errors that tell near ones, for every command and group; nothing runs."""

import runpy
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from extrapolate.commands.names import CONF, misspelt, run, unknown_fields

COMMANDS = {
    "sweep": "factr=2",
    "search": "trails=3",
    "plot": "result=x",
    "report": "tilte=x",
    "verify": "ouput=x",
    "families": "ouput=x",
    "benchmark": "lenght=64",
    "pretrain": "vocabulry=64",
    "position_encodings": "encodngs=[rope]",
}
"""Every command that Hydra composes, and a misspelt setting of it."""

GROUPS = [
    ("sweep", ["model=smolm2"], "smollm2"),
    ("sweep", ["strategy=yarnn"], "yarn"),
    ("sweep", ["data=sotoo"], "sotu"),
    ("sweep", ["evaluation=needel"], "needle"),
    ("sweep", ["experiment=smok"], "smoke"),
    ("sweep", ["hydra/launcher=jobib"], "joblib"),
    ("sweep", ["-m", "strategy=plain,yran,linear"], "yarn"),
    ("sweep", ["strategy=compose", "strategy@strategy.first=yarrn"], "yarn"),
    ("sweep", ["strategy=compose", "+strategy@strategy.third=logn"], "log_n"),
    ("search", ["search=long_rope"], "longrope"),
    ("search", ["model=bundle"], "bundled"),
]


def test_every_command_is_asked() -> None:
    assert {path.stem for path in CONF.glob("*.yaml")} == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_misspelt_setting_of_any_command_is_found_with_the_near_one(name: str) -> None:
    (problem,) = misspelt(name, [COMMANDS[name]])
    wrong = COMMANDS[name].partition("=")[0]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        settings = list(compose(name))
    assert problem.startswith(f"{COMMANDS[name]}: there is no setting {wrong!r}; did you mean ")
    assert problem.endswith("there are " + ", ".join(map(str, settings)))


@pytest.mark.parametrize(("command", "arguments", "near"), GROUPS, ids=[" ".join(a) for _, a, _ in GROUPS])
def test_an_option_that_a_group_has_not_is_found_with_the_near_one(
    command: str, arguments: list[str], near: str
) -> None:
    (problem,) = misspelt(command, arguments)
    assert f"did you mean {near}" in problem
    assert "there are " in problem


def test_every_group_is_asked() -> None:
    groups = {path.parent.relative_to(CONF).as_posix() for path in CONF.glob("*/*.yaml")} - {"hydra"}
    asked = {argument.lstrip("+").partition("=")[0].partition("@")[0] for _, a, _ in GROUPS for argument in a}
    assert groups | {"hydra/launcher"} <= asked


@pytest.mark.parametrize(
    "arguments",
    [
        ["experiment=smoke", "factor=4"],
        ["-m", "strategy=yarn,string", "strategy.window=512"],  # of some jobs only: the plan tells
        [
            "strategy=compose",
            "strategy@strategy.first=yarn",
            "+strategy@strategy.third=log_n",
            "strategy.first.factor=3",
        ],
        ["model=hf", "model.path=some/model", "data=local", "data.source.path=texts"],
        ["+evaluation.hello=1"],  # a field of a class: looked at with all the others
        ["hydra.job.chdir=true", "~layers"],
        ["--help"],
        ["strategy=[yarn"],  # no override at all: Hydra's own message shows where
        ["-m", "strategy=glob(*)"],
        ["evaluation=key_tokens", "evaluation.short=64"],
    ],
    ids=" ".join,
)
def test_what_exists_is_let_through(arguments: list[str]) -> None:
    assert misspelt("sweep", arguments) == []


def test_names_of_another_folder_exist_too(tmp_path: Path) -> None:
    (tmp_path / "strategy").mkdir()
    (tmp_path / "strategy" / "found.yaml").write_text("_target_: extrapolate.Plain\n")
    assert misspelt("sweep", ["--config-dir", str(tmp_path), "strategy=found"]) == []
    (problem,) = misspelt("sweep", ["--config-dir", str(tmp_path), "strategy=fund"])
    assert "did you mean found" in problem


def test_a_field_of_a_group_is_found_with_the_near_one() -> None:
    (problem,) = misspelt("sweep", ["strategy=yarn", "strategy.beta_fst=3"])
    assert "there is no setting 'strategy.beta_fst'; did you mean beta_fast" in problem


def test_a_field_that_a_class_has_not_is_found_at_any_depth() -> None:
    node = OmegaConf.create(
        {
            "_target_": "extrapolate.compose",
            "first": {"_target_": "extrapolate.YaRN", "factor": 4, "beta_fst": 3},
            "then": {"_target_": "extrapolate.Resonance", "hello": 1},
        }
    )
    first, then = unknown_fields(node, "strategy")
    assert first.startswith("strategy.first.beta_fst: YaRN has no field 'beta_fst'; did you mean beta_fast")
    assert then == "strategy.then.hello: Resonance has no field 'hello'; there are none"
    (missing,) = unknown_fields(OmegaConf.create({"_target_": "extrapolate.YaRRN"}), "strategy")
    assert missing.startswith("strategy._target_: there is no extrapolate.YaRRN")


def test_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    ran: list[int] = []
    with pytest.raises(SystemExit) as stopped:
        run(lambda: ran.append(1), "sweep", ["experiment=nosuch", "model=nosuch"])
    assert (stopped.value.code, ran) == (2, [])
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(";")[0] for line in lines] == [
        "error: experiment=nosuch: there is no experiment 'nosuch'",
        "error: model=nosuch: there is no model 'nosuch'",
    ]
    run(lambda: ran.append(1), "sweep", ["experiment=smoke"])
    assert ran == [1]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_itself_exits_with_2_and_leaves_nothing(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, COMMANDS[name]])
    monkeypatch.delitem(sys.modules, f"experiments.{name}", raising=False)  # as when it is the command
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module(f"experiments.{name}", run_name="__main__")
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {COMMANDS[name]}: there is no setting")
    assert not list(tmp_path.iterdir())
