"""A parser for every command, with its own options and examples."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from gfcompile.cli.options import (
    add_data,
    add_group,
    add_json,
    add_model,
    add_screen,
    add_trials,
    reading,
)
from gfcompile.errors import UserError
from gfcompile.settings.planning import Budget, Measured
from gfcompile.settings.readers import whole
from gfcompile.settings.schema import Computed, Estimation, Losses, Machine, Selection, Training, Tuned, Which, Written

ABOUT = """\
Compile a PyTorch CNN into a native training step: forward, loss, backward with gradient filtering on the
chosen convolutions, and the optimizer's update, in one library that needs neither PyTorch nor TVM."""

MORE = """\
commands:
  gfcompile MODEL [options]              compile; writes MODEL_step/, an importable Python package
  gfcompile check MODEL                  whether it can be compiled, and all that stands in the way
  gfcompile tune MODEL|ARTIFACT          measure which schedules are fastest here, or on a board
  gfcompile quality MODEL --data B.npz   how far filtered gradients are from exact ones on a batch of yours
  gfcompile plan MODEL --memory 2MB      what to do with each layer within a budget; writes plan.toml
  gfcompile inspect MODEL|ARTIFACT       layers, FLOPs and bytes kept, without generating code
  gfcompile verify MODEL [ARTIFACT]      compare the compiled step with PyTorch eager
  gfcompile export ARTIFACT              the trained model as ONNX, or its weights as safetensors
  gfcompile passes                       the passes in order, and why each stands where it does
  gfcompile targets                      the machines that can be compiled for
  gfcompile graphs ARTIFACT [--onnx]     the graph after each pass: a list, and as ONNX
  gfcompile diff DIR A B                 what changed between two dumped graphs
  gfcompile run-pass NAME DUMP.txt       one pass on a dumped graph
  gfcompile COMMAND --help               more about one of them

examples:
  gfcompile resnet18.pt --layers 5 --r 2              train and filter the last 5 convolutions and the classifier
  gfcompile resnet18.pt --layers 5 --exact            the same layers without filtering, to compare with
  gfcompile nets:build --weights w.safetensors --input 8x1x28x28 --r 2 --r block3.conv=4
  gfcompile mobilenet.pt --sparse auto --memory 256KB   2 % of the weights per step, channels drawn anew every step
  gfcompile resnet18.pt --train 'layer4.*' --dry-run  what would be done and what it would cost
  gfcompile resnet18.pt --layers 4 --dump graphs && gfcompile diff graphs 03 04

exit codes: 0 done, 1 verify found a difference, 2 wrong input, 70 a bug of ours, 130 interrupted"""


