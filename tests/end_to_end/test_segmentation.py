"""Segmentation as in the paper: a loss a pixel, dilated convolutions, 512x512 images, the last 5 convolutions.

The widths are those of the small definitions, so that two cores and the oracle's loops get through it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.coverage import TOLERANCE, check
from tests.models.definitions import DEFINITIONS

pytestmark = pytest.mark.slow


def test_the_last_convolutions_at_512(tmp_path):
    definition = replace(DEFINITIONS["deeplabv3"], inputs=((1, 3, 512, 512),), layers=5)
    row = check(definition, tmp_path)
    assert row.worst <= TOLERANCE, f"{row.where}: relative error {row.worst:.1e}"
    assert row.filtered == 5
