"""The share of weights that a sparse step updates, by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gfcompile.frontend.survey import survey
from gfcompile.frontend.trace import trace_forward
from gfcompile.plan import make_plan
from gfcompile.report.sparse import make_sparse, sparse_lines
from gfcompile.settings.schema import Request

TRANSPOSED = "it is a transposed convolution; channels are drawn of ordinary 2-D ones"


def counts(model: nn.Module, *shape: int, **wishes: object) -> tuple[int, int, float]:
    layers = survey(trace_forward(model.eval(), (torch.zeros(shape),)), model)
    sparse = make_sparse(layers, make_plan(layers, Request(sparse={"*": 0.5}, **wishes)))  # type: ignore[arg-type]
    assert sparse is not None
    return sparse.updated_weights, sparse.convolution_weights, sparse.share


def test_convolutions_of_every_kind_count() -> None:
    """A transposed one is trained whole: all its 4 * 6 * 4 weights beside half of the other's 8 * 4 * 9."""
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 4, 3), nn.ConvTranspose2d(4, 6, 2))
    assert counts(model, 1, 4, 8, 8, layers=2) == (144 + 96, 288 + 288 + 96, round(240 / 672, 6))


def test_a_model_of_transposed_convolutions_alone() -> None:
    model = nn.Sequential(nn.ConvTranspose2d(2, 3, 2), nn.ConvTranspose2d(3, 2, 2))
    assert counts(model, 1, 2, 4, 4) == (48, 48, 1.0)


class Constant(nn.Module):
    """A convolution whose kernel is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kernel", torch.ones(2, 2, 3, 3))
        self.bias = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(x, self.kernel, self.bias)


def test_no_convolution_weights_at_all() -> None:
    assert counts(nn.Sequential(Constant()), 1, 2, 4, 4) == (0, 0, 0.0)


def test_in_words() -> None:
    model = nn.Sequential(nn.ConvTranspose2d(2, 3, 2))
    layers = survey(trace_forward(model.eval(), (torch.zeros(1, 2, 4, 4),)), model)
    sparse = make_sparse(layers, make_plan(layers, Request(sparse={"*": 0.5})))
    assert sparse is not None
    assert sparse_lines(sparse) == [
        "sparse: 0 layers, channels drawn anew every step; a step updates 24 of 24 convolution weights, 100.00 %,"
        " counted",
        f"  0 is updated whole: {TRANSPOSED}",
    ]
