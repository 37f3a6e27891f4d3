"""Definitions far apart from each other, compiled and trained against PyTorch; `make coverage` does all of them."""

from __future__ import annotations

import pytest

from tests.coverage import TOLERANCE, check
from tests.lean import lean
from tests.models.definitions import DEFINITIONS
from tests.selection import often

pytestmark = pytest.mark.slow

FAR_APART = (
    "shufflenet_v2",
    "maxvit",
    "unet_bilinear",
    "tied_parameter",
    "conv3d_inside",
    "nested_outputs",
)


@pytest.mark.parametrize("name", often(FAR_APART, []))
def test_training_equals_pytorch(name, tmp_path):
    with lean():
        row = check(DEFINITIONS[name], tmp_path)
    assert row.worst <= TOLERANCE, f"{row.where}: relative error {row.worst:.1e}"
    assert row.filtered > 0
