"""Every option, its default and its sentence of help."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any, NoReturn

from gfcompile.errors import UserError
from gfcompile.settings import split_settings

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
  gfcompile diff DIR A B                 what changed between two dumped graphs
  gfcompile COMMAND --help               more about one of them

examples:
  gfcompile resnet18.pt --layers 5 --r 2              train and filter the last 5 convolutions and the classifier
  gfcompile resnet18.pt --layers 5 --exact            the same layers without filtering, to compare with
  gfcompile nets:build --weights w.safetensors --input 8x1x28x28 --r 2 --r block3.conv=4
  gfcompile mobilenet.pt --sparse auto --memory 256KB   2 % of the weights a step, channels drawn anew every step
  gfcompile resnet18.pt --train 'layer4.*' --dry-run  what would be done and what it would cost
  gfcompile resnet18.pt --layers 4 --dump graphs && gfcompile diff graphs 03 04

exit codes: 0 done, 1 verify found a difference, 2 wrong input, 70 a bug of ours, 130 interrupted"""


OPTIMIZER_SETTINGS = (
    "momentum", "weight_decay", "dampening", "alpha", "eps", "betas", "nesterov", "amsgrad", "centered", "maximize",
    "clip_norm", "clip_value",
)  # fmt: skip


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
    parser = Parser("", ABOUT, MORE, usage="gfcompile MODEL [options]\n       gfcompile COMMAND ...")
    _model(parser)
    _plan(parser)
    _training(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="DIR", type=Path, help="write the artifact here; default: MODEL_step")
    output.add_argument(
        "--dump", metavar="DIR", type=Path, help="write the graph after each pass here, as text and ONNX"
    )
    output.add_argument(
        "--dry-run", action="store_true", help="analyse and report, generate no code; the report goes to --dump DIR"
    )
    output.add_argument(
        "--debug", action="store_true",
        help="a slower step, same results: after every kernel it checks the memory around every buffer",
    )  # fmt: skip
    _target(output)
    _screen(output)
    tuning = parser.add_argument_group("tuning")
    tuning.add_argument("--tune", action="store_true", help="run `gfcompile tune` first, and compile what it found")
    _budget(tuning)
    _database(tuning)
    return parser


def check_parser() -> Parser:
    parser = Parser(
        "check",
        "Say whether a model can be compiled, without compiling it: every operator that cannot be, its layer, its line"
        " in the model's code, and whether freezing is enough. Exit code 1 if something stands in the way.",
        "example:\n  gfcompile check resnet18.pt --layers 4",
    )
    _model(parser)
    _plan(parser)
    _training(parser)
    _screen(parser.add_argument_group("output"))
    return parser