class Parser(argparse.ArgumentParser):
    """Wrong options are a user's error like any other."""

    def __init__(self, name: str, about: str, more: str | None = None, usage: str | None = None) -> None:
        super().__init__(
            prog=f"gfcompile {name}".strip(),
            usage=usage,
            description=about,
            epilog=more,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def compile_parser() -> Parser:
    """`gfcompile MODEL`."""
    parser = Parser("", ABOUT, MORE, usage="gfcompile MODEL [options]\n       gfcompile COMMAND ...")
    add_model(parser)
    add_wishes(parser)
    build = add_group(parser, "target and build", Machine, Written)
    build.add_argument(
        "--dry-run", action="store_true", help="analyse and report, generate no code; the report goes to --dump DIR"
    )
    add_screen(build)
    tuning = add_group(parser, "tuning", Tuned)
    tuning.add_argument("--tune", action="store_true", help="run `gfcompile tune` first, and compile what it found")
    add_trials(tuning)
    return parser


def add_wishes(parser: argparse.ArgumentParser) -> None:
    """All that decides the step itself, whatever machine it is for."""
    add_group(parser, "what is trained", Selection)
    add_group(parser, "how gradients are estimated", Estimation)
    add_group(parser, "training", Training)
    add_group(parser, "how the step is computed", Computed)


def check_parser() -> Parser:
    """`gfcompile check`."""
    parser = Parser(
        "check",
        "Say whether a model can be compiled, without compiling it: every operator that cannot be, its layer, its line"
        " in the model's code, and whether freezing is enough. Exit code 1 if something stands in the way.",
        "example:\n  gfcompile check resnet18.pt --layers 4",
    )
    add_model(parser)
    add_wishes(parser)
    add_screen(parser.add_argument_group("output"))
    return parser


def inspect_parser() -> Parser:
    """`gfcompile inspect`."""
    parser = Parser(
        "inspect",
        "Show the plan for a model, or the report of an artifact: layers, FLOPs, bytes kept, refusals.",
        "examples:\n  gfcompile inspect resnet18.pt --layers 4 --batch 1 --json\n  gfcompile inspect resnet18_step",
    )
    add_model(parser, "a model as for compiling, or the folder of an artifact (plan options are then ignored)")
    add_wishes(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--quick", action="store_true", help="trace forward only: the layers, without the memory plan")
    output.add_argument("--out", metavar="DIR", type=Path, help="write report.md, report.json and the pictures here")
    add_screen(output)
    return parser


def quality_parser() -> Parser:
    """`gfcompile quality`."""
    parser = Parser(
        "quality",
        "Measure, layer by layer and for several patch edges, how far filtered gradients are from exact ones on a batch"
        " of yours, and say which r each layer can bear. Runs in plain PyTorch; no code is generated.",
        "examples:\n  gfcompile quality resnet18.pt --data batch.npz --layers 4 --r 1,2,4,7\n"
        "  gfcompile quality resnet18.pt --data batch.npz --train 'layer4.*' --out report     # and a picture",
    )
    add_model(parser, shaped=False)
    group = add_group(parser, "what is measured", Measured, Which, Losses)
    add_data(group, "an .npz file with x and y (x0, x1, ... for several inputs); all its samples are one batch")
    group.add_argument("--batch", metavar="N", type=reading("--batch", whole), help="use the file's first N samples")
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="DIR", type=Path, help="write quality.json and quality.svg here")
    add_screen(output)
    return parser


def plan_parser() -> Parser:
    """`gfcompile plan`."""
    parser = Parser(
        "plan",
        "Find what to do with each convolution (freeze it, train it exactly, filter it with which r, update how many of"
        " its channels) within a budget of memory and arithmetic, and write it as plan.toml, which --plan compiles and"
        " you may edit. The budget is checked against the arena that the compiler places.",
        "examples:\n  gfcompile plan resnet18.pt --memory 40MB --data batch.npz\n"
        "  gfcompile plan resnet18.pt --memory 24MB --step-flops 40G --board rpi4 --batch 4\n"
        "  gfcompile resnet18.pt --plan plan.toml",
    )
    add_model(parser)
    group = add_group(parser, "the budget, and what may be done within it", Budget, Which)
    add_data(group, "an .npz file with x and y: layers are then worth what is measured on it; default: the same, each")
    add_group(parser, "training", Training)
    output = add_group(parser, "target and output", Machine, Tuned)
    output.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        default=Path("plan.toml"),
        help="write the plan here, its data and picture beside it; default: plan.toml",
    )
    output.add_argument(
        "--board", metavar="NAME", dest="target", default=argparse.SUPPRESS, help="the same as --target"
    )
    add_screen(output)
    return parser


