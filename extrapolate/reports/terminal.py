"""A results folder in the terminal: scores, answers and verdicts, what is missing, and where the files are."""

import math
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import rich.box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import extrapolate as xt
from extrapolate.analysis import beside_published, paired, paired_answers, share_interval
from extrapolate.reports.conclusions import concluded, draw
from extrapolate.storage import Location, write_atomic

MOST_COLUMNS = 7  # fits a terminal of 80 characters
MOST_INTERVALS = 3  # so many lengths, with an interval each


def report(results: Location, jobs: list[dict[str, Any]], published: Mapping[str, Any] | None = None) -> int:
    """Print and draw a results folder; returns how many jobs of this sweep failed.

    Args:
        results: the folder.
        jobs: the outcomes of this sweep, by the fields of :class:`extrapolate.sweeps.run.Outcome`.
        published: a paper's ``source`` and ``curves`` to print beside ours.
    """
    console = Console(width=None if sys.stdout.isatty() else 140)
    if not jobs:
        console.print("[red]the sweep was empty: no job ran[/red]")
        return 1
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        table = xt.read_results(results)
    for note in notes:
        console.print(f"[yellow]{escape(str(note.message))}[/yellow]")
    counts = Counter(job["outcome"] for job in jobs)
    if not table.empty:
        print_scores(console, table)
    for job in jobs:
        if job["outcome"] == "failed":
            console.print(
                f"[red]failed[/red] {escape(job['label'])}: {escape(job['error_type'])}: {escape(job['error_message'])}"
            )
    console.print(f"{counts['computed']} computed, {counts['reused']} reused, {counts['failed']} failed")
    paths = draw(table, results)
    if published:
        beside = beside_published(table, published["curves"])
        console.print(published_table(beside, str(published["source"])))
        paths.append(results / "published.csv")
        write_atomic(paths[-1], beside.to_csv(index=False).encode())
    print_paths(console, paths)
    return counts["failed"]


def terminal_table(table: pd.DataFrame) -> Table:
    """Perplexity, strategy × length; of many lengths a spread of seven."""
    scores = xt.plots.score_table(table)
    lengths = [int(n) for n in scores.columns]
    trained = {int(n) for n in table["pretrained_length"].dropna()}
    if len(lengths) > MOST_COLUMNS:
        last = len(lengths) - 1
        spread = [lengths[round(i * last / (MOST_COLUMNS - 1))] for i in range(MOST_COLUMNS)]
        for length in trained & set(lengths):  # always shown, in place of its neighbour; so are the ends
            spread[min(range(1, MOST_COLUMNS - 1), key=lambda i: abs(spread[i] - length))] = length
        lengths = spread
    title = "perplexity by length (tokens; * pretrained length)"
    out = Table(title=title, title_justify="left", min_width=len(title), box=rich.box.SIMPLE_HEAD, pad_edge=False)
    out.add_column("strategy", overflow="fold")
    for length in lengths:
        out.add_column(f"{length:,}{'*' if length in trained else ''}", justify="right", no_wrap=True)
    for name, row in scores.iterrows():
        out.add_row(escape(str(name)), *[number(row[length]) for length in lengths])
    return out


def retrieval_table(table: pd.DataFrame) -> Table:
    """Accuracy with its interval, and loss of answers, task and strategy × length, over all depths."""
    rows = xt.plots.answers(table)
    lengths = sorted(int(n) for n in rows["length"].unique())[-MOST_COLUMNS:]
    whole = len(lengths) <= MOST_INTERVALS
    title = f"answers right{' (95 % interval)' if whole else ''}, and loss (nats an answer token), by length (tokens)"
    out = Table(title=title, title_justify="left", min_width=len(title), box=rich.box.SIMPLE_HEAD, pad_edge=False)
    out.add_column("task")
    out.add_column("strategy", overflow="fold", min_width=10)
    for length in lengths:
        out.add_column(f"{length:,}", justify="right", no_wrap=True)
    for task, group in rows.groupby("evaluation", sort=False):
        for name, curve in group.groupby(xt.plots.curve_names(group), sort=False):
            cells = [_answers(curve[curve["length"] == n], whole) for n in lengths]
            out.add_row(str(task), escape(str(name)), *cells)
    return out


def _answers(rows: pd.DataFrame, whole: bool) -> str:
    """Of one task, strategy and length, all depths: such as ``67% [30, 90] 0.25``."""
    if rows.empty:
        return "–"
    count = int(rows["samples"].sum())
    right = round(float((rows["accuracy"] * rows["samples"]).sum()))
    low, high = share_interval(right, count)
    loss = number(float(rows["nll_mean"].astype(float).mean()))
    interval = f" [{100 * low:.0f}, {100 * high:.0f}]" if whole else ""
    return escape(f"{right / count:.0%}{interval} {loss}")


def answer_verdict_table(verdicts: pd.DataFrame) -> Table:
    """Each strategy's answers beside the baseline's, on the same questions."""
    title = f"answers right beside {verdicts['baseline'].iloc[0]}'s on the same questions{_together(verdicts)}"
    out = Table(title=title, title_justify="left", min_width=len(title), box=rich.box.SIMPLE_HEAD, pad_edge=False)
    out.add_column("task")
    out.add_column("strategy", overflow="fold")
    lengths = sorted(int(n) for n in verdicts["length"].unique())[-MOST_COLUMNS:]
    for length in lengths:
        out.add_column(f"{length:,}", justify="right", overflow="fold")
    for (task, label), rows in verdicts.groupby(["evaluation", "label"], sort=False):
        at = {int(row["length"]): row for _, row in rows.iterrows()}
        out.add_row(str(task), escape(str(label)), *[_answer_verdict(at[n]) if n in at else "–" for n in lengths])
    return out


