"""Rows as figures need them: which are of what, and what a curve is called."""

import json

import pandas as pd

from extrapolate.analysis.statistics import SAME


def perplexities(table: pd.DataFrame) -> pd.DataFrame:
    """Rows with a length that are not of retrieval."""
    return table[table["length"].notna() & table["samples"].isna()]


def answers(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of retrieval that have a result."""
    return table[table["accuracy"].notna()]


def curve_names(rows: pd.DataFrame) -> pd.Series:
    """A legend entry for each row: the strategy's label, and whatever else tells this table's curves apart."""
    names = rows["label"].fillna("failed").astype(str)
    if unlike_documents(rows):
        of_each = rows["documents"].astype(str) + " document(s) " + rows["data_digest"].str[:4]
        names = names.where(rows["data_digest"].isna(), names + ", " + of_each)
    for column in CURVES:
        if rows.groupby(names)["key"].nunique().le(1).all():
            break
        clashing = rows.groupby(names)[column].transform("nunique") > 1
        if column == "parameters":
            text = pd.concat([_differing(_of_cells(found)) for _, found in rows.groupby(names)])
        else:
            told = column in ("stride", "targets") or column.endswith("_version")
            prefix = f"{column.replace('_version', '')} " if told else ""
            text = prefix + rows[column].map(lambda value: str(value)[:60])
        names = names.where(~clashing, names + ", " + text)
    return names.rename("curve")


CURVES = (
    *("model", "data", "evaluation", "protocol", "dtype", "start_token", "stride", "targets"),
    *("parameters", "data_digest", "extrapolate_version", "torch_version", "transformers_version", "key"),
)
"""What tells curves of one label apart, in this order, as far as it is needed."""


def _of_cells(rows: pd.DataFrame) -> pd.Series:
    """Parameters of each row as a dictionary, ``auto`` where a cell's own differ by length: a curve has one name."""
    fields = rows["parameters"].map(lambda text: json.loads(text) if isinstance(text, str) else {})
    for _, cell in fields.groupby(rows["key"]):
        changing = {name for row in cell for name, value in row.items() if value != cell.iloc[0].get(name)}
        for row in cell:
            row.update(dict.fromkeys(changing, "auto"))
    return fields


def _differing(fields: pd.Series) -> pd.Series:
    """Of dictionaries the fields that are not the same in all rows, such as ``blend=harmonic, ramp=index``."""
    names = sorted({name for row in fields for name in row})
    differing = [name for name in names if len({json.dumps(row.get(name)) for row in fields}) > 1]
    return fields.map(lambda row: ", ".join(f"{name}={_short(row.get(name))}" for name in differing))


def told_apart(table: pd.DataFrame) -> pd.DataFrame:
    """The table with labels that name what differs between cells of one label, such as ``yarn ×8, truncate=False``.

    Only cells that could stand in one figure are told apart: same model, corpus, evaluation and protocol.
    """
    scored = table[table["status"].isin(["ok", "nonfinite"])]
    context = ["label", "data", *(c for c in SAME if c not in ("length", "depth"))]
    labels = table["label"].copy()
    for _, rows in scored.groupby(context, dropna=False, sort=False):
        if rows["key"].nunique() > 1:
            text = _differing(_of_cells(rows))
            labels.loc[rows.index] = rows["label"] + text.map(lambda found: f", {found}" if found else "")
    return table.assign(label=labels)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:20]


def unlike_documents(table: pd.DataFrame) -> bool:
    """Whether curves of one corpus rest on different documents, so that their perplexities do not compare."""
    return bool((table.groupby("data")["data_digest"].nunique() > 1).any())


def score_table(table: pd.DataFrame) -> pd.DataFrame:
    """Perplexity as a table of strategy × length, in the order of the rows; NaN where there is no number."""
    rows = perplexities(table)
    if rows.empty:
        return pd.DataFrame()
    wide = rows.assign(curve=curve_names(rows)).pivot_table(
        index="curve", columns="length", values="perplexity", aggfunc="last", dropna=False, sort=False
    )
    return wide.sort_index(axis="columns").rename_axis(index="strategy")
