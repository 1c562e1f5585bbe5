"""A results folder as one self-contained HTML page, and its scores as a LaTeX table."""

import datetime
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import matplotlib as mpl
import pandas as pd

import extrapolate as xt
from extrapolate.reports.conclusions import conclusions, figures, measured, title_of
from extrapolate.reports.terminal import number
from extrapolate.results import COLUMNS
from extrapolate.storage import Location

HTML, TEX = "report.html", "report.tex"

CONCLUDED = {
    "verdicts": (
        "Verdicts",
        "Loss minus that of the baseline on the same tokens, with 95 % intervals of each row; verdicts hold for all "
        "rows together (Holm).",
    ),
    "answer_verdicts": (
        "Answers beside the baseline's",
        "On the same questions, all depths together: shares that are right with 95 % intervals (Wilson), an exact "
        "paired test, verdicts that hold for all rows together (Holm).",
    ),
    "short_context_costs": (
        "Short-context cost",
        "The same at the longest length within the pretrained one: what a strategy costs where none is needed.",
    ),
    "usable_lengths": (
        "Usable length",
        "How far the loss on fixed targets stays within 0.1 nats of its best within the pretrained length.",
    ),
    "context_gains": ("Context gain", "Loss behind the shortest context minus loss behind a longer one, same tokens."),
}
"""Conclusions by file name: heading, and what they are."""

DEFINITIONS = {
    **{name: text for name, _, text in COLUMNS},
    "label": "strategy and factor; for a curve, whatever else tells it apart",
    "baseline": "the strategy compared with",
    "difference": "loss minus that of the baseline on the same tokens, nats a token; below 0 is better",
    "low": "lower end of the row's 95 % interval",
    "high": "upper end of the row's 95 % interval",
    "ratio": "perplexity divided by that of the baseline",
    "verdict": "better or worse where p_holm is below 0.05, else indistinguishable; unknown without an interval",
    "p": "probability of a difference at least as large if there were none, of this row alone",
    "p_holm": "the same, adjusted by Holm for all comparisons of the table",
    "comparisons": "how many comparisons the table makes",
    "questions": "questions that both were asked, over all depths",
    "baseline_accuracy": "share of them that the baseline answers right",
    "only_this": "questions that the strategy alone answers right",
    "only_baseline": "questions that the baseline alone answers right",
    "n": "how many units the interval is over",
    "note": "what to mind about the interval",
    "usable_length": "largest length up to which the loss stays within 0.1 nats of the best, tokens",
    "claimed_length": "factor × pretrained length, tokens",
    "longest": "largest length measured, tokens",
    "best": "lowest loss within the pretrained length, nats a token",
    "short": "the length compared with, tokens",
    "gain": "loss behind the short context minus loss behind this one, nats a token; above 0 the longer context helps",
    "task": "name of the evaluation",
}
"""What every column of the page means, units included."""

OF_CELLS = (
    *("key", "label", "model", "model_digest", "dtype", "device", "attn_implementation", "parameters", "layers"),
    *("theta", "pretrained_length", "shipped_type", "data", "data_digest", "document_names", "evaluation", "protocol"),
    *("start_token", "seconds", "peak_memory_bytes", "finished"),
    *("extrapolate_version", "torch_version", "transformers_version"),
)
"""Columns that are told cell by cell."""

LONG = 40
"""Characters from which a text may break its line."""


def html(table: pd.DataFrame, results: Location, *, title: str, notes: Sequence[str] = (), ceiling: float = 1e6) -> str:
    """The page; it needs nothing from outside.

    Args:
        table: rows of :func:`extrapolate.read_results`.
        results: their folder, for the tracebacks of failed cells.
        title: heading of the page.
        notes: what to warn of, such as damaged files.
        ceiling: the largest perplexity drawn.
    """
    concluded = conclusions(table)
    tables = [
        *_score_tables(table),
        *(_table(name, *CONCLUDED[name], _shown(concluded[name])) for name in CONCLUDED if name in concluded),
        _rows_table(table),
    ]
    failed = _failed(table, results)
    drawn = _drawn(table, concluded, ceiling)
    sections = [("failed", "Failed cells")] * bool(failed) + [("figures", "Figures")] * bool(drawn)
    sections += [(found["id"], found["name"]) for found in tables]
    sections += [("common", "Common settings"), ("cells", "Cells"), ("legend", "Legend")]
    cells = table.drop_duplicates("key")
    counts = ", ".join(f"{n} {status}" for status, n in cells["status"].fillna("unknown").value_counts().items())
    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    page = jinja2.Environment(loader=folder, autoescape=True, undefined=jinja2.StrictUndefined)
    return page.get_template("report.html.j2").render(
        title=title,
        counts=counts,
        written=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=xt.__version__,
        notes=notes,
        sections=sections,
        failed=failed,
        figures=drawn,
        tables=tables,
        common=_common(table),
        cells=[_cell(rows) for _, rows in table.groupby("key", sort=False)],
        definitions=DEFINITIONS,
    )


