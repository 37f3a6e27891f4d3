"""The filtered backward of one convolution against PyTorch's exact one and the published filter: FIELD.md's shapes.

    python -m benchmarks.backward [--r 2 4] [--batch 32] [--repeats 3] [--json FILE]

Each peer runs in a process of its own and they take turns. "full" spreads gx over every pixel, "grid" leaves it on the
patch grid, where the layers before it take it up. The limit counts the multiply-adds at the measured peak rate and gy,
gx and the patch sums once at the measured bandwidth, whichever is longer.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks.graphs import CompiledGraph
from benchmarks.machine import Limits, measure_limits
from benchmarks.peers import FilteredConvolution
from benchmarks.processes import Prepared, serve, take_turns
from gfcompile.filtering import FilterRecipe
from gfcompile.geometry import ConvGeometry
from gfcompile.layouts import WeightLayout
from gfcompile.ops import gf

SHAPES = ((128, 120, 160), (256, 60, 80), (512, 30, 40), (512, 14, 14), (256, 14, 14), (128, 28, 28), (64, 56, 56))
EXACT = ("exact", "exact_channels_last")
PUBLISHED = ("published", "published_channels_last")
OURS = ("full", "grid")


def make_run(peer: str, shape: tuple[int, int, int], batch: int, r: int, folder: Path) -> Callable[[], Any]:
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


def compile_backward(size: tuple[int, int, int], batch: int, r: int, spread: bool, folder: Path) -> CompiledGraph:
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


def limit(shape: tuple[int, int, int], batch: int, r: int, spread: bool, limits: Limits) -> float:
    channels, high, wide = shape
    pixels, patches = batch * high * wide, batch * -(-high // r) * -(-wide // r)
    flops = 2 * 2 * patches * channels**2
    values = pixels * channels * (2 if spread else 1) + patches * channels * (1 if spread else 2)
    return limits.seconds(flops, 4 * values)


def measure(shape: tuple[int, int, int], batch: int, patches: list[int], repeats: int) -> dict[str, float]:
    """Median seconds of each peer; those that depend on r are named for it."""
    common = {"shape": shape, "batch": batch}
    settings = {name: {**common, "peer": name, "r": 0} for name in EXACT}
    settings |= {f"{name} r={r}": {**common, "peer": name, "r": r} for r in patches for name in (*PUBLISHED, *OURS)}
    times, _, failed = take_turns("benchmarks.backward", settings, repeats, warm_up=1)
    if failed:
        raise RuntimeError(f"peers failed: {failed}")
    return {name: median(values) for name, values in times.items()}


def prepare(settings: dict[str, Any], scratch: Path) -> Prepared:
    torch.set_num_threads(os.cpu_count() or 1)
    run = make_run(settings["peer"], tuple(settings["shape"]), settings["batch"], settings["r"], scratch)
    run()
    return run, {}


def compare(shape: tuple[int, int, int], batch: int, r: int, found: dict[str, float], limits: Limits) -> dict[str, Any]:
    """For each of ours: times faster than the best exact peer, than the best published one, and share of the limit."""
    exact = min(found[name] for name in EXACT)
    published = min(found[f"{name} r={r}"] for name in PUBLISHED)
    row: dict[str, Any] = {"shape": shape, "r": r, "seconds": found, "exact": exact, "published": published}
    for kind in OURS:
        ours = found[f"{kind} r={r}"]
        row[kind] = (exact / ours, published / ours, limit(shape, batch, r, kind == "full", limits) / ours)
    return row


def line(row: dict[str, Any]) -> str:
    channels, high, wide = row["shape"]
    text = f"{channels:4}@{high}x{wide:<4} r={row['r']} exact {row['exact'] * 1e3:7.1f}"
    text += f" published {row['published'] * 1e3:7.1f}"
    for kind in OURS:
        seconds = row["seconds"][f"{kind} r={row['r']}"]
        text += f"  {kind} {seconds * 1e3:6.1f} " + "({:.1f}x | {:.1f}x | {:.0%})".format(*row[kind])
    return text


def mean_ratio(ratios: list[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--r", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.serve, prepare)
    limits = measure_limits()
    print(f"The machine, measured: {limits}.")
    print(f"Batch {arguments.batch}, milliseconds (times faster than exact | than published | of the limit)")
    rows: list[dict[str, Any]] = []
    for shape in SHAPES:
        found = measure(shape, arguments.batch, arguments.r, arguments.repeats)
        for r in arguments.r:
            row = compare(shape, arguments.batch, r, found, limits)
            rows.append(row)
            print(line(row), flush=True)
    for r in arguments.r:
        for kind in OURS:
            means = [mean_ratio([row[kind][at] for row in rows if row["r"] == r]) for at in range(3)]
            shares = f"{means[0]:.1f}x exact, {means[1]:.1f}x published, {means[2]:.0%} of the limit"
            print(f"r={r}, {kind}, geometric mean: {shares}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"limits": asdict(limits), "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
