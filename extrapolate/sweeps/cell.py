"""A cell of a sweep as a value: what is measured, and the key under which it is found again."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Protocol

import torch
import transformers
from torch import nn

from extrapolate.data.documents import Document, Source, load_documents
from extrapolate.errors import EvaluationError, LoadError
from extrapolate.evaluation.base import Evaluation
from extrapolate.results.ledger import cell_key
from extrapolate.results.schema import json_text
from extrapolate.rope import RopeSpec
from extrapolate.strategies.base import Strategy
from extrapolate.strategies.compose import Composed
from extrapolate.version import __version__

Identity = dict[str, Any]
"""JSON values of everything that can change a cell's numbers."""


class Model(Protocol):
    """A checkpoint as a cell needs it: :class:`extrapolate.Checkpoint`, or :class:`LoadedModel`."""

    @property
    def path(self) -> str:
        """Its name in result rows."""
        ...

    @property
    def attn_implementation(self) -> str:
        """Transformers' attention."""
        ...

    @property
    def pretrained_length(self) -> int | None:
        """Tokens, where they override what the config says."""
        ...

    @property
    def device_map(self) -> Any:
        """How it is spread over devices; None for one."""
        ...

    def __hash__(self) -> int:
        """Of what it is, or names."""
        ...

    def digest(self) -> str:
        """What identifies the weights."""
        ...

    def config(self) -> Any:
        """The transformers config."""
        ...

    def spec(self, layers: str | None = None) -> RopeSpec:
        """The rotary embedding that the config describes."""
        ...

    def resolved_dtype(self) -> str:
        """The dtype of the weights."""
        ...

    def torch_device(self) -> torch.device:
        """The device it runs on."""
        ...

    def tokenizer(self) -> Any:
        """The tokenizer that belongs to it."""
        ...

    def model(self, head: str = "causal") -> nn.Module:
        """The model itself."""
        ...


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model in memory as a checkpoint; what identifies it are its config and its weights, bit for bit.

    Args:
        loaded: the model, unpatched.
        tokens: its tokenizer.
        path: its name in result rows; that of its config when left out.
        pretrained_length: tokens; overrides what the config says.
    """

    loaded: Any
    tokens: Any
    path: str = ""
    pretrained_length: int | None = None
    device_map: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.loaded, nn.Module) or not hasattr(self.loaded, "config"):
            raise LoadError(f"a loaded model must be a transformers model, got {type(self.loaded).__name__}")
        if self.tokens is None:
            raise LoadError("a loaded model needs its tokenizer: give (model, tokenizer)")
        if not self.path:
            name = getattr(self.loaded.config, "name_or_path", "") or type(self.loaded).__name__
            object.__setattr__(self, "path", name)

    @property
    def attn_implementation(self) -> str:
        """Transformers' name for its attention."""
        return str(self.loaded.config._attn_implementation)

    @cached_property
    def _digest(self) -> str:
        hashed = hashlib.sha256(json.dumps(self.loaded.config.to_dict(), sort_keys=True, default=str).encode())
        for name, tensor in sorted(self.loaded.state_dict().items()):
            flat = tensor.detach().cpu().contiguous()
            hashed.update(f"{name} {flat.dtype} {tuple(flat.shape)}".encode())
            hashed.update(flat.reshape(-1).view(torch.uint8).numpy().tobytes())
        return f"loaded:{hashed.hexdigest()}"

    def digest(self) -> str:
        """A hash of the config and of every tensor of its state."""
        return self._digest

    def config(self) -> Any:
        """Its config."""
        return self.loaded.config

    def spec(self, layers: str | None = None) -> RopeSpec:
        """The rotary embedding that its config describes."""
        from extrapolate.models.spec import layer_types, read_spec

        kind = layers if layers in layer_types(self.loaded.config) else None
        return read_spec(self.loaded.config, self.pretrained_length, kind)

    def resolved_dtype(self) -> str:
        """The dtype of its weights."""
        return str(self.loaded.dtype).removeprefix("torch.")

    def torch_device(self) -> torch.device:
        """Where its first weights are."""
        found: torch.device = next(self.loaded.parameters()).device
        return found

    def tokenizer(self) -> Any:
        """Its tokenizer."""
        return self.tokens

    def model(self, head: str = "causal") -> nn.Module:  # noqa: ARG002
        """Itself, in the mode it is in: evaluations run it in theirs."""
        found: nn.Module = self.loaded
        return found


