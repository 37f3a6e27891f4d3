"""Segmentation as in the paper: a loss a pixel, dilated convolutions, 512x512 images, the last 5 and 10 convolutions.

The widths are those of the small definitions, so that two cores and the oracle's loops get through it; the backbones
are deeper, so that there are ten convolutions to train, where the head has not enough of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from torch import nn

from tests.coverage import TOLERANCE, check
from tests.lean import lean
from tests.models.definitions.decoders import UPerNet
from tests.models.definitions.definition import define
from tests.models.definitions.segmentation import FCN, DeepLabV3, PSPNet

pytestmark = pytest.mark.coverage
MODELS: dict[str, Callable[[], nn.Module]] = {
    "shallow_deeplabv3": DeepLabV3,
    "deeplabv3": partial(DeepLabV3, depth=3),
    "fcn": partial(FCN, depth=4),
    "pspnet": partial(PSPNet, depth=3),
    "upernet": UPerNet,
}


@pytest.mark.parametrize("layers", [5, 10])
@pytest.mark.parametrize("model", MODELS)
def test_the_last_convolutions_at_512(model, layers, tmp_path):
    definition = define(model, "segmentation", MODELS[model], ((4, 3, 64, 64),), layers=layers)  # statistics of four
    with lean():
        row = check(replace(definition, inputs=((1, 3, 512, 512),)), tmp_path)
    assert row.worst <= TOLERANCE, f"{row.where}: relative error {row.worst:.1e}"
    assert row.filtered == layers
