"""One process computes a cell; others wait, and take over from the dead."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from upath import UPath

import extrapolate as xt
from extrapolate.results import claims
from extrapolate.results.claims import claimed


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "POLL", 0.01)
    monkeypatch.setattr(claims, "BEAT", 0.05)


def owned_by(path: Path, *, host: str | None = None, pid: int | None = None, age: float = 0.0) -> None:
    """A claim that somebody else left."""
    number = pid or os.getpid()
    owner = {"token": "other", "host": host or socket.gethostname(), "pid": number, "born": claims._born(number)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(owner), encoding="utf-8")
    os.utime(path, (time.time() - age,) * 2)


def test_a_claim_names_its_owner_and_is_gone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "claims" / "k"
    with claimed(path, lambda: False) as mine:
        assert mine
        owner = json.loads(path.read_text())
        assert (owner["pid"], owner["host"]) == (os.getpid(), socket.gethostname())
    assert not path.exists()
    with pytest.raises(ZeroDivisionError), claimed(path, lambda: False):
        raise ZeroDivisionError
    assert not path.exists()
    assert [f.name for f in path.parent.iterdir()] in ([], [".changing.lock"])


def test_what_is_done_is_not_claimed(tmp_path: Path) -> None:
    with claimed(tmp_path / "k", lambda: True) as mine:
        assert not mine
    assert not (tmp_path / "k").exists()


def test_a_second_one_waits_and_finds_it_done(tmp_path: Path) -> None:
    path, done, order = tmp_path / "k", threading.Event(), []
    names: list[str] = []

    def second() -> None:
        with claimed(path, done.is_set, names.append) as mine:
            order.append(("second", mine))

    with claimed(path, done.is_set) as mine:
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.2)
        order.append(("first", mine))
        done.set()
    thread.join(10)
    assert order == [("first", True), ("second", False)]
    assert names == [f"process {os.getpid()} on {socket.gethostname()}"]


def test_a_second_one_computes_what_the_first_failed_at(tmp_path: Path) -> None:
    found: list[bool] = []

    def second() -> None:
        with claimed(tmp_path / "k", lambda: False) as mine:
            found.append(mine)

    thread = threading.Thread(target=second)
    with contextlib.suppress(ZeroDivisionError), claimed(tmp_path / "k", lambda: False):
        thread.start()
        time.sleep(0.1)
        raise ZeroDivisionError
    thread.join(10)
    assert found == [True]


@pytest.mark.parametrize(
    ("owner", "alive"),
    [
        ({"age": 0}, True),
        ({"age": claims.STALE + 1}, False),  # hangs
        ({"host": "elsewhere", "pid": 1, "age": 0}, True),
        ({"host": "elsewhere", "pid": 1, "age": claims.STALE + 1}, False),
    ],
)
def test_an_owner_is_dead_without_a_sign_of_life(tmp_path: Path, owner: dict[str, float], alive: bool) -> None:
    path = tmp_path / "k"
    owned_by(path, **owner)  # type: ignore[arg-type]
    assert claims._alive(path) == alive
    assert claims._Linked(path, "mine").take() == (not alive)


def test_a_killed_owner_is_succeeded_at_once(tmp_path: Path) -> None:
    path = tmp_path / "k"
    code = (
        f"from extrapolate.results.claims import claimed; from pathlib import Path; import time\n"
        f"with claimed(Path({str(path)!r}), lambda: False):\n    print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    assert not claims._Linked(path, "mine").take()
    process.kill()
    process.wait()
    process.stdout.close()
    with claimed(path, lambda: False) as mine:
        assert mine


def test_of_a_finished_cell_the_claim_of_the_dead_is_forgotten_and_that_of_the_living_kept(tmp_path: Path) -> None:
    path = tmp_path / "claims" / "key"
    path.parent.mkdir()
    claims.forget(path)  # nothing there
    path.write_text(json.dumps({"token": "x", "host": socket.gethostname(), "pid": 2**22 + 1, "born": 0.0}))
    claims.forget(path)
    assert not path.exists()
    with claimed(path, lambda: False):
        before = path.read_text()
        claims.forget(path)
        assert path.read_text() == before


def test_another_process_with_the_same_number_is_not_the_owner(tmp_path: Path) -> None:
    owned_by(tmp_path / "k")
    record = json.loads((tmp_path / "k").read_text())
    (tmp_path / "k").write_text(json.dumps({**record, "born": "long ago"}))
    assert not claims._alive(tmp_path / "k")


def test_a_claim_that_says_nothing_is_taken_over_when_it_is_old(tmp_path: Path) -> None:
    path = tmp_path / "k"
    path.write_bytes(b"")
    assert not claims._Linked(path, "mine").take()
    os.utime(path, (time.time() - claims.STALE - 1,) * 2)
    assert claims._Linked(path, "mine").take()


def test_a_long_computation_keeps_its_claim_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "STALE", 0.5)
    with claimed(tmp_path / "k", lambda: False):
        time.sleep(1.0)
        assert claims._alive(tmp_path / "k")


def test_who_lost_a_claim_does_not_give_back_its_successors(tmp_path: Path) -> None:
    path = tmp_path / "k"
    with claimed(path, lambda: False):
        owned_by(path)
    assert json.loads(path.read_text())["token"] == "other"


def test_of_many_that_contend_one_holds_it_at_a_time(tmp_path: Path) -> None:
    path, log = tmp_path / "k", []
    owned_by(path, pid=2**22 + 1)  # all begin by finding a dead owner

    def contend(name: int) -> None:
        for _ in range(10):
            with claimed(path, lambda: False):
                log.append(("in", name))
                time.sleep(0.002)
                log.append(("out", name))

    threads = [threading.Thread(target=contend, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(log) == 120
    for entered, left in zip(log[::2], log[1::2], strict=True):
        assert entered == ("in", left[1])
        assert left[0] == "out"


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "claims").write_text("a file")
    with (
        pytest.raises(xt.ResultError, match="cannot claim a cell in"),
        claimed(tmp_path / "claims" / "k", lambda: False),
    ):
        pass


# Where there are no hard links


@pytest.fixture
def bucket() -> Iterator[UPath]:
    """A store in memory, which knows files by name only, as object stores do."""
    store = UPath(f"memory://claims-{uuid.uuid4().hex}")
    yield store
    store.fs.rm(store.path, recursive=True)


def test_in_a_store_a_claim_is_held_by_one_at_a_time(bucket: UPath) -> None:
    path, held, most, times = bucket / "claims" / "k", [0], [0], [0]

    def contend() -> None:
        with claimed(path, lambda: False) as mine:
            assert mine
            held[0] += 1
            most[0] = max(most[0], held[0])
            time.sleep(0.02)
            times[0] += 1
            held[0] -= 1

    threads = [threading.Thread(target=contend) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (times[0], most[0]) == (6, 1)
    assert list(path.iterdir()) == []


def test_in_a_store_what_is_done_is_not_claimed_and_who_waits_is_told(bucket: UPath) -> None:
    done, names = threading.Event(), list[str]()
    found: list[bool] = []

    def second() -> None:
        with claimed(bucket / "k", done.is_set, names.append) as mine:
            found.append(mine)

    with claimed(bucket / "k", done.is_set) as mine:
        assert mine
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.2)
        done.set()
    thread.join(10)
    assert found == [False]
    assert names == [f"process {os.getpid()} on {socket.gethostname()}"]


def test_in_a_store_the_dead_are_succeeded(bucket: UPath, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.mkdir(parents=True, exist_ok=True)
    gone = {"beats": 3, "host": socket.gethostname(), "pid": 2**22 + 1, "born": "0"}
    (bucket / "k").mkdir()
    (bucket / "k" / "gone").write_text(json.dumps(gone))
    assert claims._Listed(bucket / "k").take(), "a process of this machine that is no more"
    (bucket / "elsewhere").mkdir()
    (bucket / "elsewhere" / "other").write_text(json.dumps({**gone, "host": "elsewhere"}))
    claim = claims._Listed(bucket / "elsewhere")
    assert not claim.take()
    monkeypatch.setattr(claims, "STALE", 0.05)
    time.sleep(0.1)
    assert claim.take(), "no sign of life for as long as we waited"
    assert claim.beat()
    (bucket / "elsewhere" / claim.token).unlink()
    assert not claim.beat(), "somebody took it over"


def test_in_a_store_an_owner_that_beats_keeps_its_claim(bucket: UPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "STALE", 0.2)
    monkeypatch.setattr(claims, "_gone", lambda _: False)
    with claimed(bucket / "k", lambda: False):
        waiting = claims._Listed(bucket / "k")
        for _ in range(10):
            assert not waiting.take()
            time.sleep(0.1)