def inspect_parser() -> Parser:
    parser = Parser(
        "inspect",
        "Show the plan for a model, or the report of an artifact: layers, FLOPs, bytes kept, refusals.",
        "examples:\n  gfcompile inspect resnet18.pt --layers 4 --batch 1 --json\n  gfcompile inspect resnet18_step",
    )
    _model(parser, "a model as for compiling, or the folder of an artifact (plan options are then ignored)")
    _plan(parser)
    _training(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--quick", action="store_true", help="trace forward only: the layers, without the memory plan")
    output.add_argument("--out", metavar="DIR", type=Path, help="write report.md, report.json and the pictures here")
    _screen(output)
    return parser


def quality_parser() -> Parser:
    parser = Parser(
        "quality",
        "Measure, layer by layer and for several patch edges, how far filtered gradients are from exact ones on a batch"
        " of yours, and say which r each layer can bear. Runs in plain PyTorch; no code is generated.",
        "examples:\n  gfcompile quality resnet18.pt --data batch.npz --layers 4 --r 1,2,4,7\n"
        "  gfcompile quality resnet18.pt --data batch.npz --train 'layer4.*' --out report     # and a picture",
    )
    _model(parser, shaped=False)
    group = parser.add_argument_group("what is measured")
    group.add_argument(
        "--data", metavar="FILE", type=Path,
        help="an .npz file with x and y (x0, x1, ... for several inputs); all its samples are one batch",
    )  # fmt: skip
    group.add_argument("--batch", metavar="N", type=_whole, help="use the file's first N samples")
    group.add_argument(
        "--r", metavar="R,R,...", type=_patches, default=(1, 2, 4, 7), help="patch edges to try; default: 1,2,4,7"
    )
    group.add_argument(
        "--cosine", metavar="C", type=_number("--cosine"), default=0.7,
        help="a layer bears r if the cosine of its filtered with its exact weight gradient is C or more; default: 0.7",
    )  # fmt: skip
    _which(group)
    _loss(group)
    output = parser.add_argument_group("output")
    output.add_argument("--out", metavar="DIR", type=Path, help="write quality.json and quality.svg here")
    _screen(output)
    return parser


def plan_parser() -> Parser:
    parser = Parser(
        "plan",
        "Find what to do with each convolution (freeze it, train it exactly, filter it with which r, update how many of"
        " its channels) within a budget of memory and arithmetic, and write it as plan.toml, which --plan compiles and"
        " you may edit. The budget is checked against the arena that the compiler places.",
        "examples:\n  gfcompile plan resnet18.pt --memory 40MB --data batch.npz\n"
        "  gfcompile plan resnet18.pt --memory 24MB --step-flops 40G --board rpi4 --batch 4\n"
        "  gfcompile resnet18.pt --plan plan.toml",
    )
    _model(parser)
    group = parser.add_argument_group("the budget, and what may be done within it")
    group.add_argument("--memory", metavar="BYTES", help="the most that the step's arena may take, as in 256KB or 2MB")
    group.add_argument(
        "--step-flops", metavar="N", help="the most that the convolutions of a step may count, as in 250M or 1.5G"
    )
    group.add_argument(
        "--data", metavar="FILE", type=Path,
        help="an .npz file with x and y: layers are then worth what is measured on it; default: the same, each",
    )  # fmt: skip
    group.add_argument(
        "--r", metavar="R,R,...", type=_patches, default=(2, 4, 7), help="patch edges to choose from; default: 2,4,7"
    )
    group.add_argument(
        "--sparse", metavar="S,S,...", type=_shares, default=(0.25,),
        help="shares of input channels to choose from, beside all of them; none: no such updates; default: 0.25",
    )  # fmt: skip
    _which(group)
    _training(parser)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--out", metavar="FILE", type=Path, default=Path("plan.toml"),
        help="write the plan here, its data and picture beside it; default: plan.toml",
    )  # fmt: skip
    _target(output)
    output.add_argument("--board", metavar="NAME", dest="target", help="the same as --target")
    _database(output)
    _screen(output)
    return parser


def tune_parser() -> Parser:
    parser = Parser(
        "tune",
        "Measure which schedules of a step's kernels are fastest: on this machine, or on boards through TVM's RPC."
        " Every trial is kept at once; stop it whenever you like, and run it again to go on. Compiling follows what was"
        " found faster.",
        "examples:\n  gfcompile tune resnet18.pt --layers 4 --minutes 10\n"
        "  gfcompile tune resnet18_step --rpc 192.168.1.5:9190 --key pi4      # an artifact for rpi4\n"
        "  gfcompile tune --show pi4.jsonl",
    )
    _model(parser, "a model as for compiling, or the folder of an artifact (plan options are then ignored)", "?")
    _plan(parser)
    _training(parser)
    group = parser.add_argument_group("tuning")
    _budget(group)
    group.add_argument("--rpc", metavar="HOST:PORT", help="measure on boards: the address of their tracker")
    group.add_argument("--key", metavar="NAME", help="the boards' name at the tracker; several are used at once")
    group.add_argument(
        "--emulated", action="store_true", help="the boards are emulated: for tests, the compiler never follows these"
    )
    _database(group)
    group.add_argument("--show", metavar="FILE", type=Path, help="print what a database holds, and nothing else")
    group.add_argument(
        "--merge", metavar="FILE", type=Path, nargs="+", help="write all trials of these files to --db OUT"
    )
    group.add_argument("--export", metavar="OUT", type=Path, help="write the best trial of each kernel of --db here")
    output = parser.add_argument_group("output")
    _target(output, None, "native, or the artifact's own")
    _screen(output)
    return parser


