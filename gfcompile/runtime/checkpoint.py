"""Checkpoints: trained parameters, optimizer state and buffers in logical layout, in one checksummed safetensors file.

They fit every compilation of the same trained parameters over the same frozen weights, whatever target, r or layout;
`gf_checkpoint.c` reads and writes the same. The one before stays beside the newest, for the case that that is damaged.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import generations, tensorfile
from .errors import StepError
from .state import fits
from .tensorfile import Array

FORMAT = "gfcompile-checkpoint-2"
DRAWS = "seed {} steps {} epoch {}"
ROLES = ("parameter", "optimizer", "buffer")
_LONGEST_NOTE = 255  # bytes: the C interface has an array for it
_MOST_STEPS = 2**53  # nobody gets there, and the library counts on in 64 bits
_known: dict[Path, tuple[int, ...]] = {}  # files that this process wrote or found whole: not read again before a save


class _DamagedError(StepError):
    """Not the user's mistake: the generation before may do."""


@dataclass(frozen=True)
class Progress:
    """How far a training has come; `note` is the training program's own text, kept as it is.

    `draws` is what the drawn channels of the next step are a function of: seed, steps, epoch. None without draws.
    """

    steps: int
    lr: float
    note: str = ""
    draws: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Checkpoint:
    """The tensors under "role/name"; views into the file."""

    tensors: Mapping[str, Array]
    progress: Progress
    artifact: str  # the name of the folder that it was made with


def save(
    path: str | os.PathLike[str], tensors: Mapping[str, Array], manifest: dict[str, Any], progress: Progress
) -> None:
    """Write all of the state or, failing, leave the old files as they were."""
    if not _is_note(progress.note):
        raise StepError(
            f"save_checkpoint: the note is no text of at most {_LONGEST_NOTE} bytes without zeros; write another"
        )
    metadata = {
        "format": FORMAT,
        "artifact": manifest["name"],
        "build_id": manifest["build_id"],
        **manifest["checkpoint"],
        "steps": str(progress.steps),
        "lr": repr(progress.lr),
        "note": progress.note,
    }
    if progress.draws is not None:
        metadata["draws"] = DRAWS.format(*progress.draws)
    place = _place("save_checkpoint", path)
    try:
        generations.replace(place, tensorfile.seal(tensors, metadata), _is_whole)
    except generations.BusyError as error:
        who = "another process is writing" if error.holder is None else f"process {error.holder} is training with"
        raise StepError(f"save_checkpoint: '{place}': {who} it; give each its own checkpoint") from error
    except generations.ObstructedError as error:
        raise StepError(
            f"save_checkpoint: '{error.filename}' is in the way of a checkpoint and cannot be removed:"
            f" {error.strerror}; remove it"
        ) from error
    except OSError as error:
        raise StepError(
            f"save_checkpoint: '{place}' cannot be written: {error.strerror or error};"
            " an older checkpoint there is untouched; choose another place"
        ) from error
    _known[place.absolute()] = _identity(place)


def check_finite(tensors: Mapping[str, Array], steps: int, last_loss: float) -> None:
    """Refuse a state, under "role/name", that is not worth keeping: gf_finite.c."""
    bad = next((name for name, value in tensors.items() if not is_finite(value)), None)
    if bad is None and math.isfinite(last_loss):
        return
    what = f"the loss of step {steps} is not finite"
    if bad is not None:
        role, _, name = bad.partition("/")
        what = f"{'optimizer state' if role == 'optimizer' else role} '{name}' is not finite after step {steps}"
    raise StepError(
        f"save_checkpoint: training diverged: {what};"
        " nothing was written; load the last checkpoint and train with a smaller lr"
    )


def is_finite(array: Array) -> bool:
    """Whether it holds neither infinities nor NaNs."""
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def is_rate(lr: float) -> bool:
    """Can a step take it? Its kernels read float32."""
    return 0 <= lr <= float(np.finfo(np.float32).max)


def load(path: str | os.PathLike[str], manifest: dict[str, Any]) -> Checkpoint:
    """Read and verify everything; nothing is applied. The newest generation that is whole, with a warning if it is
    not the newest one."""
    place = _place("load_checkpoint", path)
    try:
        return _load(place, manifest)
    except _DamagedError as damage:
        try:
            found = _load(generations.previous_of(place), manifest)
        except StepError:
            raise StepError(str(damage)) from damage
        warnings.warn(f"{damage}; continuing from '{generations.previous_of(place)}'", RuntimeWarning, stacklevel=3)
        return found


