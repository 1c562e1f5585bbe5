"""From texts to documents of token ids: chosen by length, tokenised once, never joined and never cut."""

import difflib
import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from extrapolate.errors import DataError
from extrapolate.storage import cache_dir, write_atomic

CACHE_FROM_CHARACTERS = 10_000
"""Shorter texts tokenise faster than a file opens."""


class Source(Protocol):
    """Where texts come from."""

    def texts(self, seed: int | None) -> Iterator[tuple[str, str]]:
        """(name, text) of each document, in the corpus's order, or shuffled by ``seed``."""
        ...


@dataclass(frozen=True, eq=False)
class Document:
    """One text as token ids.

    Attributes:
        name: unique in its corpus.
        ids: (tokens,) int64, no special tokens added.
        ends: (tokens,) int64, UTF-8 bytes of the text up to the end of each token, for bits per byte; None where the
            tokenizer does not tell. Blanks between two tokens count with the later one.
    """

    name: str
    ids: Tensor
    ends: Tensor | None = None

    @property
    def digest(self) -> str:
        """SHA-256 over all its token ids."""
        return hashlib.sha256(self.ids.to(torch.int64).numpy().tobytes()).hexdigest()


def check_choice(documents: Any, names: Any) -> None:
    """A number of documents, or a list of their names.

    Raises:
        DataError: naming the field, the value and the rule.
    """
    if documents is not None and (isinstance(documents, bool) or not isinstance(documents, int) or documents < 1):
        raise DataError(f"documents must be a whole number of at least 1, or null for all, got {documents!r}")
    if names is None:
        return
    if isinstance(names, str):
        raise DataError(f"names must be a list, got {names!r}; write names=[{names}]")
    if not list(names):
        raise DataError("names must be null or a list of at least one document, got []")
    if len(set(names)) < len(list(names)):
        raise DataError(f"names lists a document twice: {list(names)}")


def load_documents(
    source: Source,
    tokenizer: Any,
    *,
    documents: int | None = None,
    min_tokens: int = 2,
    names: Sequence[str] | None = None,
    seed: int | None = None,
    progress: bool = False,
) -> list[Document]:
    """Choose documents that are long enough, as token ids.

    The tokenizer adds no special tokens and its own length limit changes nothing. Token ids are cached by content of
    text and tokenizer.

    Args:
        source: such as :class:`~extrapolate.data.Sotu`, :class:`~extrapolate.data.Local`.
        tokenizer: a transformers tokenizer.
        documents: how many; all that are long enough when left out.
        min_tokens: a document with fewer is passed over.
        names: exactly these documents, in this order; ``documents`` does not apply then.
        seed: shuffle the corpus before choosing; its own order when left out.
        progress: show a bar while texts are read.

    Raises:
        DataError: when there are too few documents of that length (the message says how long the corpus's documents
            are), or a name is unknown.
    """
    check_choice(documents, names)
    wanted = None if names is None else list(names)
    fingerprint = tokenizer_fingerprint(tokenizer)
    found: dict[str, Document] = {}
    seen: list[tuple[str, int]] = []
    with tqdm(
        source.texts(seed), desc="documents", unit="doc", disable=None if progress else True, leave=False
    ) as texts:
        for name, text in texts:
            if wanted is not None and name not in wanted:
                seen.append((name, -1))
                continue
            document = Document(name, *encode(tokenizer, text, fingerprint))
            seen.append((name, document.ids.numel()))
            if document.ids.numel() >= min_tokens:
                if name in found:
                    raise DataError(f"{source!r}: two documents are named {name!r}")
                found[name] = document
            enough = len(wanted) if wanted is not None else documents
            if enough is not None and len(found) >= enough:
                break
    if wanted is not None:
        return _named(source, wanted, found, seen, min_tokens)
    if len(found) < (documents or 1):
        raise DataError(_too_short(source, documents or 1, min_tokens, seen))
    return list(found.values())


