"""What the wheel holds: every package of the tree, every YAML, the template and the small model."""

import tomllib
from pathlib import Path

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
