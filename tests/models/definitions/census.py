"""Which ATen ops the definitions' training steps need: python -m tests.models.definitions.census [NAME ...]

The joint graph of each, as the frontend hands it to the passes. Prints how many definitions each op occurs in, names
them where they are few, and then what could not be traced, and why. Two seconds a definition.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job
from gfcompile.settings.schema import Request
from gfcompile.stages import trace
from tests.models.definitions import DEFINITIONS, Definition

FEW = 3  # an op of so few definitions names them
CENSUS = Path(__file__).with_name("operators.txt")


def read_census() -> set[str]:
    """The ATen ops of all definitions, as last written."""
    return {line for line in CENSUS.read_text().split() if line.startswith("aten.")}


def training_ops(definition: Definition, batchnorm: str = "eval") -> set[str]:
    """The ops in the joint graph that trains the definition's last convolutions."""
    request = Request(layers=definition.layers, batchnorm=batchnorm)
    step = trace(Job(definition.make(), definition.example(), resolve_loss(definition.loss), request)).training
    found = {str(node.target) for node in step.body.graph.nodes if node.op == "call_function"}
    return {name for name in found if name.startswith("aten.")}


def main() -> None:
    parser = argparse.ArgumentParser(description="ATen ops of the definitions' training steps")
    parser.add_argument("names", nargs="*", help="definitions to trace; all of them by default")
    parser.add_argument("--batchnorm", default="eval", choices=("eval", "train"))
    parser.add_argument("--write", action="store_true", help="keep the list of ops in operators.txt")
    options = parser.parse_args()
    torch.set_num_threads(1)
    users: dict[str, list[str]] = {}
    untraced: dict[str, str] = {}
    begun = time.monotonic()
    names = options.names or list(DEFINITIONS)
    for name in names:
        try:
            for op in training_ops(DEFINITIONS[name], options.batchnorm):
                users.setdefault(op, []).append(name)
        except Exception as error:  # noqa: BLE001  the census goes on, whatever torch.export raises
            untraced[name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    for op, found in sorted(users.items(), key=lambda item: (-len(item[1]), item[0])):
        print(f"{len(found):4}  {op:60} {', '.join(found) if len(found) <= FEW else ''}".rstrip())
    print(f"{len(users)} ops in {len(names) - len(untraced)} definitions, {time.monotonic() - begun:.0f} s")
    for name, reason in untraced.items():
        print(f"not traced: {name}: {reason}")
    if options.write:
        CENSUS.write_text("".join(f"{op}\n" for op in sorted(users)))


if __name__ == "__main__":
    main()
