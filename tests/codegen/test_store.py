"""The store of what earlier compiles made: never wrong, whatever happens to its files; at worst of no use."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from gfcompile.codegen.compiled import LONGEST
from gfcompile.codegen.store import KEPT, NO_STORE, UNSEEN, Store, open_store
from gfcompile.errors import UserError

KEY, OTHER = "ab" + "0" * 62, "cd" + "1" * 62


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "kernels", 40_000)


def bytes_on_disk(store: Store) -> int:
    return sum(max(path.stat().st_size, path.stat().st_blocks * 512) for path in files(store))


def files(store: Store) -> list[Path]:
    return [path for path in store.folder.rglob("*") if path.is_file()]


def test_what_was_written_is_read(store: Store) -> None:
    assert store.read(KEY) is None
    assert not store.holds(KEY)
    store.write(KEY, b"code")
    store.write(OTHER, b"")
    assert (store.read(KEY), store.read(OTHER)) == (b"code", b"")
    assert store.holds(KEY)
    assert [path.name for path in files(store)] == [KEY, OTHER]  # nothing unfinished is left


def test_whatever_bit_is_flipped_it_is_as_if_it_were_not_there(store: Store) -> None:
    store.write(KEY, b"code")
    (path,) = files(store)
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert store.read(KEY) is None
        assert not path.exists()


@pytest.mark.parametrize("length", range(0, 36, 5))
def test_a_file_that_ends_early_is_not_read(store: Store, length: int) -> None:
    store.write(KEY, b"code")
    (path,) = files(store)
    path.write_bytes(path.read_bytes()[:length])
    assert store.read(KEY) is None


def test_a_full_disk_ends_the_writing_and_nothing_else(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(KEY, b"code")
    tried: list[str] = []

    def no_space(_: int, *__: Any) -> Any:
        tried.append("write")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", no_space)
        store.write(OTHER, b"more")
        store.write(OTHER, b"more")
    assert tried == ["write"]  # not tried again
    assert [path.name for path in files(store)] == [KEY]
    store.trim()
    assert [path.name for path in files(store)] == [KEY]
    assert Store(store.folder, store.limit).read(KEY) == b"code"


def test_where_no_folder_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("a file where the folder should be")
    store = Store(tmp_path / "kernels", 100)
    store.write(KEY, b"code")
    assert store.read(KEY) is None


def test_what_was_used_last_stays(store: Store) -> None:
    keys = [f"{number:02}" + "f" * 62 for number in range(12)]
    store.limit = 1_000_000
    for age, key in enumerate(reversed(keys)):
        store.write(key, bytes(100))  # and the rest of a block
        os.utime(store.folder / key[:2] / key, (time.time() - 100 - age,) * 2)
    oldest = keys[0]
    assert store.read(oldest) is not None  # used: now it is the youngest
    store.limit = bytes_on_disk(store) - 1
    store.trim()
    left = files(store)
    assert 0.5 * store.limit < bytes_on_disk(store) <= KEPT * store.limit
    assert {path.name for path in left} == {oldest, *keys[-len(left) + 1 :]}


def test_within_the_limit_nothing_goes_but_what_was_never_finished(store: Store) -> None:
    store.write(KEY, bytes(9000))
    young, old = (store.folder / KEY[:2] / f".new.{name}" for name in ("young", "old"))
    for path in (young, old):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - LONGEST - 1,) * 2)
    store.trim()
    assert sorted(path.name for path in files(store)) == [".new.young", KEY]


def test_who_writes_trims_at_once_and_now_and_then(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(Store, "trim", lambda _: looks.append(len(files(store))))
    each = 4096
    store.limit = int(5 * each / UNSEEN)
    assert store.read(KEY) is None
    assert not store.holds(KEY)
    assert looks == []
    for number in range(14):
        store.write(f"{number:02}" + "f" * 62, bytes(each - 32))
    assert looks == [1, 7, 13]


def test_a_copy_of_the_process_leaves_trimming_to_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(Store, "trim", lambda _: looks.append(len(files(store))))
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: store._owner + 1)
        store.write(KEY, b"code")
    assert looks == []
    store.write(OTHER, b"code")
    assert looks == [2]


def test_a_process_after_another_keeps_the_limit(store: Store) -> None:
    for number in range(30):
        Store(store.folder, store.limit).write(f"{number:02}" + "f" * 62, bytes(4000))
        assert bytes_on_disk(store) <= store.limit


def test_a_folder_that_goes_while_it_is_looked_at(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any) -> Any:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(Path, "glob", gone)
    store.write(KEY, b"code")
    assert store.read(KEY) == b"code"


@pytest.mark.parametrize("closed", ["the entry", "its folder"])
def test_what_may_not_be_read_is_not_held(store: Store, closed: str) -> None:
    store.write(KEY, b"code")
    (path,) = files(store)
    (path if closed == "the entry" else path.parent).chmod(0)
    somebody = os.fork()
    if somebody == 0:
        try:
            if os.getuid() == 0:  # who may read everything
                os.setuid(65534)
            os._exit(17 if store.holds(KEY) is False and store.read(KEY) is None else 1)
        finally:
            os._exit(2)
    ended = os.waitpid(somebody, 0)[1]
    path.parent.chmod(0o700)
    assert os.waitstatus_to_exitcode(ended) == 17


@pytest.mark.slow
def test_two_that_write_at_once_and_are_killed_leave_whole_entries(store: Store) -> None:
    """Each entry has its key's content, or is not there: whenever the writers die."""
    keys = [f"{number:02}" + "e" * 62 for number in range(40)]
    contents = {key: key.encode() * 500 for key in keys}
    store.limit = 10_000_000
    for pause in (0.002, 0.005, 0.01, 0.02, 0.05):
        writers = []
        for order in (keys, keys[::-1]):
            writer = os.fork()
            if writer == 0:
                try:
                    while True:
                        for key in order:
                            store.write(key, contents[key])
                finally:
                    os._exit(1)
            writers.append(writer)
        time.sleep(pause)
        for writer in writers:
            os.kill(writer, signal.SIGKILL)
            os.waitpid(writer, 0)
        for key in keys:
            assert store.read(key) in (None, contents[key])
    assert any(store.read(key) == contents[key] for key in keys)


def test_the_users_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GFCOMPILE_CACHE", str(tmp_path))
    monkeypatch.setenv("GFCOMPILE_CACHE_LIMIT", "3MB")
    assert open_store() == Store(tmp_path / "kernels", 3 << 20)
    monkeypatch.setenv("GFCOMPILE_CACHE_LIMIT", "0")
    nothing = open_store()
    nothing.write(KEY, b"code")
    assert nothing.read(KEY) is None
    assert not (tmp_path / "kernels").exists()
    monkeypatch.setenv("GFCOMPILE_CACHE_LIMIT", "much")
    with pytest.raises(UserError) as caught:
        open_store()
    expected = "GFCOMPILE_CACHE_LIMIT=much: must be a number of bytes, as in 262144, 256KB or 2MB, or 0 to keep nothing"
    assert str(caught.value) == expected


def test_no_store_holds_nothing() -> None:
    NO_STORE.write(KEY, b"code")
    NO_STORE.trim()
    assert not NO_STORE.holds(KEY)
    assert NO_STORE.read(KEY) is None
