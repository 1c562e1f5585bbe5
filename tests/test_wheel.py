"""What the wheel holds: every package of the tree, every YAML, the template and the small model."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from extrapolate.__main__ import COMMANDS, EXTRAS

ROOT = Path(__file__).parent.parent
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_package_of_the_tree_is_in_the_wheel() -> None:
    folders = {path.parent for path in (ROOT / "extrapolate").rglob("*.py")}
    packages = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert set(SETUP["tool"]["setuptools"]["packages"]) == packages | {"extrapolate.conf", "hydra_plugins"}


def test_every_other_file_is_in_the_wheel() -> None:
    patterns = SETUP["tool"]["setuptools"]["package-data"]
    places = {"extrapolate": ROOT / "extrapolate", "extrapolate.conf": ROOT / "conf"}
    places["extrapolate.reports"] = ROOT / "extrapolate" / "reports"
    assert set(patterns) == set(places)
    taken = {path for name, globs in patterns.items() for glob in globs for path in places[name].glob(glob)}
    files = [path for folder in ("extrapolate", "conf") for path in (ROOT / folder).rglob("*") if path.is_file()]
    left = [path for path in files if path.suffix not in (".py", ".pyc") and path not in taken]
    assert not left


def test_the_command_is_declared() -> None:
    assert SETUP["project"]["scripts"] == {"extrapolate": "extrapolate.__main__:main"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and sdist, built from a copy of the tree."""
    tree, dist = tmp_path_factory.mktemp("tree") / "project", tmp_path_factory.mktemp("dist")
    for folder in ("extrapolate", "conf", "hydra_plugins"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tree / file)
    asked(sys.executable, "-m", "build", "--outdir", dist, tree)
    return dist


@pytest.fixture(scope="module")
def empty(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel, without extras and without this tree."""
    folder = tmp_path_factory.mktemp("environment")
    asked(sys.executable, "-m", "venv", folder)
    (wheel,) = built.glob("*.whl")
    pip = (folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    asked(*pip, "-c", ROOT / "constraints.txt", wheel)
    return folder / "bin"


def asked(*words: str | Path, cwd: Path | None = None, code: int = 0) -> str:
    """Run a program without this tree in its path; what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**environment, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


SMALL = ("data.names=[1885-Cleveland-1]", "evaluation.lengths=[128,512]")


@pytest.mark.wheel
def test_pypi_would_take_both(built: Path) -> None:
    files = sorted(built.iterdir())
    assert [path.suffix for path in files] == [".whl", ".gz"]
    assert asked(sys.executable, "-m", "twine", "check", "--strict", *files).count("PASSED") == 2


@pytest.mark.wheel
def test_the_wheel_sweeps_from_an_empty_folder(empty: Path, tmp_path: Path) -> None:
    command = empty / "extrapolate"
    printed = asked(command, "sweep", "experiment=smoke", cwd=tmp_path)
    assert "4 computed, 0 reused, 0 failed" in printed
    assert "Warning" not in printed
    assert (tmp_path / "results" / "smoke" / "perplexity_by_length.png").stat().st_size > 10_000
    assert {path.name for path in tmp_path.iterdir()} == {"results"}
    assert "4 cells" in asked(command, "results", "list", cwd=tmp_path)
    assert "perplexity_by_length.png" in asked(command, "plot", "results=results/smoke", cwd=tmp_path)
    asked(command, "report", "results=results/smoke", cwd=tmp_path)
    assert (tmp_path / "results" / "smoke" / "report.html").stat().st_size > 50_000
    again = asked(command, "sweep", "experiment=smoke", "strategy=plain,ntk", cwd=tmp_path)
    assert "0 computed, 2 reused, 0 failed" in again
    code = (
        "import extrapolate as xt\n"
        "evaluation = xt.Perplexity(lengths=[128, 256, 512, 1024, 2048, 4096])\n"
        "table = xt.sweep('bundled', [xt.Plain(), xt.NTK(factor=8)], evaluation, xt.Sotu(), "
        f"names={smoke_names()!r}, results='results/smoke', progress=False)\n"
        "print(len(table), table['finished'].max())"
    )
    before = asked(command, "results", "list", cwd=tmp_path)
    assert asked(empty / "python", "-c", code, cwd=tmp_path).startswith("12 ")
    assert asked(command, "results", "list", cwd=tmp_path) == before  # none was computed


def smoke_names() -> list[str]:
    conf = yaml.safe_load((ROOT / "conf" / "experiment" / "smoke.yaml").read_text(encoding="utf-8"))
    return list(conf["data"]["names"])


@pytest.mark.wheel
def test_a_folder_of_the_users_own_is_added(empty: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    for group in ("strategy", "experiment"):
        (mine / group).mkdir(parents=True)
    (mine / "strategy" / "half.yaml").write_text("_target_: half.Half\nfactor: ${factor}\n")
    (mine / "experiment" / "ours.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /model: bundled\n  - override /strategy: half\n"
        "name: ours\nfactor: 2.0\n"
    )
    (tmp_path / "half.py").write_text(
        "from dataclasses import dataclass\nimport extrapolate as xt\n"
        "@dataclass(frozen=True)\nclass Half(xt.Strategy):\n    factor: float = 2.0\n"
        "    def frequencies(self, rope, length):\n        return xt.Frequencies(rope.shipped.inv_freq / self.factor)\n"
    )
    python = empty / "python"
    code = "import sys; sys.path.insert(0, '.'); from extrapolate.__main__ import main; main()"
    words = ("sweep", "--config-dir", "mine", "experiment=ours", *SMALL)
    printed = asked(python, "-c", code, *words, cwd=tmp_path)
    assert "1 computed, 0 reused, 0 failed" in printed
    assert "half ×2" in printed
    wrong = asked(python, "-c", code, "sweep", "--config-dir", "mine", "experiment=oures", cwd=tmp_path, code=2)
    assert "did you mean ours" in wrong


@pytest.mark.wheel
@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_a_command_does_with_two_examples(empty: Path, tmp_path: Path, name: str) -> None:
    code = 2 if name in EXTRAS else 0
    printed = asked(empty / "extrapolate", name, "--help", cwd=tmp_path, code=code)
    if name in EXTRAS:
        assert f"pip install 'extrapolate[{EXTRAS[name][1]}]'" in printed
        printed = asked(Path(sys.executable).parent / "extrapolate", name, "--help", cwd=tmp_path)
    assert printed.count(f"extrapolate {name} ") >= 2
    assert not list(tmp_path.iterdir())
