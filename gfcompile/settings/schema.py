"""Every setting of compiling, measuring and planning, in groups: its default, its help, its text, what it may be.

A group is a frozen dataclass, and what a command or a function takes is a group made of others. The parsers of the
command line, the keyword arguments of Python and the reference table are read off these fields.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gfcompile.settings import checks, readers
from gfcompile.settings.fields import Form, Group, setting
from gfcompile.settings.text import read_bytes

DEFAULT_PATCH = 2
BATCHNORM_MODES = ("eval", "train", "frozen")
STRATEGIES = ("step", "epoch", "fixed", "norm")
AUTO = "auto"
PathLike = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class Which(Group):
    """Which layers are trained."""

    layers: int | None = setting(
        None,
        "train the last N convolutions, and the classifier after them exactly; shortcut projections do not count",
        "N",
        read=readers.whole,
        check=checks.check_count,
    )
    train: str | Sequence[str] = setting(
        (),
        "train these layers too, as in 'layer3.*'; may be repeated",
        "PATTERN",
        Form.SEVERAL,
        python="train these layers too: a name pattern, as in 'layer3.*', or several",
    )
    batchnorm: str | Mapping[str, str] = setting(
        "eval",
        "eval (default): running statistics stay fixed; train: batch statistics, and running ones are updated;"
        " frozen: eval, and the affine parameters stay too; for all or for those that NAME matches; may be repeated",
        "[NAME=]MODE",
        Form.BY_PATTERN,
        readers.mode,
        checks.one_of(*BATCHNORM_MODES),
        "eval: running statistics stay fixed; train: batch statistics, and running ones are updated; frozen: eval, and"
        " the affine parameters stay too; or {pattern: mode}",
    )
    dropout: bool = setting(False, "train with the model's dropouts on; they are off otherwise")

    @property
    def patterns(self) -> tuple[str, ...]:
        """Of the layers that are named."""
        return (self.train,) if isinstance(self.train, str) else tuple(self.train or ())

    @property
    def norms(self) -> dict[str, str]:
        """Batch norm modes by name pattern, the more particular ones last."""
        given = {"*": self.batchnorm} if isinstance(self.batchnorm, str) else dict(self.batchnorm)
        return {"*": given.pop("*", "eval"), **given}


@dataclass(frozen=True, kw_only=True)
class Trained(Which):
    """And what of them."""

    train_affine: bool = setting(
        False, "train the weight and bias of the batch norms after the trained convolutions too"
    )


@dataclass(frozen=True, kw_only=True)
class Selection(Trained):
    """What is trained."""

    plan: Any = setting(
        None,
        "a plan.toml as `gfcompile plan` writes it, in place of {layers}, {r}, {train}, {exact} and {sparse}",
        "FILE",
        read=Path,
        python="a plan.toml, or what `find_plan` returned, in place of {layers}, {r}, {train}, {exact} and {sparse}",
    )


@dataclass(frozen=True, kw_only=True)
class Estimated(Group):
    """How each trained layer's gradient is estimated."""

    r: int | Mapping[str, int | None] | None = setting(
        None,
        "patch edge in output pixels, for all layers or for those that NAME matches, which NAME=exact leaves"
        " unfiltered; may be repeated; default: 2",
        "[NAME=]R",
        Form.BY_PATTERN,
        readers.patch,
        checks.check_patch,
        'patch edge in output pixels, 2 by default; or {pattern: r}, "*" for the rest, None for layers that stay exact',
    )
    exact: bool = setting(False, "train the same layers without filtering")
    sparse: Mapping[str, float] | None = setting(None, "", "[NAME=]RATIO", Form.BY_PATTERN, check=checks.check_share)
    sparse_strategy: str = setting(
        "step",
        "step (default): channels are drawn anew every step; epoch: every epoch; fixed: once; norm: those whose"
        " weights are largest now",
        "WHEN",
        check=checks.one_of(*STRATEGIES),
    )
    compat: str | None = setting(
        None,
        "the published code's formulas, which omit 1/stride^2 in strided layers",
        "reference",
        check=checks.one_of("reference"),
    )

    @property
    def patches(self) -> dict[str, int | None]:
        """Patch edges by name pattern; None for layers that stay exact."""
        given = self.r if isinstance(self.r, Mapping) else {} if self.r is None else {"*": self.r}
        return {"*": DEFAULT_PATCH, **given}


