"""Names on a command line that do not exist, found before anything is loaded or run, with those that are near.

Hydra alone ignores a misspelt group that is optional, and a constructor tells of a misspelt field when the model is
loaded.
"""

import dataclasses
import difflib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

INSIDE = Path(__file__).parent.parent / "conf"
CONF = INSIDE if INSIDE.is_dir() else Path(__file__).parents[2] / "conf"
"""The groups: in the wheel the package ``extrapolate.conf``, in a checkout the folder beside the package."""

OF_HYDRA = {"_target_", "_partial_", "_recursive_", "_convert_", "_args_"}
"""Keys of a node that its class does not see."""


def run(main: Callable[[], Any], config_name: str, arguments: Sequence[str] | None = None) -> None:
    """Run a command's main function, unless an argument names what does not exist: then say so and exit with 2."""
    wrong = misspelt(config_name, sys.argv[1:] if arguments is None else arguments)
    if wrong:
        stop(wrong)
    main()


def stop(problems: Iterable[str]) -> NoReturn:
    """Say what is wrong, one line each, and exit with 2."""
    for problem in dict.fromkeys(problems):
        print(f"error: {' '.join(problem.split())}", file=sys.stderr)
    sys.exit(2)


def misspelt(config_name: str, arguments: Sequence[str]) -> list[str]:
    """What the arguments of a command name and is not there: an option of a group, a group, a setting.

    Args:
        config_name: of the command, in ``conf/``.
        arguments: of its command line.
    """
    asked = get_args_parser().parse_args(list(arguments))
    if asked.help or asked.hydra_help or asked.shell_completion or asked.config_name or asked.config_path:
        return []
    try:
        overrides = OverridesParser.create().parse_overrides(asked.overrides)
    except HydraException:  # Hydra's own message shows where the text is wrong
        return []
    if any(override.key_or_group == "hydra.searchpath" for override in overrides):
        return []  # other folders may hold the name
    Plugins.instance()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        folders = [Path(asked.config_dir)] if asked.config_dir else []
        groups = {override.key_or_group: _options(override.key_or_group, folders) for override in overrides}
        chosen = [str(o.input_line) for o in overrides if groups[o.key_or_group] and not o.is_sweep_override()]
        found = [problem for o in overrides for problem in _of_group(o, groups[o.key_or_group])]
        if found:
            return found
        known = _known(config_name, chosen, folders)
    return [problem for o in overrides if not groups[o.key_or_group] for problem in _of_setting(o, known, overrides)]


def _options(group: str, folders: Sequence[Path]) -> list[str]:
    """What can be chosen of a group; nothing for what is none."""
    own = GlobalHydra.instance().config_loader().get_group_options(group)
    added = [path.stem for folder in folders for path in (folder / group).glob("*.yaml")]
    return sorted({*own, *added})


def _of_group(override: Override, options: Sequence[str]) -> Iterator[str]:
    if not options or override.is_delete():
        return
    group = override.key_or_group
    for value in _values(override):
        if value is not None and str(value) not in options:
            name = group.replace("/", " ")
            yield f"{override.input_line}: there is no {name} {str(value)!r}; {near(str(value), options)}"


def _values(override: Override) -> list[Any]:
    """Everything that an override may choose."""
    found: list[Any] = [override.value()]
    if override.is_sweep_override():
        if isinstance(override.value(), Glob):
            return []
        found = list(override.sweep_iterator())
    texts = [each for value in found for each in (value if isinstance(value, list) else [value])]
    return [None if text is None else getattr(text, "text", text) for text in texts]


def _known(config_name: str, chosen: Sequence[str], folders: Sequence[Path]) -> Any:
    """The command's settings under what was chosen; without the choices where they do not compose."""
    added = [f"hydra.searchpath=[{','.join(str(folder.resolve()) for folder in folders)}]"] if folders else []
    for overrides in ([*added, *chosen], []):
        try:
            return compose(config_name, overrides)
        except HydraException:
            continue
    return OmegaConf.create()


def _of_setting(override: Override, known: Any, overrides: Sequence[Override]) -> Iterator[str]:
    """A setting that the command has not; below a group that is swept, each job tells."""
    path = override.key_or_group.split(".")
    if path[0] == "hydra" or not path[0]:
        return
    swept = {
        o.get_key_element().lstrip("+~").partition("@")[2] or o.key_or_group for o in overrides if o.is_sweep_override()
    }
    node = known
    for depth, name in enumerate(path):
        where = ".".join(path[:depth])
        if where in swept or not isinstance(node, DictConfig):
            return
        if name not in {str(key) for key in node}:  # `in` would leave out what is still to be given
            added = override.is_add() or override.is_force_add()
            if added and depth and "_target_" not in node:  # a table that takes any name, such as a part of compose
                return
            fields = [str(key) for key in node if str(key) not in OF_HYDRA]
            if depth and added:
                return  # the fields of its class are looked at later
            shown = f"{where}.{name}" if where else name
            yield f"{override.input_line}: there is no setting {shown!r}; {near(name, fields)}"
            return
        if OmegaConf.is_missing(node, name) or OmegaConf.is_interpolation(node, name):
            return
        node = node[name]


def unknown_fields(node: Any, where: str) -> list[str]:
    """Keys of a node, and of the nodes below it, that its class has no field for.

    Args:
        node: with a ``_target_``, else there is nothing to say.
        where: its place in the configuration.
    """
    if not isinstance(node, DictConfig):
        return []
    found = []
    target = node.get("_target_")
    if isinstance(target, str):
        try:
            kind = get_object(target)
        except Exception as error:
            return [f"{where}._target_: there is no {target}: {str(error).splitlines()[0]}"]
        if dataclasses.is_dataclass(kind):
            fields = [field.name for field in dataclasses.fields(kind) if field.init]
            name = getattr(kind, "__name__", target)
            found = [
                f"{where}.{key}: {name} has no field {key!r}; {near(key, fields)}"
                for key in map(str, node)
                if key not in OF_HYDRA and key not in fields
            ]
    for key in map(str, node):
        if not OmegaConf.is_missing(node, key):
            found += unknown_fields(node[key], f"{where}.{key}")
    return found


def near(name: str, known: Sequence[str]) -> str:
    """Names that are like one that is not there, then all that are."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    meant = f"did you mean {' or '.join(close)}? " if close else ""
    return f"{meant}there are {', '.join(known)}" if known else f"{meant}there are none"
