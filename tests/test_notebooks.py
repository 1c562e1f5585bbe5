"""Notebooks run from top to bottom on what the package ships, and carry no outputs under version control."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return found


def test_there_are_six() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{i}_" for i in range(1, 7)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_outputs_are_stripped(path: Path) -> None:
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    assert code
    for cell in code:
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
    assert not any(cell["metadata"] for cell in cells(path))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_begins_with_its_title_and_asserts_what_it_says(path: Path) -> None:
    first = cells(path)[0]
    assert first["cell_type"] == "markdown"
    assert first["source"][0].startswith("# ")
    assert any("assert " in "".join(cell["source"]) for cell in cells(path) if cell["cell_type"] == "code")


@pytest.mark.notebooks
@pytest.mark.filterwarnings("default")  # the kernel's and its client's own
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs_and_shows_what_it_draws(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbclient
    import nbformat

    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # two of them run side by side
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    nbclient.NotebookClient(notebook, timeout=150, kernel_name="python3", resources=resources).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    shown = [output.get("data", {}) for cell in code for output in cell.outputs]
    drawn = [data for data in shown if "image/png" in data]
    last_words = [cell.source.rstrip().splitlines()[-1] for cell in code]
    asked = sum(line.startswith("xt.plots.") or line == "figure" for line in last_words)
    assert len(drawn) == asked
    if path.name.startswith("2"):  # the slider: frames that are in the page
        (page,) = [data["text/html"] for data in shown if "<input" in data.get("text/html", "")]
        assert page.count("data:image/png;base64") == 11