@dataclass(frozen=True, kw_only=True)
class Request(Estimated, Trained):
    """What a plan is made from: shares of channels are numbers by now, a budget has chosen them where it was to."""


@dataclass(frozen=True, kw_only=True)
class Estimation(Estimated):
    """How gradients are estimated."""

    sparse: Any = setting(
        None,
        "update, per step, the weights of this share of a convolution's input channels only, and keep nothing of the"
        " others; for all trained convolutions but a head, or for those that NAME matches; may be repeated; auto: as"
        " many layers as {memory} allows, smaller shares in later ones, 2 % of all convolution weights",
        "[NAME=]RATIO|auto",
        Form.BY_PATTERN,
        readers.share,
        checks.or_word(AUTO, checks.check_share),
        "update, per step, the weights of this share of a trained convolution's input channels only, 0.1 or {pattern:"
        ' share}, and keep nothing of the others; "auto": as many layers as {memory} allows, smaller shares in later'
        " ones, 2 % of all convolution weights",
    )
    memory: int | str | None = setting(
        None,
        "what {sparse} auto may keep for the backward pass, as in 256KB or 2MB",
        "BYTES",
        check=checks.readable(read_bytes),
    )
    calculus: bool = setting(
        True, "filter as published, without the patch calculus: the same gradients from more memory, to compare with"
    )

    @property
    def shares(self) -> dict[str, float | str]:
        """Shares by name pattern, `auto` among them."""
        if isinstance(self.sparse, Mapping):
            return dict(self.sparse)
        return {} if self.sparse is None else {"*": self.sparse}


@dataclass(frozen=True, kw_only=True)
class Losses(Group):
    """What is minimised."""

    loss: str | Mapping[str, Any] | Callable[..., Any] = setting(
        "cross_entropy",
        "cross_entropy (default), bce_with_logits, mse, l1, smooth_l1, huber or module:callable, with settings as in"
        " cross_entropy:label_smoothing=0.1,ignore_index=255,weight=1/2/0.5 or weight=FILE.npy",
        "NAME[:KEY=VALUE,...]",
        python="a name, with settings as in cross_entropy:label_smoothing=0.1 (bce_with_logits, mse, l1, smooth_l1,"
        " huber), a mapping, a loss of torch.nn, or a callable (output, target) -> scalar",
    )


def _amount(help: str) -> Any:
    return setting(None, help, "X", read=readers.amount)


def _choice(help: str) -> Any:
    return setting(None, help)


