"""The step's results against NumPy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gfcompile.runtime.step import Step

from .conftest import Build, weights

SCALE = 1.5
Batch = tuple[np.ndarray, np.ndarray]


class Oracle:
    """The same model in float64."""

    def __init__(self) -> None:
        self.w, self.b = (weights()[name].astype(np.float64) for name in ("fc.weight", "fc.bias"))
        self.mw, self.mb = np.zeros((2, 3)), np.zeros(3)

    def predict(self, x: np.ndarray) -> np.ndarray:
        return SCALE * (x @ self.w) + self.b

    def gradients(self, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        difference = self.predict(x) - y
        g = 2 * difference / len(x)
        return float((difference**2).sum() / len(x)), SCALE * x.T @ g, g.sum(0)

    def train(self, x: np.ndarray, y: np.ndarray, lr: float) -> float:
        loss, dw, db = self.gradients(x, y)
        self.mw, self.mb = 0.9 * self.mw + dw, 0.9 * self.mb + db
        self.w, self.b = self.w - lr * self.mw, self.b - lr * self.mb
        return loss


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("samples", [4, 3, 1])
def test_follows_numpy_at_any_thread_count_and_batch_size(
    build: Build, batch: Batch, threads: int, samples: int
) -> None:
    x, y = (array[:samples] for array in batch)
    oracle = Oracle()
    with Step.load(build(), threads=threads) as step:
        assert step.threads == threads
        np.testing.assert_allclose(step.predict(x), oracle.predict(x), rtol=1e-5)
        _, dw, db = oracle.gradients(x, y)
        found = step.gradients(x, y)
        assert list(found) == ["fc.weight", "fc.bias"]
        np.testing.assert_allclose(found["fc.weight"], dw, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found["fc.bias"], db, rtol=1e-4, atol=1e-6)
        for lr in (None, 0.01, 0.0, 0.1):
            expected = oracle.train(x, y, 0.05 if lr is None else lr)
            assert step.train(x, y, lr) == pytest.approx(expected, rel=1e-5)
        assert step.steps == 4
        np.testing.assert_allclose(step.state_dict()["fc.weight"], oracle.w, rtol=1e-5)
        assert step.predict(x).shape == (samples, 3)


def test_padding_repeats_the_first_sample(build: Build, batch: Batch) -> None:
    """A row of zeros may divide by zero inside a network, and no weight would stop that NaN."""
    with Step.load(build()) as step:
        (x, y, weight), samples = step._door.stage("train", batch[0][1:3], batch[1][1:3])
        assert samples == 2
        np.testing.assert_array_equal(x, batch[0][[1, 2, 1, 1]])
        np.testing.assert_array_equal(y, batch[1][[1, 2, 1, 1]])
        np.testing.assert_array_equal(weight, [1, 1, 0, 0])


def test_default_learning_rate_can_be_set(build: Build, batch: Batch) -> None:
    oracle = Oracle()
    with Step.load(build()) as step:
        assert step.lr == 0.05
        step.lr = 0.2
        step.train(*batch)
        oracle.train(*batch, 0.2)
        np.testing.assert_allclose(step.state_dict()["fc.bias"], oracle.b, rtol=1e-5)


def test_state_dict_is_the_untouched_models(build: Build, batch: Batch) -> None:
    with Step.load(build()) as step:
        before = step.state_dict()
        for name, value in weights().items():
            assert before[name].tobytes() == value.tobytes(), name
        step.gradients(*batch)
        step.predict(batch[0])
        assert step.state_dict()["fc.weight"].tobytes() == before["fc.weight"].tobytes()
        step.train(*batch)
        after = step.state_dict()
    assert list(after) == list(weights())
    assert {name: (v.shape, v.dtype) for name, v in after.items()} == {
        name: (v.shape, v.dtype) for name, v in weights().items()
    }
    changed = {name for name in after if after[name].tobytes() != before[name].tobytes()}
    assert changed == {"fc.weight", "fc.bias", "fc.count"}
    assert after["fc.count"].shape == ()
    assert after["fc.count"] == 6
    after["fc.bias"][:] = 0  # a copy, and it survives the step


def test_attributes_come_from_the_manifest(build: Build) -> None:
    with Step.load(build()) as step:
        assert step.filtered_layers == ["body"]
        assert step.refusals == [("fc", "not a convolution")]
        assert step.manifest["name"] == "linear_step"


def test_strided_misaligned_and_big_endian_input_gives_the_same_bits(build: Build, batch: Batch) -> None:
    x, _ = batch
    block = np.zeros(8 * 4 + 1, np.uint8)
    misaligned = block[1:].view(np.float32).reshape(4, 2)
    misaligned[...] = x
    with Step.load(build()) as step:
        expected = step.predict(x).tobytes()
        assert step.predict(np.asfortranarray(x)).tobytes() == expected
        assert step.predict(np.repeat(x, 2, axis=0)[::2]).tobytes() == expected
        assert step.predict(misaligned).tobytes() == expected
        assert step.predict((x,)).tobytes() == expected
        with pytest.raises(ValueError, match="expected float32"):
            step.predict(x.astype(">f4"))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint64"])
def test_labels_of_any_integer_dtype(build: Build, batch: Batch, dtype: str) -> None:
    labels = np.array([0, 2, 1, 2])
    oracle = Oracle()
    with Step.load(build("LABELS")) as step:
        loss = step.train(batch[0], labels.astype(dtype))
    assert loss == pytest.approx(oracle.gradients(batch[0], np.eye(3)[labels])[0], rel=1e-5)


def test_a_non_finite_loss_is_returned(build: Build, batch: Batch) -> None:
    x, y = batch
    with Step.load(build()) as step, pytest.warns(RuntimeWarning, match="the loss is inf at step 1"):
        assert step.train(x, np.full_like(y, 3e38)) == np.inf


def test_several_outputs_and_an_output_without_batch(build: Build, batch: Batch) -> None:
    folder = build()
    with Step.load(folder) as step:
        step.manifest["outputs"] = [*step.manifest["outputs"], {"name": "extra", "shape": [2], "dtype": "float32"}]
        found = step.predict(batch[0][:3])
        assert [out.shape for out in found] == [(3, 3), (2,)]


def test_trains_where_torch_and_tvm_cannot_be_imported(build: Build) -> None:
    """The artifact alone, as a package: no gfcompile, torch or tvm; 5 + 5 steps equal 10 bit for bit."""
    folder = build()
    program = """
