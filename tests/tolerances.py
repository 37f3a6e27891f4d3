"""How far two computations of the same number may lie apart: one table, a reason each. All are relative, norm-wise."""

from __future__ import annotations

from typing import Any

import numpy as np

GRAPH_FLOAT64 = 1e-9  # both sides in float64: anything above rounding over some thousand additions is another formula
FILTERED_GRADIENT = 1e-4  # float32 kernels against the float64 oracle, which adds in another order
EXACT_GRADIENT = 1e-4  # float32 on both sides, through a whole network; measured 1e-6, batch norm of few values 1e-5
CALCULUS_FLOAT64 = 1e-10  # float64, the patch calculus on and off: the same sums in another order; measured 1e-15
CALCULUS_FLOAT32 = 1e-5  # two compiled steps, the patch calculus on and off; measured 1e-6
LOSS = 1e-5  # one forward pass in float32 on both sides; measured 2e-7
LOSS_OVER_TRAINING = 1e-3  # losses and logits of a network whose rounding feeds back through up to 20 updates
TRAINING_STEPS = 1e-4  # losses and weights at each of 20 steps of a small net, float32 on both sides; measured 5e-6
FLOAT16_FEATURES = 5e-4  # the rounding of one feature to 11 bits; losses over four epochs average it: measured 7e-5
LOGITS = 1e-4  # one forward pass with the same weights, float32 on both sides, of PyTorch or onnxruntime
STATISTICS_AFTER_ONE_STEP = 1e-5  # the same weights, one float32 forward pass; measured 4e-7
STATISTICS_OVER_TRAINING = 1e-3  # one pre-activation of 4e-7 that rounds to the other side of a ReLU moves them by 2e-4


def relative_error(found: Any, expected: Any) -> float:
    """|found - expected| / |expected| in the Euclidean norm; infinite where a shape or a finite value is missing."""
    left, right = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if left.shape != right.shape or not np.isfinite(left).all():
        return float("inf")
    distance, norm = np.linalg.norm(left - right), np.linalg.norm(right)
    return float(distance if norm == 0 else distance / norm)


def assert_near(found: Any, expected: Any, tolerance: float, what: str) -> None:
    """`what` names the value in the failure's text."""
    error = relative_error(found, expected)
    assert error <= tolerance, f"{what}: relative error {error:.2e} exceeds {tolerance:.0e}"
