"""What a compiled step of a random network has to compute: PyTorch's autograd, filtered layers by tests/oracles.py."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn

from tests.coverage import filtered
from tests.fuzz.networks import CLASSES, Network

LOSSES = {
    "cross_entropy": F.cross_entropy,
    "cross_entropy:label_smoothing=0.1": lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
    "mse": F.mse_loss,
    "smooth_l1": F.smooth_l1_loss,
    "huber": F.huber_loss,
}
OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}
Arrays = dict[str, np.ndarray]


class Peer:
    """The model in one precision. The manifest says which parameters are trained and which layers filtered."""

    def __init__(self, network: Network, manifest: Mapping[str, Any], dtype: torch.dtype) -> None:
        self.model, self.dtype = copy.deepcopy(network.model).to(dtype).eval(), dtype
        self.options = network.options
        self.mode = "reference" if manifest["plan"]["compat"] else "unbiased"
        plan = {row["layer"]: row["r"] for row in manifest["plan"]["trained"]}
        self.patches = {name: plan[name] for name in manifest["filtered_layers"]}
        named = dict(self.model.named_parameters())
        for parameter in named.values():
            parameter.requires_grad_(False)
        self.trained = {name: named[name].requires_grad_() for name in manifest["gradients"]}
        settings = dict(self.options["optimizer"])
        kind = OPTIMIZERS[settings.pop("name")]
        self.optimizer = kind(list(self.trained.values()), lr=self.options["lr"], **settings)

    @torch.no_grad()
    def predict(self, x: Tensor) -> list[Tensor]:
        return pytree.tree_leaves(self.model(x.to(self.dtype)))

    def target(self, x: Tensor, number: int) -> Tensor:
        """Classes, or values like the output's."""
        output = self.predict(x)[0]
        generator = torch.Generator().manual_seed(number)
        if self.options["loss"].startswith("cross_entropy"):
            return torch.randint(0, CLASSES, (output.shape[0], *output.shape[2:]), generator=generator)
        return torch.randn(output.shape, generator=generator)

    def gradients(self, x: Tensor, y: Tensor, masks: Mapping[str, Tensor]) -> tuple[float, Arrays]:
        """The loss and the gradients, zero where a mask is; batch norms in train mode move their statistics."""
        for name, module in self.model.named_modules():
            if isinstance(module, nn.BatchNorm2d):
                module.train(self._trains_statistics(name))
        target = y.to(self.dtype) if y.is_floating_point() else y
        with filtered(self.model, self.patches, self.mode):
            output = pytree.tree_leaves(self.model(x.to(self.dtype)))[0]
        loss = LOSSES[self.options["loss"]](output, target)
        found = torch.autograd.grad(loss, list(self.trained.values()))
        self.model.eval()
        gradients = dict(zip(self.trained, found, strict=True))
        gradients |= {name: gradients[name] * mask for name, mask in masks.items()}
        return loss.item(), {name: gradient.double().numpy() for name, gradient in gradients.items()}

    def _trains_statistics(self, name: str) -> bool:
        given = self.options.get("batchnorm", "eval")
        return (given if isinstance(given, str) else given.get(name, given["*"])) == "train"

    def masks(self, channels: Mapping[str, Any]) -> dict[str, Tensor]:
        """By kernel, which of its weights a step updates that draws these input channels."""
        found = {}
        for name, drawn in channels.items():
            conv = self.model.get_submodule(name)
            assert isinstance(conv, nn.Conv2d)
            mask = torch.zeros(conv.weight.shape, dtype=torch.bool)
            outputs, inputs = conv.out_channels // conv.groups, conv.in_channels // conv.groups
            for channel in map(int, drawn):
                group = channel // inputs
                mask[group * outputs : (group + 1) * outputs, channel % inputs] = True
            found[f"{name}.weight"] = mask
        return found

    def update(self, gradients: Arrays, masks: Mapping[str, Tensor]) -> Arrays:
        """torch.optim's step on these gradients; what a mask leaves out stays, its optimizer state too. The weights."""
        before = {name: parameter.detach().clone() for name, parameter in self.trained.items()}
        state = {name: dict(copy.deepcopy(self.optimizer.state[p])) for name, p in self.trained.items()}
        for name, parameter in self.trained.items():
            parameter.grad = torch.from_numpy(gradients[name]).double()
        if "clip_norm" in self.options:
            nn.utils.clip_grad_norm_(self.trained.values(), self.options["clip_norm"])
        self.optimizer.step()
        with torch.no_grad():
            for name, mask in masks.items():
                parameter = self.trained[name]
                parameter.copy_(torch.where(mask, parameter, before[name]))
                for key, value in self.optimizer.state[parameter].items():
                    if isinstance(value, Tensor) and value.shape == mask.shape:
                        old = state[name].get(key, torch.zeros_like(value))
                        value.copy_(torch.where(mask, value, old))
        return {name: parameter.detach().numpy().copy() for name, parameter in self.trained.items()}

    def take(self, state: Mapping[str, Any]) -> None:
        """Go on from the compiled step's weights and statistics, so that rounding does not add up."""
        self.model.load_state_dict({name: torch.as_tensor(value) for name, value in state.items()})
