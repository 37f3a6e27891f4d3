"""The shipped images, and the two halves that the demo pretends were collected in two different places."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from idx import read_idx

DATA = Path(__file__).parent / "data"
MEAN, STD = 0.286, 0.353  # of Fashion-MNIST's training pixels, scaled to [0, 1]


class Images(NamedTuple):
    x: np.ndarray  # [N, 1, 28, 28] float32, normalised
    y: np.ndarray  # [N] int64


def load(part: str) -> Images:
    """`part` is "train" or "t10k"."""
    pixels = read_idx(DATA / f"{part}-images-idx3-ubyte.gz")
    labels = read_idx(DATA / f"{part}-labels-idx1-ubyte.gz")
    x = (pixels[:, None].astype(np.float32) / 255 - MEAN) / STD
    return Images(x.astype(np.float32), labels.astype(np.int64))


def halves(images: Images, minority: float) -> tuple[Images, Images]:
    """Half A gets most of classes 0-4 and the `minority` share of classes 5-9; half B gets the rest.

    Disjoint, of equal size, all ten classes in both.
    """
    in_a = np.zeros(len(images.y), bool)
    for c in range(10):
        members = np.flatnonzero(images.y == c)
        share = 1 - minority if c < 5 else minority
        in_a[members[: round(share * len(members))]] = True
    return Images(images.x[in_a], images.y[in_a]), Images(images.x[~in_a], images.y[~in_a])
