"""``extrapolate COMMAND …``: starts the one command asked for, and loads nothing else."""

import importlib
import sys

from extrapolate.version import __version__

COMMANDS = {
    "sweep": "measure models under strategies, at every length; table, figures, resumable",
    "search": "search a strategy's fields for a checkpoint",
    "results": "list, show, retry and delete what results folders hold",
    "plot": "redraw the table and the figures of a results folder",
    "report": "a results folder as an HTML page and a LaTeX table",
    "harness": "lm-evaluation-harness with one more model: any checkpoint under any strategy",
}
"""Name → what it does."""

EXTRAS = {"search": ("optuna", "search"), "harness": ("lm_eval", "lm_eval")}
"""What a command needs beside the package's own dependencies, and the extra that has it."""

HELP = """\
usage: extrapolate COMMAND [ARGUMENTS]

Stretch a language model beyond the length it was trained on, and measure what that does.

{commands}

  extrapolate sweep experiment=smoke
  extrapolate sweep -m strategy=plain,linear,ntk,yarn factor=2,4 model=smollm2 data=sotu

extrapolate COMMAND --help says more; --version tells the version. Results go to results/ below the current folder.
"""


def main() -> None:
    """Start the command that the first argument names; exit with 2 where it names none."""
    asked = sys.argv[1:2]
    if asked in ([], ["--help"], ["-h"], ["help"]):
        print(help_text(), end="")
        sys.exit(0 if asked else 2)
    if asked == ["--version"]:
        print(f"extrapolate {__version__}")
        return
    name = asked[0]
    if name not in COMMANDS:
        from difflib import get_close_matches

        close = get_close_matches(name, COMMANDS, n=2, cutoff=0.5)
        meant = f"did you mean {' or '.join(close)}? " if close else ""
        print(f"error: there is no command {name!r}; {meant}there are {', '.join(COMMANDS)}", file=sys.stderr)
        sys.exit(2)
    sys.argv = [f"extrapolate {name}", *sys.argv[2:]]
    try:
        command = importlib.import_module(f"extrapolate.commands.{name}")
    except ModuleNotFoundError as error:
        package, extra = EXTRAS.get(name, ("", ""))
        if (error.name or "").partition(".")[0] != package:
            raise
        print(f"error: {sys.argv[0]} needs {package}: pip install 'extrapolate[{extra}]'", file=sys.stderr)
        sys.exit(2)
    command.start()


def help_text() -> str:
    """What ``--help`` prints."""
    return HELP.format(commands="\n".join(f"  {name:<9}{what}" for name, what in COMMANDS.items()))


if __name__ == "__main__":
    main()
