"""The networks that are timed, and the one task that every peer gets."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmarks.peers import Task
from gfcompile.compiler import Job, make_survey
from gfcompile.frontend.losses import resolve_loss
from gfcompile.plan import Request, make_plan
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


def make_task(model: str, batch: int, size: int | None, layers: int, r: int) -> Task:
    """The same model, batch and plan for every peer; the plan is the compiler's own."""
    make, usual = MODELS[model]
    edge = size or usual
    torch.manual_seed(0)
    net = randomise_statistics(make(), 0)
    x = torch.randn(batch, 3, edge, edge)
    with torch.no_grad():
        output = net.eval()(x[:1])
    labels = torch.randint(0, output.shape[1], (batch, *output.shape[2:]))
    request = Request(layers=layers, patches={"*": r})
    plan = make_plan(make_survey(Job(net, (x,), resolve_loss("cross_entropy"), request)), request)
    filtered = tuple(layer.name for layer in plan.trained if layer.r is not None)
    return Task(net, x, labels, plan.trained_parameters, filtered, r)
