"""Look at what results folders hold, try failed cells again, delete what is not wanted.

extrapolate results list --where strategy=yarn
extrapolate results show 3f2a
extrapolate results failed
extrapolate results retry
extrapolate results prune --where status=failed --where 'label=yarn*'
"""

import argparse
import fnmatch
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import rich.box
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import extrapolate as xt
from extrapolate.commands.cell import run_cell
from extrapolate.results import COLUMNS, recorded
from extrapolate.results.ledger import CELLS, CONFIG, FAILURES, TRACEBACK
from extrapolate.storage import Location, location, remove

LISTED = ("status", "label", "model", "data", "evaluation", "protocol")


def main(arguments: Sequence[str] | None = None) -> int:
    """One command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="extrapolate results", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("list", "one line for each cell"),
        ("show", "everything about one cell"),
        ("failed", "the cells that failed, with their errors"),
        ("retry", "compute failed cells again, here and now"),
        ("prune", "delete cells; says what it would delete, and asks"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument(
            *("--results",), type=location, default=location("results"), help="folder or URL, with others below it"
        )
        if name == "show":
            command.add_argument("key", help="of the cell, or its beginning")
            continue
        command.add_argument(
            *("--where",),
            action="append",
            default=[],
            metavar="COLUMN=PATTERN",
            help="only cells whose column matches, such as label='yarn*'; repeatable",
        )
        if name == "failed":
            command.add_argument("--tracebacks", action="store_true", help="print them too")
        if name == "retry":
            command.add_argument("--force", action="store_true", help="also what is estimated not to fit into memory")
            command.add_argument("--time-limit", type=float, metavar="SECONDS", help="of a cell, instead of its own")
        if name == "prune":
            command.add_argument("--damaged", action="store_true", help="cells whose files are not whole, instead")
            command.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
            command.add_argument("--yes", action="store_true", help="delete without asking")
    asked = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    try:
        return {"list": _list, "show": _show, "failed": _failed, "retry": _retry, "prune": _prune}[asked.command](
            asked, console
        )
    except xt.ResultError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def cells(results: Location, where: Sequence[str] = ()) -> pd.DataFrame:
    """The first row of each recorded cell, with its ``lengths``, that matches every ``COLUMN=PATTERN``.

    Raises:
        ResultError: for a column that there is not, a pattern without one, or a folder that there is not.
    """
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        table = xt.read_results(results)
    for note in notes:
        print(note.message, file=sys.stderr)
    known = [name for name, _, _ in COLUMNS]
    for condition in where:
        column, equals, pattern = condition.partition("=")
        if not equals:
            raise xt.ResultError(f"--where takes COLUMN=PATTERN, got {condition!r}")
        if column not in known:
            raise xt.ResultError(f"there is no column {column!r}; there are {', '.join(known)}")
        text = table[column].map(
            lambda value: "" if pd.isna(value) else f"{value:g}" if isinstance(value, float) else str(value)
        )
        table = table[text.map(lambda value, pattern=pattern: fnmatch.fnmatchcase(value, pattern))]
    lengths = table.groupby("key")["length"].agg(lambda values: ", ".join(f"{n:,}" for n in values.dropna().unique()))
    found: pd.DataFrame = table.drop_duplicates("key").assign(lengths=lambda rows: rows["key"].map(lengths))
    return found


def _list(asked: argparse.Namespace, console: Console) -> int:
    found = cells(asked.results, asked.where)
    out = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    for name in ("key", *LISTED, "lengths (tokens)"):
        out.add_column(name, overflow="fold")
    for _, row in found.iterrows():
        told = ["–" if pd.isna(row[name]) else escape(str(row[name])) for name in LISTED]
        out.add_row(str(row["key"])[:12], *told, row["lengths"])
    console.print(out)
    console.print(f"{len(found)} cells")
    return 0


def _show(asked: argparse.Namespace, console: Console) -> int:
    row = _one(cells(asked.results), asked.key)
    folders = _folders(asked.results)
    for name, _, text in COLUMNS:
        if name != "units" and pd.notna(row[name]) and name != "length":
            console.print(f"[bold]{name}[/bold] {escape(str(row[name]))}  [dim]{escape(text)}[/dim]", soft_wrap=True)
    console.print(f"[bold]lengths[/bold] {row['lengths']}")
    for folder in folders.get(row["key"], []):
        console.print(f"[bold]folder[/bold] {folder}", soft_wrap=True)
    return 0


def _one(found: pd.DataFrame, key: str) -> pd.Series:
    matching = found[found["key"].str.startswith(key)]
    if len(matching) != 1:
        which = ", ".join(matching["key"]) or "none"
        raise xt.ResultError(f"key {key!r} must be the beginning of exactly one cell's, and is that of {which}")
    return matching.iloc[0]


def _failed(asked: argparse.Namespace, console: Console) -> int:
    found = cells(asked.results, asked.where)
    found = found[found["error_type"].notna()]
    folders = _folders(asked.results)
    for _, row in found.iterrows():
        error = f"{row['error_type']}: {row['error_message']}"
        console.print(f"[red]{row['status']}[/red] {row['key'][:12]} {escape(str(row['label']))}: {escape(error)}")
        for folder in folders.get(row["key"], []):
            if asked.tracebacks:
                console.print(escape((folder / TRACEBACK).read_text(encoding="utf-8", errors="replace")))
            else:
                console.print(f"  {folder / TRACEBACK}", soft_wrap=True)
    console.print(f"{len(found)} failed")
    return 0


def _retry(asked: argparse.Namespace, console: Console) -> int:
    found = cells(asked.results, asked.where)
    found = found[found["error_type"].notna()]
    folders = _folders(asked.results)
    again = 0
    for _, row in found.iterrows():
        for folder in folders.get(row["key"], []):
            if not (folder / CONFIG).exists():
                console.print(f"{row['key'][:12]}: recorded without its settings; run its sweep again")
                again += 1
                continue
            config = OmegaConf.create((folder / CONFIG).read_text(encoding="utf-8"))
            assert isinstance(config, DictConfig)
            above = folder.parent.parent
            config.results = str(above.resolve() if isinstance(above, Path) else above)
            config.force = config.get("force") or asked.force
            config.time_limit = asked.time_limit or config.get("time_limit")
            outcome = run_cell(config)
            console.print(f"{outcome['label']}: {outcome['outcome']}")
            again += outcome["outcome"] == "failed"
    console.print(f"{len(found)} tried, {again} failed")
    return int(again > 0)


def _prune(asked: argparse.Namespace, console: Console) -> int:
    if asked.damaged:
        if not asked.results.is_dir():
            raise xt.ResultError(f"no results folder at {asked.results}")
        chosen = [(folder, problem) for folder, problem in recorded(asked.results) if problem]
    else:
        if not asked.where:
            raise xt.ResultError("prune needs --where COLUMN=PATTERN or --damaged, so that it never deletes everything")
        found, folders = cells(asked.results, asked.where), _folders(asked.results)
        chosen = [
            (folder, f"{row['label']}, {row['status']}")
            for _, row in found.iterrows()
            for folder in folders.get(row["key"], [])
        ]
    for folder, what in chosen:
        console.print(f"{folder}  {escape(str(what))}", soft_wrap=True, highlight=False)
    if not chosen or asked.dry_run:
        console.print(f"{len(chosen)} to delete")
        return 0
    if not asked.yes:
        if not sys.stdin.isatty():
            raise xt.ResultError(f"{len(chosen)} to delete: add --yes to delete them without a question")
        if input(f"delete these {len(chosen)}? [y/N] ").strip().lower() not in ("y", "yes"):
            console.print("nothing deleted")
            return 0
    for folder, _ in chosen:
        remove(folder)
    console.print(f"{len(chosen)} deleted")
    return 0


def _folders(results: Location) -> dict[str, list[Location]]:
    """Where each cell or failure stands, by key; it may do so in several results folders."""
    found: dict[str, list[Location]] = {}
    for folder, _ in recorded(results):  # reads and checks every file: once a command
        if folder.parent.name in (CELLS, FAILURES):
            found.setdefault(folder.name, []).append(folder)
    return found


def start() -> None:
    """The command, with the arguments of the command line."""
    sys.exit(main())