def tune_parser() -> Parser:
    """`gfcompile tune`."""
    parser = Parser(
        "tune",
        "Measure which schedules of a step's kernels are fastest: on this machine, or on boards through TVM's RPC."
        " Every trial is kept at once; stop it whenever you like, and run it again to go on. Compiling follows what was"
        " found faster.",
        "examples:\n  gfcompile tune resnet18.pt --layers 4 --minutes 10\n"
        "  gfcompile tune resnet18_step --rpc 192.168.1.5:9190 --key pi4      # an artifact for rpi4\n"
        "  gfcompile tune --show pi4.jsonl",
    )
    add_model(parser, "a model as for compiling, or the folder of an artifact (plan options are then ignored)", "?")
    add_wishes(parser)
    group = add_group(parser, "tuning", Tuned)
    add_trials(group)
    group.add_argument("--rpc", metavar="HOST:PORT", help="measure on boards: the address of their tracker")
    group.add_argument("--key", metavar="NAME", help="the boards' name at the tracker; several are used at once")
    group.add_argument(
        "--emulated", action="store_true", help="the boards are emulated: for tests, the compiler never follows these"
    )
    group.add_argument("--show", metavar="FILE", type=Path, help="print what a database holds, and nothing else")
    group.add_argument(
        "--merge", metavar="FILE", type=Path, nargs="+", help="write all trials of these files to --db OUT"
    )
    group.add_argument("--export", metavar="OUT", type=Path, help="write the best trial of each kernel of --db here")
    add_screen(add_group(parser, "target and output; by default native, or the artifact's own", Machine))
    return parser


def verify_parser() -> Parser:
    """`gfcompile verify`."""
    parser = Parser(
        "verify",
        "Compare a compiled step with PyTorch eager: logits, loss, gradients, one update. Exit code 1 if they differ.",
        "examples:\n  gfcompile verify resnet18.pt --layers 4 --batch 2\n"
        "  gfcompile verify resnet18.pt resnet18_step --data batch.npz      # arrays x and y",
    )
    add_model(parser)
    parser.add_argument(
        "artifact",
        metavar="ARTIFACT",
        nargs="?",
        type=Path,
        help="compare this one, by its own plan; default: compile into a temporary folder",
    )
    parser.add_argument("--data", metavar="FILE", type=Path, help="an .npz file with x and y; default: random batches")
    add_wishes(parser)
    add_screen(add_group(parser, "target and output", Machine))
    return parser


def export_parser() -> Parser:
    """`gfcompile export`."""
    parser = Parser(
        "export",
        "Write a model with its trained weights: as ONNX, as safetensors, or both. No step is loaded: the artifact may"
        " be for another machine.",
        "examples:\n  gfcompile export run.ckpt --state-dict resnet18.safetensors\n"
        "  gfcompile export resnet18_step --checkpoint run.ckpt --onnx resnet18.onnx",
    )
    parser.add_argument(
        "source", metavar="CHECKPOINT|ARTIFACT", type=Path,
        help="what gf-train or save_checkpoint wrote, or a folder that gfcompile wrote",
    )  # fmt: skip
    parser.add_argument(
        "--artifact", metavar="FOLDER", type=Path,
        help="the checkpoint's artifact; default: the folder of its name beside the checkpoint, or here",
    )  # fmt: skip
    parser.add_argument(
        "--checkpoint", metavar="FILE", type=Path, help="the artifact's checkpoint; default: the weights as compiled"
    )
    output = parser.add_argument_group("output")
    output.add_argument("--onnx", metavar="FILE", type=Path, help="write the model here, for the compiled batch")
    output.add_argument("--state-dict", metavar="FILE", type=Path, help="write the weights here, by the model's names")
    add_screen(output)
    return parser


def passes_parser() -> Parser:
    """`gfcompile passes`."""
    parser = Parser("passes", "List the passes of the training program in order.")
    add_json(parser)
    return parser


def targets_parser() -> Parser:
    """`gfcompile targets`."""
    parser = Parser("targets", "List the machines that can be compiled for; --target also takes a .toml file's path.")
    add_json(parser)
    return parser


def diff_parser() -> Parser:
    """`gfcompile diff`."""
    parser = Parser(
        "diff",
        "Show what changed between two dumped graphs, as a unified diff.",
        "examples:\n  gfcompile diff graphs 03 04\n  gfcompile diff resnet18_step predict/01 predict/02",
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="what --dump wrote, or an artifact")
    parser.add_argument("first", metavar="A", help="a number (of the train program), program/number, or a file's name")
    parser.add_argument("second", metavar="B", help="the same, for the later one")
    return parser
