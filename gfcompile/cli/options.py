"""The options that commands share, in groups: each with its default and its sentence of help."""

from __future__ import annotations

import argparse
from pathlib import Path

from gfcompile.cli import values

OPTIMIZER_SETTINGS = (
    "momentum", "weight_decay", "dampening", "alpha", "eps", "betas", "nesterov", "amsgrad", "centered", "maximize",
    "clip_norm", "clip_value",
)  # fmt: skip


def add_model(
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
        group.add_argument(
            "--batch", metavar="N", type=values.whole, help="batch size, in place of the shape's first number"
        )
    group.add_argument("--weights", metavar="FILE", help="a .safetensors file to load into the model")
    group.add_argument(
        "--trust", action="store_true", help="let a model file run its own code; only for files that you trust"
    )
    group.add_argument(
        "--import", metavar="NAME", dest="imports", action="append", default=[],
        help="a Python file or a package of yours that defines the model's classes; may be repeated",
    )  # fmt: skip


def add_plan(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is trained, and how")
    group.add_argument(
        "--plan", metavar="FILE", type=Path,
        help="a plan.toml as `gfcompile plan` writes it, in place of --layers, --r, --train, --exact and --sparse",
    )  # fmt: skip
    add_which(group)
    group.add_argument(
        "--r", metavar="[NAME=]R", type=values.patch, action="append", default=[],
        help="patch edge in output pixels, for all layers or for those that NAME matches, which NAME=exact leaves"
        " unfiltered; may be repeated; default: 2",
    )  # fmt: skip
    group.add_argument(
        "--train-affine", action="store_true",
        help="train the weight and bias of the batch norms behind the trained convolutions too",
    )  # fmt: skip
    group.add_argument("--exact", action="store_true", help="train the same layers without filtering")
    group.add_argument(
        "--sparse", metavar="[NAME=]RATIO|auto", type=values.ratio, action="append", default=[],
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


def add_which(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--layers", metavar="N", type=values.whole,
        help="train the last N convolutions, and the classifier after them exactly; shortcut projections do not count",
    )  # fmt: skip
    group.add_argument(
        "--train", metavar="PATTERN", action="append", default=[],
        help="train these layers too, as in 'layer3.*'; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--batchnorm", metavar="[NAME=]MODE", type=values.batchnorm, action="append", default=[],
        help="eval (default): running statistics stay fixed; train: batch statistics, and running ones are updated;"
        " frozen: eval, and the affine parameters stay too; for all or for those that NAME matches; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--dropout", action="store_true", help="train with the model's dropouts on; they are off otherwise"
    )


def add_training(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("training")
    add_loss(group)
    group.add_argument("--optimizer", metavar="NAME", default="sgd", help="sgd (default), adam, adamw or rmsprop")
    group.add_argument(
        "--lr", metavar="RATE", type=values.rate("--lr"),
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
        group.add_argument(option, metavar="X", type=values.number(option), help=about)
    group.add_argument("--betas", metavar="B1,B2", type=values.betas, help="adam and adamw; default: 0.9,0.999")
    for option, about in (
        ("--nesterov", "sgd: Nesterov momentum"),
        ("--amsgrad", "adam, adamw: divide by the largest squares so far"),
        ("--centered", "rmsprop: divide by the variance"),
        ("--maximize", "go up the gradient"),
    ):
        group.add_argument(option, action="store_true", default=None, help=about)
    group.add_argument(
        "--group", metavar="PATTERN:KEY=VALUE,...", type=values.group_settings, action="append", default=[],
        help="settings of the parameters that PATTERN matches, as in '*.bias:weight_decay=0,lr_factor=0.1';"
        " may be repeated",
    )  # fmt: skip


def add_loss(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--loss", metavar="NAME[:KEY=VALUE,...]",
        help="cross_entropy (default), bce_with_logits, mse, l1, smooth_l1, huber or module:callable, with settings as"
        " in cross_entropy:label_smoothing=0.1,ignore_index=255,weight=1/2/0.5 or weight=FILE.npy",
    )  # fmt: skip


def add_target(group: argparse._ArgumentGroup, default: str | None = "native", said: str = "native") -> None:
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


def add_screen(group: argparse._ArgumentGroup) -> None:
    add_json(group)
    group.add_argument("--quiet", action="store_true", help="say nothing but results that were asked for, and errors")


def add_json(group: argparse._ActionsContainer) -> None:
    group.add_argument("--json", action="store_true", help="print the result as JSON on stdout")


def add_budget(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--trials", metavar="N", type=values.whole, help="end after so many trials")
    group.add_argument(
        "--minutes", metavar="M", type=values.number("--minutes"),
        help="end after so many minutes; default, without --trials: 10",
    )  # fmt: skip


def add_database(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--db", metavar="FILE", type=Path,
        help="the tuning database; default: $GFCOMPILE_TUNING, or ~/.local/share/gfcompile/tuning.jsonl",
    )  # fmt: skip
