"""Every text a user can meet, and that a refusal changes nothing."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gfcompile.runtime import tensorfile
from gfcompile.runtime.errors import StepError
from gfcompile.runtime.manifest import AGAIN
from gfcompile.runtime.step import Step
from tests.manifests import edit_manifest, list_anew, manifest_of

from .conftest import Build, manifest

Batch = tuple[np.ndarray, np.ndarray]
X = np.ones((4, 2), np.float32)
Y = np.ones((4, 3), np.float32)
LABELS = np.array([0, 1, 2, 0])


def with_value(array: np.ndarray, index: Any, value: float) -> np.ndarray:
    array = array.copy()
    array[index] = value
    return array


BATCHES: list[tuple[Any, Any, str]] = [
    (np.ones((4, 2, 1), np.float32), Y, "train: x has shape (4, 2, 1), expected (N, 2) with N at most 4;"
     " reshape it, or recompile for this shape"),
    (np.ones((4, 5), np.float32), Y, "train: x has shape (4, 5), expected (N, 2) with N at most 4;"
     " reshape it, or recompile for this shape"),
    (np.float32(1), Y, "train: x has shape (), expected (N, 2) with N at most 4;"
     " reshape it, or recompile for this shape"),
    (X.astype("float64"), Y, "train: x has dtype float64, expected float32; pass x.astype('float32')"),
    (X.astype("uint8"), Y, "train: x has dtype uint8, expected float32; pass x.astype('float32')"),
    (X, Y.astype("float16"), "train: y has dtype float16, expected float32; pass y.astype('float32')"),
    (X[:0], Y[:0], "train: x is empty; pass 1 to 4 samples"),
    (np.ones((9, 2), np.float32), Y, "train: x has 9 samples, more than the compiled batch 4;"
     " split it, or recompile with --batch 9"),
    (X[:3], Y, "train: x has 3 samples and y has 4; pass equally many"),
    (with_value(X, (2, 1), np.nan), Y, "train: x: sample 2 holds NaN; repair the sample or leave it out"),
    (with_value(X, (3, 0), -np.inf), Y, "train: x: sample 3 holds Inf; repair the sample or leave it out"),
    (X, with_value(Y, (1, 2), np.inf), "train: y: sample 1 holds Inf; repair the sample or leave it out"),
    (X, None, "train: y is missing; this step takes one array as y"),
    ((X, X), Y, "train: x is a tuple of 2; this step takes one array as x"),
    (np.array([["a", "b"]]), Y, "train: x has dtype <U1; pass a numpy array of numbers or a CPU tensor"),
]  # fmt: skip


def text_of(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(StepError) as caught:
        call(*arguments, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(("x", "y", "text"), BATCHES)
def test_a_bad_batch_is_named_and_changes_nothing(build: Build, x: Any, y: Any, text: str) -> None:
    with Step.load(build()) as step:
        step.train(X, Y)
        before = {name: value.tobytes() for name, value in step.state_dict().items()}
        assert text_of(step.train, x, y) == text
        assert text_of(step.gradients, x, y) == text.replace("train:", "gradients:")
        assert {name: value.tobytes() for name, value in step.state_dict().items()} == before
        assert step.steps == 1


def test_predict_checks_its_batch_as_well(build: Build) -> None:
    with Step.load(build()) as step:
        assert text_of(step.predict, X.astype("float64")).startswith("predict: x has dtype float64")


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (LABELS.astype("float32"), "train: y has dtype float32, expected integer; pass y.astype('int64')"),
        (LABELS == 0, "train: y has dtype bool, expected integer; pass y.astype('int64')"),
        (np.array([0, 1, 3, 4]), "train: y: label 3 at index 2 is outside 0 to 2;"
         " the model has 3 classes, so renumber the labels"),
        (np.array([0, -1, 1, 0]), "train: y: label -1 at index 1 is outside 0 to 2;"
         " the model has 3 classes, so renumber the labels"),
        (np.array([0, 2**64 - 1, 1, 0], "uint64"), "train: y: label 18446744073709551615 at index 1 is outside 0 to 2;"
         " the model has 3 classes, so renumber the labels"),
        (np.eye(4, 3), "train: y has shape (4, 3), expected (N,) with N at most 4;"
         " reshape it, or recompile for this shape"),
    ],
)  # fmt: skip
def test_bad_labels(build: Build, labels: np.ndarray, text: str) -> None:
    with Step.load(build("LABELS")) as step:
        assert text_of(step.train, X, labels) == text


def test_a_partial_batch_that_cannot_be_weighted(build: Build) -> None:
    with Step.load(build(name="a", batchnorm="train")) as step:
        assert text_of(step.train, X[:3], Y[:3]) == (
            "train: 3 samples, but the compiled batch is 4 and batchnorm 'train' would count the padding in its"
            " statistics; pass 4 samples, or recompile with --batchnorm eval or --batch 3"
        )
        assert step.predict(X[:3]).shape == (3, 3)
    with Step.load(build(name="b", loss={**manifest()["loss"], "name": "my:loss", "per_sample": False})) as step:
        assert text_of(step.gradients, X[:1], Y[:1]) == (
            "gradients: 1 samples, but the compiled batch is 4 and loss 'my:loss' has no per-sample weight to leave"
            " the padding out; pass 4 samples, or recompile with --batch 1"
        )


@pytest.mark.parametrize("lr", [float("nan"), float("inf"), -0.1])
def test_bad_learning_rate(build: Build, lr: float) -> None:
    with Step.load(build()) as step:
        expected = f"lr: {lr} is not usable; pass a finite learning rate of 0 or more"
        assert text_of(step.train, X, Y, lr) == expected
        assert text_of(setattr, step, "lr", lr) == expected
        assert text_of(step.train, X, Y, lr="fast") == "lr: 'fast' is no number; pass a float"
        assert text_of(step.train, X, Y, lr=1e300) == "lr: 1e+300 is more than a float32 holds; pass 3.4e38 or less"
        assert text_of(step.train, X, Y, lr=10**400).startswith("lr: inf is not usable; ")
        assert (step.lr, step.steps) == (0.05, 0)


@pytest.mark.parametrize("threads", [0, -1, True, 1.5, "all"])
def test_bad_thread_count(build: Build, threads: Any) -> None:
    folder = build()
    expected = f"threads: {threads!r} is no thread count; pass 1 or more, or None for all cores"
    assert text_of(Step.load, folder, threads) == expected
    with Step.load(folder) as step:
        assert text_of(setattr, step, "threads", threads) == expected
        assert text_of(setattr, step, "threads", 1000) == "threads: 1000 threads asked for; the most is 256"
        assert step.predict(X).shape == (4, 3)


def test_damaged_files(build: Build) -> None:
    folder = build()
    for name in ("libstep.so", "weights.safetensors", "constants.safetensors"):
        path = folder / name
        whole = path.read_bytes()
        for damaged in (whole[:-100], b"", whole[:-1] + bytes([whole[-1] ^ 1])):
            path.write_bytes(damaged) if name != "libstep.so" else replace(path, damaged)
            assert text_of(Step.load, folder) == (
                f"'{path}': its content is not what was compiled (truncated or changed);"
                " recompile, or copy the artifact again"
            )
        path.unlink()
        assert text_of(Step.load, folder) == f"'{path}': is missing; recompile, or copy the artifact again"
        path.write_bytes(whole)
    Step.load(folder).close()


def replace(path: Path, content: bytes) -> None:
    path.unlink()  # never write into a library that this process may have mapped
    path.write_bytes(content)


def test_damaged_manifest(build: Build, tmp_path: Path) -> None:
    assert text_of(Step.load, tmp_path) == (
        f"'{tmp_path}': no manifest.json there; pass the folder that gfcompile wrote"
    )
    folder = build()
    original, path = manifest_of(folder), folder / "manifest.json"
    edit_manifest(folder, build_id="0" * 64)
    assert text_of(Step.load, folder) == (
        f"'{folder / 'libstep.so'}': its build id {original['build_id'][:12]} is not the manifest's 000000000000;"
        " recompile, or copy the whole artifact again (in a new process if it was overwritten in place)"
    )
    edit_manifest(folder, build_id=original["build_id"], format=3)
    assert text_of(Step.load, folder) == (
        f"'{path}': format '3', this runtime reads formats 1 and 2; recompile the artifact"
    )
    path.write_bytes(path.read_bytes().replace(b'"lr": 0.05', b'"lr": 0.04'))
    assert text_of(Step.load, folder) == f"'{path}': its content does not match its checksum; {AGAIN}"
    path.write_text(json.dumps(original))
    assert text_of(Step.load, folder) == f"'{path}': has no checksum; {AGAIN}"
    for damaged in (b"{", b"[" * 100_000, b'{"format": 1, "name": "\xff"}'):
        path.write_bytes(damaged)
        assert text_of(Step.load, folder) == f"'{path}': is damaged; {AGAIN}"


def test_a_manifest_of_the_format_before(build: Build, batch: Batch) -> None:
    """Without a checksum, but with every other check."""
    folder = build()
    with Step.load(folder) as step:
        loss = step.train(*batch)
    old = {**manifest_of(folder), "format": 1}
    del old["sha256"]
    path = folder / "manifest.json"
    path.write_text(json.dumps(old))
    with Step.load(folder) as step:
        assert step.train(*batch) == loss
    path.write_text(json.dumps({**old, "batch": 5}))
    assert "the manifest and the library disagree about batch, '5' and '4'" in text_of(Step.load, folder)


def test_weights_that_do_not_fit(build: Build) -> None:
    folder = build()
    for name, wrong, text in (
        ("weights", {"fc.weight": np.zeros(6)}, f"has no fitting tensor 'fc.weight'; {AGAIN}"),
        ("constants", {"scale": np.zeros(2)}, f"has no fitting tensor 'scale'; {AGAIN}"),
    ):
        path = folder / f"{name}.safetensors"
        whole = path.read_bytes()
        tensorfile.write(path, wrong)
        list_anew(folder, path.name)
        assert text_of(Step.load, folder) == f"'{path}': {text}"
        path.write_bytes(b"no safetensors")
        list_anew(folder, path.name)
        assert text_of(Step.load, folder).startswith(f"'{path}': not a whole safetensors file: its header says ")
        path.write_bytes(whole)
        list_anew(folder, path.name)
    edit_manifest(folder, state_dict=[*manifest_of(folder)["state_dict"], "other"])
    with Step.load(folder) as step:
        assert text_of(step.state_dict) == f"'weights.safetensors': has no tensor 'other'; {AGAIN}"


def test_a_library_that_cannot_be_loaded(build: Build) -> None:
    folder = build()
    replace(folder / "libstep.so", b"not a library")
    list_anew(folder, "libstep.so")
    text = text_of(Step.load, folder)
    assert text.startswith(f"'{folder / 'libstep.so'}': cannot be loaded: ")
    assert text.endswith("; was it compiled for another target?")


def test_another_machines_artifact(build: Build) -> None:
    folder = build()
    edit_manifest(folder, architecture="mips", target="old-router")
    assert text_of(Step.load, folder) == (
        f"load: '{folder}' is for old-router (mips), this machine is {platform.machine()};"
        " run it there, or compile for native"
    )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("sample", [0, 3])
def test_a_failing_kernel(build: Build, threads: int, sample: int) -> None:
    """On the calling thread (sample 0) or on a worker (sample 3); the step works again afterwards."""
    with Step.load(build(), threads=threads) as step:
        failed = text_of(step.train, with_value(X, (sample, 0), 777), Y)
        assert failed == "train: gf_step_train: a kernel failed with code 3"
        for _ in range(3):  # the failed kernel never freed its workspace: it must not add up
            exhausted = text_of(step.predict, with_value(X, (sample, 0), 778))
            assert exhausted == (
                "predict: workspace exhausted: a kernel asks for 4096 bytes, 64 of 64 are left;"
                " report this plan as a bug"
            )
        assert np.isfinite(step.train(X, Y))
        assert step.steps == 1


@pytest.mark.slow
def test_workspace_planned_too_small(build: Build) -> None:
    with Step.load(build("GREEDY")) as step:
        assert text_of(step.predict, X) == (
            "predict: workspace exhausted: a kernel asks for 12 bytes, 0 of 0 are left; report this plan as a bug"
        )


def test_a_closed_step(build: Build, tmp_path: Path) -> None:
    step = Step.load(build())
    step.close()
    step.close()
    for call in (
        lambda: step.train(X, Y),
        lambda: step.predict(X),
        lambda: step.gradients(X, Y),
        lambda: step.state_dict(),
        lambda: step.save_checkpoint(tmp_path / "c"),
        lambda: step.load_checkpoint(tmp_path / "c"),
        lambda: step.threads,
    ):
        assert text_of(call) == "this step is closed; load the artifact again"