@dataclass(frozen=True, kw_only=True)
class Training(Losses):
    """The loss, the optimizer and its settings."""

    optimizer: Any = setting(
        "sgd",
        "sgd (default), adam, adamw or rmsprop",
        "NAME",
        python="sgd, adam, adamw or rmsprop: a name, a mapping, gfcompile.AdamW(...), or a new torch.optim one over the"
        " model's parameters, whose groups hold for the parameters in them; a trained one in none takes the first"
        " group's settings",
    )
    lr: float | None = setting(
        None,
        "learning rate to start with, default 0.01, of adam and adamw 0.001; can be set at run time",
        "RATE",
        read=readers.amount,
        check=checks.check_rate,
    )
    momentum: float | None = _amount("momentum of sgd or rmsprop")
    weight_decay: float | None = _amount(
        "decay added to a weight's gradient; adamw: of the weight itself, default 0.01"
    )
    dampening: float | None = _amount("part of the gradient that sgd's momentum leaves out")
    alpha: float | None = _amount("rmsprop's smoothing; default: 0.99")
    eps: float | None = _amount("what adam, adamw and rmsprop add to the denominator; default: 1e-8")
    clip_norm: float | None = _amount("scale all gradients down together to at most this norm")
    clip_value: float | None = _amount("clip each gradient value to at most this size, after {clip_norm}")
    betas: Sequence[float] | None = setting(
        None,
        "adam and adamw; default: 0.9,0.999",
        "B1,B2",
        read=readers.pair_of_numbers,
        python="adam and adamw; default: (0.9, 0.999)",
    )
    nesterov: bool | None = _choice("sgd: Nesterov momentum")
    amsgrad: bool | None = _choice("adam, adamw: divide by the largest squares so far")
    centered: bool | None = _choice("rmsprop: divide by the variance")
    maximize: bool | None = _choice("go up the gradient")
    groups: Mapping[str, Mapping[str, Any]] | None = setting(
        None,
        "settings of the parameters that PATTERN matches, as in '*.bias:weight_decay=0,lr_factor=0.1'; may be repeated",
        "PATTERN:KEY=VALUE,...",
        Form.BY_PATTERN,
        readers.group,
        python='settings of some parameters, by name: {"*.bias": {"weight_decay": 0.0, "lr_factor": 0.1}}',
    )

    @property
    def optimizer_settings(self) -> dict[str, Any]:
        """What is said of the optimizer beside its name; None where nothing is."""
        names = (
            "momentum", "weight_decay", "dampening", "alpha", "eps", "clip_norm", "clip_value", "betas", "nesterov",
            "amsgrad", "centered", "maximize", "groups",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, kw_only=True)
class Machine(Group):
    """The machine that is compiled for."""

    target: str = setting(
        "native",
        "machine to compile for: a name that `gfcompile targets` lists, or a .toml file; default: native",
        "NAME",
    )
    arch: str | None = setting(None, "the GPU's architecture, for {target} cuda, as in sm_86", "sm_NN")
    linker: str | None = setting(
        None,
        "zig: the ziglang package, the boards' default; gcc: the system's, or its cross compiler for a board; the"
        " library then needs a glibc as new as the compiler's own",
        "NAME",
    )
    libc: str | None = setting(
        None, "musl: programs in the artifact are static and need no C library on the board", "NAME"
    )


@dataclass(frozen=True, kw_only=True)
class Tuned(Group):
    """Which schedules are followed."""

    tuning: bool | PathLike = setting(
        True,
        "the tuning database; default: $GFCOMPILE_TUNING, or ~/.local/share/gfcompile/tuning.jsonl",
        "FILE",
        read=Path,
        python="follow the schedules that `gfcompile tune` found faster, those of this file first; False: none",
    )


@dataclass(frozen=True, kw_only=True)
class Computed(Group):
    """How the step is computed."""

    winograd: bool = setting(
        True, "every convolution as its plain sum: slower, with less scratch memory and a little less rounding"
    )
    cache_prefix: bool = setting(
        False,
        "also compile what step.open_cache needs: the frozen part computed once per sample and kept on disk, later"
        " epochs train on that; for samples without random augmentation",
    )


@dataclass(frozen=True, kw_only=True)
class Written(Group):
    """What is written, and where."""

    out: PathLike | None = setting(None, "write the artifact here; default: MODEL_step", "DIR", read=Path)
    dump: PathLike | None = setting(None, "write the graph after each pass here, as text and ONNX", "DIR", read=Path)
    debug: bool = setting(
        False, "a slower step, same results: after every kernel it checks the memory around every buffer"
    )


@dataclass(frozen=True, kw_only=True)
class Build(Tuned, Written, Computed, Machine):
    """Target and build."""


@dataclass(frozen=True, kw_only=True)
class Settings(Build, Training, Estimation, Selection):  # dataclasses take the fields of the last base first
    """All that compiling is told of, beside the model and the shape of its input."""
