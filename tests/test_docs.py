"""Published tables follow from their raw rows by today's code."""

import io
from pathlib import Path

import pandas as pd
import pytest

import extrapolate as xt
from extrapolate.reports.conclusions import CONCLUSIONS, conclusions

DOCS = Path(__file__).parent.parent / "docs"
PUBLISHED = sorted(
    path for name in CONCLUSIONS for path in DOCS.rglob(f"{name}.csv") if (path.parent / "scores.csv").exists()
)


def test_there_are_some() -> None:
    assert {path.stem for path in PUBLISHED} >= {"verdicts", "short_context_costs", "usable_lengths", "context_gains"}


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_published_table_is_what_its_raw_rows_give(path: Path) -> None:
    # renew: python -m experiments.plot results=docs/FOLDER/scores.csv
    table = xt.plots.told_apart(xt.read_results(path.parent / "scores.csv"))
    found = pd.read_csv(io.StringIO(conclusions(table)[path.stem].to_csv(index=False)))
    pd.testing.assert_frame_equal(found, pd.read_csv(path), rtol=1e-9)
