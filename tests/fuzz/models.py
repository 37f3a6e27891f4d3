"""Random CNNs, compiled and compared with float64 PyTorch: `python -m tests.fuzz.models --count 20 [--seed S]`.

Network after network from seed S on (a new one if none is given). Of each: outputs, loss, every gradient, the weights
after two steps and the statistics of batch norms. Filtered layers are compared with the NumPy oracle, all else with
autograd. Networks run in a child process, so that a crash is one network's failure.
"""

from __future__ import annotations

import argparse
import copy
import os
import secrets
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor

import gfcompile
from gfcompile.compiler import write_step
from gfcompile.errors import UserError
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job
from gfcompile.optimizers import resolve_optimizer
from gfcompile.settings.schema import Request
from gfcompile.stages import lower_job
from gfcompile.targets import find_target
from tests.fuzz.networks import Network, batch, draw
from tests.fuzz.peer import Arrays, Peer
from tests.fuzz.runner import Error, Result, run_beside
from tests.lean import place_lean
from tests.tolerances import EXACT_GRADIENT, LOGITS, STATISTICS_AFTER_ONE_STEP, relative_error

# Of the largest gradient: a smaller one is measured by this. With the bound for gradients, 1e-4, one that cancels may
# be off by 1e-6 of the largest, some sixteen units in float32's last place.
ROUNDING = 1e-2
EAGER = 30  # times what PyTorch's own float32 is off: both are rounding, in another order of additions
UPDATE = 1e-5  # torch.optim in float64 on the compiled gradients; two programs round gradients differently
BLUNT = 0.01  # an allowed error that proves little: float32 has few digits of that gradient
MOST_REFUSED = 0.05  # of the networks: a generator that makes more is too wild to test much
STEPS = 2


def build(network: Network, folder: Path) -> tuple[gfcompile.CompiledStep, set[str]]:
    """The artifact without what only its report needs, and the operators of the traced graph."""
    given = network.options
    patches = given["r"] if isinstance(given["r"], dict) else {"*": given["r"]}
    sparse = {"*": given["sparse"]} if "sparse" in given else None
    request = Request(
        layers=given["layers"],
        r=patches,
        exact=given.get("exact", False),
        batchnorm=given.get("batchnorm", "eval"),
        compat=given.get("compat"),
        train_affine=given.get("train_affine", False),
        sparse=sparse,
        sparse_strategy=given.get("sparse_strategy", "step"),
    )
    job = Job(
        network.model,
        (batch(network, 0),),
        resolve_loss(given["loss"]),
        request,
        resolve_optimizer(given["optimizer"], {"clip_norm": given.get("clip_norm")}),
        given["lr"],
        calculus=given.get("calculus", True),
        winograd=given.get("winograd", True),
    )
    lowered = lower_job(job)
    write_step(place_lean(lowered, find_target("native")), folder, debug=given.get("debug", False))
    nodes = lowered.traced.training.body.graph.nodes
    return gfcompile.load(folder, threads=1 + network.seed % 2), {
        str(node.target) for node in nodes if node.op == "call_function"
    }


def check(seed: int, folder: Path) -> Result:
    """Compile the network of a seed and compare it; what the compiler refuses is a result too."""
    result, network = Result(seed), draw(seed)
    try:
        step, result.operators = build(network, folder / "step")
    except UserError as error:
        result.refusal = str(error)
        return result
    try:
        comparison = _Comparison(network, step)
        for number in range(STEPS):
            comparison.train(number, result)
    finally:
        step.close()
    return result


class _Comparison:
    """A compiled step beside its peers: `peer` in float64 is the truth, `rounded` in float32 shows what rounding does.

    Where gradients cancel (a bias before a batch norm, a norm before a global pooling), float32 has few digits or none.
    """

    def __init__(self, network: Network, step: gfcompile.CompiledStep) -> None:
        self.network, self.step = network, step
        self.peer = Peer(network, step.manifest, torch.float64)
        self.rounded = Peer(network, step.manifest, torch.float32)
        self.masks: dict[str, Tensor] = {}

    def errors(self, number: int, where: str) -> tuple[list[Error], Arrays, float]:
        """Of outputs and gradients on a batch, the compiled gradients, and the loss that the peer finds."""
        x, y = self.batch(number)
        outputs = zip(pytree.tree_leaves(self.step.predict(x)), self.peer.predict(x), strict=True)
        errors = [Error(f"output {at} {where}", relative_error(*pair), LOGITS) for at, pair in enumerate(outputs)]
        found = self.step.gradients(x, y)
        loss, wanted = self.peer.gradients(x, y, self.masks)
        _, eager = self.rounded.gradients(x, y, self.masks)
        if found.keys() != wanted.keys():
            raise AssertionError(f"gradients of {sorted(found.keys() ^ wanted.keys())} on one side only")
        largest = max(map(_norm, wanted.values()))
        for name, value in wanted.items():
            size = max(_norm(value), ROUNDING * largest, np.finfo(np.float32).tiny)
            allowed = EXACT_GRADIENT + EAGER * _norm(eager[name] - value) / size
            errors.append(Error(f"gradient of {name} {where}", _norm(found[name] - value) / size, allowed))
        return errors, found, loss

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        x = batch(self.network, number)
        return x, self.peer.target(x, number)

    def train(self, number: int, result: Result) -> None:
        """One step of both on a batch, compared before, during and after it."""
        self.masks = self.peer.masks(self.step.channels)
        before = copy.deepcopy(self.peer.model.state_dict())
        errors, gradients, loss = self.errors(number, f"of batch {number}")
        if any(error.share > 1 for error in errors):
            # float32 and float64 may stand on two sides of a ReLU's zero or a max pool's tie: not on every batch
            after = copy.deepcopy(self.peer.model.state_dict())
            self.take(before)
            result.rounded += [error for error in errors if error.share > 1]
            errors = [error for error in errors if error.share <= 1] + self.errors(number + STEPS, "of another batch")[
                0
            ]
            self.take(after)
        result.errors += errors
        error = abs(self.step.train(*self.batch(number)) - loss) / max(abs(loss), 1e-3)
        result.errors.append(Error(f"loss of batch {number}", error, LOGITS))
        state, where = self.step.state_dict(), f"after {number + 1} steps"
        wanted = self.peer.update(gradients, self.masks)
        result.errors += [Error(f"{key} {where}", relative_error(state[key], wanted[key]), UPDATE) for key in wanted]
        for name, buffer in self.peer.model.named_buffers():
            if buffer.is_floating_point():
                error = relative_error(state[name], buffer)
                result.errors.append(Error(f"{name} {where}", error, STATISTICS_AFTER_ONE_STEP))
        self.take(state)  # so that rounding does not add up

    def take(self, state: Mapping[str, Any]) -> None:
        for peer in (self.peer, self.rounded):
            peer.take(state)


def _norm(value: Any) -> float:
    return float(np.linalg.norm(np.asarray(value, np.float64)))


# ---- many of them


def work_on(seeds: list[int], sender: Connection) -> None:
    """In a child: a result for each of these."""
    torch.set_num_threads(1)
    for seed in seeds:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            try:
                result = check(seed, Path(folder))
            except Exception:  # noqa: BLE001 - whatever it is, it is this network's failure, and the next are tried
                result = Result(seed, failure=traceback.format_exc(limit=-6))
        result.seconds = time.perf_counter() - start
        sender.send(result)


def show(result: Result) -> None:
    """What there is to say about a network that failed."""
    print(f"\nFAILED: {draw(result.seed)}")
    for error in sorted(result.errors, key=lambda error: -error.share)[:5]:
        if error.share > 1:
            print(f"  {error}")
    if result.failure:
        print(result.failure.rstrip())
    print(f"replay: python -m tests.fuzz.models --count 1 --seed {result.seed}\n", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, help="of the first network; the next has the next one")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="how many at a time")
    args = parser.parse_args()
    first = secrets.randbelow(10**9) if args.seed is None else args.seed
    print(f"{args.count} random networks from seed {first} on", flush=True)
    results: list[Result] = []
    start = time.perf_counter()
    for result in run_beside(list(range(first, first + args.count)), work_on, args.jobs):
        results.append(result)
        left = (time.perf_counter() - start) / len(results) * (args.count - len(results))
        words = f"refused: {result.refusal}" if result.refusal else "" if result.failure else str(result.worst)
        count = f"{len(results)}/{args.count} ({left:.0f} s left)"
        print(f"{count} seed {result.seed}, {result.seconds:.0f} s: {words}", flush=True)
        if result.failed:
            show(result)
    return summarise(results)


def summarise(results: list[Result]) -> int:
    """Print the counts; the exit code."""
    failed = [result.seed for result in results if result.failed]
    refused = [result for result in results if result.refusal]
    compared = [result for result in results if result.errors]
    operators = set().union(*(result.operators for result in results))
    worst = max(compared, key=lambda result: result.worst.share, default=Result(0))
    for words, count in Counter(result.refusal for result in refused).items():
        print(f"refused {count}x: {words}")
    for result in results:
        if result.rounded:
            print(f"seed {result.seed}: on one batch only, {result.rounded[0]}")
    errors = [error for result in results for error in result.errors]
    blunt = sum(error.allowed > BLUNT for error in errors)
    print(
        f"{len(results)} networks, {len(operators)} operators: {len(compared)} compared ({len(errors)} values, of which"
        f" {blunt} are mostly rounding), {len(refused)} refused, {len(failed)} failed;"
        f" nearest to its bound: seed {worst.seed}, {worst.worst}"
    )
    if len(refused) > max(1, MOST_REFUSED * len(results)):
        print(f"more than {MOST_REFUSED:.0%} were refused: the generator is too wild")
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