@dataclass(frozen=True)
class Cell:
    """One model under one strategy, measured by one evaluation on one choice of texts.

    Args:
        checkpoint: the model; nothing is loaded until it is run.
        strategy: what it runs.
        source: of the texts; None for an evaluation that brings its own.
        evaluation: what is measured, at which lengths.
        data: name of the corpus in result rows.
        documents: how many of its texts; all that are long enough when left out.
        names: exactly these texts; ``documents`` does not apply then.
        seed: shuffle before choosing; the corpus's own order when left out.
        layers: which layers run the strategy, as :func:`extrapolate.patch` takes it; indices are sorted.

    Raises:
        EvaluationError: where an evaluation needs texts and there is no source.
    """

    checkpoint: Model
    strategy: Strategy
    source: Source | None
    evaluation: Evaluation
    data: str | None = None
    documents: int | None = None
    names: tuple[str, ...] | str | None = None  # one name is refused where it is looked for
    seed: int | None = None
    layers: str | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.layers is not None and not isinstance(self.layers, str):
            object.__setattr__(self, "layers", tuple(sorted(self.layers)))
        if self.names is not None and not isinstance(self.names, str):
            object.__setattr__(self, "names", tuple(self.names))
        if self.evaluation.min_tokens and self.source is None:
            raise EvaluationError(f"{self.evaluation.name} needs texts: give data, such as extrapolate.Sotu()")

    @property
    def label(self) -> str:
        """The strategy, its factor, and the layers where some are chosen, for tables and legends."""
        if self.layers is None:
            return self.strategy.label
        words = self.layers if isinstance(self.layers, str) else ",".join(map(str, self.layers))
        return f"{self.strategy.label}, layers {words}"

    @cached_property
    def spec(self) -> RopeSpec:
        """The rotary embedding of the layers that run the strategy."""
        kind = self.layers if isinstance(self.layers, str) else None
        return _spec(self.checkpoint, self.checkpoint.digest(), kind)

    @cached_property
    def tokenizer(self) -> Any:
        """The checkpoint's."""
        return _tokenizer(self.checkpoint, self.checkpoint.digest())

    def texts(self, *, progress: bool = False) -> list[Document]:
        """The documents it is measured on; none where the evaluation brings its own text.

        Raises:
            DataError: when the corpus is not there, or too short.
        """
        if not self.evaluation.min_tokens or self.source is None:
            return []
        return load_documents(
            self.source,
            self.tokenizer,
            documents=self.documents,
            min_tokens=self.evaluation.min_tokens,
            names=self.names,
            seed=self.seed,
            progress=progress,
        )

    def identity(self, texts: list[Document] | None = None) -> Identity:
        """Everything that can change its numbers and nothing else; 4, 4.0 and a default spelt out are the same.

        Args:
            texts: its documents, where they are read already.
        """
        spec, content = self.spec, self.checkpoint.digest()
        documents = self.texts() if texts is None else texts
        layers = list(self.layers) if isinstance(self.layers, tuple) else self.layers
        return {
            "model": {
                "digest": content,
                "dtype": self.checkpoint.resolved_dtype(),
                "device": self.checkpoint.torch_device().type,
                "attn_implementation": self.checkpoint.attn_implementation,
                "theta": spec.theta,
                "rotary_dim": spec.rotary_dim,
                "pretrained_length": spec.pretrained_length,
                # 0.2.0 read it as another scaling; cells of all other checkpoints keep their keys
                **({"shipped_type": spec.shipped_type} if spec.shipped_type == "ntk_alpha" else {}),
            },
            "strategy": {"class": _class_name(self.strategy), "parameters": self.strategy.parameters()},
            "data": sorted(document.digest for document in documents),
            "evaluation": self.evaluation.identity(self.tokenizer),
            "versions": versions(),
            **({} if layers is None else {"layers": layers}),
        }

    @property
    def key(self) -> str:
        """The hash of its identity, under which a results folder keeps it."""
        return cell_key(self.identity())

    def described(self) -> dict[str, Any]:
        """What all its result rows say, known before anything of the checkpoint is read."""
        return {
            "model": self.checkpoint.path,
            "data": self.data if self.source is not None and self.evaluation.min_tokens else None,
            "strategy": self.strategy.name,
            "label": self.label,
            "parameters": json_text(self.strategy.parameters()),
            "factor": self.strategy.parameters().get("factor"),
            **self.evaluation.columns(),
        }

    def of_checkpoint(self) -> dict[str, Any]:
        """What all its result rows say of the checkpoint, which is on this machine."""
        spec = self.spec
        return {
            "model_digest": self.checkpoint.digest(),
            "dtype": self.checkpoint.resolved_dtype(),
            "device": self.checkpoint.torch_device().type,
            "attn_implementation": self.checkpoint.attn_implementation,
            "theta": spec.theta,
            "rotary_dim": spec.rotary_dim,
            "pretrained_length": spec.pretrained_length,
            "shipped_type": spec.shipped_type,
            "depends_on_length": self.strategy.varies_with_length(spec),
        }


@lru_cache(maxsize=1)
def _tokenizer(checkpoint: Model, content: str) -> Any:  # noqa: ARG001
    """Read once for the cells of a model that come one after the other."""
    return checkpoint.tokenizer()


@lru_cache(maxsize=1)
def _spec(checkpoint: Model, content: str, layers: str | None) -> RopeSpec:  # noqa: ARG001
    return checkpoint.spec(layers)


def versions() -> Mapping[str, str]:
    """Releases whose change may change a number; the build (``+cpu``) is covered by the device."""
    return {
        "extrapolate": __version__,
        "torch": torch.__version__.partition("+")[0],
        "transformers": transformers.__version__,
    }


def _class_name(strategy: Strategy) -> str:
    """A strategy's own name; with its module when it is not one of the package's."""
    if isinstance(strategy, Composed):
        return "+".join(_class_name(part) for part in strategy.parts)
    kind = type(strategy)
    return strategy.name if kind.__module__.startswith("extrapolate.") else f"{kind.__module__}.{kind.__qualname__}"
