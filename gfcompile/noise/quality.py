"""`gfcompile quality`: check the batch, measure, advise, and hand over a table, data and a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gfcompile.errors import UserError
from gfcompile.frontend.losses import main_output
from gfcompile.frontend.trace import run_once, working_copy
from gfcompile.job import Job
from gfcompile.noise.advice import Advice, advise
from gfcompile.noise.measure import Measured, measure
from gfcompile.noise.page import COLUMNS, LEGEND, as_data, rows, words
from gfcompile.progress import Progress, silent
from gfcompile.report.quality_picture import Panel, draw_quality
from gfcompile.report.summary import text_table
from gfcompile.report.units import by_x
from gfcompile.runtime.tensorfile import write_atomically
from gfcompile.settings.planning import LEAST_COSINE
from gfcompile.settings.words import option


@dataclass(frozen=True)
class Quality:
    """What filtering does to the gradients of a batch. `str()` is the table and the words."""

    measured: Measured
    advice: Sequence[Advice]

    def __str__(self) -> str:
        table = text_table(COLUMNS, rows(self.measured))
        return f"{table}\n\n{LEGEND}\n\n{words(self.measured, self.advice)}"

    def as_data(self) -> dict[str, Any]:
        """Plain data, as in quality.json."""
        return as_data(self.measured, self.advice)

    def picture(self) -> str:
        """An SVG."""
        layers = self.measured.layers
        edges = list(self.measured.whole)
        alone = {f"r={r}": [layer.alone[r].gw.snr_db for layer in layers] for r in edges}
        together = {f"r={r}": [layer.together[r].gw.snr_db for layer in layers] for r in edges}
        names = [layer.layer for layer in layers]
        titles = ("gw, only this layer filtered", "gw, all these layers filtered together")
        return draw_quality(names, (Panel(titles[0], alone), Panel(titles[1], together)))

    def write(self, folder: Path) -> None:
        """quality.json and quality.svg."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / "quality.json", [(json.dumps(self.as_data(), indent=1) + "\n").encode()])
            write_atomically(folder / "quality.svg", [self.picture().encode()])
        except OSError as error:
            raise UserError(
                f"{folder}: cannot be written ({error.strerror}); choose another with {option('out')}"
            ) from error


def measure_quality(
    job: Job,
    y: Tensor,
    edges: Sequence[int],
    least_cosine: float = LEAST_COSINE,
    source: str = "batch",
    progress: Progress = silent,
) -> Quality:
    """Of the layers that the job's request chooses, on its example; `source` begins the errors about the batch."""
    check_batch(job, y, source)
    measured = measure(job, y, sorted(set(edges)), progress)
    if not measured.layers:
        reason = "".join(f"; '{layer}' is not: {why}" for layer, why in measured.refused[:1])
        raise UserError(
            f"quality: no trained layer can be filtered{reason}; choose others with {option('layers')} or"
            f" {option('train')}"
        )
    return Quality(measured, advise(measured, least_cosine))


def check_batch(job: Job, y: Tensor, source: str) -> None:
    """Whether the model takes `x` and the loss takes `y`."""
    try:
        output = run_once(working_copy(job.module), job.example)
    except UserError as error:
        reason = str(error).partition(" (")[2].rpartition("); give")[0]
        shapes = " and ".join(by_x(tuple(x.shape)) for x in job.example)
        raise UserError(
            f"{source}: the model cannot run on x of {shapes} ({reason}); save samples of the shape that it takes"
        ) from error
    expected = job.loss.target_like(output)
    if y.shape != expected.shape or y.dtype.is_floating_point != expected.dtype.is_floating_point:
        raise UserError(
            f"{source}: y is {_described(y)}; the loss '{job.loss.name}' takes {_described(expected)} for these samples"
        )
    if job.loss.name == "cross_entropy":
        classes = int(main_output(output).shape[1])
        counted = y[y != job.loss.settings.get("ignore_index", -100)]
        strange = counted[(counted < 0) | (counted >= classes)]
        if len(strange):
            raise UserError(f"{source}: y holds class {int(strange[0])}; the model has classes 0 to {classes - 1}")


def _described(tensor: Tensor) -> str:
    kind = {torch.int64: "whole numbers"}.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    return f"{by_x(tuple(tensor.shape))} {kind}"
