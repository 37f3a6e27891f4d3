"""Inputs, outputs and state of a step, by name: one list that the manifest prints and the library carries."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import fx

from gfcompile.geometry.channel_draws import Draw
from gfcompile.geometry.layouts import WeightLayout
from gfcompile.step import DOORS, Role, Step, Value

WHEN = {"step": "GF_DRAWN_EACH_STEP", "epoch": "GF_DRAWN_EACH_EPOCH"}  # other strategies draw once


@dataclass(frozen=True)
class Entry:
    """A tensor at the library's door or in its state. `shape` is logical; `layout` says how the library keeps it.

    Constants are kept as they are.
    """

    role: Role
    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: WeightLayout | None = None

    @property
    def bytes(self) -> int:
        """Its size in memory."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def as_mapping(self) -> dict[str, Any]:
        """The entry as a manifest has it, the layout aside."""
        return {"name": self.name, "role": str(self.role), "shape": list(self.shape), "dtype": self.dtype}

    def with_layout(self) -> dict[str, Any]:
        """The entry of a state tensor as a manifest has it."""
        layout = self.layout
        kept = None if layout is None else {"shape": list(layout.split_shape), "permute": list(layout.order)}
        return {**self.as_mapping(), "layout": kept}


@dataclass(frozen=True)
class About:
    """What the library says of itself: gf_about of gf_step.h, and what its checkpoints must have in common with it."""

    name: str = ""
    target: str = ""
    version: str = ""
    loss: str = ""
    lr: float = 0.0
    batch: int = 0
    pads: bool = False
    classes: int | None = None
    ignored: int | None = None
    compatible: str = ""
    frozen: str = ""


@dataclass(frozen=True)
class Drawn:
    """What is drawn for an input of role "channels"; `always` these instead, if there are any."""

    draw: Draw
    always: tuple[int, ...] = ()


@dataclass(frozen=True)
class Description:
    """Each list in the order in which the C functions take it; `draws` in that of the inputs they are for."""

    state: tuple[Entry, ...]
    inputs: tuple[Entry, ...]
    outputs: tuple[Entry, ...] = ()
    gradients: tuple[Entry, ...] = ()
    features: tuple[Entry, ...] = ()
    about: About = About()
    draws: tuple[Drawn, ...] = ()
    strategy: str = "step"

    @property
    def doors(self) -> list[Value]:
        """The caller's arrays by role: the model's inputs, or features, first; then what predict lacks."""
        values = [Value(entry.role, entry.name) for entry in (*self.inputs, *self.features)]
        return sorted(values, key=lambda value: DOORS.index(value.role))


def describe(
    steps: Mapping[str, Step],
    state: Sequence[Entry],
    about: About | None = None,
    draws: Mapping[str, Drawn] | None = None,
    strategy: str = "step",
) -> Description:
    """The description of a library with these programs; `draws` by layer."""
    about = about or About()
    parameters = {entry.name: entry for entry in state if entry.role is Role.PARAMETER}
    whole = next(steps[name] for name in ("train", "gradients", "predict") if name in steps)
    doors = [
        _entry(value, node)
        for value, node in zip(whole.inputs, whole.placeholders(), strict=True)
        if value.role in DOORS
    ]
    gradients = []
    for value in steps["gradients"].outputs if "gradients" in steps else ():
        if value.role is Role.GRADIENT:
            kept = parameters[value.name]
            gradients.append(Entry(value.role, value.name, kept.shape, kept.dtype, kept.layout))
    inputs = sorted(doors, key=lambda entry: DOORS.index(entry.role))
    return Description(
        tuple(state),
        tuple(inputs),
        tuple(_results(steps.get("predict"))),
        tuple(gradients),
        tuple(_by_sample(entry, about.batch) for entry in _results(steps.get("features"))),
        about,
        tuple((draws or {})[entry.name] for entry in inputs if entry.role is Role.CHANNELS),
        strategy,
    )


def _results(step: Step | None) -> list[Entry]:
    if step is None:
        return []
    return [_entry(value, node) for value, node in zip(step.outputs, step.results(), strict=True)]


def _entry(value: Value, node: fx.Node) -> Entry:
    tensor = node.meta["val"]
    return Entry(value.role, value.name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def _by_sample(entry: Entry, batch: int) -> Entry:
    """A feature with the batch as its first axis."""
    rows = entry.shape[1:] if entry.shape[0] == batch else (math.prod(entry.shape) // batch,)
    return Entry(entry.role, entry.name, (batch, *rows), entry.dtype)


def write_tables(description: Description) -> str:
    """The description as the constants that gf_program.h declares."""
    kinds = {
        "state": description.state,
        "input": description.inputs,
        "output": description.outputs,
        "gradient": description.gradients,
        "feature": description.features,
    }
    tables = [_table(kind, entries) for kind, entries in kinds.items()]
    return "\n".join([*tables, _draws(description), _about(description.about)])


def _draws(description: Description) -> str:
    when = WHEN.get(description.strategy, "GF_DRAWN_ONCE")
    if not description.draws:
        return "const gf_program_draws_t gf_program_draws = {0, 0, GF_DRAWN_EACH_STEP};"
    rows = []
    for drawn in description.draws:
        draw = drawn.draw
        fields = (draw.sets, draw.candidates, draw.chosen, draw.width, _numbers("int32_t", drawn.always))
        rows.append(f"  {{{', '.join(map(str, fields))}}},")
    table = "\n".join(["static const gf_draw draw_table[] = {", *rows, "};"])
    return f"{table}\nconst gf_program_draws_t gf_program_draws = {{draw_table, {len(rows)}, {when}}};"


def _about(about: About) -> str:
    fields = [
        *(_text(text) for text in (about.name, about.target, about.version, about.loss)),
        f"{np.float32(about.lr).item().hex()}f",
        *(str(int(number)) for number in (about.batch, about.pads, about.classes or 0, about.ignored is not None)),
        str(about.ignored or 0),
    ]
    return (
        f"const gf_about gf_program_about = {{{', '.join(fields)}}};\n"
        f'const char gf_program_compatible[] = "{about.compatible}", gf_program_frozen[] = "{about.frozen}";'
    )


def _table(kind: str, entries: Sequence[Entry]) -> str:
    if not entries:
        return f"const gf_values gf_{kind}_values = {{0, 0}};"
    rows = ",\n".join(f"  {_row(entry)}" for entry in entries)
    table = f"static const gf_value {kind}_table[] = {{\n{rows},\n}};"
    return f"{table}\nconst gf_values gf_{kind}_values = {{{kind}_table, {len(entries)}}};"


def _row(entry: Entry) -> str:
    shape = (len(entry.shape), _numbers("int64_t", entry.shape))
    layout = (0, "0", "0")
    if entry.layout is not None:
        split, order = entry.layout.split_shape, entry.layout.order
        layout = (len(split), _numbers("int64_t", split), _numbers("int", order))
    fields = (_text(entry.name), _text(entry.role), f"GF_{entry.dtype.upper()}", *shape, *layout, entry.bytes)
    return f"{{{', '.join(map(str, fields))}}}"


def _numbers(kind: str, values: Sequence[int]) -> str:
    return f"(const {kind}[]){{{', '.join(map(str, values))}}}" if values else "0"


def _text(text: str) -> str:
    """A C literal: letters as UTF-8 octets, so that neither escapes nor trigraphs are read into a name."""
    plain = all(letter.isalnum() or letter in "._-/ " for letter in text) and text.isascii()
    return json.dumps(text) if plain else '"' + "".join(f"\\{octet:03o}" for octet in text.encode()) + '"'
