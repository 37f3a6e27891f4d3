"""Which kernels of a step are far from the machine's limit, from `profile`, and why they are, as far as we know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import Limits
from benchmarks.processes import Prepared
from benchmarks.profile import Row, profile_model

LOW = 0.35  # of a kernel's own limit: what lies below is listed with its reason
SMALL = 0.005  # of the step: what takes less is summed up
KINDS = (  # a fused kernel is named for all its operators: the first of these in its name is what it spends its time on
    "winograd",
    "depthwise_conv2d",
    "conv2d",
    "channel_mix_weight",
    "channel_mix",
    "matmul",
    "patch_mean",
    "patch_sum",
    "patch_broadcast",
    "log_softmax",
    "max_pool2d",
    "update",
)
REASONS = {  # by kind: why it cannot be faster, or what would make it so
    "depthwise_conv2d": "large kernels: pixels that neighbouring outputs share spill from 16 registers to the stack,"
    " and the rows under a kernel exceed the first-level cache; the padded copy comes on top",
    "matmul": "the last linear layer of few samples: sums run along the weight's contiguous axis, so each output ends"
    " in a sum over lanes",
    "channel_mix": "few channels on few patches: summing and turning the weights takes longer than the product",
    "log_softmax": "a few rows of logits: handing work to a second thread takes longer than the work",
}


def prepare(settings: dict[str, Any], scratch: Path) -> Prepared:
    """All that is wanted is said as facts; there is nothing to repeat."""
    rows, limits = profile_model(settings["setting"])
    return (lambda: None), {"setting": asdict(settings["setting"]), **summarise(rows, limits)}


def summarise(rows: Sequence[Row], limits: Limits) -> dict[str, Any]:
    """Calls of one kernel together, the longest first, and those that take next to nothing as one line."""
    total = sum(row.seconds for row in rows)
    calls: dict[str, list[Row]] = {}
    for row in rows:
        calls.setdefault(row.kernel, []).append(row)
    kernels: list[dict[str, Any]] = [
        {
            "kernel": name,
            "calls": len(each),
            "ms": _milliseconds(each),
            "share": round(sum(row.seconds for row in each) / total, 4),
            "of_limit": round(sum(row.limit(limits) for row in each) / sum(row.seconds for row in each), 3),
        }
        for name, each in calls.items()
    ]
    kernels.sort(key=lambda kernel: -kernel["share"])
    small = [kernel for kernel in kernels if kernel["share"] < SMALL]
    return {
        "limits": asdict(limits),
        "calls": len(rows),
        "ms": _milliseconds(rows),
        "limit_ms": round(1e3 * sum(row.limit(limits) for row in rows), 4),
        "kernels": [kernel for kernel in kernels if kernel["share"] >= SMALL],
        "small": {"kernels": len(small), "share": round(sum(kernel["share"] for kernel in small), 4)},
    }


def kind(kernel: str) -> str:
    return next((name for name in KINDS if name in kernel), kernel.removeprefix("fused_").rstrip("0123456789"))


def _milliseconds(rows: Sequence[Row]) -> float:
    return round(1e3 * sum(row.seconds for row in rows), 4)
