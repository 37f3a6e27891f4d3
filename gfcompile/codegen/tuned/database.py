"""`Database`: trials in a file, a line each; and the layers of such files that the compiler looks into."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gfcompile.codegen.tuned.keys import kernel_hash, target_key, versions
from gfcompile.codegen.tuned.record import EMULATED, MEASURED, BadRecordError, Record, read_record, write_record
from gfcompile.errors import UserError

__all__ = ["Database", "Databases", "Record", "kernel_hash", "target_key", "user_path", "versions"]

LEAST_RATIO = 1.02  # what is gained by less is not worth another schedule
BUNDLED = Path(__file__).parent / "bundled"
_USER_FILE = "GFCOMPILE_TUNING"
_BEGIN = b'{"kernel": '  # of every line that we write


@dataclass
class Database:
    """Trials in the order they were added.

    Several processes may add to one file; each sees what was there when it opened it, and its own.
    """

    path: Path | None = None  # None: in memory alone
    records: list[Record] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # lines that are no records, each with its place

    @classmethod
    def open(cls, path: Path, must_exist: bool = False) -> Database:
        """What the file holds; a missing one is an empty database. A line that is no record goes to `problems`."""
        content = _read(path, must_exist)
        database = cls(path)
        for number, line in enumerate(content.split(b"\n"), 1):
            if not line.strip():
                continue
            try:
                database.records.append(read_record(line))
            except BadRecordError as bad:
                database.problems.append(f"{path}:{number}: {bad}; skipped")
        is_ours = content.startswith(_BEGIN) or _BEGIN.startswith(content)  # one that was cut off begins like any
        if database.problems and not database.records and not is_ours:
            wrong = "not a tuning database, no line of it is a record"
            raise UserError(f"{path}: {wrong}; give another file, or one that is not there yet")
        return database

    def add(self, record: Record) -> None:
        """On disk when this returns, after whatever others have added."""
        line = write_record(record)
        if self.path is not None:
            with writing(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with locked(self.path) as descriptor:
                    _append(descriptor, line)
        self.records.append(record)

    def tried(self, kernel: str, target: str) -> list[Record]:
        """Its trials of these versions."""
        now = versions()
        return [each for each in self.records if (each.kernel, each.target, each.versions) == (kernel, target, now)]

    def best(self, kernel: str, target: str, allow_emulated: bool = False) -> Record | None:
        """The trial of these versions that was surely faster than the untuned kernel, and by most.

        Of several trials of one candidate the latest counts: it may have been taken back.
        """
        kinds = (MEASURED, EMULATED) if allow_emulated else (MEASURED,)
        last: dict[object, Record] = {}
        for each in sorted(self.tried(kernel, target), key=lambda record: record.date):
            if each.kind in kinds:
                last[each.kind, each.template, tuple(sorted(each.decisions.items()))] = each
        return max(filter(is_faster, last.values()), key=sure_ratio, default=None)


def is_faster(record: Record) -> bool:
    """Whether it beats the untuned kernel beyond its noise. A spread that is not known may be any."""
    if record.failure is not None or record.ratio is None or record.spread is None:
        return False
    return sure_ratio(record) > 1 and record.ratio >= LEAST_RATIO


def sure_ratio(record: Record) -> float:
    """What is left of its ratio if all noise was in its favour."""
    return (record.ratio or 0) - (record.spread or 0)


@dataclass(frozen=True)
class Databases:
    """Layers, the nearest to the user first."""

    layers: Sequence[Database]

    @classmethod
    def open(cls, chosen: Path | None = None) -> Databases:
        """The file that the user names, which must exist; then the user's own, if any; then those that we ship."""
        layers = [Database.open(chosen, must_exist=True)] if chosen is not None else []
        return cls([*layers, Database.open(user_path()), *map(Database.open, sorted(BUNDLED.glob("*.jsonl")))])

    @property
    def problems(self) -> list[str]:
        """Lines of any database that were no records."""
        return [problem for layer in self.layers for problem in layer.problems]

    def best(self, kernel: str, target: str, allow_emulated: bool = False) -> Record | None:
        """Of the first layer that has one. What a nearer layer has measured and not found best is passed over."""
        known: list[Record] = []
        for layer in self.layers:
            best = layer.best(kernel, target, allow_emulated)
            if best is not None and not any(_is_same_candidate(best, each) for each in known):
                return best
            known += [each for each in layer.tried(kernel, target) if each.kind == MEASURED]
        return None


NOTHING_KNOWN = Databases(())


def _is_same_candidate(a: Record, b: Record) -> bool:
    return (a.template, a.decisions) == (b.template, b.decisions)


def user_path() -> Path:
    """$GFCOMPILE_TUNING, or the place that the desktop's rules name."""
    chosen = os.environ.get(_USER_FILE)
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(chosen) if chosen else Path(base) / "gfcompile" / "tuning.jsonl"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system refuses here is said of this file."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); give another file") from error


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """The file, made if missing, open for appending; nobody else holds it so. Raises OSError."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(path, descriptor):  # else a merge has put another file there while we waited
                yield descriptor
                return
        finally:
            os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _append(descriptor: int, line: bytes) -> None:
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        line = b"\n" + line  # a process was stopped in the middle of the last one
    while line:  # one write, but for a disk that fills up: then the second one says so
        line = line[os.write(descriptor, line) :]
    os.fsync(descriptor)


def _read(path: Path, must_exist: bool) -> bytes:
    if path.is_dir():
        raise UserError(f"{path}: is a directory; give the file of a tuning database")
    if path.exists() and not path.is_file():  # reading a pipe would wait for ever
        raise UserError(f"{path}: not a regular file; give the file of a tuning database")
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        if must_exist:
            raise UserError(f"{path}: does not exist; give the file of a tuning database") from error
        return b""
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give the file of a tuning database") from error
