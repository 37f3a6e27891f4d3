"""Small networks of our own, one architectural idiom each: what "any CNN" means to the tests.

`DEFINITIONS[name].make()` is a module in eval mode with the same weights every time, whatever the global seed.
"""

from __future__ import annotations

from tests.models.definitions import (
    activations,
    attention,
    branches,
    channels,
    classic,
    decoders,
    hybrids,
    interfaces,
    mobile,
    modern,
    normalisation,
    pooling,
    reparameterised,
    resampling,
    segmentation,
    structure,
    weights,
)
from tests.models.definitions.definition import Definition

THEMES = (
    classic,
    mobile,
    channels,
    reparameterised,
    branches,
    modern,
    attention,
    hybrids,
    segmentation,
    decoders,
    normalisation,
    weights,
    activations,
    pooling,
    resampling,
    structure,
    interfaces,
)
DEFINITIONS: dict[str, Definition] = {
    definition.name: definition for theme in THEMES for definition in theme.DEFINITIONS
}

__all__ = ["DEFINITIONS", "THEMES", "Definition"]
