"""Which jobs a sweep launches, in which order: each cell once, models together, the longest first."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf

from extrapolate.commands.names import near

REQUEST = ("model", "strategy", "data", "evaluation")
"""What a cell is asked for."""


@dataclass(frozen=True)
class Plan:
    """Jobs to launch.

    Attributes:
        jobs: overrides of each.
        weights: of each, in proportion to how long it may take.
        notes: what was left out and why, a line each.
        configs: what each job is composed to.
    """

    jobs: tuple[tuple[str, ...], ...]
    weights: tuple[float, ...]
    notes: tuple[str, ...]
    configs: tuple[DictConfig, ...] = ()


def planned(combinations: Sequence[Sequence[str]], load: Callable[[Sequence[str]], DictConfig]) -> Plan:
    """Plan every combination of a sweep.

    An override that some jobs have no field for (a group on YaRN, a factor on plain) does not apply there: the job runs
    once, without it. Jobs that ask for the same are one. Jobs of one model come together, because a worker holds one;
    among them the longest come first, so that parallel workers end at about the same time.

    Args:
        combinations: overrides of each.
        load: overrides → the composed configuration.

    Raises:
        ConfigCompositionException: for an override that applies to no job, such as a misspelt one.
    """
    applied: set[str] = set()
    dropped: dict[str, tuple[ConfigCompositionException, set[str]]] = {}
    seen: set[str] = set()
    notes: list[str] = []
    models: dict[str, int] = {}
    found: list[tuple[int, float, tuple[str, ...], DictConfig]] = []
    for overrides in combinations:
        job = list(overrides)
        while True:
            try:
                config = load(job)
                break
            except ConfigCompositionException as error:
                field = _not_applicable(error, job)
                if field is None:
                    raise
                name = next((o for o in job if o.startswith("strategy=")), "the strategy")
                dropped.setdefault(field, (error, set()))[1].add(name)
                job = [o for o in job if _key(o) != field]
        applied |= {_key(o) for o in job}
        request = _request(config)
        if request in seen:
            continue
        seen.add(request)
        model = models.setdefault(_text(config.model), len(models))
        found.append((model, _longest(config), tuple(job), config))
    for field, (refused, names) in dropped.items():
        if field not in applied:
            group = field.partition(".")[0]
            known = {f"{group}.{key}" for *_, config in found for key in config[group] if key != "_target_"}
            raise ConfigCompositionException(
                f"no job has a setting {field!r}; {near(field, sorted(known))}"
            ) from refused
        notes.append(f"{field} does not apply to {', '.join(sorted(names))}, which runs without it")
    if len(found) < len(combinations):
        notes.append(f"{len(combinations)} combinations are {len(found)} cells: the others ask for the same")
    found.sort(key=lambda each: (each[0], -each[1]))
    jobs, weights = tuple(job for *_, job, _ in found), tuple(longest for _, longest, *_ in found)
    return Plan(jobs, weights, tuple(notes), tuple(config for *_, config in found))


def deferred(arguments: Sequence[str]) -> list[str]:
    """A command's arguments, with fields of a swept strategy set on each job rather than before there is one.

    Hydra applies what is not swept to the default strategy first, and stops where that has no such field:
    ``-m strategy=string,self_extend strategy.window=512``. As a choice of one it is applied to each job.
    """
    swept = "," in next((a for a in arguments if a.startswith("strategy=")), "")
    if not swept or not {"-m", "--multirun"} & set(arguments):
        return list(arguments)
    fields = re.compile(r"(strategy\.[\w.]+)=(.*)", re.DOTALL)
    return [_choice(match) if (match := fields.fullmatch(a)) else a for a in arguments]


def _choice(match: re.Match[str]) -> str:
    field, value = match.groups()
    bare = re.sub(r"\[.*\]|\{.*\}|\(.*\)|'[^']*'|\"[^\"]*\"", "", value)
    already = "," in bare or re.match(r"(choice|range|interval|glob|shuffle|sort|tag)\(", value)
    return match.group() if already else f"{field}=choice({value})"


def _not_applicable(error: ConfigCompositionException, job: Sequence[str]) -> str | None:
    """The field of a strategy or an evaluation that an override names and the chosen one does not have."""
    match = re.search(r"Could not override '([\w.]+)'", str(error))
    field = match[1] if match else ""
    return field if field.startswith(("strategy.", "evaluation.")) and field in {_key(o) for o in job} else None


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+")


def _request(config: DictConfig) -> str:
    return "\n".join(_text(config.get(name)) for name in (*REQUEST, "layers", "results"))


def _text(node: Any) -> str:
    if not isinstance(node, DictConfig):
        return repr(node)
    try:
        return OmegaConf.to_yaml(node, resolve=True)
    except Exception:  # what cannot be resolved is the cell's own failure, told there
        return OmegaConf.to_yaml(node)


def _longest(config: DictConfig) -> float:
    """Tokens of a job's longest input."""
    lengths = config.evaluation.get("lengths") or [1]
    try:
        return float(max(lengths))
    except (TypeError, ValueError):  # refused by the evaluation, in its cell
        return 1.0
