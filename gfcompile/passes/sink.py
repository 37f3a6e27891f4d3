"""Sink patch means and sums through the gradient until they meet patch values (docs/method.md, section 3).

    where_1 = where(le, 0, gf.patch_broadcast(q)) ; g = gf.patch_mean(where_1 * scale)
      ==>  g = gf.scale_by_area(q * scale * gf.mask_count([le], [False]), 1/area)
    sum(where_1, [0, 2, 3])
      ==>  sum(q * gf.mask_count([le], [False]), [0, 2, 3])

Exact up to float rounding. Walks the backward pass once, holding every full-resolution gradient as a linear form
(linear_forms.py), and evaluates the forms where a mean or a sum reads them; what nobody reads any more dies. A
gradient that something else must read pixel by pixel (an exact convolution, a max pool) stays, with the reason in the
log.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import fx

from gfcompile.geometry.grids import Grid
from gfcompile.graph.crossing import Crossing
from gfcompile.graph.inputs import Inputs
from gfcompile.graph.nodes import operator_name
from gfcompile.graph.ownership import layer_of
from gfcompile.graph.shapes import shape_of
from gfcompile.ops import gf
from gfcompile.passes.base import Found, Pass, Site
from gfcompile.passes.gradient_rules import GENERATORS, RULES, is_zero
from gfcompile.passes.linear_forms import Algebra, Form, Shape, Writer
from gfcompile.passes.patch_values import Evaluation, why_not
from gfcompile.step import Materialised, Step

aten = torch.ops.aten
MOST_TERMS = 8  # after so many residual joins one full-resolution gradient costs less than its expansion
JOINS = "it is combined with a gradient that exists at full resolution"


@dataclass(frozen=True)
class Sunk(Site):
    """A patch mean (on `grid`) or a sum (over `axes`), the form of what it reads, and what evaluates the forms."""

    form: Form
    grid: Grid | None
    axes: list[int] | None
    evaluation: Evaluation = field(repr=False)


@dataclass(frozen=True)
class Sink(Pass[Sunk]):
    """Sites are the sinks (patch means, spatial sums) of the backward pass.

    To read a form is to write the nodes of its values: `find` leaves these in the graph, read by nobody, and what no
    site takes up is removed after the last one.
    """

    name: ClassVar[str] = "sink"

    def find(self, step: Step) -> Found[Sunk]:
        forced: dict[fx.Node, str] = {}
        while True:
            walk = Walk(step, forced)
            walk.read()
            found = walk.read_by_pixel()
            if found.keys() <= forced.keys():
                break
            forced = found | forced
            walk.write.discard()
        walk.write.forget()
        sites = walk.sinks()
        yield from sites
        yield from walk.materialised(sites)

    def rewrite(self, step: Step, site: Sunk) -> None:
        node, evaluation = site.node, site.evaluation
        evaluation.write.at(node)
        if site.grid is not None:
            value = evaluation.mean(site.form, site.grid)
        else:
            assert site.axes is not None
            value = evaluation.total(site.form, site.axes, bool(node.args[2]) if len(node.args) > 2 else False)
        node.replace_all_uses_with(value)

    def rewrite_all(self, step: Step, sites: list[Sunk]) -> None:
        super().rewrite_all(step, sites)
        step.body.graph.eliminate_dead_code()


@dataclass
class Walk:
    """One reading of the backward pass; `forced` are gradients that must exist, each with its reason."""

    step: Step
    forced: dict[fx.Node, str]
    forms: dict[fx.Node, Form] = field(default_factory=dict)
    derived: set[fx.Node] = field(default_factory=set)
    pooled: dict[fx.Node, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.write = Writer(self.step.body.graph)
        self.algebra = Algebra(self.write)
        self.nodes = list(Crossing(self.step).gradients)
        self.gradients = set(self.nodes)
        self.readers = {node: list(node.users) for node in self.nodes}
        self.no_maps: set[fx.Node] = set()
        self.inputs = Inputs(self.step)

    def read(self) -> None:
        """Give every full-resolution gradient its form."""
        for node in self.nodes:
            if self._is_no_map(node) or not _is_map(node):
                continue
            self.write.at(node)
            rule = RULES.get(node.target)
            form = rule(self, node) if rule else None
            if form is not None and form.shape != shape_of(node):
                form = None  # an operand was broadcast over channels or samples
            if form is not None:
                self.derived.add(node)
            if form is None or (node in self.forced and not form.is_plain):
                form = self.algebra.opaque(node)
            self.forms[node] = form

    def _is_no_map(self, node: fx.Node) -> bool:
        """Patch values and weight gradients, and what is made of them alone."""
        operands = [arg for arg in node.all_input_nodes if arg in self.no_maps or arg in self.forms]
        if (
            node.target in (gf.patch_mean.default, gf.channel_mix_weight.default)
            or (node.target is operator.getitem and node.args[1] != 0)
            or (
                node.target is not gf.patch_broadcast.default
                and operands
                and all(arg in self.no_maps for arg in operands)
            )
        ):
            self.no_maps.add(node)
        return node in self.no_maps

    def form_of(self, arg: Any, shape: Shape) -> Form | None:
        """An operand as a form: a gradient map, a zero, or what is constant over the map."""
        if isinstance(arg, fx.Node) and arg in self.forms:
            return self.forms[arg]
        if is_zero(arg):
            return Form((), shape)
        constant = self.constant(arg)
        if constant is None:
            return None
        return self.algebra.spread(constant, Grid.whole((shape[2], shape[3])), shape)

    def constant(self, arg: Any) -> fx.Node | None:
        """An operand that is the same for every pixel, as [N or 1, C or 1, 1, 1]."""
        if not isinstance(arg, fx.Node):
            return None
        while arg.target is aten.expand.default and arg not in self.forms:
            arg = arg.args[0]
        shape = shape_of(arg)
        if len(shape) > 4 or any(size != 1 for size in shape[-2:]):
            return None
        return arg if len(shape) == 4 else self.write(aten.reshape.default, arg, [1] * (4 - len(shape)) + list(shape))

    def is_field(self, arg: Any, shape: Shape) -> bool:
        """A forward map of the same size."""
        return (
            isinstance(arg, fx.Node) and arg not in self.gradients and _is_map(arg) and shape_of(arg)[2:] == shape[2:]
        )

    def read_by_pixel(self) -> dict[fx.Node, str]:
        """Gradients that must exist at full resolution, and why: read by something that has no form, or cheaper so."""
        found: dict[fx.Node, str] = {}
        for node, form in self.forms.items():
            if len(form.terms) > MOST_TERMS:
                found[node] = f"its expansion has more than {MOST_TERMS} terms: after so many joins it is dearer"
            for reader in self.readers[node]:
                reason = None if reader in self.derived else self._why_read(node, reader) or _why_dear(form, reader)
                if reason:
                    found.setdefault(node, reason)
        found = self.pooled | found
        for node in reversed(self.nodes):
            if node in found and node.target not in GENERATORS:
                for arg in node.all_input_nodes:
                    if arg in self.forms:
                        found.setdefault(arg, found[node])
        return found

    def _why_read(self, node: fx.Node, reader: fx.Node) -> str | None:
        if reader.target is gf.patch_mean.default:
            return why_not(self.forms[node], Grid.of(reader.args[1], reader.args[2], self.forms[node].size))
        if _summed_axes(reader) is not None:
            return None
        if reader.target in RULES and any(
            self.forms[arg].has_pixels for arg in reader.all_input_nodes if arg in self.forms
        ):
            return JOINS
        return self._why_exact(reader)

    def _why_exact(self, reader: fx.Node) -> str:
        if reader.target is gf.take_channels.default:
            reader = next(iter(reader.users))
        if reader.target is aten.convolution_backward.default:
            layer = layer_of(self.step, reader.args[2], self.inputs) or "a convolution"
            if reader.args[-1][1]:
                return f"{layer} is trained exactly: its weight gradient reads every pixel"
            return f"the gradient passes through frozen {layer} exactly; --train {layer} filters it"
        return f"{operator_name(reader)} reads it pixel by pixel"

    def sinks(self) -> list[Sunk]:
        """Every sink whose operand is more than a tensor."""
        evaluation = Evaluation(self.algebra)
        found = []
        for node in self.nodes:
            source = node.args[0] if node.args else None
            form = self.forms.get(source) if isinstance(source, fx.Node) else None
            if form is None or (form.has_pixels and len(form.terms) == 1):
                continue
            axes = _summed_axes(node)
            if node.target is gf.patch_mean.default:
                grid = Grid.of(node.args[1], node.args[2], form.size)
                if why_not(form, grid) is None:  # or else its operand is among those that must exist
                    found.append(Sunk(node, form, grid, None, evaluation))
            elif axes is not None:
                found.append(Sunk(node, form, None, axes, evaluation))
        return found

    def materialised(self, sites: list[Sunk]) -> list[Materialised]:
        """The full-resolution gradients that will be there once these are rewritten: what outputs are still made of."""
        reads = {
            site.node: [arg for term in site.form.terms for arg in (term.value, *term.field.factors)] for site in sites
        }
        alive = set(self.step.results())
        waiting = list(alive)
        while waiting:
            node = waiting.pop()
            new = [arg for arg in reads.get(node, node.all_input_nodes) if arg not in alive]
            alive.update(new)
            waiting += new
        return [
            Materialised(node.name, shape_of(node), self.forced.get(node) or self._born(node))
            for node in self.forms
            if node in alive
        ]

    def _born(self, node: fx.Node) -> str:
        if any(arg in self.forms for arg in node.all_input_nodes):
            return JOINS
        source = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else node
        if source.target is aten.convolution_backward.default:
            layer = layer_of(self.step, source.args[2], self.inputs) or "a convolution"
            return f"{layer} computes its input gradient exactly"
        return f"{operator_name(node)} computes it at full resolution"


def _is_map(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dim() == 4 and value.shape[2] * value.shape[3] > 1


def _summed_axes(node: fx.Node) -> list[int] | None:
    """The axes of a sum over whole maps."""
    if node.target is not aten.sum.dim_IntList or len(shape_of(node.args[0])) != 4:
        return None
    axes = sorted(int(axis) % 4 for axis in node.args[1]) or [0, 1, 2, 3]
    return axes if {2, 3} <= set(axes) else None


def _why_dear(form: Form, reader: fx.Node) -> str | None:
    """Why the map costs fewer bytes kept whole than its statistics do, if so; masks cost bits either way."""
    grid = Grid.of(reader.args[1], reader.args[2], form.size) if reader.target is gf.patch_mean.default else None
    floats = [term for term in form.terms if term.field.tensor is not None]
    patches = sum(max(math.prod(each.counts) for each in (term.grid, grid or term.grid)) for term in floats)
    if patches <= len({term.field.tensor for term in floats}) * math.prod(form.size):
        return None
    return f"its {len(floats)} statistics would take more bytes than the map they are of"
