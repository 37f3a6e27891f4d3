"""Checkpoints: resume bit for bit, refuse what is damaged or foreign, never leave half a file."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gfcompile.runtime import tensorfile
from gfcompile.runtime.errors import StepError
from gfcompile.runtime.step import Step

from .c_interface import C, Progress
from .conftest import Build

Batch = tuple[np.ndarray, np.ndarray]


def bits(step: Step) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in step.state_dict().items()}


def test_resumes_bit_for_bit(build: Build, batch: Batch, tmp_path: Path) -> None:
    folder, path = build(), tmp_path / "ckpt"
    whole, first = Step.load(folder, threads=2), Step.load(folder, threads=2)
    losses = [whole.train(*batch, lr=0.01 * i) for i in range(10)]
    halves = [first.train(*batch, lr=0.01 * i) for i in range(5)]
    first.lr = 0.125
    first.save_checkpoint(path)
    second = Step.load(folder, threads=2)
    second.load_checkpoint(path)
    assert (second.steps, second.lr) == (5, 0.125)
    halves += [second.train(*batch, lr=0.01 * i) for i in range(5, 10)]
    assert halves == losses
    assert bits(second) == bits(whole)


def test_the_file_is_plain_safetensors_in_logical_layout(build: Build, batch: Batch, tmp_path: Path) -> None:
    numpy_reader = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "ckpt"
    with Step.load(build()) as step:
        step.train(*batch)
        step.save_checkpoint(str(path))
        found = numpy_reader.load_file(path)
        assert set(found) == {
            "parameter/fc.weight", "parameter/fc.bias", "optimizer/momentum_buffer/fc.weight",
            "optimizer/momentum_buffer/fc.bias", "buffer/fc.count",
        }  # fmt: skip
        np.testing.assert_array_equal(found["parameter/fc.weight"], step.state_dict()["fc.weight"])
        assert found["buffer/fc.count"] == 6
        words = tensorfile.read(path).metadata
        assert words["format"] == "gfcompile-checkpoint-2"
        assert (words["steps"], words["lr"], words["build_id"]) == ("1", "0.05", step.manifest["build_id"])


def test_fits_another_build_of_the_same_plan(build: Build, batch: Batch, tmp_path: Path) -> None:
    with Step.load(build(name="a")) as step, Step.load(build("LABELS", name="b")) as other:
        step.train(*batch)
        step.save_checkpoint(tmp_path / "ckpt")
        other.load_checkpoint(tmp_path / "ckpt")
        assert bits(other) == bits(step)


def rewrite(path: Path, change: Callable[[dict[str, np.ndarray], dict[str, str]], None]) -> None:
    """A well-formed checkpoint with other content and a right checksum."""
    file = tensorfile.read(path)
    tensors, metadata = dict(file.tensors), dict(file.metadata)
    change(tensors, metadata)
    metadata.pop("sha256", None)
    path.write_bytes(b"".join(tensorfile.seal(tensors, metadata)))


CHANGES: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda t, m: m.update(format="other"), "not a checkpoint of a compiled step;"
     " pass a file that save_checkpoint wrote"),
    (lambda t, m: m.update(compatible="0"), "made by a step that trains other parameters;"
     " compile the same plan, or train anew"),
    (lambda t, m: m.update(frozen="0"), "made over other frozen weights; compile the model it was trained from"),
    (lambda t, m: t.pop("optimizer/momentum_buffer/fc.bias"), "has no tensor 'optimizer/momentum_buffer/fc.bias';"
     " compile with the same optimizer and batchnorm"),
    (lambda t, m: t.update({"buffer/more": np.zeros(1)}), "has an unexpected tensor 'buffer/more';"
     " compile with the same optimizer and batchnorm"),
    (lambda t, m: t.update({"buffer/fc.count": np.zeros(1, np.int64)}), "tensor 'buffer/fc.count' is int64 (1,),"
     " expected int64 (); compile the same plan"),
    (lambda t, m: m.update(steps="many"), "its step count or lr is damaged; use another copy"),
    (lambda t, m: m.update(lr="nan"), "its step count or lr is damaged; use another copy"),
    (lambda t, m: m.update(steps=str(2**63 - 1)), "its step count or lr is damaged; use another copy"),
    (lambda t, m: m.update(draws=f"seed {2**32} steps 1 epoch 0"), "its draws are damaged; use another copy"),
    (lambda t, m: m.update(draws=f"seed 1 steps 1 epoch {2**63 - 1}"), "its draws are damaged; use another copy"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "text"), CHANGES)
def test_a_foreign_checkpoint_is_refused_whole(
    build: Build, batch: Batch, tmp_path: Path, change: Callable[[Any, Any], None], text: str
) -> None:
    path = tmp_path / "ckpt"
    with Step.load(build()) as step:
        step.train(*batch)
        step.save_checkpoint(path)
        rewrite(path, change)
        step.train(*batch)
        before = bits(step)
        with pytest.raises(StepError) as caught:
            step.load_checkpoint(path)
        assert str(caught.value) == f"load_checkpoint: '{path}': {text}"
        assert bits(step) == before
        assert step.steps == 2


@pytest.mark.slow
def test_every_flipped_or_missing_byte_is_noticed(build: Build, batch: Batch, tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    with Step.load(build()) as step:
        step.train(*batch)
        step.save_checkpoint(path)
        step.train(*batch)
        before, whole = bits(step), path.read_bytes()
        padding = range(8 + len(whole[8 : 8 + whole[0] + 256 * whole[1]].rstrip()), 8 + whole[0] + 256 * whole[1])
        damaged = [whole[:i] + bytes([whole[i] ^ 4]) + whole[i + 1 :] for i in range(len(whole)) if i not in padding]
        damaged += [whole[:i] for i in range(0, len(whole), 7)] + [whole + b"\0"]
        for content in damaged:
            path.write_bytes(content)
            with pytest.raises(StepError, match=r"^load_checkpoint: '.*ckpt': ") as caught:
                step.load_checkpoint(path)
            assert "\n" not in str(caught.value)
        assert bits(step) == before
        path.write_bytes(whole)
        step.load_checkpoint(path)
        assert step.steps == 1


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "not a whole safetensors file: 0 bytes are no header; use another copy"),
        (b"PK\3\4 a zip file", "not a whole safetensors file: its header says"),
        (b"\2\0\0\0\0\0\0\0{}", "not a checkpoint of a compiled step; pass a file that save_checkpoint wrote"),
        (b"\2\0\0\0\0\0\0\0[]", "not a whole safetensors file: its header is damaged; use another copy"),
    ],
)
def test_not_a_checkpoint(build: Build, tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "ckpt"
    path.write_bytes(content)
    with Step.load(build()) as step, pytest.raises(StepError) as caught:
        step.load_checkpoint(path)
    assert str(caught.value).startswith(f"load_checkpoint: '{path}': {text}")


def test_a_missing_checkpoint(build: Build, tmp_path: Path) -> None:
    with Step.load(build()) as step, pytest.raises(StepError) as caught:
        step.load_checkpoint(tmp_path / "none")
    assert str(caught.value) == (
        f"load_checkpoint: '{tmp_path / 'none'}': cannot be read: No such file or directory; check the path"
    )


@pytest.mark.parametrize("function", ["replace", "fsync"])
def test_a_failed_write_keeps_the_old_file(
    build: Build, batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    path = folder / "ckpt"
    with Step.load(build()) as step:
        step.save_checkpoint(path)
        old = path.read_bytes()
        step.train(*batch)

        def fail(*arguments: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, function, fail)
            with pytest.raises(StepError) as caught:
                step.save_checkpoint(path)
        assert str(caught.value) == (
            f"save_checkpoint: '{path}' cannot be written: No space left on device;"
            " an older checkpoint there is untouched; choose another place"
        )
        assert path.read_bytes() == old
        assert set(os.listdir(folder)) <= {"ckpt", "ckpt.previous"}
        step.save_checkpoint(path)
        assert path.read_bytes() != old
        assert (folder / "ckpt.previous").read_bytes() == old
        assert sorted(os.listdir(folder)) == ["ckpt", "ckpt.previous"]


def test_a_damaged_newest_gives_way_to_the_one_before(build: Build, batch: Batch, tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    with Step.load(build()) as step:
        step.note = "epoch 1"
        step.train(*batch)
        step.save_checkpoint(path)
        first = bits(step)
        step.train(*batch)
        step.save_checkpoint(path)
        for damaged, reason in ((path.read_bytes()[:-1], "truncated inside tensor"), (None, "cannot be read")):
            path.unlink() if damaged is None else path.write_bytes(damaged)
            with pytest.warns(RuntimeWarning, match=f"{reason}.*; continuing from '.*ckpt.previous'"):
                step.load_checkpoint(path)
            assert (step.steps, step.note, bits(step)) == (1, "epoch 1", first)
        path.write_bytes(b"damaged")
        step.save_checkpoint(path)  # what is damaged does not push out what is whole
        assert tensorfile.read(tmp_path / "ckpt.previous").metadata["steps"] == "1"


def test_a_newest_that_is_not_finite_gives_way_too(build: Build, batch: Batch, tmp_path: Path) -> None:
    """As older versions wrote them: whole and sealed, in Python and in C."""
    path = tmp_path / "ckpt"
    with Step.load(build()) as step:
        step.train(*batch)
        step.save_checkpoint(path)
        first = bits(step)
        step.train(*batch)
        step.save_checkpoint(path)
        rewrite(path, lambda tensors, _: tensors.update({"parameter/fc.bias": np.full(3, np.nan, np.float32)}))
        text = f"'{path}': tensor 'parameter/fc.bias' is not finite; use another copy"
        with pytest.warns(RuntimeWarning, match=re.escape(text)):
            step.load_checkpoint(path)
        assert (step.steps, bits(step)) == (1, first)
        c, progress = C(step._folder / "libstep.so"), Progress()
        handle = ctypes.c_void_p(step._handle)
        assert c.gf_step_load(handle, str(path).encode(), ctypes.byref(progress)) == 0, c.error()
        assert progress.steps == 1
        (tmp_path / "ckpt.previous").unlink()
        assert c.gf_step_load(handle, str(path).encode(), ctypes.byref(progress)) != 0
        assert c.error() == text
        with pytest.raises(StepError, match=re.escape(text)):
            step.load_checkpoint(path)
        assert bits(step) == first


def test_an_interrupt_does_not_lose_a_step(build: Build, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is raised once the library has returned: the update is done, though nobody gets its loss."""
    with Step.load(build()) as step:
        train = step._library.train

        def interrupted(*arguments: Any) -> float:
            train(*arguments)
            raise KeyboardInterrupt

        monkeypatch.setattr(step._library, "train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            step.train(*batch)
        assert step.steps == 1


@pytest.mark.parametrize("path", ["", ".", "a\0b", "\ud800", None, 5])
def test_what_is_no_path(build: Build, path: Any) -> None:
    with Step.load(build()) as step:
        for call, name in ((step.save_checkpoint, "save_checkpoint"), (step.load_checkpoint, "load_checkpoint")):
            with pytest.raises(StepError) as caught:
                call(path)
            assert str(caught.value).startswith(f"{name}: {path!r} is no path")
            assert str(caught.value).endswith("; pass the name of a file")


def test_two_writers_of_one_checkpoint(build: Build, tmp_path: Path) -> None:
    with Step.load(build()) as step, open(tmp_path / ".ckpt.tmp", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StepError) as caught:
            step.save_checkpoint(tmp_path / "ckpt")
    assert str(caught.value) == (
        f"save_checkpoint: '{tmp_path / 'ckpt'}': another process is writing it; give each its own checkpoint"
    )


def test_a_note_that_no_checkpoint_holds(build: Build, tmp_path: Path) -> None:
    with Step.load(build()) as step:
        for note in ("a" * 256, "a\0", "\ud800", None):
            step.note = note  # type: ignore[assignment]
            with pytest.raises(StepError) as caught:
                step.save_checkpoint(tmp_path / "ckpt")
            assert str(caught.value) == (
                "save_checkpoint: the note is no text of at most 255 bytes without zeros; write another"
            )


def test_an_interrupted_write_keeps_the_old_file(
    build: Build, batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()

    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with Step.load(build()) as step:
        monkeypatch.setattr(os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            step.save_checkpoint(folder / "ckpt")
    assert os.listdir(folder) == []


def test_places_that_cannot_be_written(build: Build, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with Step.load(build()) as step:
        for path, reason in ((tmp_path / "no" / "ckpt", "No such file"), (tmp_path / "folder", "Is a directory")):
            with pytest.raises(StepError, match=f"^save_checkpoint: '{path}' cannot be written: {reason}"):
                step.save_checkpoint(path)
    assert os.listdir(tmp_path / "folder") == []
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


def test_other_frozen_weights_are_noticed(build: Build, tmp_path: Path) -> None:
    with Step.load(build(name="a")) as step:
        step.save_checkpoint(tmp_path / "ckpt")
    folder = build(name="b", checkpoint={"compatible": "c0", "frozen": "f1"})
    with Step.load(folder) as other, pytest.raises(StepError, match="made over other frozen weights"):
        other.load_checkpoint(tmp_path / "ckpt")
