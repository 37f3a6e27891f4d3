"""Random networks from a new seed each time; and that the comparison sees what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.fuzz import models
from tests.fuzz.networks import batch, draw
from tests.fuzz.runner import Error, Result, run
from tests.fuzz.stand_in import go_wrong
from tests.selection import often

ROOT = Path(__file__).parent.parent.parent
SEED_THAT_TRAINS_ALL = 32  # a small network, exact


@pytest.mark.slow
@pytest.mark.parametrize("count", often([1, 20], []))
def test_random_networks(count, capsys):
    """GF_FUZZ_MODELS is their number, GF_FUZZ_SEED the first one's seed."""
    wanted = os.environ.get("GF_FUZZ_MODELS", str(count))
    command = [sys.executable, "-m", "tests.fuzz.models", "--jobs", "1", "--count", wanted]
    if "GF_FUZZ_SEED" in os.environ:
        command += ["--seed", os.environ["GF_FUZZ_SEED"]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    with capsys.disabled():
        print("", *done.stdout.splitlines()[:1], sep="\n")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_is_a_network():
    one, other = draw(7), draw(7)
    assert str(one) == str(other)
    assert torch.equal(batch(one, 0), batch(other, 0))
    assert all(torch.equal(a, b) for a, b in zip(one.model.state_dict().values(), other.model.state_dict().values()))
    assert len({str(draw(seed)) for seed in range(20)}) == 20


@pytest.mark.slow
def test_a_wrong_gradient_is_found_and_shown(tmp_path, monkeypatch, capsys):
    """One value of one gradient is off by a hundredth of the gradient's norm."""
    make = models.build

    def build(*arguments):
        step, operators = make(*arguments)
        right = step.gradients

        def wrong(x, y):
            gradients = right(x, y)
            kernel = gradients["0.weight"]
            kernel.reshape(-1)[0] += 0.01 * np.linalg.norm(kernel)
            return gradients

        step.gradients = wrong
        return step, operators

    monkeypatch.setattr(models, "build", build)
    result = models.check(SEED_THAT_TRAINS_ALL, tmp_path)
    assert result.failed
    wrong = [str(error) for error in result.errors if error.share > 1]
    assert any(words.startswith("gradient of 0.weight of another batch: relative error 1.0e-02") for words in wrong)
    assert any(words.startswith("0.weight after 1 steps: ") for words in wrong)  # the step itself used the right one
    models.show(result)
    shown = capsys.readouterr().out
    assert f"FAILED: seed {SEED_THAT_TRAINS_ALL}, input " in shown
    assert "(0): Conv2d(" in shown
    assert f"replay: python -m tests.fuzz.models --count 1 --seed {SEED_THAT_TRAINS_ALL}" in shown


@pytest.mark.slow
def test_a_network_that_ends_the_process_or_does_not_end_is_one_failure():
    failures = {result.seed: result.failure for result in run([1, 2, 3, 4, 5], go_wrong, longest=5)}
    assert failures == {1: "", 2: "the process ended with code 3", 3: "", 4: "no end after 5 seconds", 5: ""}


def test_the_summary_counts(capsys):
    fine = Result(
        1,
        [Error("output 0", 1e-6, 1e-4), Error("gradient", 1e-9, 0.1)],
        operators={"aten.add.Tensor", "aten.mul.Tensor"},
    )
    refused = Result(2, refusal="model: no")
    wrong = Result(3, [Error("output 0", 2e-4, 1e-4)], operators={"aten.add.Tensor"})
    assert models.summarise([fine, refused]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "refused 1x: model: no",
        "2 networks, 2 operators: 1 compared (2 values, of which 1 are mostly rounding), 1 refused, 0 failed;"
        " nearest to its bound: seed 1, output 0: relative error 1.0e-06, 1.0e-04 allowed",
    ]
    assert models.summarise([fine, wrong]) == 1
    assert models.summarise([fine, refused, refused]) == 1
    assert "more than 5% were refused: the generator is too wild" in capsys.readouterr().out
