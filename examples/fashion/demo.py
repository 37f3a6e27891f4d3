"""Pretrain in PyTorch where the clothes are, fine-tune with the compiled step where the shoes and bags are.

Half A holds mostly classes 0-4, half B mostly classes 5-9. The network is pretrained on A; its last four convolutions
and the classifier are then fine-tuned on B by the compiled step, with gradient filtering. Nothing is downloaded.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from data import Images, halves, load
from model import FashionResNet
from torch.nn.functional import cross_entropy

import gfcompile

BATCH = 32  # divides both halves, train (2400) and test (800)
MINORITY = 0.05  # share of the other half's classes
PRETRAIN_LR = 0.1
FINETUNE_LR = 0.01


def batches(images: Images, rng: np.random.Generator) -> Iterator[Images]:
    order = rng.permutation(len(images.y))
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        yield Images(images.x[chosen], images.y[chosen])


def progress(stage: str, epoch: int, epochs: int, loss: float, began: float, end: str) -> None:
    seconds = time.perf_counter() - began
    back = "\r" if sys.stdout.isatty() else ""
    print(f"{back}{stage:10}epoch {epoch}/{epochs}  loss {loss:.3f}  {seconds:4.0f} s", end=end, flush=True)


def train(stage: str, step, images: Images, epochs: int, rng: np.random.Generator) -> None:
    """Run `step(x, y) -> loss` over the images, with one line an epoch that shows the mean loss."""
    began = time.perf_counter()
    for epoch in range(1, epochs + 1):
        losses = []
        for x, y in batches(images, rng):
            losses.append(float(step(x, y)))
            if sys.stdout.isatty() and len(losses) % 10 == 0:
                progress(stage, epoch, epochs, np.mean(losses), began, end="")
        progress(stage, epoch, epochs, np.mean(losses), began, end="\n")


def pretrain(model: FashionResNet, images: Images, epochs: int, rng: np.random.Generator) -> None:
    """Ordinary PyTorch: every parameter, one learning-rate cycle."""
    optimizer = torch.optim.SGD(model.parameters(), PRETRAIN_LR, momentum=0.9, weight_decay=5e-4, nesterov=True)
    steps = epochs * len(images.y) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PRETRAIN_LR, total_steps=steps)

    def step(x: np.ndarray, y: np.ndarray) -> float:
        loss = cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.item()

    model.train()
    train("pretrain", step, images, epochs, rng)
    model.eval()


def logits_of(predict, images: Images) -> np.ndarray:
    parts = [np.asarray(predict(images.x[i : i + BATCH])) for i in range(0, len(images.x), BATCH)]
    return np.concatenate(parts)  # [N, 10]


def accuracy(predict, images: Images) -> float:
    return 100 * float(np.mean(logits_of(predict, images).argmax(1) == images.y))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/fashion_step"), help="where the artifact goes")
    parser.add_argument("--pretrain-epochs", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=5, help="epochs of the compiled step")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.perf_counter()
    torch.manual_seed(options.seed)
    rng = np.random.default_rng(options.seed)

    train_a, train_b = halves(load("train"), MINORITY)
    test_a, test_b = halves(load("t10k"), MINORITY)
    print(f"data      half A: {len(train_a.y)} images, mostly classes 0-4; half B: {len(train_b.y)}, mostly 5-9")

    model = FashionResNet()
    pretrain(model, train_a, options.pretrain_epochs, rng)

    compile_began = time.perf_counter()
    x = torch.from_numpy(train_b.x[:BATCH])
    step = gfcompile.compile(
        model, (x,), layers=4, r=2, target="native", loss="cross_entropy",
        optimizer="sgd", lr=FINETUNE_LR, momentum=0.9, out=options.out,
    )  # fmt: skip
    print(f"compile   filtered {', '.join(step.filtered_layers)}  {time.perf_counter() - compile_began:4.0f} s")

    before = accuracy(step.predict, test_a), accuracy(step.predict, test_b)
    train("fine-tune", step.train, train_b, options.epochs, rng)
    after = accuracy(step.predict, test_a), accuracy(step.predict, test_b)

    model.load_state_dict(step.state_dict())
    with torch.no_grad():
        reloaded = logits_of(lambda part: model(torch.from_numpy(part)), test_b)
    difference = float(np.abs(reloaded - logits_of(step.predict, test_b)).max())

    memory = json.loads((options.out / "report.json").read_text())["memory"]
    exact, filtered = memory["exact_saved_bytes"], memory["saved_bytes"]
    print()
    print("accuracy on test images     half A    half B")
    print(f"  before fine-tuning      {before[0]:6.1f} %  {before[1]:6.1f} %")
    print(f"  after                   {after[0]:6.1f} %  {after[1]:6.1f} %")
    print(f"kept from forward to backward, batch of {BATCH} (counted)")
    print(f"  exact gradients         {exact / 1024:8.1f} KB")
    print(f"  filtered, r=2           {filtered / 1024:8.1f} KB   {exact / filtered:.1f} times less")
    print(f"weights loaded back into the PyTorch model: logits differ by at most {difference:.1e}")
    print(f"report: {options.out / 'report.md'}")
    print(f"total {time.perf_counter() - began:.0f} s")
    if after[1] <= before[1]:
        sys.exit("fine-tuning did not raise the accuracy on half B: something is wrong")


if __name__ == "__main__":
    main()
