"""The peer of a compiled step: the same training in plain PyTorch, filtered convolutions by the NumPy oracle."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.oracles import filtered_conv_gradients

GEOMETRY = ("stride", "padding", "dilation", "groups")
LOSSES = {"cross_entropy": F.cross_entropy, "mse": F.mse_loss}


class OracleConvolution(torch.autograd.Function):
    """conv2d whose backward is tests/oracles.py."""

    @staticmethod
    def forward(context: Any, x: Tensor, w: Tensor, b: Tensor | None, geometry: dict, r: int, mode: str) -> Tensor:
        context.save_for_backward(x, w)
        context.rest = geometry, r, mode, b is not None
        return F.conv2d(x, w, b, **geometry)

    @staticmethod
    def backward(context: Any, gy: Tensor) -> tuple[Tensor | None, ...]:
        x, w = context.saved_tensors
        geometry, r, mode, has_bias = context.rest
        grads = filtered_conv_gradients(x.numpy(), w.numpy(), gy.numpy(), r=r, mode=mode, **geometry)
        gx, gw, gb = (torch.from_numpy(grad).to(x.dtype) for grad in grads)
        return gx, gw, gb if has_bias else None, None, None, None


def filter_convolutions(model: nn.Module, patches: Mapping[str, int], mode: str) -> None:
    """Give the named convolutions the oracle's backward, in place."""
    for name, r in patches.items():
        conv = model.get_submodule(name)
        assert isinstance(conv, nn.Conv2d)

        def forward(self: nn.Conv2d, x: Tensor, r: int = r) -> Tensor:
            geometry = {key: getattr(self, key) for key in GEOMETRY}
            return OracleConvolution.apply(x, self.weight, self.bias, geometry, r, mode)

        conv.forward = MethodType(forward, conv)


class Eager:
    """Trains the named parameters of a copy of the model; only batch norms ever leave eval mode."""

    def __init__(
        self,
        model: nn.Module,
        trained: Collection[str],
        *,
        batchnorm: str = "eval",
        loss: str = "cross_entropy",
        lr: float = 0.01,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        patches: Mapping[str, int] | None = None,
        mode: str = "unbiased",
    ) -> None:
        self.model = copy.deepcopy(model).eval()
        self.loss, self.batchnorm = LOSSES[loss], batchnorm
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(name in trained)
        self.trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        assert set(self.trained) == set(trained)
        filter_convolutions(self.model, patches or {}, mode)
        self.optimizer = torch.optim.SGD(self.trained.values(), lr=lr, momentum=momentum, weight_decay=weight_decay)

    def gradients(self, x: Tensor, y: Tensor) -> tuple[float, dict[str, Tensor]]:
        """The loss and its gradients; batch norms in train mode move their statistics."""
        self._set_mode(training=True)
        self.optimizer.zero_grad()
        loss = self.loss(self.model(x), y)
        loss.backward()
        self._set_mode(training=False)
        return loss.item(), {name: p.grad.clone() for name, p in self.trained.items()}

    def train(self, x: Tensor, y: Tensor) -> float:
        loss, _ = self.gradients(x, y)
        self.optimizer.step()
        return loss

    @torch.no_grad()
    def predict(self, x: Tensor) -> Tensor:
        return self.model(x)

    def _set_mode(self, training: bool) -> None:
        for module in self.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.train(training and self.batchnorm == "train")
