"""The C interface to files: what it reads and writes is what Python and the reference implementations do."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gfcompile.codegen.link import runtime_sources
from gfcompile.runtime import tensorfile
from gfcompile.runtime.manifest import write_manifest
from gfcompile.runtime.step import Step
from tests.manifests import edit_manifest, list_anew, manifest_of
from tests.missing import skip_for_want

from .c_interface import FEATURE, STATE, C, Progress, assert_described
from .conftest import FLAGS, HERE, RUNTIME, Build, build_id_of, weights

OK, ARGUMENT, FILE, FORMAT, CHECKSUM, MISMATCH = range(6)


@pytest.mark.slow
def test_the_library_describes_itself_as_the_manifest_does(build: Build) -> None:
    folder = build()
    assert_described(folder)
    c = C(folder / "libstep.so")
    assert c.gf_step_find(STATE, b"optimizer", b"fc.weight") == -1
    assert not c.gf_step_value(STATE, -1)
    assert not c.gf_step_value(9, 0)
    assert c.gf_step_count(FEATURE) == 0


def test_parameters_are_the_models_own(build: Build) -> None:
    """Read in C what Python wrote to the files, though the library keeps it transposed; and back."""
    folder = build(seed=4)
    c = C(folder / "libstep.so")
    step, expected = c.open(folder), weights(seed=4)
    found = np.zeros((2, 3), np.float32)
    assert c.gf_step_get_parameter(step, b"fc.weight", found.ctypes, ctypes.c_size_t(24)) == OK
    np.testing.assert_array_equal(found, expected["fc.weight"])
    other = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert c.gf_step_set_parameter(step, b"fc.weight", other.ctypes, ctypes.c_size_t(24)) == OK
    physical = np.zeros((3, 2), np.float32)
    assert c.gf_step_get(step, 0, physical.ctypes) == OK
    np.testing.assert_array_equal(physical, other.T)
    count = np.zeros((), np.int64)
    assert c.gf_step_get_parameter(step, b"fc.count", count.ctypes, ctypes.c_size_t(8)) == OK
    assert count == 5
    for name, size, text in (
        (b"fc.weight", 20, "gf_step_get_parameter: 'fc.weight' has 24 bytes, 20 were given"),
        (b"body.weight", 24, "gf_step_get_parameter: 'body.weight' is not trained by this step"),
        (None, 24, "gf_step_get_parameter: the step, the name or the memory is NULL"),
    ):
        assert c.gf_step_get_parameter(step, name, found.ctypes, ctypes.c_size_t(size)) == c.gf_error_code() == ARGUMENT
        assert c.error() == text
    c.gf_step_destroy(step)


def test_checkpoints_go_both_ways(build: Build, batch: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    folder = build()
    c = C(folder / "libstep.so")
    step, progress = c.open(folder), Progress()
    with Step.load(folder) as python:
        python.train(*batch)
        python.note = "épöch 2, 'quoted' \"twice\""
        python.lr = 1 / 3
        python.save_checkpoint(tmp_path / "python.ckpt")
        assert c.gf_step_load(step, str(tmp_path / "python.ckpt").encode(), ctypes.byref(progress)) == OK, c.error()
        assert (progress.steps, progress.lr, progress.note.decode()) == (1, 1 / 3, python.note)
        assert c.gf_step_save(step, str(tmp_path / "c.ckpt").encode(), ctypes.byref(progress)) == OK, c.error()
        before = {name: value.tobytes() for name, value in python.state_dict().items()}
        python.train(*batch)
        python.load_checkpoint(tmp_path / "c.ckpt")
        assert (python.steps, python.lr, python.note) == (1, 1 / 3, progress.note.decode())
        assert {name: value.tobytes() for name, value in python.state_dict().items()} == before
    words = [tensorfile.read(tmp_path / name).metadata for name in ("c.ckpt", "python.ckpt")]
    assert [words[0][key] for key in words[0] if key not in ("sha256", "lr")] == [
        words[1][key] for key in words[1] if key not in ("sha256", "lr")
    ]
    reference = pytest.importorskip("safetensors.numpy")
    found, expected = (reference.load_file(tmp_path / name) for name in ("c.ckpt", "python.ckpt"))
    assert {name: value.tobytes() for name, value in found.items()} == {
        name: value.tobytes() for name, value in expected.items()
    }
    c.gf_step_destroy(step)


def damage(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.slow
def test_a_folder_that_is_not_what_was_compiled(build: Build, tmp_path: Path) -> None:
    def refused(folder: Path, code: int) -> str:
        assert not c.gf_step_open(str(folder).encode(), 1)
        assert c.gf_error_code() == code
        return c.error().replace(f"{tmp_path}/", "")

    c = C(build(name="a") / "libstep.so")
    assert refused(tmp_path / "none", FILE) == "'none': no manifest.json there; pass the folder that gfcompile wrote"
    folder = build(name="b")
    damage(folder / "weights.safetensors", lambda content: content[:-1] + b"!")
    assert refused(folder, CHECKSUM) == (
        "'b/weights.safetensors': its content is not what was compiled (truncated or changed);"
        " recompile, or copy the artifact again"
    )
    (folder / "weights.safetensors").unlink()
    assert refused(folder, FILE) == "'b/weights.safetensors': cannot be read: No such file or directory; check the path"
    other = build("LABELS", name="c")
    assert refused(other, MISMATCH) == (
        f"'c/manifest.json': its build id {build_id_of(('LABELS',))[:12]} is not the library's {build_id_of(())[:12]};"
        " link to this folder's library,"
        " recompile, or copy the artifact again"
    )
    edit_manifest(other, format=3)
    assert refused(other, FORMAT) == (
        "'c/manifest.json': has another format, this runtime reads formats 1 and 2; recompile the artifact"
    )
    damage(other / "manifest.json", lambda content: content[:-1])
    assert refused(other, CHECKSUM) == (
        "'c/manifest.json': its content does not match its checksum; recompile, or copy the artifact again"
    )
    damage(other / "manifest.json", lambda content: content[1:])
    assert refused(other, FORMAT) == "'c/manifest.json': is damaged; recompile, or copy the artifact again"
    (other / "manifest.json").write_text(json.dumps({**manifest_of(folder)}))
    assert refused(other, FORMAT) == "'c/manifest.json': has no checksum; recompile, or copy the artifact again"
    folder = build(name="d")
    tensorfile.write(folder / "constants.safetensors", {"scale": np.ones(2, np.float32)})
    list_anew(folder, "constants.safetensors")
    assert refused(folder, MISMATCH) == (
        "'d': has no fitting tensor 'scale' among its constants; recompile, or copy the artifact again"
    )
    folder = build(name="e")
    damage(folder / "libstep.so", lambda content: content[:-1] + bytes([content[-1] ^ 1]))
    assert refused(folder, CHECKSUM) == (
        "'e/libstep.so': its content is not what was compiled (truncated or changed);"
        " recompile, or copy the artifact again"
    )
    (folder / "libstep.so").unlink()  # linked from elsewhere, or into the program
    c.gf_step_destroy(c.open(folder))
    assert not c.gf_step_open(None, 1)
    assert c.error() == "gf_step_open: the folder is NULL"


CHANGES: list[tuple[Callable[[Any, Any], Any], int, str]] = [
    (lambda t, m: m.update(format="other"), FORMAT, "not a checkpoint of a compiled step; pass a file that"
     " gf_step_save wrote"),
    (lambda t, m: m.update(compatible="0"), MISMATCH, "made by a step that trains other parameters; compile the same"
     " plan, or train anew"),
    (lambda t, m: m.update(frozen="0"), MISMATCH, "made over other frozen weights; compile the model it was trained"
     " from"),
    (lambda t, m: t.pop("optimizer/momentum_buffer/fc.bias"), MISMATCH, "has no tensor"
     " 'optimizer/momentum_buffer/fc.bias'; compile with the same optimizer and batchnorm"),
    (lambda t, m: t.update({"buffer/more": np.zeros(1)}), MISMATCH, "has 6 tensors, expected 5; compile with the same"
     " optimizer and batchnorm"),
    (lambda t, m: t.update({"buffer/fc.count": np.zeros(1, np.int64)}), MISMATCH, "tensor 'buffer/fc.count' has another"
     " shape or type; compile the same plan"),
    (lambda t, m: m.update(steps="many"), FORMAT, "its step count, lr or note is damaged; use another copy"),
    (lambda t, m: m.update(lr="nan"), FORMAT, "its step count, lr or note is damaged; use another copy"),
    (lambda t, m: m.update(steps=str(2**63 - 1)), FORMAT, "its step count, lr or note is damaged; use another copy"),
    (lambda t, m: m.update(draws=f"seed 1 steps {2**63 - 1} epoch 0"), FORMAT, "its draws are damaged; use another"
     " copy"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "code", "text"), CHANGES)
def test_a_foreign_checkpoint_is_refused(
    build: Build, tmp_path: Path, change: Callable[[Any, Any], None], code: int, text: str
) -> None:
    folder, path = build(), tmp_path / "ckpt"
    c = C(folder / "libstep.so")
    step, progress = c.open(folder), Progress(steps=77)
    with Step.load(folder) as python:
        python.save_checkpoint(path)
    file = tensorfile.read(path)
    tensors, metadata = dict(file.tensors), {key: word for key, word in file.metadata.items() if key != "sha256"}
    change(tensors, metadata)
    path.write_bytes(b"".join(tensorfile.seal(tensors, metadata)))
    assert c.gf_step_load(step, str(path).encode(), ctypes.byref(progress)) == c.gf_error_code() == code
    assert c.error() == f"'{path}': {text}"
    assert progress.steps == 77
    c.gf_step_destroy(step)


@pytest.mark.parametrize(
    "header",
    [
        b"{}",
        b'{"__metadata__": {"sha256": "", "format": "gfcompile-checkpoint-2"}}',
        b'{"__metadata__": {"sha256": "' + b"0" * 64 + b'", "format": "gfcompile-checkpoint-1"}}',
        b'{"__metadata__": {"format": "gfcompile-checkpoint-2", "sha256": "' + b"0" * 64 + b'"}}',
    ],
)
def test_a_file_without_a_seal(build: Build, tmp_path: Path, header: bytes) -> None:
    folder, path = build(), tmp_path / "ckpt"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    c = C(folder / "libstep.so")
    step, progress = c.open(folder), Progress()
    assert c.gf_step_load(step, str(path).encode(), ctypes.byref(progress)) == FORMAT
    assert c.error() == f"'{path}': not a checkpoint of a compiled step; pass a file that gf_step_save wrote"
    c.gf_step_destroy(step)


def test_a_name_in_a_file_cannot_write_on_the_terminal(build: Build, tmp_path: Path) -> None:
    folder, path = build(), tmp_path / "ckpt"
    header = b'{"a\\u001b[31m\\nb": {"dtype": "none", "shape": [], "data_offsets": [0, 0]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    c = C(folder / "libstep.so")
    step, progress = c.open(folder), Progress()
    assert c.gf_step_load(step, str(path).encode(), ctypes.byref(progress)) == FORMAT
    what = "tensor 'a?[31m?b' has an unknown dtype"
    assert c.error() == f"'{path}': not a whole safetensors file: {what}; use another copy"
    c.gf_step_destroy(step)


def test_places_that_cannot_be_written(build: Build, tmp_path: Path) -> None:
    folder = build()
    c = C(folder / "libstep.so")
    step, progress = c.open(folder), Progress()
    for place, reason in (("no/ckpt", "No such file or directory"), ("linear_step", "Is a directory")):
        assert c.gf_step_save(step, str(tmp_path / place).encode(), ctypes.byref(progress)) == FILE
        assert c.error() == (
            f"gf_step_save: '{tmp_path / place}' cannot be written: {reason};"
            " an older checkpoint there is untouched; choose another place"
        )
    assert not list(tmp_path.glob(".*"))
    progress.steps = -1
    assert c.gf_step_save(step, str(tmp_path / "ckpt").encode(), ctypes.byref(progress)) == ARGUMENT
    c.gf_step_destroy(step)


def test_a_checkpoint_is_held_by_one_step(build: Build, tmp_path: Path) -> None:
    folder, path = build(), tmp_path / "ckpt"
    c, progress = C(folder / "libstep.so"), Progress(lr=0.05)
    first, second, name = c.open(folder), c.open(folder), str(path).encode()
    text = f"'{path}': process {os.getpid()} is training with it; give each its own checkpoint"
    assert c.gf_step_hold(first, name) == OK, c.error()
    for steps in (1, 2, 3):
        progress.steps = steps
        assert c.gf_step_save(first, name, ctypes.byref(progress)) == OK, c.error()
        assert c.gf_step_hold(second, name) == c.gf_error_code() == FILE
        assert c.error() == text
        assert c.gf_step_save(second, name, ctypes.byref(progress)) == FILE
        assert c.error() == f"gf_step_save: {text}"
        assert c.gf_step_load(second, name, ctypes.byref(progress)) == OK, c.error()
        assert progress.steps == steps
    (tmp_path / ".ckpt.tmp").unlink()  # somebody tidies up
    assert c.gf_step_save(first, name, ctypes.byref(progress)) == OK, c.error()
    assert c.gf_step_hold(second, name) == FILE
    child = os.fork()
    if not child:
        c.gf_step_destroy(first)
        os._exit(0)
    os.waitpid(child, 0)
    assert c.gf_step_hold(second, name) == FILE, "a child that ends lets go of what its parent holds"
    c.gf_step_destroy(first)
    assert c.gf_step_hold(second, name) == OK, c.error()
    c.gf_step_destroy(second)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["ckpt", "ckpt.previous", "linear_step"]
    assert c.gf_step_hold(None, name) == ARGUMENT
    assert c.error() == "gf_step_hold: the step or the path is NULL"


@pytest.mark.slow
def test_changed_files_under_the_sanitizers(build: Build, tmp_path: Path) -> None:
    """A checkpoint with every byte changed and every byte cut off; `make fuzz` changes all files at random."""
    program = tmp_path / "flip_checkpoint"
    sources = [HERE / "flip_checkpoint.c", HERE / "linear_program.c", *runtime_sources("cpu")]
    options = ["-fsanitize=address,undefined", f"-I{RUNTIME}", f'-DBUILD_ID="{build_id_of(())}"', "-pthread"]
    command = ["gcc", *FLAGS, *options, "-o", str(program), *map(str, sources), "-lm"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode and "cannot find" in built.stderr:
        skip_for_want("the sanitizer's library is not installed; install the compiler's sanitizer libraries")
    assert built.returncode == 0, built.stderr
    words = [program, build(), tmp_path / "ckpt"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout[:3]) == (0, "ok "), done.stdout + done.stderr


def test_sha256_of_every_length(build: Build, library: Callable[..., Path], tmp_path: Path) -> None:
    """Through the checksum of a file of that length: hashlib is the judge."""
    folder = build()
    c = C(folder / "libstep.so")
    manifest = manifest_of(folder)
    for size in (0, 1, 54, 55, 56, 63, 64, 65, 119, 120, 128, 1000):
        content = bytes(index % 251 for index in range(size))
        (folder / "weights.safetensors").write_bytes(content)
        manifest["files"]["weights.safetensors"] = hashlib.sha256(content).hexdigest()
        write_manifest(folder, manifest)
        assert not c.gf_step_open(str(folder).encode(), 1)
        assert c.gf_error_code() == FORMAT, size  # past the checksum: no safetensors file