def _named(
    source: Source, wanted: list[str], found: dict[str, Document], seen: list[tuple[str, int]], min_tokens: int
) -> list[Document]:
    known = dict(seen)
    for name in wanted:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=3)
            raise DataError(
                f"{source!r}: no document named {name!r} among {len(known)}; "
                + (f"did you mean {', '.join(close)}?" if close else f"the first is {next(iter(known), 'none')!r}")
            )
        if name not in found:
            raise DataError(f"{name} has {known[name]:,} tokens, {min_tokens:,} are needed; ask for shorter lengths")
    return [found[name] for name in wanted]


def _too_short(source: Source, documents: int, min_tokens: int, seen: list[tuple[str, int]]) -> str:
    if not seen:
        return f"{source!r} holds no documents"
    counts = sorted((tokens for _, tokens in seen), reverse=True)
    enough = sum(tokens >= min_tokens for tokens in counts)
    steps = [step for step in (2**k for k in range(8, 40)) if step <= counts[0]]
    longer = "; ".join(f"{sum(t >= step for t in counts)} of at least {step:,}" for step in steps[-4:])
    name, tokens = max(seen, key=lambda item: item[1])
    return (
        f"{source!r}: asked for {documents} document(s) of at least {min_tokens:,} tokens, found {enough} among "
        f"{len(counts)} ({longer + '; ' if longer else ''}the longest, {name}, has {tokens:,}); "
        "ask for shorter lengths or fewer documents"
    )


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """What token ids depend on, as 64 hex digits: vocabulary, merges, normalisation."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        content = backend.to_str()
    else:
        content = type(tokenizer).__qualname__ + repr(sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]))
    return hashlib.sha256(content.encode()).hexdigest()


def encode(tokenizer: Any, text: str, fingerprint: str | None = None) -> tuple[Tensor, Tensor | None]:
    """Token ids of a text and where each token ends: no special tokens, no truncation, no warning about length.

    Args:
        tokenizer: a transformers tokenizer.
        text: one document.
        fingerprint: of the tokenizer; given, long texts are cached on disk.

    Returns:
        (tokens,) int64 ids, and (tokens,) int64 UTF-8 bytes of the text up to the end of each token; None from a
        tokenizer that tells no offsets.
    """
    if fingerprint is None or len(text) < CACHE_FROM_CHARACTERS:
        return _columns(_tokenize(tokenizer, text))
    key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    path = cache_dir("tokens", "with_ends", fingerprint[:16], key[:2]) / f"{key}.npy"
    try:
        return _columns(np.load(path, allow_pickle=False))
    except (OSError, ValueError, EOFError):  # absent, or cut by a crash of an older release
        found = _tokenize(tokenizer, text)
    buffer = io.BytesIO()
    np.save(buffer, found, allow_pickle=False)
    write_atomic(path, buffer.getvalue())
    return _columns(found)


def _columns(found: np.ndarray) -> tuple[Tensor, Tensor | None]:
    rows = torch.from_numpy(found.astype(np.int64))
    return rows[0], rows[1] if len(rows) > 1 else None


def _tokenize(tokenizer: Any, text: str) -> np.ndarray:
    """(1 or 2, tokens) uint32: ids, and byte ends of a tokenizer that tells offsets."""
    fast = bool(getattr(tokenizer, "is_fast", False))
    encoded = tokenizer(
        text,
        add_special_tokens=False,
        truncation=False,
        verbose=False,
        return_attention_mask=False,
        return_offsets_mapping=fast,
    )
    ids = list(encoded["input_ids"])
    if not fast or not ids:
        return np.asarray([ids], dtype=np.uint32)
    # offsets count characters; a character has 1 to 4 bytes, by its code point
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    widths = 1 + (points > 0x7F) + (points > 0x7FF) + (points > 0xFFFF)
    before = np.concatenate(([0], np.cumsum(widths)))
    ends = np.maximum.accumulate(before[np.asarray(encoded["offset_mapping"])[:, 1]])
    ends[-1] = before[-1]  # a blank at the very end belongs to the last token
    return np.asarray([ids, ends], dtype=np.uint32)