import sys
for name in ("torch", "tvm", "gfcompile", "safetensors"):
    sys.modules[name] = None
import numpy as np
import linear_step
assert linear_step.__all__ == ["Step", "StepError", "load"]
random = np.random.default_rng(0)
x, y = random.normal(size=(10, 4, 2)).astype("float32"), random.normal(size=(10, 4, 3)).astype("float32")
whole, first, second = linear_step.load(threads=2), linear_step.load(threads=2), linear_step.load(threads=2)
losses = [whole.train(x[i], y[i]) for i in range(10)]
halves = [first.train(x[i], y[i]) for i in range(5)]
first.save_checkpoint("half.ckpt")
second.load_checkpoint("half.ckpt")
halves += [second.train(x[i], y[i]) for i in range(5, 10)]
assert halves == losses and second.steps == 10
assert all(a.tobytes() == b.tobytes() for a, b in zip(whole.state_dict().values(), second.state_dict().values()))
print("trained")
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=folder.parent, capture_output=True, text=True, timeout=60)
    assert done.stdout == "trained\n", done.stderr


@pytest.mark.slow
def test_torch_takes_the_state_dict_and_gives_tensors(build: Build) -> None:
    """In a process of its own, so that the other tests stay free of torch."""
    pytest.importorskip("torch")
    folder = build()
    program = """
import numpy as np, torch, linear_step
step = linear_step.load()
class Body(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2, 3))
        self.register_buffer("small", torch.zeros(2, dtype=torch.float16))
        self.register_buffer("num_batches_tracked", torch.tensor(0))
class Fc(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2, 3))
        self.bias = torch.nn.Parameter(torch.zeros(3))
        self.register_buffer("count", torch.tensor(0))
model = torch.nn.Module()
model.body, model.fc = Body(), Fc()
x, y = torch.randn(4, 2, requires_grad=True), torch.randn(4, 3)
step.train(x, y)
state = step.state_dict()
model.load_state_dict(state, strict=True)
for name, value in model.state_dict().items():
    assert value.shape == state[name].shape and np.array_equal(value.numpy(), state[name]), name
try:
    step.predict(x.bfloat16())
except ValueError as error:
    print(error)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=folder.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("predict: x is no array (Got unsupported ScalarType BFloat16); pass a numpy")


def test_a_recompiled_artifact_at_the_same_path(build: Build, batch: Batch, tmp_path: Path) -> None:
    """dlopen would hand out the older build that this process still holds."""
    old = Step.load(build())
    folder = tmp_path / "linear_step"
    folder.rename(tmp_path / "moved")
    new = Step.load(build("LABELS"))
    assert new.train(batch[0], [0, 1, 2, 0]) != old.train(*batch)
