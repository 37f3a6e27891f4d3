"""Fashion-MNIST in two halves by class: five things that are easily told apart, and five garments that are not.

Half A, for pretraining: trousers, sandals, sneakers, bags, ankle boots. Half B, for fine-tuning: T-shirts, pullovers,
dresses, coats, shirts. No class is in both.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.evidence.settings import Settings
from gfcompile.errors import UserError

EXAMPLE = Path(__file__).parents[2] / "examples" / "fashion"
sys.path.insert(0, str(EXAMPLE))  # the example's files stand alone and import each other by bare names
from data import Images, halves, load  # noqa: E402
from make_data import SOURCE  # noqa: E402, F401 - for the command line

CLASSES_A = (1, 5, 7, 8, 9)


@dataclass(frozen=True)
class Task:
    """Disjoint sets of images; each seed draws what it trains on from the `pool`.

    `validation` is for choosing settings, `test` for nothing but the final figure.
    """

    pretrain: Images
    pool: Images
    validation: Images
    test: Images
    test_a: Images


def require_data(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(
            f"evidence: '{folder}' is missing; install Debian's dataset-fashion-mnist"
            " (apt-get install dataset-fashion-mnist), or give the folder of its four idx files with --data"
        )


@cache
def load_task(folder: Path, settings: Settings) -> Task:
    """In the files' own order: no random choice."""
    train_a, train_b = halves(load("train", folder), 0.0, CLASSES_A)
    test_a, test_b = halves(load("t10k", folder), 0.0, CLASSES_A)
    return Task(
        pretrain=_part(train_a, 0, settings.pretrain_images),
        pool=_part(train_b, settings.validation, None),
        validation=_part(train_b, 0, settings.validation),
        test=_part(test_b, 0, settings.test),
        test_a=_part(test_a, 0, settings.test),
    )


def batches(images: Images, batch: int, order: np.ndarray | None = None) -> list[Images]:
    """In this order; the last batch may be smaller."""
    places = np.arange(len(images.y)) if order is None else order
    chosen = [places[start : start + batch] for start in range(0, len(places), batch)]
    return [Images(images.x[some], images.y[some]) for some in chosen]


def _part(images: Images, start: int, count: int | None) -> Images:
    stop = None if count is None else start + count
    return Images(images.x[start:stop], images.y[start:stop])
