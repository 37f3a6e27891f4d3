"""Training on cached features is training: the same bits from float32, near ones from float16."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gfcompile
from tests.end_to_end.conftest import CLASSES, SGD, Artifact, random_batch
from tests.lean import lean_compile
from tests.models import randomise_statistics
from tests.models.mobilenet import mobilenet_v2, short_mobilenet_v2
from tests.models.resnet import resnet10, resnet18
from tests.selection import often
from tests.store import Store
from tests.tolerances import FLOAT16_FEATURES, relative_error

pytestmark = pytest.mark.slow

SAMPLES, BATCH, SIZE, EPOCHS = 10, 4, 32, 4
LR = 0.005
MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: resnet18(CLASSES, width=8),
    "resnet10": lambda: resnet10(CLASSES, width=8),
    "mobilenet_v2": lambda: mobilenet_v2(CLASSES, 0.25),
    "short_mobilenet_v2": lambda: short_mobilenet_v2(CLASSES, 0.25),
}
PLANS: dict[str, tuple[str, dict[str, Any], int]] = {  # and the number of tensors at the cut
    "resnet18": ("resnet18", {"layers": 4, "r": 2}, 1),
    "resnet18-exact": ("resnet18", {"layers": 4, "exact": True}, 1),
    "resnet10-inside-a-block": ("resnet10", {"layers": 1, "r": 2}, 2),
    "mobilenet_v2": ("mobilenet_v2", {"layers": 4, "r": 2}, 1),
    "short_mobilenet_v2": ("short_mobilenet_v2", {"layers": 4, "r": 2}, 1),
}


@pytest.fixture(scope="module", params=often(PLANS, ["resnet10-inside-a-block"]))
def artifact(request: pytest.FixtureRequest, store: Store) -> Path:
    name, options, tensors = PLANS[request.param]
    torch.manual_seed(0)
    model = randomise_statistics(MODELS[name](), seed=0)
    example, _ = random_batch((BATCH, 3, SIZE, SIZE), seed=9)
    folder = store.compiled(model, example, "cached_step", lr=LR, cache_prefix=True, **options, **SGD)
    assert len(json.loads((folder / "manifest.json").read_text())["features"]["tensors"]) == tensors
    return folder


def data() -> tuple[np.ndarray, np.ndarray]:
    x, y = random_batch((SAMPLES, 3, SIZE, SIZE), seed=1)
    return x.numpy(), y.numpy()


def batches() -> list[np.ndarray]:
    """Shuffled anew in every epoch; the last of each is a short one."""
    random = np.random.default_rng(0)
    orders = [random.permutation(SAMPLES) for _ in range(EPOCHS)]
    return [order[start : start + BATCH] for order in orders for start in range(0, SAMPLES, BATCH)]


def plain(artifact: Path, threads: int = 2) -> tuple[list[float], dict[str, Any]]:
    x, y = data()
    with gfcompile.load(artifact, threads) as step:
        losses = [step.train(x[batch], y[batch]) for batch in batches()]
        return losses, step.state_dict()


def cached(artifact: Path, folder: Path, dtype: str, threads: int = 2) -> tuple[list[float], dict[str, Any], list[int]]:
    x, y = data()
    asked: list[int] = []

    def load(indices: np.ndarray) -> np.ndarray:
        asked.extend(indices.tolist())
        return x[indices]

    with gfcompile.load(artifact, threads) as step, step.open_cache(folder, SAMPLES, dtype) as cache:
        losses = [cache.train(load, y[batch], batch) for batch in batches()]
        return losses, step.state_dict(), asked


def test_float32_changes_no_bit(artifact: Path, tmp_path: Path) -> None:
    """On one thread and on two; the second time every feature is found, and no sample asked for."""
    expected, state = plain(artifact)
    for threads, wanted in ((2, list(range(SAMPLES))), (1, [])):
        losses, found, asked = cached(artifact, tmp_path / "features", "float32", threads)
        assert losses == expected
        assert all(torch.equal(found[name], state[name]) for name in state)
        assert sorted(asked) == wanted
    assert expected[-1] != expected[0]


def test_float16_stays_near(artifact: Path, tmp_path: Path) -> None:
    expected, _ = plain(artifact)
    losses, _, _ = cached(artifact, tmp_path / "features", "float16")
    assert 0 < relative_error(losses, expected) <= FLOAT16_FEATURES
    stored = np.load(tmp_path / "features" / "feature0.npy")
    assert stored.dtype == np.float16
    assert len(stored) == SAMPLES


def test_features_are_of_the_sample_alone(artifact: Path) -> None:
    """Whatever stands beside it, and wherever it stands."""
    x, _ = data()
    with gfcompile.load(artifact) as step:
        together = step.features(x[:4])
        for other in (step.features(x[:1]), step.features(x[[0, 7, 8, 9]])):
            assert [part[0].tobytes() for part in other] == [part[0].tobytes() for part in together]
        moved = step.features(x[[5, 6, 0]])
        assert [part[2].tobytes() for part in moved] == [part[0].tobytes() for part in together]


class TwoInputs(nn.Module):
    """The second input joins after the trained convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 8, 4, stride=4), nn.Conv2d(8, 4, 3)
        self.head = nn.Linear(4 + 3, CLASSES)

    def forward(self, image: Tensor, facts: Tensor) -> Tensor:
        pooled = self.conv(self.stem(image).relu()).relu().mean((2, 3))
        return self.head(torch.cat([pooled, facts], 1))


def test_an_input_that_is_read_late_is_cached_as_it_is(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x, facts = TwoInputs(), torch.randn(BATCH, 3, 16, 16), torch.randn(BATCH, 3)
    options: dict[str, Any] = {"layers": 1, "exact": True, "cache_prefix": True}
    step = lean_compile(model, (x, facts), out=tmp_path / "two_step", **options)
    shapes = [spec["shape"] for spec in step.manifest["features"]["tensors"]]
    assert sorted(shapes) == [[BATCH, 3], [BATCH, 4, 4, 8]]
    y = torch.arange(BATCH)
    peer, cache = gfcompile.load(tmp_path / "two_step"), step.open_cache(tmp_path / "features", BATCH)
    order = [2, 0, 3]
    for given in ((x[order], facts[order]), None, None):
        assert cache.train(given, y[order], order) == peer.train((x[order], facts[order]), y[order])


def exports(library: Path) -> set[str]:
    """Its interface; kernels, which are exported as well, have other names."""
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    return {name for name in listed.stdout.split() if name.startswith("gf_step_")}


def test_only_a_step_that_was_asked_to_has_it(artifact: Path, eval_artifact: Artifact) -> None:
    added = {"gf_step_features", "gf_step_train_features"}
    assert exports(artifact / "libstep.so") ^ exports(eval_artifact.folder / "libstep.so") == added
    assert "features" not in json.loads((eval_artifact.folder / "manifest.json").read_text())
    assert (artifact / "_runtime" / "feature_cache.py").is_file()
    assert not (eval_artifact.folder / "_runtime" / "feature_cache.py").exists()
    assert sorted(path.name for path in (eval_artifact.folder / "graphs").iterdir()) == [
        "gradients", "kernels.json.gz", "predict", "train",
    ]  # fmt: skip
    report = json.loads((artifact / "report.json").read_text())
    assert report["prefix"]["compiled"] is True
    assert set(report["memory"]["arena_bytes_by_program"]) == {
        "train", "gradients", "predict", "features", "train_features",
    }  # fmt: skip
