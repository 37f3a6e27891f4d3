"""Fashion-MNIST's images, and two halves of them that are pretended to come from two different places."""

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np
from idx import read_idx

DATA = Path(__file__).parent / "data"
MEAN, STD = 0.286, 0.353  # of Fashion-MNIST's training pixels, scaled to [0, 1]


class Images(NamedTuple):
    x: np.ndarray  # [N, 1, 28, 28] float32, normalised
    y: np.ndarray  # [N] int64


def load(part: str, folder: Path = DATA) -> Images:
    """`part` is "train" or "t10k"; the shipped images, unless another folder has the whole set."""
    pixels = read_idx(folder / f"{part}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz")
    x = (pixels[:, None].astype(np.float32) / 255 - MEAN) / STD
    return Images(x.astype(np.float32), labels.astype(np.int64))


def halves(images: Images, minority: float, classes_a: Collection[int] = range(5)) -> tuple[Images, Images]:
    """Half A gets most of its classes, 0-4 unless given, and the `minority` share of the others; half B gets the rest.

    Disjoint, of equal size, and with a minority all ten classes in both.
    """
    in_a = np.zeros(len(images.y), bool)
    for c in range(10):
        members = np.flatnonzero(images.y == c)
        share = 1 - minority if c in classes_a else minority
        in_a[members[: round(share * len(members))]] = True
    return Images(images.x[in_a], images.y[in_a]), Images(images.x[~in_a], images.y[~in_a])
