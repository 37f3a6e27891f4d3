"""What every method starts from: the network pretrained on half A, then its classifier alone on half B.

Ordinary PyTorch on one thread: the same seed gives the same weights on the same machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.evidence.data import Images, Task, batches
from benchmarks.evidence.networks import NETWORKS
from benchmarks.evidence.settings import Settings


def pretrain(network: str, task: Task, settings: Settings) -> nn.Module:
    """Every parameter, SGD with momentum, one cycle of the learning rate."""
    torch.manual_seed(settings.first_seed)
    rng = np.random.default_rng(settings.first_seed)
    model = NETWORKS[network]().train()
    rate = settings.pretrain_rate
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, weight_decay=5e-4, nesterov=True)
    steps = settings.pretrain_epochs * -(-len(task.pretrain.y) // settings.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for epoch in range(settings.pretrain_epochs):
        losses = []
        for x, y in batches(task.pretrain, settings.batch, rng.permutation(len(task.pretrain.y))):
            loss = cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        print(f"    {network}: epoch {epoch + 1} of {settings.pretrain_epochs}, loss {np.mean(losses):.3f}", flush=True)
    return model.eval()


def train_classifier(model: nn.Module, task: Task, settings: Settings) -> None:
    """In place, from new weights: its classes are new. The layers before it are frozen, so they compute once."""
    torch.manual_seed(settings.first_seed)
    rng = np.random.default_rng(settings.first_seed)
    chosen = rng.choice(len(task.pool.y), settings.images, replace=False)
    (classifier,) = (module for module in model.modules() if isinstance(module, nn.Linear))
    classifier.reset_parameters()
    features: list[torch.Tensor] = []
    hook = classifier.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    with torch.no_grad():
        for x, _ in batches(task.pool, settings.batch, chosen):
            model(torch.from_numpy(x))
    hook.remove()
    seen, labels = torch.cat(features), torch.from_numpy(task.pool.y[chosen])
    optimizer = torch.optim.SGD(classifier.parameters(), settings.classifier_rate, momentum=settings.momentum)
    steps = settings.epochs * -(-settings.images // settings.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(settings.epochs):
        for some in torch.from_numpy(rng.permutation(settings.images)).split(settings.batch):
            optimizer.zero_grad()
            cross_entropy(classifier(seen[some]), labels[some]).backward()
            optimizer.step()
            schedule.step()


def accuracy(model: nn.Module, images: Images) -> float:
    """Per cent."""
    with torch.no_grad():
        right = model(torch.from_numpy(images.x)).argmax(1).numpy() == images.y
    return 100 * float(np.mean(right))


def weights_file(folder: Path, network: str) -> Path:
    return folder / f"{network}.pt"


def save(model: nn.Module, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    torch.save(model.state_dict(), beside)
    beside.replace(path)


def restore(network: str, path: Path) -> nn.Module:
    model = NETWORKS[network]()
    state: dict[str, Any] = torch.load(path, weights_only=True)
    model.load_state_dict(state)
    return model.eval()
