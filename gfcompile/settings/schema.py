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
from gfcompile.settings.text import read_bytes, read_count

DEFAULT_PATCH = 2
BATCHNORM_MODES = ("eval", "train", "frozen")
STRATEGIES = ("step", "epoch", "fixed", "norm")
AUTO = "auto"
LEAST_COSINE = 0.7  # as much signal as noise: of two such steps one is wasted
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
        (), "train these layers too, as in 'layer3.*'; may be repeated", "PATTERN", Form.SEVERAL
    )
    batchnorm: str | Mapping[str, str] = setting(
        "eval",
        "eval (default): running statistics stay fixed; train: batch statistics, and running ones are updated;"
        " frozen: eval, and the affine parameters stay too; for all or for those that NAME matches; may be repeated",
        "[NAME=]MODE",
        Form.BY_PATTERN,
        readers.mode,
        checks.one_of(*BATCHNORM_MODES),
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
    )


def _amount(help: str) -> Any:
    return setting(None, help, "X", read=readers.amount)


def _choice(help: str) -> Any:
    return setting(None, help)


@dataclass(frozen=True, kw_only=True)
class Training(Losses):
    """The loss, the optimizer and its settings."""

    optimizer: Any = setting("sgd", "sgd (default), adam, adamw or rmsprop", "NAME")
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
        None, "adam and adamw; default: 0.9,0.999", "B1,B2", read=readers.pair_of_numbers
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


@dataclass(frozen=True, kw_only=True)
class Measured(Group):
    """What is measured of each layer."""

    r: Sequence[int] = setting(
        (1, 2, 4, 7), "patch edges to try; default: 1,2,4,7", "R,R,...", Form.LISTED, readers.edges, checks.check_edge
    )
    cosine: float = setting(
        LEAST_COSINE,
        "a layer bears r if the cosine of its filtered with its exact weight gradient is C or more; default: 0.7",
        "C",
        read=readers.amount,
        check=checks.check_cosine,
    )


@dataclass(frozen=True, kw_only=True)
class Measuring(Measured, Losses, Which):
    """What `quality` is told."""


@dataclass(frozen=True, kw_only=True)
class Budget(Group):
    """A budget, and what may be done within it."""

    memory: int | str | None = setting(
        None,
        "the most that the step's arena may take, as in 256KB or 2MB",
        "BYTES",
        check=checks.readable(read_bytes),
    )
    step_flops: float | str | None = setting(
        None,
        "the most that the convolutions of a step may count, as in 250M or 1.5G",
        "N",
        check=checks.readable(read_count),
    )
    r: Sequence[int] = setting(
        (2, 4, 7),
        "patch edges to choose from; default: 2,4,7",
        "R,R,...",
        Form.LISTED,
        readers.edges,
        checks.check_edge,
    )
    sparse: Sequence[float] = setting(
        (0.25,),
        "shares of input channels to choose from, beside all of them; none: no such updates; default: 0.25",
        "S,S,...",
        Form.LISTED,
        readers.shares,
        checks.check_part,
    )


@dataclass(frozen=True, kw_only=True)
class Planning(Tuned, Machine, Training, Which, Budget):
    """What `plan` is told."""


FREEZE, EXACT, FILTER = "freeze", "exact", "filter"


@dataclass(frozen=True)
class Choice(Group):
    """A layer's line in plan.toml: what is done with it."""

    do: str = setting(
        FREEZE,
        "freeze: not trained; exact: trained with exact gradients; filter: with gradients averaged over patches",
        "WAY",
        check=checks.one_of(FREEZE, EXACT, FILTER),
    )
    r: int | None = setting(
        None, "of a filtered layer: the patches' edge in output pixels, as in r = 2", "R", check=checks.check_plan_edge
    )
    sparse: float | None = setting(
        None,
        "of a trained convolution: the share of its input channels that a step draws and updates, as in sparse = 0.25",
        "SHARE",
        check=checks.check_plan_share,
    )

    def __str__(self) -> str:
        way = f"r={self.r}" if self.do == FILTER else self.do
        return way if self.sparse is None else f"{way} sparse {self.sparse:g}"

    @property
    def trains(self) -> bool:
        """Whether anything of the layer is updated."""
        return self.do != FREEZE
