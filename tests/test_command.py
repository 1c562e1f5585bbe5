"""The one command: it starts what is asked for, and loads nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

import extrapolate as xt
from extrapolate.__main__ import COMMANDS, EXTRAS, main

ROOT = Path(__file__).parent.parent


def exit_code(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["extrapolate", *arguments])
    try:
        main()
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


@pytest.mark.parametrize(("asked", "code"), [("--help", 0), ("-h", 0), ("help", 0), (None, 2)])
def test_help_names_every_command(
    asked: str | None, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(monkeypatch, *([asked] if asked else [])) == code
    printed = capsys.readouterr().out
    assert all(f"  {name}" in printed and what in printed for name, what in COMMANDS.items())
    assert printed.count("  extrapolate ") >= 2  # examples


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"extrapolate {xt.__version__}\n"


def test_a_command_that_is_none_is_told_near_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(monkeypatch, "swep", "factor=2") == 2
    assert capsys.readouterr().err.startswith("error: there is no command 'swep'; did you mean sweep? there are sweep,")


@pytest.mark.parametrize("name", EXTRAS)
def test_what_needs_an_extra_says_which(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package, extra = EXTRAS[name]
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"extrapolate.commands.{name}", raising=False)
    for module in [m for m in sys.modules if m.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, module)
    assert exit_code(monkeypatch, name) == 2
    assert capsys.readouterr().err == f"error: extrapolate {name} needs {package}: pip install 'extrapolate[{extra}]'\n"


def test_help_and_import_load_neither_torch_nor_transformers_nor_hydra() -> None:
    code = (
        "import sys, runpy, extrapolate\n"
        "sys.argv = ['extrapolate', '--version']\n"
        "runpy.run_module('extrapolate.__main__', run_name='__main__')\n"
        "print([m for m in ('torch', 'transformers', 'hydra', 'pandas', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_command_has_its_file() -> None:
    files = {path.stem for path in (ROOT / "extrapolate" / "commands").glob("*.py")}
    assert set(COMMANDS) <= files
    for name in COMMANDS:  # under the name that it had first
        alias = (ROOT / "experiments" / f"{name}.py").read_text(encoding="utf-8")
        assert f"from extrapolate.commands.{name} import start" in alias


def test_every_public_name_is_loaded_on_first_use_and_none_other() -> None:
    assert set(xt.__all__) <= set(dir(xt))
    for name in xt.__all__:
        assert getattr(xt, name) is not None
    with pytest.raises(AttributeError, match="module 'extrapolate' has no attribute 'YARN'"):
        _ = xt.YARN
