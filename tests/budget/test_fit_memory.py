"""Layers and shares from a budget of bytes, against counting every number of layers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
import torch
from torch import nn

from gfcompile.budget.fit_memory import FALL, SHARE, Search, fit_memory, placed_bytes, with_shares
from gfcompile.budget.traces import Traces
from gfcompile.codegen.scheduling import Scheduler
from gfcompile.errors import UserError
from gfcompile.frontend.losses import resolve_loss
from gfcompile.geometry.convolution import ConvGeometry
from gfcompile.job import Job
from gfcompile.plan import Layer, make_plan
from gfcompile.progress import silent
from gfcompile.report.counts import kept_bytes
from gfcompile.report.sparse import make_sparse
from gfcompile.settings.schema import Request
from gfcompile.settings.text import read_bytes
from gfcompile.stages import look_at, make_survey, trace
from gfcompile.targets import find_target
from tests.budget.nets import small
from tests.lean import analyse_lean
from tests.models.mobilenet import mobilenet_v2
from tests.selection import often

NATIVE = find_target("native")
KB = 1024


def job_for(**wishes: object) -> Job:
    model, x, _ = small()
    return Job(model, (x,), resolve_loss("cross_entropy"), Request(**wishes))  # type: ignore[arg-type]


@cache
def fitted(memory: int) -> Job:
    return fit_memory(job_for(), memory, NATIVE)


@pytest.mark.coverage
def test_as_many_layers_as_fit() -> None:
    """At the bytes that the program of N layers keeps, N are trained; with one byte less, N - 1."""
    layers = make_survey(job_for())
    every = fitted(10**9)
    assert every.request == with_shares(layers, Request(), 4)
    size = analyse_lean(every).saved_bytes
    assert fitted(size).request == every.request
    fewer = fitted(size - 1)
    assert fewer.request == with_shares(layers, Request(), 3)
    assert analyse_lean(fewer).saved_bytes < size


@pytest.mark.slow
def test_shares_fall_from_the_first_to_the_last() -> None:
    request = fitted(10**9).request
    assert request.sparse is not None
    shares = list(request.sparse.values())
    assert request.layers == len(shares) == 4
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == pytest.approx(FALL * shares[0])


@pytest.mark.slow
def test_a_share_of_the_user_holds_and_layers_is_the_most() -> None:
    job = fit_memory(job_for(layers=2, sparse={"6": 0.5}), 10**9, NATIVE)
    assert job.request.layers == 2
    assert job.request.sparse is not None
    assert job.request.sparse["6"] == 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("exact", "remedy"),
    often(
        [
            (False, "give that much, a larger --r, or a smaller --batch"),
            (True, "give that much or a smaller --batch, or leave --exact out"),
        ],
        [(False, "give that much, a larger --r, or a smaller --batch")],
    ),
)
def test_a_budget_that_nothing_fits(exact: bool, remedy: str) -> None:
    """The least is one channel of the last convolution: so much is enough."""
    with pytest.raises(UserError) as caught:
        fit_memory(job_for(exact=exact), 100, NATIVE)
    least = int(str(caught.value).split()[7])
    assert str(caught.value) == f"--memory 100: the last convolution alone keeps {least} bytes at least; {remedy}"
    fitting = fit_memory(job_for(exact=exact), least, NATIVE)
    assert placed_bytes(trace(fitting), Scheduler(NATIVE)) == least
    assert [layer.channels for layer in make_plan(make_survey(fitting), fitting.request).sparse] == [1]


def test_a_model_without_convolutions() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    for wishes in (Request(), Request(layers=2)):
        job = Job(model, (torch.zeros(2, 3, 2, 2),), resolve_loss("cross_entropy"), wishes)
        with pytest.raises(UserError) as caught:
            fit_memory(job, 10**6, NATIVE)
        assert str(caught.value) == (
            "--sparse auto: the model has no convolutions that count; leave out --sparse and --memory"
        )


def layer(name: str, inputs: int, outputs: int, edge: int) -> Layer:
    size = (edge, edge)
    geometry = ConvGeometry(1, inputs, outputs, size, size, (1, 1), (1, 1), (0, 0), (1, 1), 1)
    kernel = f"{name}.weight"
    return Layer(name, "conv", (kernel,), geometry, kernel=kernel, weights=inputs * outputs)


# where `heavy` is trained, most of the 2 % are its weights, and little is drawn of the large images after it
HEAVY = [layer("heavy", 100, 1000, 1), layer("middle", 100, 100, 10), layer("last", 100, 100, 10)]
HEAVY += [Layer("fc", "linear", ("fc.weight",))]
MASK = 50


class Counted(Search):
    """Keeps what is drawn of the inputs, and a mask a layer; `asked` are the plans that were counted."""

    def __init__(self, layers: Sequence[Layer] = HEAVY, **wishes: object) -> None:
        super().__init__(job_for(**wishes), layers, NATIVE, silent)
        self.asked: list[int | None] = []

    def count(self, job: Job) -> int:
        self.asked.append(job.request.layers)
        return self.place(job)

    def place(self, job: Job) -> int:
        plan = make_plan(self.layers, job.request)
        inputs = [kept_bytes(each.geometry, each.r, each.channels) for each in plan.trained if each.geometry]
        return sum(inputs) + MASK * len(inputs)


def test_more_layers_may_keep_less() -> None:
    """For every budget the number that counting each of them finds."""
    sizes = {count: Counted().keeps(count) for count in (1, 2, 3)}
    assert sizes[3] < sizes[1] < sizes[2]
    for memory in (size + change for size in sizes.values() for change in (-1, 0)):
        wanted = max((count for count, size in sizes.items() if size <= memory), default=0)
        assert Counted().largest(3, memory) == wanted


class Between(nn.Module):
    """Keeps more where two of its three convolutions are trained: not with all of them, nor with the last alone."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Conv2d(2, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.two(self.one(x).relu())
        if self.two.weight.requires_grad and not self.one.weight.requires_grad:
            x = x.sigmoid() * x.tanh() * x.cos()
        return self.head(self.three(x.relu()).mean((2, 3)))


