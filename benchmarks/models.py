"""The networks that are timed, and the one task that every peer gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from benchmarks.peers import Task
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job
from gfcompile.plan import make_plan
from gfcompile.settings.schema import Request
from gfcompile.stages import make_survey
from tests.models import randomise_statistics
from tests.models.deeplab import deeplabv3
from tests.models.mcunet import mcunet
from tests.models.mobilenet import mobilenet_v2
from tests.models.resnet import resnet18, resnet34

MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {  # with the edge of their images
    "resnet18": (resnet18, 224),
    "resnet34": (resnet34, 224),
    "mobilenet_v2": (mobilenet_v2, 224),
    "mcunet": (mcunet, 176),
    "deeplabv3": (deeplabv3, 256),
}


@dataclass(frozen=True)
class Chosen:
    """What is trained, by the compiler's own plan: names of parameters, and of the convolutions that are filtered."""

    trained: tuple[str, ...]
    filtered: tuple[str, ...]


@cache
def choose(model: str, size: int | None, layers: int, r: int) -> Chosen:
    """Traces the model, which takes seconds; the batch size changes nothing."""
    net, edge = _build(model, size)
    request = Request(layers=layers, r={"*": r})
    job = Job(net, (torch.zeros(1, 3, edge, edge),), resolve_loss("cross_entropy"), request)
    plan = make_plan(make_survey(job), request)
    filtered = tuple(layer.name for layer in plan.trained if layer.r is not None)
    return Chosen(tuple(sorted(plan.trained_parameters)), filtered)


def make_task(model: str, batch: int, size: int | None, r: int, chosen: Chosen) -> Task:
    """The same model, batch and plan for every peer."""
    net, edge = _build(model, size)
    x = torch.randn(batch, 3, edge, edge)
    with torch.no_grad():
        output = net(x[:1])
    labels = torch.randint(0, output.shape[1], (batch, *output.shape[2:]))
    return Task(net, x, labels, frozenset(chosen.trained), chosen.filtered, r)


def _build(model: str, size: int | None) -> tuple[nn.Module, int]:
    make, usual = MODELS[model]
    torch.manual_seed(0)
    return randomise_statistics(make(), 0).eval(), size or usual
