"""`gfcompile graphs`: the graphs of an artifact, program by program, and as ONNX."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import groupby, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from gfcompile.cli.options import add_screen
from gfcompile.cli.parsers import Parser
from gfcompile.cli.screen import Screen
from gfcompile.errors import UserError

if TYPE_CHECKING:
    from gfcompile.export.graphs import Graph

OK = 0


class Intermixed(Parser):
    """Options may stand between the names; argparse's usual way takes the names before the first option only."""

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str], namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        return self.parse_intermixed_args(args, namespace)


def graphs_parser() -> Parser:
    """`gfcompile graphs`."""
    parser = Intermixed(
        "graphs",
        "List the graphs of an artifact, or of what --dump wrote: after which pass, and how many operators it calls."
        " With --onnx, write them as ONNX: others can show and run them.",
        "examples:\n  gfcompile graphs resnet18_step\n  gfcompile graphs resnet18_step --onnx --out graphs\n"
        "  gfcompile graphs resnet18_step --onnx train/04 predict/00",
    )
    parser.add_argument("folder", metavar="ARTIFACT|DIR", type=Path, help="an artifact, or what --dump wrote")
    parser.add_argument(
        "names",
        metavar="PROGRAM/NUMBER",
        nargs="*",
        default=[],
        help="only these: a number (of the train program), program/number, or a file's name; default: all",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--onnx", action="store_true", help="write each as ONNX, beside its text")
    output.add_argument("--out", metavar="DIR", type=Path, help="with --onnx: write into this folder instead")
    add_screen(output)
    return parser


def graphs(args: argparse.Namespace) -> int:
    """`gfcompile graphs`."""
    if args.out is not None and not args.onnx:
        raise UserError(f"--out {args.out}: says where ONNX goes; add --onnx, or leave it out")
    from gfcompile.export.graphs import choose_graphs, write_onnx

    screen = Screen(args.quiet, args.json)
    chosen = choose_graphs(args.folder, args.names)
    written: list[Path] = []
    if args.onnx:
        screen.progress("starting", transient=True)  # importing torch takes seconds
        written = write_onnx(chosen, args.out, screen.progress)
        screen.clear()
    if args.json:
        screen.result(json.dumps([_row(*each) for each in zip_longest(chosen, written)], indent=1))
    elif not args.onnx:
        screen.result(_listing(chosen))
    elif not args.quiet:
        number = "1 graph" if len(chosen) == 1 else f"{len(chosen)} graphs"
        screen.result(f"wrote {number} as ONNX to {args.out or args.folder}")
    return OK


def _listing(graphs: list[Graph]) -> str:
    width = max(len(graph.name) for graph in graphs)
    lines = []
    for program, its_graphs in groupby(graphs, lambda graph: graph.program):
        lines.append(program)
        lines += [f"  {each.number} {each.name:<{width}} {each.count_calls():>5} calls" for each in its_graphs]
    return "\n".join(lines)


def _row(graph: Graph, onnx: Path | None) -> dict[str, str | int]:
    found = {"program": graph.program, "number": graph.number, "pass": graph.name, "text": str(graph.path)}
    return {**found, "calls": graph.count_calls(), **({} if onnx is None else {"onnx": str(onnx)})}
