"""The cache of features over the hand-written program: what it stores, when, and what it refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gfcompile.runtime.errors import StepError
from gfcompile.runtime.feature_cache import FeatureCache, _Rows
from gfcompile.runtime.step import Step

from .conftest import FEATURES, Build

SAMPLES = 10


@pytest.fixture
def step(build: Build) -> Step:
    return Step.load(build("GF_FEATURES"), threads=1)


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    """Distinct samples whose values float16 holds exactly."""
    random = np.random.default_rng(0)
    x = (np.arange(SAMPLES * 2).reshape(SAMPLES, 2) / 8 - 1).astype(np.float32)
    return x, random.normal(size=(SAMPLES, 3)).astype(np.float32)


class Loader:
    """Samples by index; remembers what it was asked for."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x
        self.asked: list[list[int]] = []

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        self.asked.append(indices.tolist())
        return self.x[indices]


def error_of(call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    with pytest.raises(StepError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_epochs_equal_training_without(build: Build, data: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    """Bit by bit, shuffled anew in every epoch, the last batch a short one; samples are asked for once."""
    x, y = data
    folder, load = build("GF_FEATURES"), Loader(x)
    step, peer = Step.load(folder), Step.load(folder)
    cache = step.open_cache(tmp_path / "features", SAMPLES)
    random = np.random.default_rng(1)
    for _ in range(3):
        order = random.permutation(SAMPLES)
        for start in range(0, SAMPLES, 4):
            batch = order[start : start + 4]
            assert cache.train(load, y[batch], batch) == peer.train(x[batch], y[batch])
    assert sorted(index for asked in load.asked for index in asked) == list(range(SAMPLES))
    assert cache.known == SAMPLES
    assert step.steps == peer.steps == 9
    found, wanted = step.state_dict(), peer.state_dict()
    assert all(found[name].tobytes() == wanted[name].tobytes() for name in wanted)
    assert not np.array_equal(found["fc.bias"], Step.load(folder).state_dict()["fc.bias"])


def test_only_what_is_missing_is_asked_for(step: Step, data: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    x, y = data
    load = Loader(x)
    cache = step.open_cache(tmp_path / "features", SAMPLES)
    cache.train(load, y[[5, 2]], [5, 2])
    cache.train(load, y[[2, 7, 5, 7]], [2, 7, 5, 7])
    assert load.asked == [[2, 5], [7]]
    assert cache.missing([7, 3, 3, 1]).tolist() == [1, 3]
    cache.train(None, y[[7, 2]], [7, 2])


def test_a_batch_is_searched_for_the_missing(step: Step, data: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    """An array has the order of the indices; each row must land under its own, a repeated one too."""
    x, y = data
    cache = step.open_cache(tmp_path / "features", SAMPLES)
    cache.train(x[[3, 8]], y[[3, 8]], [3, 8])
    batch = [9, 3, 0, 9]
    cache.train(x[batch], y[batch], batch)
    stored = np.load(tmp_path / "features" / "feature0.npy")
    for index in (0, 3, 8, 9):
        assert stored[index].tobytes() == x[index].tobytes()
    assert np.flatnonzero(np.load(tmp_path / "features" / "known.npy")).tolist() == [0, 3, 8, 9]


def test_float16_halves_the_floats_and_leaves_the_integers(
    step: Step, build: Build, data: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    x, y = data
    cache = step.open_cache(tmp_path / "features", SAMPLES, dtype="float16")
    peer = Step.load(build("GF_FEATURES", name="peer_step"))
    assert cache.train(x[:4], y[:4], range(4)) == peer.train(x[:4], y[:4])  # exact: float16 holds these values
    assert np.load(tmp_path / "features" / "feature0.npy").dtype == np.float16
    assert np.load(tmp_path / "features" / "feature1.npy").dtype == np.int64


def test_it_is_found_again(build: Build, data: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    x, y = data
    folder, load = build("GF_FEATURES"), Loader(x)
    with Step.load(folder) as step, step.open_cache(tmp_path / "features", SAMPLES) as cache:
        first = cache.train(load, y[:4], range(4))
        step.save_checkpoint(tmp_path / "trained")
    with Step.load(folder) as step, step.open_cache(tmp_path / "features", SAMPLES) as cache:
        assert cache.known == 4
        assert cache.train(load, y[:4], range(4)) == first
        step.load_checkpoint(tmp_path / "trained")  # other trained weights: the features are the same
        assert cache.train(load, y[:4], range(4)) != first
    assert load.asked == [[0, 1, 2, 3]]


@pytest.mark.parametrize("file", ["feature0", "feature1", "known"])
def test_an_interrupted_write_announces_nothing(
    step: Step, data: tuple[np.ndarray, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """Whichever file it happens in: the samples stay unknown, and the next run computes them again."""
    x, y = data
    cache = step.open_cache(tmp_path / "features", SAMPLES)
    cache.train(x[:2], y[:2], [0, 1])
    right = _Rows.write

    def interrupted(rows: _Rows, indices: np.ndarray, array: np.ndarray) -> None:
        if rows.path.stem == file:
            raise KeyboardInterrupt
        right(rows, indices, array)

    with monkeypatch.context() as patched:
        patched.setattr(_Rows, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.train(x[2:5], y[2:5], [2, 3, 4])
    assert step.steps == 1
    again = step.open_cache(tmp_path / "features", SAMPLES)
    assert again.missing([0, 1, 2, 3]).tolist() == [2, 3]
    load = Loader(x)
    again.train(load, y[2:5], [2, 3, 4])
    assert load.asked == [[2, 3, 4]]


def test_rows_are_on_the_disk_before_they_are_announced(
    step: Step, data: tuple[np.ndarray, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = data
    cache = step.open_cache(tmp_path / "features", SAMPLES)
    seen: list[tuple[str, str]] = []
    write, synchronise = os.pwrite, os.fdatasync

    def name_of(descriptor: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}")).stem

    def watched_write(descriptor: int, content: Any, offset: int) -> int:
        seen.append(("write", name_of(descriptor)))
        return write(descriptor, content, offset)

    def watched_synchronise(descriptor: int) -> None:
        seen.append(("synchronise", name_of(descriptor)))
        synchronise(descriptor)

    monkeypatch.setattr(os, "pwrite", watched_write)
    monkeypatch.setattr(os, "fdatasync", watched_synchronise)
    cache.train(x[:1], y[:1], [0])
    names = ["feature0", "feature1", "known"]
    assert seen == [(what, name) for name in names for what in ("write", "synchronise")]


def test_a_full_disk_is_an_error_and_announces_nothing(
    step: Step, data: tuple[np.ndarray, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = data
    cache = step.open_cache(tmp_path / "features", SAMPLES)

    def full(descriptor: int, content: Any, offset: int) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        text = error_of(cache.train, x[:1], y[:1], [0])
    assert text == (
        f"train: '{tmp_path / 'features'}' cannot be written: No space left on device;"
        " what was cached before is untouched; make room"
    )
    assert (cache.known, step.steps) == (0, 0)


def test_a_cache_that_was_half_made_is_not_there(step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            step.open_cache(tmp_path / "inside" / "features", SAMPLES)
    assert list((tmp_path / "inside").iterdir()) == []
    assert step.open_cache(tmp_path / "inside" / "features", SAMPLES).known == 0


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ([0, 10], "train: index 10 is outside 0 to 9; the cache has 10 samples"),
        ([-1, 0], "train: index -1 is outside 0 to 9; the cache has 10 samples"),
        ([0.0, 1.0], "train: indices are float64 of shape (2,); pass a whole number for each sample"),
        ([True, False], "train: indices are bool of shape (2,); pass a whole number for each sample"),
        ([[0], [1]], "train: indices are int64 of shape (2, 1); pass a whole number for each sample"),
        ([[0], [1, 2]], "train: indices are no array; pass a whole number for each sample"),
        ([0, 1, 2, 3, 4], "train: 5 indices; pass 1 to 4, the compiled batch"),
        (np.array([], np.int64), "train: 0 indices; pass 1 to 4, the compiled batch"),
        ([0], "train: x has 2 samples for 1 indices; pass equally many"),
    ],
)
def test_wrong_indices(
    step: Step, data: tuple[np.ndarray, np.ndarray], tmp_path: Path, indices: Any, text: str
) -> None:
    x, y = data
    cache = step.open_cache(tmp_path / "features", SAMPLES)
    assert error_of(cache.train, x[:2], y[:2], indices) == text
    assert (cache.known, step.steps) == (0, 0)


def test_wrong_samples_and_labels(step: Step, data: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    x, y = data
    cache = step.open_cache(tmp_path / "features", SAMPLES)
    assert error_of(cache.train, None, y[:2], [0, 1]) == (
        "train: x is None, but the cache lacks the features of sample 0; pass the batch"
    )
    assert error_of(cache.train, lambda missing: x[:1], y[:2], [0, 1]) == (
        "train: load has 1 samples for 2 missing samples; pass equally many"
    )
    assert error_of(cache.train, lambda missing: 7, y[:2], [0, 1]) == (
        "train: load gives a 'int'; pass arrays of samples"
    )
    assert error_of(cache.train, x[:2], y[:3], [0, 1]) == (
        "train_features: features[0] has 2 samples and y has 3; pass equally many"
    )
    assert step.steps == 0


def test_a_feature_that_float16_cannot_hold(step: Step, data: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    _, y = data
    large = np.array([[1, 2], [3, 70000]], np.float32)
    cache = step.open_cache(tmp_path / "features", SAMPLES, dtype="float16")
    assert error_of(cache.train, large, y[:2], [4, 6]) == (
        "train: sample 6: a feature is 70000.0, too large for float16; open a cache with dtype='float32'"
    )
    assert cache.known == 0


def test_what_it_is_opened_with(step: Step, tmp_path: Path) -> None:
    folder = tmp_path / "features"
    for samples in (0, 2.5, 2**62, 10**30):
        assert error_of(step.open_cache, folder, samples) == (
            f"open_cache: samples {samples} is no number of samples; pass 1 to 4294967296"
        )
    assert error_of(step.open_cache, "a\0b", 4) == r"open_cache: 'a\x00b' is no path; choose another folder"
    assert error_of(step.open_cache, folder, 3, dtype="int8") == (
        "open_cache: dtype 'int8' is not known; use float32 or float16"
    )
    step.open_cache(folder, SAMPLES).close()
    assert error_of(step.open_cache, folder, 11) == (
        f"open_cache: '{folder}': was made with samples=10, not samples=11; pass samples=10, or choose another folder"
    )
    assert error_of(step.open_cache, folder, SAMPLES, dtype="float16") == (
        f"open_cache: '{folder}': was made with dtype='float32', not dtype='float16';"
        " pass dtype='float32', or choose another folder"
    )


def test_the_cache_of_another_model_is_refused(step: Step, build: Build, tmp_path: Path) -> None:
    step.open_cache(tmp_path / "features", SAMPLES).close()
    other = build("GF_FEATURES", name="other_step", features={**FEATURES, "fingerprint": "0" * 64})
    assert error_of(Step.load(other).open_cache, tmp_path / "features", SAMPLES) == (
        f"open_cache: '{tmp_path / 'features'}': holds the features of another model, other weights or another plan;"
        " choose another folder"
    )


def test_other_things_in_the_folder(step: Step, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    assert error_of(step.open_cache, tmp_path, SAMPLES) == (
        f"open_cache: '{tmp_path}' exists and is no cache of features; choose another folder or remove it"
    )
    assert error_of(step.open_cache, tmp_path / "thesis.tex" / "inside", SAMPLES) == (
        f"open_cache: '{tmp_path / 'thesis.tex' / 'inside'}' cannot be used: File exists; choose another folder"
    )


def test_damaged_files(step: Step, tmp_path: Path) -> None:
    folder = tmp_path / "features"
    step.open_cache(folder, SAMPLES).close()
    header = json.loads((folder / "cache.json").read_text())
    np.save(folder / "feature1.npy", np.zeros(3, np.int64))
    assert error_of(step.open_cache, folder, SAMPLES) == (
        f"open_cache: '{folder / 'feature1.npy'}' is int64 (3,), not int64 (10,); remove the folder"
    )
    content = (folder / "feature1.npy").read_bytes()
    (folder / "feature1.npy").write_bytes(content.replace(b"(3,), }", b"(3,(   "))  # not even Python
    assert error_of(step.open_cache, folder, SAMPLES) == (
        f"open_cache: '{folder / 'feature1.npy'}' is missing or damaged; remove the folder"
    )
    (folder / "feature1.npy").unlink()
    assert error_of(step.open_cache, folder, SAMPLES) == (
        f"open_cache: '{folder / 'feature1.npy'}' is missing or damaged; remove the folder"
    )
    (folder / "cache.json").write_text(json.dumps({**header, "format": "gfcompile-features-0"}))
    assert error_of(step.open_cache, folder, SAMPLES) == (
        f"open_cache: '{folder}': was written by another version; remove the folder, or choose another"
    )
    (folder / "cache.json").write_text("{")
    assert error_of(step.open_cache, folder, SAMPLES) == (
        f"open_cache: '{folder}': its cache.json is damaged; remove the folder"
    )


@pytest.mark.parametrize("name", ["feature0.npy", "feature1.npy", "known.npy"])
def test_flipped_bits_are_mended(name: str, build: Build, data: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    """Every bit of a sample's row by itself: it is noticed, and training goes on as if nothing had happened."""
    x, y = data
    with Step.load(build("GF_FEATURES"), threads=1) as step, step.open_cache(tmp_path / "features", SAMPLES) as cache:
        step.save_checkpoint(tmp_path / "start.ckpt")
        wanted = cache.train(x[:2], y[:2], [0, 1])
        path = tmp_path / "features" / name
        whole = path.read_bytes()
        start = len(whole) - len(np.load(path).tobytes())
        row = (len(whole) - start) // SAMPLES
        for bit in range(8 * row):
            damaged = bytearray(whole)
            damaged[start + row + bit // 8] ^= 1 << bit % 8  # of sample 1
            path.write_bytes(damaged)
            step.load_checkpoint(tmp_path / "start.ckpt")
            with pytest.warns(
                RuntimeWarning, match="the features of sample 1 were changed on the disk of '.*features'"
            ):
                assert cache.train(x[:2], y[:2], [0, 1]) == wanted
            assert path.read_bytes() == whole
        path.write_bytes(damaged)
        with pytest.warns(RuntimeWarning, match="they are computed again"):
            assert error_of(cache.train, None, y[:2], [0, 1]) == (
                "train: x is None, but the cache lacks the features of sample 1; pass the batch"
            )


def test_a_disk_that_keeps_nothing(
    step: Step, data: tuple[np.ndarray, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = data
    cache = step.open_cache(tmp_path / "features", SAMPLES)
    read = type(cache)._read
    monkeypatch.setattr(
        type(cache), "_read", lambda self, rows: {name: value + 1 for name, value in read(self, rows).items()}
    )
    with pytest.warns(RuntimeWarning, match="they are computed again"):
        assert error_of(cache.train, x[:2], y[:2], [0, 1]) == (
            f"train: '{tmp_path / 'features'}' does not keep the features of sample 0: its disk is failing;"
            " choose another folder"
        )


def test_closed(step: Step, data: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    x, y = data
    with step.open_cache(tmp_path / "features", SAMPLES) as cache:
        pass
    cache.close()
    assert error_of(cache.train, x[:1], y[:1], [0]) == "this cache is closed; open it again"
    opened = step.open_cache(tmp_path / "features", SAMPLES)
    step.close()
    assert error_of(opened.train, x[:1], y[:1], [0]) == "this step is closed; load the artifact again"


def test_a_step_without_it(build: Build, data: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    x, y = data
    step = Step.load(build())
    for call in (
        lambda: step.open_cache(tmp_path / "f", 1),
        lambda: step.features(x),
        lambda: step.train_features(x, y),
    ):
        assert error_of(call).endswith(": this step was compiled without it; recompile with --cache-prefix")
    assert not (tmp_path / "f").exists()


def test_two_caches_of_one_folder_see_each_other(
    step: Step, data: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    """As two processes would: what one stores, the other finds."""
    x, y = data
    caches: list[FeatureCache] = [step.open_cache(tmp_path / "features", SAMPLES) for _ in range(2)]
    caches[0].train(x[:4], y[:4], range(4))
    assert caches[1].known == 4
    caches[1].train(None, y[:4], range(4))


@pytest.mark.parametrize("name", ["feature0", "known"])
def test_a_file_that_another_process_truncates(
    step: Step, data: tuple[np.ndarray, np.ndarray], tmp_path: Path, name: str
) -> None:
    """Read through a mapping, that would have ended this process without a word."""
    x, y = data
    path = tmp_path / "features" / f"{name}.npy"
    cache = step.open_cache(tmp_path / "features", SAMPLES)
    cache.train(x[:4], y[:4], range(4))
    before = step.steps
    os.truncate(path, 0)
    with pytest.raises(StepError) as caught:
        cache.train(x[:4], y[:4], range(4))
    assert str(caught.value) == f"train: '{path}' was truncated while in use; remove the folder, or restore it"
    assert step.steps == before
