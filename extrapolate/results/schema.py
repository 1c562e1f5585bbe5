"""The one schema of a result row: scalar columns, parameters as one JSON text column."""

import io
import json
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
import pyarrow as pa

from extrapolate.errors import ResultError

SCHEMA_VERSION = 1

COLUMNS: tuple[tuple[str, pa.DataType, str], ...] = (
    ("key", pa.string(), "the cell: a hash of everything that can change its numbers"),
    (
        "status",
        pa.string(),
        "ok, nonfinite (a loss is NaN or infinite), oom, skipped (would not fit into memory), or failed",
    ),
    ("model", pa.string(), "the model's name in the configuration"),
    ("model_digest", pa.string(), "hash of the weights and tokenizer files, or the Hub commit"),
    ("dtype", pa.string(), "of weights and activations; losses are float32, sums float64"),
    ("device", pa.string(), "device type"),
    ("attn_implementation", pa.string(), "attention kernel, by transformers' name"),
    ("strategy", pa.string(), "name of the strategy"),
    ("label", pa.string(), "strategy and factor, for tables and legends"),
    ("factor", pa.float64(), "scaling factor s; null where the strategy has none"),
    ("parameters", pa.string(), "every field of the strategy as used at this length, JSON"),
    ("layers", pa.string(), "which layers run it: all, layer types, or indices"),
    ("depends_on_length", pa.bool_(), "whether each length took a pass of its own"),
    ("theta", pa.float64(), "base of the checkpoint's RoPE"),
    ("rotary_dim", pa.int64(), "rotated dimensions of a head"),
    ("pretrained_length", pa.int64(), "tokens"),
    ("shipped_type", pa.string(), "the checkpoint's own scaling, which the strategy replaced"),
    ("attention_factor", pa.float64(), "factor on cos and sin at the pretrained length"),
    ("data", pa.string(), "the corpus's name in the configuration"),
    ("data_digest", pa.string(), "hash of the token ids of the documents"),
    ("document_names", pa.string(), "JSON list"),
    ("evaluation", pa.string(), "name of the evaluation"),
    ("protocol", pa.string(), "which tokens are scored and which mean"),
    ("start_token", pa.string(), "none, first (before each document) or every (window); never scored"),
    ("stride", pa.int64(), "tokens from one window to the next, or between masked tokens"),
    ("targets", pa.int64(), "tokens scored at the end of each document, where the protocol has such"),
    ("mean", pa.string(), "over tokens, or over windows' means, whatever their size"),
    ("length", pa.int64(), "tokens of model input asked for"),
    ("length_used", pa.int64(), "tokens of the longest model input run"),
    ("documents", pa.int64(), "documents scored"),
    ("windows", pa.int64(), "model inputs scored"),
    ("tokens_scored", pa.int64(), "predicted tokens in the sum"),
    ("first_scored", pa.int64(), "index in its document of the first scored token"),
    ("last_scored", pa.int64(), "index in its document of the last scored token"),
    ("context_min", pa.int64(), "fewest tokens of model input before a scored one"),
    ("context_max", pa.int64(), "most"),
    ("bytes_scored", pa.int64(), "UTF-8 bytes of the scored tokens; null where the tokenizer does not tell"),
    ("nll_sum", pa.float64(), "nats; NaN when a loss is not finite"),
    ("nll_mean", pa.float64(), "nats a token, in the protocol's mean"),
    ("perplexity", pa.float64(), "exp(nll_mean); inf past the range of a float"),
    ("bits_per_byte", pa.float64(), "nll_sum / (ln 2 · bytes_scored); compares models of different tokenizers"),
    ("depth", pa.float64(), "of retrieval: where the fact stands in the haystack, 0 its beginning, 1 its end"),
    ("samples", pa.int64(), "of retrieval: questions asked"),
    ("accuracy", pa.float64(), "of retrieval: share of questions whose whole answer greedy decoding gives"),
    ("answer_rank", pa.float64(), "of retrieval: mean over answer tokens of how many tokens the model prefers"),
    ("unit", pa.string(), "what uncertainty is over: document, block of one document, or sample (question)"),
    (
        "units",
        pa.string(),
        "JSON: weighted loss and weight of each unit; their sums' quotient is nll_mean; of an answer also 1 if right",
    ),
    ("nonfinite", pa.int64(), "losses that are NaN or infinite"),
    ("seconds", pa.float64(), "the cell's forward passes, all lengths together"),
    ("tokens_per_second", pa.float64(), "tokens of model input a second"),
    ("peak_memory_bytes", pa.int64(), "at its peak in this cell: allocated on the GPU, or resident, weights included"),
    ("error_type", pa.string(), "class of the exception of a failed cell"),
    ("error_message", pa.string(), "its message"),
    ("finished", pa.string(), "UTC, ISO 8601"),
    ("extrapolate_version", pa.string(), ""),
    ("torch_version", pa.string(), ""),
    ("transformers_version", pa.string(), ""),
)

SCHEMA = pa.schema([pa.field(name, kind) for name, kind, _ in COLUMNS])


def to_table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Rows as a table of the one schema; a missing column is null.

    Raises:
        ResultError: for a column that the schema does not have, or a value of another type.
    """
    rows = list(rows)
    unknown = {name for row in rows for name in row} - set(SCHEMA.names)
    if unknown:
        raise ResultError(f"unknown result column(s) {', '.join(sorted(unknown))}")
    try:
        return pa.Table.from_pylist([dict(row) for row in rows], schema=SCHEMA)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ResultError(f"a result row does not fit the schema: {error}") from error


def from_csv(content: bytes) -> pa.Table:
    """Rows that a sweep published as ``scores.csv``; a column that an earlier release had not is null.

    Raises:
        ResultError: for a column that the schema does not have, or a value of another type.
    """
    try:
        text = pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False)
    except (ValueError, UnicodeDecodeError) as error:  # pandas' own errors are ValueErrors
        raise ResultError(f"not a CSV table: {error}") from error
    unknown = set(text.columns) - set(SCHEMA.names)
    if unknown:
        raise ResultError(f"unknown result column(s) {', '.join(sorted(unknown))}")
    columns = {}
    for name in text.columns:
        kind = SCHEMA.field(name).type
        values = [None if value == "" else value for value in text[name]]
        try:
            if kind == pa.float64():
                values = [None if value is None else float(value) for value in values]
            elif kind == pa.int64():
                values = [None if value is None else int(value) for value in values]
            elif kind == pa.bool_():
                values = [None if value is None else {"True": True, "False": False}[value] for value in values]
        except (ValueError, KeyError) as error:
            raise ResultError(f"column {name} does not hold {kind}: {error}") from error
        columns[name] = pa.array(values, kind)
    rows = len(text)
    return pa.table([columns.get(f.name, pa.nulls(rows, f.type)) for f in SCHEMA], schema=SCHEMA)


def json_text(value: Any) -> str:
    """Canonical JSON for a text column."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