@pytest.mark.slow
def test_a_model_that_looks_at_what_is_trained_fits_as_it_is_compiled() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        job = Job(Between(), (torch.randn(2, 2, 12, 12),), resolve_loss("cross_entropy"), Request())
    surveyed = look_at(job)
    plans = [with_shares(surveyed.layers, Request(), count) for count in (1, 2, 3)]
    cut = placed_bytes(Traces(surveyed, plans[2])(plans[1]), Scheduler(NATIVE))
    said: list[str] = []
    chosen = fit_memory(job, cut, NATIVE, said.append)
    assert chosen.request == plans[0]
    assert analyse_lean(chosen).saved_bytes <= cut
    assert any(words.startswith("that keeps more as it is compiled") for words in said)


def test_what_cannot_fit_is_not_counted() -> None:
    """Twenty layers that keep masks above all: the numbers that halving asks for, and no more than one other."""
    layers = [*(layer(f"c{at}", 8, 8, 1) for at in range(20)), HEAVY[-1]]
    search = Counted(layers)
    assert search.largest(20, Counted(layers).keeps(7)) == 7
    assert len(set(search.asked)) == len(search.asked) <= 6


def test_fewer_channels_where_one_layer_keeps_too_much() -> None:
    """As many as fit; a share of the user's stays as it is."""
    plane = 4 * 25  # bytes of a channel at r = 2
    job = Counted().narrowed(MASK + 9 * plane + 1)
    (only,) = make_plan(HEAVY, job.request).sparse
    assert (only.name, only.channels) == ("last", 9)
    with pytest.raises(UserError) as caught:
        Counted(sparse={"last": 0.5}).narrowed(MASK + 9 * plane)
    assert str(caught.value) == (
        f"--memory {MASK + 9 * plane}: the last convolution alone keeps {MASK + 50 * plane} bytes at least;"
        " give that much, a larger --r, or a smaller --batch"
    )


def test_exact_gradients_have_another_remedy() -> None:
    with pytest.raises(UserError) as caught:
        Counted(exact=True).narrowed(MASK)
    assert str(caught.value) == (
        f"--memory {MASK}: the last convolution alone keeps {MASK + 4 * 100} bytes at least;"
        " give that much or a smaller --batch, or leave --exact out"
    )


def test_a_name_behind_a_pattern_counts() -> None:
    """Although the name has a share of its own already."""
    request = with_shares(HEAVY, Request(sparse={"l*": 0.5, "last": 0.25}), 2)
    assert list((request.sparse or {}).items())[-2:] == [("l*", 0.5), ("last", 0.25)]
    (_, last) = make_plan(HEAVY, request).sparse
    assert last.channels == 25


def test_settings_of_layers_that_are_not_trained_wait() -> None:
    """For numbers of layers that train them."""
    wishes = Request(sparse={"middle": 0.5}, r={"*": 2, "heavy": 1, "last": 4})
    assert with_shares(HEAVY, wishes, 1).patches == {"*": 2, "last": 4}
    assert "middle" not in (with_shares(HEAVY, wishes, 1).sparse or {})
    assert with_shares(HEAVY, wishes, 3).patches == wishes.patches


def test_the_share_is_not_exceeded_by_a_rounded_part() -> None:
    """2 % of 10 049 900 weights are 200 998; 201 channels of 1000 weights would be a share of 0.020000 when rounded."""
    layers = [layer("frozen", 1, 49_900, 1), layer("last", 10_000, 1000, 1), HEAVY[-1]]
    sparse = make_sparse(layers, make_plan(layers, with_shares(layers, Request(), 1)))
    assert sparse is not None
    assert (sparse.updated_weights, sparse.convolution_weights) == (200_000, 10_049_900)


@pytest.mark.parametrize(
    ("text", "size"),
    [("262144", 262144), ("256KB", 262144), ("256 kb", 262144), ("2MB", 2 << 20), (77, 77), ("1.5KB", 1536)],
)
def test_bytes(text: str | int, size: int) -> None:
    assert read_bytes(text) == size


@pytest.mark.parametrize("text", ["", "KB", "0", "-1", "nanKB", "1TB", "1BK", True, "infMB"])
def test_no_bytes(text: str) -> None:
    with pytest.raises(ValueError, match="must be a number of bytes, as in 262144, 256KB or 2MB"):
        read_bytes(text)


@pytest.mark.coverage
def test_mobilenet_in_256_kb() -> None:
    """224x224, a batch of one: 2 % of the convolution weights a step, 98 % below dense training of all layers."""
    loss = resolve_loss("cross_entropy")
    job = Job(mobilenet_v2(), (torch.zeros(1, 3, 224, 224),), loss, Request())
    layers = make_survey(job)
    chosen = fit_memory(job, 256 * KB, NATIVE)
    assert chosen.request.layers == 33
    sparse = make_sparse(layers, make_plan(layers, chosen.request))
    assert sparse is not None
    assert sparse.updated_weights <= SHARE * sparse.convolution_weights
    assert sparse.convolution_weights == 2_189_760  # of torchvision's model, its classifier aside
    conv_inputs = 24.33 * KB * KB  # of all layers, as Table 2 prints it; we count 25.81 (docs/method.md, section 2)
    assert placed_bytes(trace(chosen), Scheduler(NATIVE)) <= min(256 * KB, 0.02 * conv_inputs)