def latex(table: pd.DataFrame) -> str | None:
    """Perplexity, strategy × length, as a LaTeX table with the lowest of each length in bold; None without any.

    For ``\\usepackage{booktabs}``.
    """
    scores = xt.plots.score_table(table)
    if scores.empty:
        return None
    rows = xt.plots.perplexities(table)
    trained = {int(n) for n in rows["pretrained_length"].dropna()}
    lengths = [int(n) for n in scores.columns]
    scores.columns = pd.Index([f"{n:,}" + (r"$^{*}$" if n in trained else "") for n in lengths])
    scores.index = [_escaped(str(name)) for name in scores.index]
    protocols = ", ".join(sorted(rows["protocol"].dropna().unique()))
    caption = f"Perplexity by context length in tokens ({_escaped(protocols)}), {_escaped(title_of(rows))}."
    caption += r" $^{*}$: pretrained length." if trained & set(lengths) else ""
    finite = scores.where(scores.abs() < float("inf"))
    styled = scores.style.format(lambda value: number(float(str(value)))).apply(
        lambda column: ["bfseries:" if finite[column.name].min() == v else "" for v in column]
    )
    text: str = styled.to_latex(
        hrules=True,
        caption=caption,
        label="tab:perplexity",
        position="t",
        position_float="centering",
        column_format="l" + "r" * scores.shape[1],
    )
    return text.replace("–", "--").replace("×", r"$\times$")


def _escaped(text: str) -> str:
    replaced = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    replaced |= {c: "\\" + c for c in "&%$#_{}"}
    return "".join(replaced.get(c, c) for c in text)


def _drawn(table: pd.DataFrame, concluded: dict[str, pd.DataFrame], ceiling: float) -> list[tuple[str, str]]:
    if not measured(table):
        return []
    found = []
    for name, figure in figures(table, concluded, ceiling=ceiling).items():
        with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
            file = io.StringIO()
            figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
        svg = file.getvalue()
        svg = svg[svg.index("<svg") :].replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)
        svg = re.sub(r'((?:\bid="|url\(#|href="#))', rf"\g<1>{name}-", svg)  # figures of one page share their names
        found.append((name.replace("_", " "), svg))
    return found


def _score_tables(table: pd.DataFrame) -> list[dict[str, Any]]:
    found = []
    scores = xt.plots.score_table(table)
    if not scores.empty:
        wide = scores.rename_axis("label").reset_index()
        trained = set(table["pretrained_length"].dropna())
        caption = "Perplexity by length in tokens (* pretrained length); the lowest of each in bold."
        found.append(_table("scores", "Perplexity", caption, wide, best=[*scores.columns], trained=trained))
    answers = xt.plots.answers(table)
    if not answers.empty:
        for value, name, caption in (
            ("accuracy", "Answers right", "Share of answers that greedy decoding gives whole, over all depths."),
            ("nll_mean", "Loss of answers", "Nats an answer token, over all depths."),
        ):
            curves = answers.assign(label=xt.plots.curve_names(answers))
            wide = curves.pivot_table(index=["evaluation", "label"], columns="length", values=value, sort=False)
            wide = wide.sort_index(axis="columns").reset_index().rename(columns={"evaluation": "task"})
            found.append(_table(f"answers_{value}", name, caption, wide))
    return found


def _shown(concluded: pd.DataFrame) -> pd.DataFrame:
    """Without columns that say nothing here."""
    empty = [c for c in concluded if concluded[c].isna().all() or (concluded[c] == "").all()]
    return concluded.drop(columns=[*empty, "model_digest"], errors="ignore").rename(columns={"units": "n"})