def artifact_name(path: str | os.PathLike[str]) -> str:
    """The name of the artifact that a checkpoint was made with: what to look for beside it."""
    place = _place("load_checkpoint", path)
    try:
        return _read(place).metadata.get("artifact", "")
    except _DamagedError as damage:
        try:
            return _read(generations.previous_of(place)).metadata.get("artifact", "")
        except StepError:
            raise StepError(str(damage)) from damage


def _place(call: str, path: Any) -> Path:
    """The path of a file, or an error in the caller's words."""
    try:
        place = Path(os.fsdecode(path))
        os.fsencode(place)
    except (TypeError, UnicodeError) as error:
        raise StepError(f"{call}: {path!r} is no path; pass the name of a file") from error
    if not place.name or "\0" in str(place):
        raise StepError(f"{call}: {path!r} is no path of a file; pass the name of a file")
    return place


def _is_note(note: Any) -> bool:
    try:
        return len(note.encode()) <= _LONGEST_NOTE and "\0" not in note
    except (AttributeError, TypeError, UnicodeError):
        return False


def _load(path: Path, manifest: dict[str, Any]) -> Checkpoint:
    where = f"load_checkpoint: '{path}'"
    file = _read(path)
    words, keys = file.metadata, manifest["checkpoint"]
    if words.get("compatible") != keys["compatible"]:
        raise StepError(f"{where}: made by a step that trains other parameters; compile the same plan, or train anew")
    wanted = {f"{entry['role']}/{entry['name']}": entry for entry in manifest["state"] if entry["role"] in ROLES}
    for name in sorted(wanted.keys() ^ file.tensors.keys()):
        what = "has no" if name in wanted else "has an unexpected"
        raise StepError(f"{where}: {what} tensor '{name}'; compile with the same optimizer and batchnorm")
    for name, entry in wanted.items():
        if not fits(entry, file.tensors[name]):
            found = file.tensors[name]
            raise StepError(
                f"{where}: tensor '{name}' is {found.dtype} {found.shape},"
                f" expected {entry['dtype']} {tuple(entry['shape'])}; compile the same plan"
            )
        if not is_finite(file.tensors[name]):
            raise _DamagedError(f"{where}: tensor '{name}' is not finite; use another copy")
    if words.get("frozen") != keys["frozen"]:
        raise StepError(f"{where}: made over other frozen weights; compile the model it was trained from")
    try:
        steps, lr = int(words["steps"]), float(words["lr"])
    except (KeyError, ValueError) as error:
        raise _DamagedError(f"{where}: its step count or lr is damaged; use another copy") from error
    if not 0 <= steps <= _MOST_STEPS or not is_rate(lr):
        raise _DamagedError(f"{where}: its step count or lr is damaged; use another copy")
    _known[path.absolute()] = _identity(path)
    progress = Progress(steps, lr, words.get("note", ""), _read_draws(where, words.get("draws")))
    return Checkpoint(file.tensors, progress, words.get("artifact", ""))


def _read_draws(where: str, text: str | None) -> tuple[int, int, int] | None:
    if text is None:
        return None
    found = re.fullmatch(DRAWS.replace("{}", r"(\d{1,19})"), text)
    if found is None:
        raise _DamagedError(f"{where}: its draws are damaged; use another copy")
    seed, steps, epoch = map(int, found.groups())
    if seed >= 2**32 or max(steps, epoch) > _MOST_STEPS:
        raise _DamagedError(f"{where}: its draws are damaged; use another copy")
    return seed, steps, epoch


def _read(path: Path) -> tensorfile.TensorFile:
    where = f"load_checkpoint: '{path}'"
    try:
        file = tensorfile.read(path)
    except StepError as error:
        raise _DamagedError(f"load_checkpoint: {error}") from error
    if file.metadata.get("format") != FORMAT:
        raise _DamagedError(f"{where}: not a checkpoint of a compiled step; pass a file that save_checkpoint wrote")
    if not file.is_sealed():
        raise _DamagedError(f"{where}: its content does not match its checksum; use another copy")
    return file


def _is_whole(path: Path) -> bool:
    """A damaged file must not take the place of a whole previous generation."""
    try:
        return _known.get(path.absolute()) == _identity(path) or _read(path) is not None
    except (OSError, StepError):
        return False


def _identity(path: Path) -> tuple[int, ...]:
    about = path.stat()
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns
