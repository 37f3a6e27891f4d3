"""The filtered backward of one convolution against PyTorch's exact one and the published filter: FIELD.md's shapes.

    python -m benchmarks.backward [--r 2 4] [--batch 32] [--rounds 5] [--json FILE]

Each peer runs in a process of its own and they take turns (`processes.py`). "full" spreads gx over every pixel, "grid"
leaves it on the patch grid, where the layers before it take it up. Two limits, from the measured peak rate and
bandwidth: of the operation as *one*, all its multiply-adds or gy, gx and the patch sums once, whichever takes longer;
and of its *phases* (patch mean, channel mix, spread, weight gradient), each for itself, added up, since kernels that
run one after another cannot do arithmetic and wait for memory at the same time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.graphs import CompiledGraph
from benchmarks.machine import Limits, measure_limits
from benchmarks.peers import FilteredConvolution
from benchmarks.processes import Prepared, Protocol, take_turns
from benchmarks.rounds import Ratio, mean_of_ratios, mean_ratio, ratio
from gfcompile.geometry.convolution import ConvGeometry
from gfcompile.geometry.filtering import FilterRecipe
from gfcompile.geometry.layouts import WeightLayout
from gfcompile.ops import gf

SHAPES = ((128, 120, 160), (256, 60, 80), (512, 30, 40), (512, 14, 14), (256, 14, 14), (128, 28, 28), (64, 56, 56))
EXACT = ("exact", "exact_channels_last")
PUBLISHED = ("published", "published_channels_last")
OURS = ("full", "grid")
Shape = tuple[int, int, int]  # channels, height, width


@dataclass(frozen=True)
class Comparison:
    """One of ours at one shape and r: milliseconds, times faster, shares of the limits."""

    ms: float
    exact: Ratio
    exact_cold: Ratio
    published: Ratio
    of_one: float
    of_phases: float


def make_run(peer: str, shape: Shape, batch: int, r: int, folder: Path) -> Callable[[], Any]:
    """The peer's backward as a function without arguments."""
    channels, high, wide = shape
    if peer in ("full", "grid"):
        return compile_backward(shape, batch, r, peer == "full", folder).run
    layout = torch.channels_last if peer.endswith("channels_last") else torch.contiguous_format
    x, gy = (torch.randn(batch, channels, high, wide).contiguous(memory_format=layout) for _ in range(2))
    w = torch.randn(channels, channels, 3, 3).contiguous(memory_format=layout)
    if peer.startswith("exact"):
        geometry = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])
        return lambda: torch.ops.aten.convolution_backward(gy, x, w, None, *geometry)
    x.requires_grad_()
    w.requires_grad_()
    y = FilteredConvolution.apply(x, w, 1, 1, 1, r)
    return lambda: torch.autograd.grad(y, (x, w), gy, retain_graph=True)


def compile_backward(size: Shape, batch: int, r: int, spread: bool, folder: Path) -> CompiledGraph:
    """Of a 3x3 convolution; `size` is its channels and map. Inputs gy, patch sums, weights; outputs gx, gw."""
    channels, high, wide = size
    shape = [channels, channels, 3, 3]
    image = torch.empty(batch, channels, high, wide, device="meta")
    geometry = ConvGeometry.of(image, torch.empty(shape, device="meta"), image, [1, 1], [1, 1], [1, 1], 1)
    recipe = FilterRecipe.of(geometry, r, reference=False)
    packed = WeightLayout.for_conv(shape, 1).physical_shape
    rows, cols = recipe.in_grid[0][0], recipe.in_grid[1][0]

    def backward(gy: Tensor, x_tilde: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        g = gf.patch_mean(gy, *recipe.out_grid, channels_last=True)
        q = gf.channel_mix_nhwc(g, w, shape, 1, recipe.taps)
        gx = gf.patch_broadcast(q, *recipe.in_grid, [high, wide], channels_last=True) if spread else q
        return gx, gf.channel_mix_weight_nhwc(g, x_tilde, [*shape[:2], 1, 1], 1)

    return CompiledGraph(backward, [(batch, high, wide, channels), (batch, rows, cols, channels), packed], folder)


def limit(shape: Shape, batch: int, r: int, spread: bool, limits: Limits) -> float:
    """Seconds of the whole operation as one: the longer of all its arithmetic and all its traffic."""
    channels, high, wide = shape
    pixels, patches = batch * high * wide, batch * -(-high // r) * -(-wide // r)
    flops = 2 * 2 * patches * channels**2
    values = pixels * channels * (2 if spread else 1) + patches * channels * (1 if spread else 2)
    return limits.seconds(flops, 4 * values)


def phase_limits(shape: Shape, batch: int, r: int, spread: bool, limits: Limits) -> dict[str, float]:
    """Seconds of each phase by itself: its arithmetic, or its operands read and written once."""
    channels, high, wide = shape
    image = batch * high * wide * channels
    grid = batch * -(-high // r) * -(-wide // r) * channels
    products, weights = 2 * grid * channels, channels**2
    work = {  # operations, values moved
        "patch mean": (image, image + grid),
        "channel mix": (products, grid + 9 * weights + grid),
        "spread": (0, grid + image),
        "weight gradient": (products, grid + grid + weights),
    }
    return {
        name: limits.seconds(flops, 4 * values) for name, (flops, values) in work.items() if spread or name != "spread"
    }


def measure(shape: Shape, batch: int, patches: Sequence[int], protocol: Protocol) -> dict[str, Any]:
    """Each peer's times and the machine's limits beside them; peers that depend on r are named for it."""
    common = {"shape": shape, "batch": batch}
    settings = {name: {**common, "peer": name, "r": 0} for name in EXACT}
    settings |= {f"{name} r={r}": {**common, "peer": name, "r": r} for r in patches for name in (*PUBLISHED, *OURS)}
    before = measure_limits()
    found = take_turns(prepare, settings, protocol)
    if found.failed:
        raise RuntimeError(f"peers failed: {found.failed}")
    limits = before.best(measure_limits())
    return {"shape": shape, "batch": batch, "peers": found.times, "limits": asdict(limits)}


def prepare(settings: dict[str, Any], scratch: Path) -> Prepared:
    torch.set_num_threads(os.cpu_count() or 1)
    return make_run(settings["peer"], settings["shape"], settings["batch"], settings["r"], scratch), {}


def compare(row: Mapping[str, Any], kind: str, r: int) -> Comparison:
    """Ours, "full" or "grid", beside the best exact and the best published peer, and its shares of the limits."""
    peers, limits = row["peers"], Limits(**row["limits"])
    ours = peers[f"{kind} r={r}"]
    exact = min((peers[name] for name in EXACT), key=lambda peer: peer["ms"])
    published = min((peers[f"{name} r={r}"] for name in PUBLISHED), key=lambda peer: peer["ms"])
    about = (tuple(row["shape"]), row["batch"], r, kind == "full", limits)
    seconds = ours["ms"] / 1e3
    return Comparison(
        ours["ms"],
        ratio(exact, ours),
        ratio(exact, ours, "cold"),
        ratio(published, ours),
        limit(*about) / seconds,
        sum(phase_limits(*about).values()) / seconds,
    )


def mean_comparison(each: Sequence[Comparison]) -> Comparison:
    """Geometric means over shapes."""
    return Comparison(
        mean_ratio([one.ms for one in each]),
        mean_of_ratios([one.exact for one in each]),
        mean_of_ratios([one.exact_cold for one in each]),
        mean_of_ratios([one.published for one in each]),
        mean_ratio([one.of_one for one in each]),
        mean_ratio([one.of_phases for one in each]),
    )


def line(row: Mapping[str, Any], r: int) -> str:
    channels, high, wide = row["shape"]
    text = f"{channels:4}@{high}x{wide:<4} r={r}"
    for kind in OURS:
        found = compare(row, kind, r)
        text += f"  {kind} {found.ms:6.1f} ({found.exact.value:.1f}x | {found.published.value:.1f}x"
        text += f" | {found.of_one:.0%} | {found.of_phases:.0%})"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--r", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(
        f"Batch {arguments.batch}, milliseconds (x exact | x published | of the limit as one | of its phases' limits)"
    )
    rows = []
    for shape in SHAPES:
        rows.append(measure(shape, arguments.batch, arguments.r, Protocol(arguments.rounds)))
        for r in arguments.r:
            print(line(rows[-1], r), flush=True)
    for r in arguments.r:
        for kind in OURS:
            mean = mean_comparison([compare(row, kind, r) for row in rows])
            print(
                f"r={r}, {kind}, geometric mean: {mean.exact.value:.1f}x exact, {mean.published.value:.1f}x published,"
                f" {mean.of_one:.0%} of the limit as one, {mean.of_phases:.0%} of its phases' limits"
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