def _rows_table(table: pd.DataFrame) -> dict[str, Any]:
    apart = ("parameters", "document_names", "units", "finished", "data_digest", "model_digest", "error_message")
    varying = [c for c in table.columns if c not in apart and table[c].nunique(dropna=False) > 1]
    caption = "One row for each cell, length and depth; what is the same in all stands below."
    return _table("rows", "All rows", caption, table[["label", *(c for c in varying if c != "label")]])


def _table(
    anchor: str,
    name: str,
    caption: str,
    frame: pd.DataFrame,
    *,
    best: Sequence[Any] = (),
    trained: set[Any] = frozenset(),  # type: ignore[assignment]
) -> dict[str, Any]:
    columns = []
    for column in frame.columns:
        at_length = isinstance(column, int | float)
        columns.append(
            {
                "name": f"{int(column):,}{'*' if column in trained else ''}" if at_length else str(column),
                "definition": f"at {int(column):,} tokens" if at_length else DEFINITIONS[str(column)],
                "number": pd.api.types.is_numeric_dtype(frame[column]) and frame[column].dtype != bool,
            }
        )
    lowest = {c: frame[c].where(frame[c].abs() < float("inf")).min() for c in best}
    rows = [
        [_value(value, best=c in lowest and value == lowest[c]) for c, value in zip(frame.columns, row, strict=True)]
        for row in frame.itertuples(index=False)
    ]
    return {"id": anchor, "name": name, "caption": caption, "columns": columns, "rows": rows}


def _value(value: Any, *, best: bool = False) -> dict[str, str]:
    """A cell of a table: what it shows, what it sorts by, what it says exactly."""
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and pd.isna(value)):
        return {"text": "–", "sort": "", "kind": "number", "exact": ""}
    if isinstance(value, bool) or not hasattr(value, "__float__") or isinstance(value, str):
        text = str(value)
        return {"text": text, "sort": text, "kind": "long" if len(text) > LONG else "", "exact": ""}
    exact = float(value)
    whole = exact.is_integer() and not isinstance(value, float)
    text = f"{int(value):,}" if whole else number(exact) if abs(exact) >= 10 else f"{exact:.4f}"
    return {"text": text, "sort": repr(exact), "kind": "number best" if best else "number", "exact": repr(value)}


def _common(table: pd.DataFrame) -> list[tuple[str, str]]:
    shown = [c for c in table.columns if table[c].notna().any() and table[c].nunique(dropna=False) == 1]
    return [(c, _told(table[c].iloc[0])) for c in shown if c != "units"]


def _cell(rows: pd.DataFrame) -> dict[str, Any]:
    row = rows.iloc[0]
    statuses = ", ".join(dict.fromkeys(rows["status"].astype(str)))
    return {"label": str(row["label"]), "key": str(row["key"]), "status": statuses, "facts": _facts(row)}


def _facts(row: pd.Series) -> list[tuple[str, str]]:
    return [(name, _told(row[name])) for name in OF_CELLS if pd.notna(row[name])]


def _failed(table: pd.DataFrame, results: Location) -> list[dict[str, Any]]:
    found = []
    for key, rows in table[table["error_type"].notna()].groupby("key", sort=False):
        row = rows.iloc[0]
        path: Any = next(iter(results.rglob(f"failures/{key}/traceback.txt")), None)
        lengths = ", ".join(f"{int(n):,}" for n in rows["length"].dropna())
        facts = _facts(row)
        found.append(
            {
                "label": str(row["label"]),
                "error": f"{row['error_type']}: {row['error_message']}",
                "facts": [*facts, ("lengths", lengths)] if lengths else facts,
                "traceback": None if path is None else path.read_text(encoding="utf-8", errors="replace"),
            }
        )
    return found


def _told(value: Any) -> str:
    """A setting as people write it; JSON texts without their quotes and braces."""
    if isinstance(value, str) and value[:1] in "{[":
        parsed = json.loads(value)
        if isinstance(parsed, dict):
            return ", ".join(f"{k}={v}" for k, v in parsed.items()) or "none"
        return ", ".join(str(item) for item in parsed)
    return f"{value:,}" if isinstance(value, int) else str(value)