def _budget(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--trials", metavar="N", type=_whole, help="end after so many trials")
    group.add_argument(
        "--minutes", metavar="M", type=_number("--minutes"),
        help="end after so many minutes; default, without --trials: 10",
    )  # fmt: skip


def _database(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--db", metavar="FILE", type=Path,
        help="the tuning database; default: $GFCOMPILE_TUNING, or ~/.local/share/gfcompile/tuning.jsonl",
    )  # fmt: skip


def verify_parser() -> Parser:
    parser = Parser(
        "verify",
        "Compare a compiled step with PyTorch eager: logits, loss, gradients, one update. Exit code 1 if they differ.",
        "examples:\n  gfcompile verify resnet18.pt --layers 4 --batch 2\n"
        "  gfcompile verify resnet18.pt resnet18_step --data batch.npz      # arrays x and y",
    )
    _model(parser)
    parser.add_argument(
        "artifact", metavar="ARTIFACT", nargs="?", type=Path,
        help="compare this one, by its own plan; default: compile into a temporary folder",
    )  # fmt: skip
    parser.add_argument("--data", metavar="FILE", type=Path, help="an .npz file with x and y; default: random batches")
    _plan(parser)
    _training(parser)
    output = parser.add_argument_group("output")
    _target(output)
    _screen(output)
    return parser


def export_parser() -> Parser:
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
    _screen(output)
    return parser


def passes_parser() -> Parser:
    parser = Parser("passes", "List the passes of the training program in order.")
    _json(parser)
    return parser


def targets_parser() -> Parser:
    parser = Parser("targets", "List the machines that can be compiled for; --target also takes a .toml file's path.")
    _json(parser)
    return parser


def diff_parser() -> Parser:
    parser = Parser(
        "diff",
        "Show what changed between two dumped graphs, as a unified diff.",
        "examples:\n  gfcompile diff graphs 03 04\n  gfcompile diff resnet18_step predict/01 predict/02",
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="what --dump wrote, or an artifact")
    parser.add_argument("first", metavar="A", help="a number (of the train program), program/number, or a file's name")
    parser.add_argument("second", metavar="B", help="the same, for the later one")
    return parser


def _model(
    parser: argparse.ArgumentParser,
    about: str = "a .pt2, .onnx, .pt or .pth file, or package.module:factory",
    count: str | None = None,
    shaped: bool = True,
) -> None:
    """Unless `shaped`, the samples say their shape."""
    group = parser.add_argument_group("model")
    group.add_argument("model", metavar="MODEL", nargs=count, help=about)
    if shaped:
        group.add_argument(
            "--input",
            metavar="NxCxHxW",
            help="shape of a batch, several inputs joined by commas; default: the file's, else a printed guess",
        )
        group.add_argument("--batch", metavar="N", type=_whole, help="batch size, in place of the shape's first number")
    group.add_argument("--weights", metavar="FILE", help="a .safetensors file to load into the model")
    group.add_argument(
        "--trust", action="store_true", help="let a model file run its own code; only for files that you trust"
    )
    group.add_argument(
        "--import", metavar="FILE", dest="imports", action="append", default=[],
        help="a Python file that defines the model's classes; may be repeated",
    )  # fmt: skip


def _plan(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is trained, and how")
    group.add_argument(
        "--plan", metavar="FILE", type=Path,
        help="a plan.toml as `gfcompile plan` writes it, in place of --layers, --r, --train, --exact and --sparse",
    )  # fmt: skip
    _which(group)
    group.add_argument(
        "--r", metavar="[NAME=]R", type=_patch, action="append", default=[],
        help="patch edge in output pixels, for all layers or for those that NAME matches, which NAME=exact leaves"
        " unfiltered; may be repeated; default: 2",
    )  # fmt: skip
    group.add_argument(
        "--train-affine", action="store_true",
        help="train the weight and bias of the batch norms behind the trained convolutions too",
    )  # fmt: skip
    group.add_argument("--exact", action="store_true", help="train the same layers without filtering")
    group.add_argument(
        "--sparse", metavar="[NAME=]RATIO|auto", type=_ratio, action="append", default=[],
        help="update, a step, the weights of this share of a convolution's input channels only, and keep nothing of the"
        " others; for all trained convolutions but a head, or for those that NAME matches; may be repeated; auto: as"
        " many layers as --memory allows, smaller shares in later ones, 2 %% of all convolution weights",
    )  # fmt: skip
    group.add_argument(
        "--memory", metavar="BYTES", help="what --sparse auto may keep for the backward pass, as in 256KB or 2MB"
    )
    group.add_argument(
        "--sparse-strategy", metavar="WHEN", default="step",
        help="step (default): channels are drawn anew every step; epoch: every epoch; fixed: once; norm: those whose"
        " weights are largest now",
    )  # fmt: skip
    group.add_argument(
        "--no-calculus", action="store_true",
        help="filter as published, without the patch calculus: the same gradients from more memory, to compare with",
    )  # fmt: skip
    group.add_argument(
        "--no-winograd", action="store_true",
        help="every convolution as its plain sum: slower, with less scratch memory and a little less rounding",
    )  # fmt: skip
    group.add_argument(
        "--cache-prefix", action="store_true",
        help="also compile what step.open_cache needs: the frozen part computed once a sample and kept on disk, later"
        " epochs train on that; for samples without random augmentation",
    )  # fmt: skip
    group.add_argument(
        "--compat", metavar="reference", help="the published code's formulas, which omit 1/stride^2 in strided layers"
    )


def _which(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--layers", metavar="N", type=_whole,
        help="train the last N convolutions, and the classifier after them exactly; shortcut projections do not count",
    )  # fmt: skip
    group.add_argument(
        "--train", metavar="PATTERN", action="append", default=[],
        help="train these layers too, as in 'layer3.*'; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--batchnorm", metavar="[NAME=]MODE", type=_batchnorm, action="append", default=[],
        help="eval (default): running statistics stay fixed; train: batch statistics, and running ones are updated;"
        " frozen: eval, and the affine parameters stay too; for all or for those that NAME matches; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--dropout", action="store_true", help="train with the model's dropouts on; they are off otherwise"
    )


def _training(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("training")
    _loss(group)
    group.add_argument("--optimizer", metavar="NAME", default="sgd", help="sgd (default), adam, adamw or rmsprop")
    group.add_argument(
        "--lr", metavar="RATE", type=_number("--lr"),
        help="learning rate to start with, default 0.01, of adam and adamw 0.001; can be set at run time",
    )  # fmt: skip
    for option, about in (
        ("--momentum", "momentum of sgd or rmsprop"),
        ("--weight-decay", "decay added to a weight's gradient; adamw: of the weight itself, default 0.01"),
        ("--dampening", "part of the gradient that sgd's momentum leaves out"),
        ("--alpha", "rmsprop's smoothing; default: 0.99"),
        ("--eps", "what adam, adamw and rmsprop add to the denominator; default: 1e-8"),
        ("--clip-norm", "scale all gradients down together to at most this norm"),
        ("--clip-value", "clip each gradient value to at most this size, after --clip-norm"),
    ):
        group.add_argument(option, metavar="X", type=_number(option), help=about)
    group.add_argument("--betas", metavar="B1,B2", type=_betas, help="adam and adamw; default: 0.9,0.999")
    for option, about in (
        ("--nesterov", "sgd: Nesterov momentum"),
        ("--amsgrad", "adam, adamw: divide by the largest squares so far"),
        ("--centered", "rmsprop: divide by the variance"),
        ("--maximize", "go up the gradient"),
    ):
        group.add_argument(option, action="store_true", default=None, help=about)
    group.add_argument(
        "--group", metavar="PATTERN:KEY=VALUE,...", type=_group, action="append", default=[],
        help="settings of the parameters that PATTERN matches, as in '*.bias:weight_decay=0,lr_factor=0.1';"
        " may be repeated",
    )  # fmt: skip


def _loss(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--loss", metavar="NAME[:KEY=VALUE,...]",
        help="cross_entropy (default), bce_with_logits, mse, l1, smooth_l1, huber or module:callable, with settings as"
        " in cross_entropy:label_smoothing=0.1,ignore_index=255,weight=1/2/0.5 or weight=FILE.npy",
    )  # fmt: skip


def _target(group: argparse._ArgumentGroup, default: str | None = "native", said: str = "native") -> None:
    group.add_argument(
        "--target", metavar="NAME", default=default,
        help=f"machine to compile for: a name that `gfcompile targets` lists, or a .toml file; default: {said}",
    )  # fmt: skip
    group.add_argument("--arch", metavar="sm_NN", help="the GPU's architecture, for --target cuda, as in sm_86")
    group.add_argument(
        "--linker", metavar="NAME",
        help="zig: the ziglang package, the boards' default; gcc: the system's, or its cross compiler for a board; the"
        " library then needs a glibc as new as the compiler's own",
    )  # fmt: skip
    group.add_argument(
        "--libc", metavar="NAME", help="musl: programs in the artifact are static and need no C library on the board"
    )


def _screen(group: argparse._ArgumentGroup) -> None:
    _json(group)
    group.add_argument("--quiet", action="store_true", help="say nothing but results that were asked for, and errors")


def _json(group: argparse._ActionsContainer) -> None:
    group.add_argument("--json", action="store_true", help="print the result as JSON on stdout")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from error


def _patch(text: str) -> tuple[str, int | None]:
    name, _, edge = text.rpartition("=")
    try:
        return name or "*", None if edge == "exact" else int(edge)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' is not a patch edge; write --r 2 or --r NAME=2") from error


def _patches(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UserError(f"--r '{text}': must be patch edges joined by commas, as in 1,2,4,7") from error


def _ratio(text: str) -> tuple[str, float | str]:
    name, _, share = text.rpartition("=")
    try:
        return name or "*", text if text == "auto" else float(share)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' is no share; write --sparse 0.1 or --sparse NAME=0.1") from error


def _shares(text: str) -> tuple[float, ...]:
    try:
        return () if text == "none" else tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise UserError(f"--sparse '{text}': must be shares joined by commas, as in 0.5,0.25, or none") from error


def _batchnorm(text: str) -> tuple[str, str]:
    name, _, mode = text.rpartition("=")
    return name or "*", mode


def _betas(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise UserError(f"--betas '{text}': must be two numbers, as in 0.9,0.999") from error


def _group(text: str) -> tuple[str, dict[str, Any]]:
    pattern, settings = split_settings("--group", text)
    if not (pattern and settings):
        raise UserError(f"--group '{text}': has no settings; write 'PATTERN:key=value', as in '*.bias:weight_decay=0'")
    return pattern, settings


class _number:  # noqa: N801 - reads as a function in the option list
    """A finite number, 0 or more."""

    def __init__(self, option: str) -> None:
        self.option = option

    def __call__(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0):
            raise UserError(f"{self.option} '{text}': must be a finite number, 0 or more")
        return value