def _answer_verdict(row: pd.Series) -> str:
    if row["verdict"] == "unknown":
        return "–"
    words = {"indistinguishable": "same"}.get(row["verdict"], row["verdict"])
    return f"+{row['only_this']:.0f} -{row['only_baseline']:.0f} of {row['questions']} {words}"


def _together(verdicts: pd.DataFrame) -> str:
    """What verdicts hold over, for a title."""
    count = int(verdicts["comparisons"].iloc[0])
    return f"; verdicts hold over all {count} comparisons together" if count > 1 else ""


def verdict_table(table: pd.DataFrame, verdicts: pd.DataFrame) -> Table:
    """Each strategy against the baseline on the same tokens: its cost within the pretrained length, its gain."""
    trained = table["pretrained_length"].max()
    inside, longest = verdicts.loc[verdicts["length"] <= trained, "length"].max(), verdicts["length"].max()
    lengths = list(dict.fromkeys(int(n) for n in (inside, longest) if pd.notna(n)))
    title = (
        f"loss minus that of {verdicts['baseline'].iloc[0]} on the same tokens (nats a token, 95 % interval"
        f"{_together(verdicts)})"
    )
    out = Table(title=title, title_justify="left", min_width=len(title), box=rich.box.SIMPLE_HEAD, pad_edge=False)
    out.add_column("strategy", overflow="fold")
    for length in lengths:
        out.add_column(f"{length:,}{'*' if length == trained else ''}", overflow="fold")
    verdicts = verdicts.assign(name=xt.plots.pair_names(verdicts))
    for name, rows in verdicts.groupby("name", sort=False):
        at = {int(row["length"]): row for _, row in rows.iterrows()}
        cells = [_verdict(at[n]) if n in at else "–" for n in lengths]
        out.add_row(escape(str(name)), *cells)
    return out


def published_table(beside: pd.DataFrame, source: str) -> Table:
    """A paper's perplexities, ours, and the difference."""
    title = f"beside {source}"
    out = Table(title=escape(title), title_justify="left", box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for name in ("model", "strategy", "length", "published", "ours", "difference"):
        out.add_column(name, justify="left" if name in ("model", "strategy") else "right", overflow="fold")
    for _, row in beside.iterrows():
        gap = "–" if pd.isna(row["difference"]) else f"{row['difference']:+.3f} ({row['ratio']:+.1%})"
        told = (str(row["published"]), number(row["perplexity"]), gap)
        out.add_row(escape(str(row["model"])), escape(str(row["label"])), f"{row['length']:,}", *told)
    return out


def _verdict(row: pd.Series) -> str:
    words = {"indistinguishable": "same", "unknown": ""}.get(row["verdict"], row["verdict"])
    interval = "" if pd.isna(row["low"]) else f" [{row['low']:+.3f}, {row['high']:+.3f}]"
    return escape(f"{row['difference']:+.3f}{interval} {words}".rstrip())


def print_scores(console: Console, table: pd.DataFrame) -> None:
    """The tables, and what they cannot show."""
    table = xt.plots.told_apart(table)
    if not xt.plots.perplexities(table).empty:
        console.print(terminal_table(table))
    if not xt.plots.answers(table).empty:
        console.print(retrieval_table(table))
    verdicts = concluded(paired, xt.plots.perplexities(table))
    if not verdicts.empty:
        console.print(verdict_table(table, verdicts))
        for note in dict.fromkeys(part for told in verdicts["note"] for part in told.split("; ") if part):
            console.print(escape(note))
    answered = concluded(paired_answers, table)
    if not answered.empty:
        console.print(answer_verdict_table(answered))
    print_omissions(console, table)
    print_incomparable(console, table)


def print_paths(console: Console, paths: Sequence[Location]) -> None:
    """One path a line, unbroken, so that it can be copied."""
    for path in paths:
        console.print(str(path), soft_wrap=True, highlight=False)


def print_omissions(console: Console, table: pd.DataFrame) -> None:
    """Say which cells have no number at some length, and why."""
    for (label, status), rows in table[table["status"] != "ok"].groupby(["label", "status"], dropna=False):
        lengths = ", ".join(f"{n:,}" for n in rows["length"].dropna().unique()[:8])
        console.print(f"[yellow]{escape(str(label))}: {status}[/yellow]" + (f" at {lengths}" if lengths else ""))


def print_incomparable(console: Console, table: pd.DataFrame) -> None:
    """Warn when numbers that stand side by side rest on different texts."""
    if xt.plots.unlike_documents(table):
        console.print("[yellow]the curves rest on different documents, so their perplexities do not compare:[/yellow]")
        for (label, names), _ in table.groupby(["label", "document_names"], sort=False):
            console.print(f"[yellow]  {escape(str(label))}: {escape(str(names))}[/yellow]")


def number(value: float) -> str:
    """Four significant digits, or what it is instead of a number."""
    if pd.isna(value):
        return "–"
    if math.isinf(value):
        return "inf"
    return f"{value:.2f}" if value < 1000 else f"{value:.3g}"
