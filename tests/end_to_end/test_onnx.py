"""ONNX in, trained, ONNX out, by the command line: what onnxruntime then computes is what the step predicts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import gfcompile
from gfcompile.cli import main
from tests.models import randomise_statistics
from tests.models.mobilenet_v3 import mobilenet_v3_like, short_mobilenet_v3
from tests.models.resnet import resnet10, resnet18
from tests.selection import often
from tests.tolerances import LOGITS, assert_near

pytestmark = pytest.mark.slow

SHAPE = (4, 3, 64, 64)
NETS = {
    "resnet10": lambda: resnet10(10, width=8),
    "resnet18": lambda: resnet18(10, width=8),
    "mobilenet_v3": lambda: mobilenet_v3_like(10, width=0.5),
    "short_mobilenet_v3": lambda: short_mobilenet_v3(10, width=0.5),
}


def build(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return randomise_statistics(NETS[name](), seed=0).eval()


@pytest.mark.parametrize("name", often(NETS, ["resnet10"]))
def test_a_model_goes_in_and_comes_out(name, tmp_path: Path):
    source, folder, trained = tmp_path / f"{name}.onnx", tmp_path / f"{name}_step", tmp_path / "trained.onnx"
    model = build(name)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(SHAPE, generator=generator), torch.randint(0, 10, SHAPE[:1], generator=generator)
    torch.onnx.export(model, (x,), source, dynamo=True, verbose=False)
    assert main([str(source), "--layers", "4", "--r", "2", "--out", str(folder), "--lr", "0.05", "--quiet"]) == 0
    with gfcompile.load(folder) as step:
        assert len(step.filtered_layers) == 4
        with torch.no_grad():
            assert_near(step.predict(x), model(x), LOGITS, "logits before training")
        losses = [step.train(x, y) for _ in range(5)]
        assert losses[-1] < losses[0]
        step.save_checkpoint(tmp_path / "run.ckpt")
        expected = step.predict(x)
    command = ["export", str(folder), "--checkpoint", str(tmp_path / "run.ckpt"), "--onnx", str(trained), "--quiet"]
    assert main(command) == 0
    session = onnxruntime.InferenceSession(trained, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert_near(found, expected, LOGITS, "onnxruntime on the trained model")
    assert np.abs(found - model(x).detach().numpy()).max() > 1e-3  # it was trained
