"""Segmentation as in the paper: a loss a pixel, dilated convolutions, 512x512 images, the last 5 and 10 convolutions.

The widths are those of the small definitions, so that two cores and the oracle's loops get through it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.coverage import TOLERANCE, check
from tests.models.definitions import DEFINITIONS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("name", "layers"), [("deeplabv3", 5), ("pspnet", 10)])
def test_the_last_convolutions_at_512(name, layers, tmp_path):
    definition = replace(DEFINITIONS[name], inputs=((1, 3, 512, 512),), layers=layers)
    row = check(definition, tmp_path)
    assert row.worst <= TOLERANCE, f"{row.where}: relative error {row.worst:.1e}"
    assert row.filtered >= layers - 2  # a 1x1 head is trained exactly
