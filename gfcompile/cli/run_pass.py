"""`gfcompile run-pass`: one pass on one dumped graph, to see a bug again or to try a rewrite on ten lines."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gfcompile.cli.parsers import Parser
from gfcompile.cli.screen import complain, write
from gfcompile.errors import ContractError, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from gfcompile.passes.base import Pass
    from gfcompile.step import Step

OK = 0


def run_pass_parser() -> Parser:
    """`gfcompile run-pass`."""
    parser = Parser(
        "run-pass",
        "Run one pass on a dumped graph and print the graph after it.",
        "examples:\n  gfcompile run-pass filter graphs/train/03_select.txt\n"
        "  gfcompile run-pass append_optimizer:name=adamw,weight_decay=0.01 graphs/train/11_clip_gradients.txt\n"
        "  gfcompile run-pass clip_gradients:norm=1 resnet18_step/graphs/train/10_hoist.txt --out after.txt",
    )
    parser.add_argument("rewrite", metavar="NAME[:key=value,...]", help="a pass of `gfcompile passes`, its settings")
    parser.add_argument("dump", metavar="DUMP.txt", type=Path, help="a graph that --dump wrote, or of an artifact")
    parser.add_argument(
        "--weights",
        metavar="ARTIFACT|FILE",
        type=Path,
        help="the model's tensors, for passes that compute constants from them; default: those of the artifact that"
        " the dump lies in, else numbers drawn by name",
    )
    parser.add_argument("--out", metavar="FILE", type=Path, help="write the graph here instead of printing it")
    return parser


def run_pass(args: argparse.Namespace) -> int:
    """`gfcompile run-pass`."""
    from gfcompile.export.graphs import read_text
    from gfcompile.graph.text import print_graph
    from gfcompile.graph.text_reader import parse_graph

    rewrite = make_pass(args.rewrite)
    weights = _read_weights(args.weights or _artifact_of(args.dump))
    step = parse_graph(read_text(args.dump), weights, str(args.dump))
    drawn = step.tensors.keys() - weights.keys()
    known = set(step.tensors)
    step = _run(rewrite, step, args.dump)
    if drawn and step.tensors.keys() - known:
        complain(f"{len(drawn)} tensors are drawn by name, and constants made of them; give --weights", word="note: ")
    text = print_graph(step, f"{args.dump.stem}, then {rewrite.name}")
    if args.out is None:
        write(text.rstrip("\n"), sys.stdout)
    else:
        _write(args.out, text)
    return OK


def make_pass(text: str) -> Pass:
    """The pass that `NAME:key=value,...` names, with these settings."""
    from gfcompile.optimizers import resolve_optimizer
    from gfcompile.passes.append_optimizer import AppendOptimizer
    from gfcompile.passes.clip_gradients import ClipGradients
    from gfcompile.passes.pipeline import find_pass
    from gfcompile.settings.text import split_settings

    name, settings = split_settings("run-pass", text)
    found = find_pass(name)
    if isinstance(found, AppendOptimizer):
        return AppendOptimizer(resolve_optimizer(settings))
    takes = ("norm", "value") if isinstance(found, ClipGradients) else ()
    for key, value in settings.items():
        if key not in takes:
            known = f"use {', '.join(takes)}" if takes else "leave it out"
            raise UserError(f"run-pass {text}: '{name}' has no setting '{key}'; {known}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise UserError(f"run-pass {text}: {key} '{value}' must be a number above 0")
    return ClipGradients(**{key: float(value) for key, value in settings.items()}) if settings else found


def _run(rewrite: Pass, step: Step, dump: Path) -> Step:
    try:
        return rewrite.run(step)
    except (UserError, ContractError):
        raise
    except Exception as error:  # a graph by hand may be anything; a pass expects what comes before it
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        raise UserError(
            f"{dump}: '{rewrite.name}' cannot take this step ({type(error).__name__}: {error}, at {where});"
            " give it a graph from before its place in `gfcompile passes`"
        ) from error


def _write(out: Path, text: str) -> None:
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written ({error.strerror}); choose another place") from error


def _artifact_of(dump: Path) -> Path | None:
    """ARTIFACT/graphs/train/03_select.txt lies in an artifact."""
    from gfcompile.runtime.manifest import MANIFEST

    folders = dump.absolute().parents
    is_inside = len(folders) > 2 and folders[1].name == "graphs" and (folders[2] / MANIFEST).is_file()
    return folders[2] if is_inside else None


def _read_weights(source: Path | None) -> Mapping[str, Tensor]:
    if source is None:
        return {}
    import torch

    from gfcompile.runtime import tensorfile
    from gfcompile.runtime.manifest import WEIGHTS, read_manifest, read_tensors

    is_artifact = source.is_dir()
    arrays = read_tensors(source, read_manifest(source), WEIGHTS) if is_artifact else tensorfile.read(source).tensors
    return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
