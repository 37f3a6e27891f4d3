"""Layers and shares from a budget of bytes, against counting every number of layers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from gfcompile.compiler import Job, analyse, make_survey
from gfcompile.errors import UserError
from gfcompile.fit_memory import FALL, SHARE, fit_memory, placed_bytes, with_shares
from gfcompile.frontend.losses import resolve_loss
from gfcompile.plan import Request, make_plan
from gfcompile.report.sparse import make_sparse
from gfcompile.settings import read_bytes
from gfcompile.targets import find_target
from tests.models.mobilenet import mobilenet_v2
from tests.models.zoo import INPUTS, ZOO

NATIVE = find_target("native")
KB = 1024


def job_for(**wishes: object) -> Job:
    loss = resolve_loss("cross_entropy")
    return Job(ZOO["separable"](), (torch.zeros(INPUTS["separable"]),), loss, Request(**wishes))  # type: ignore[arg-type]


@cache
def fitted(memory: int, layers: int | None = None) -> Job:
    return fit_memory(job_for(layers=layers), memory, NATIVE)


@pytest.mark.slow
def test_as_many_layers_as_fit() -> None:
    """At the bytes that the program of N layers keeps, N are trained; with one byte less, N - 1."""
    jobs = {count: fitted(10**9, count) for count in (2, 3)}
    assert {count: job.request.layers for count, job in jobs.items()} == {2: 2, 3: 3}
    sizes = {count: analyse(job).saved_bytes for count, job in jobs.items()}
    assert sizes[2] < sizes[3]
    assert fitted(sizes[3]).request == jobs[3].request
    assert fitted(sizes[3] - 1).request == jobs[2].request


@pytest.mark.slow
def test_shares_fall_from_the_first_to_the_last() -> None:
    request = fitted(10**9).request
    assert request.sparse is not None
    shares = list(request.sparse.values())
    assert request.layers == len(shares) == 5
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == pytest.approx(FALL * shares[0])


@pytest.mark.slow
def test_a_share_of_the_user_holds_and_layers_is_the_most() -> None:
    job = fit_memory(job_for(layers=2, sparse={"4.0": 0.5}), 10**9, NATIVE)
    assert job.request.layers == 2
    assert job.request.sparse is not None
    assert job.request.sparse["4.0"] == 0.5


@pytest.mark.slow
def test_a_budget_that_nothing_fits() -> None:
    least = analyse(fit_memory(job_for(layers=1), 10**9, NATIVE)).saved_bytes
    with pytest.raises(UserError) as caught:
        fit_memory(job_for(), 100, NATIVE)
    assert str(caught.value) == (
        f"--memory 100: the last convolution alone keeps {least} bytes; give that much, a larger --r, or a"
        " smaller --batch"
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [("262144", 262144), ("256KB", 262144), ("256 kb", 262144), ("2MB", 2 << 20), (77, 77), ("1.5KB", 1536)],
)
def test_bytes(text: str | int, size: int) -> None:
    assert read_bytes("--memory", text) == size


@pytest.mark.parametrize("text", ["", "KB", "0", "-1", "nanKB", "1TB", "1BK", True, "infMB"])
def test_no_bytes(text: str) -> None:
    with pytest.raises(UserError) as caught:
        read_bytes("--memory", text)
    assert str(caught.value) == f"--memory '{text}': must be a number of bytes, as in 262144, 256KB or 2MB"


@pytest.mark.slow
def test_mobilenet_in_256_kb() -> None:
    """224x224, a batch of one: 2 % of the convolution weights a step, 98 % below dense training of all layers."""
    loss = resolve_loss("cross_entropy")
    job = Job(mobilenet_v2(), (torch.zeros(1, 3, 224, 224),), loss, Request())
    layers = make_survey(job)
    chosen = replace(job, request=with_shares(layers, job.request, 33))  # what fit_memory finds, in a minute and a half
    sparse = make_sparse(layers, make_plan(layers, chosen.request))
    assert sparse is not None
    assert sparse["updated_weights"] <= SHARE * sparse["convolution_weights"]
    assert sparse["convolution_weights"] == 2_189_760  # of torchvision's model, its classifier aside
    conv_inputs = 24.33 * KB * KB  # METHOD section 2: those of all layers
    assert placed_bytes(chosen, NATIVE) <= min(256 * KB, 0.02 * conv_inputs)
