"""Keep masks in their smallest form: one byte a patch, or one bit a pixel.

    where(le, 0, g)                       ==>  where(gf.unpack_mask(gf.pack_mask(le)), 0, g)
    gf.mask_count([a, b], ...)            ==>  gf.packed_mask_count([gf.pack_mask(a), gf.pack_mask(b)], ...)

Exact. The first where a mask is read pixel by pixel and the tensor it comes from need not be kept; the second where the
bits of the masks take fewer bytes than their counts (small patches, and products of masks behind residual joins, which
share the bits but not the counts).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import fx

from gfcompile.graph.crossing import Crossing
from gfcompile.graph.nodes import emit
from gfcompile.graph.shapes import shape_of
from gfcompile.ops import gf
from gfcompile.passes.base import Found, Pass
from gfcompile.step import Step

COUNT = gf.mask_count.default


class PackMasks(Pass):
    """Sites are masks that gradients read, and counts that are dearer than bits."""

    name: ClassVar[str] = "pack_masks"

    def find(self, step: Step) -> Found:
        crossing = Crossing(step)
        read = _read_masks(crossing)
        yield from read
        for counts, masks in _families(step):
            if len({shape_of(mask) for mask in masks}) == 1:
                bits = sum(_packed_bytes(mask) for mask in masks if mask not in read)
                if bits < sum(_bytes(count) for count in counts):
                    yield from counts

    def rewrite(self, step: Step, site: fx.Node) -> None:
        self.rewrite_all(step, [site])

    def rewrite_all(self, step: Step, sites: list[fx.Node]) -> None:
        crossing = Crossing(step)  # what is new depends on no gradient, so it holds for all sites
        for site in sites:
            if site.target is COUNT:
                self._count_bits(step.body.graph, site)
            else:
                self._read_bits(step.body.graph, crossing, site)

    def _count_bits(self, graph: fx.Graph, count: fx.Node) -> None:
        masks, wanted, rows, cols = count.args
        with graph.inserting_before(count):
            bits = [_packed(graph, mask) for mask in masks]
            packed = emit(graph, gf.packed_mask_count.default, bits, wanted, list(shape_of(masks[0])), rows, cols)
        count.replace_all_uses_with(packed)
        graph.erase_node(count)

    def _read_bits(self, graph: fx.Graph, crossing: Crossing, mask: fx.Node) -> None:
        readers = [user for user in mask.users if user in crossing.gradients]
        with graph.inserting_after(mask):
            bits = _packed(graph, mask)
        with graph.inserting_before(min(readers, key=crossing.position.__getitem__)):
            unpacked = emit(graph, gf.unpack_mask.default, bits, list(shape_of(mask)))
        for reader in readers:
            reader.replace_input_with(mask, unpacked)


def _read_masks(crossing: Crossing) -> list[fx.Node]:
    """Masks of whole maps that gradients read and whose sources nothing else keeps."""
    masks = {
        node
        for node in crossing.forward_work
        if _is_map_mask(node) and any(user in crossing.gradients for user in node.users)
    }
    while stay := {mask for mask in masks if any(crossing.is_kept(source, masks) for source in crossing.sources(mask))}:
        masks -= stay
    return sorted(masks, key=crossing.position.__getitem__)


def _is_map_mask(node: fx.Node) -> bool:
    value = node.meta.get("val")
    is_boolean = isinstance(value, torch.Tensor) and value.dtype is torch.bool and value.dim() == 4
    return is_boolean and node.target is not gf.unpack_mask.default


def _families(step: Step) -> list[tuple[list[fx.Node], list[fx.Node]]]:
    """Counts that share masks, with their masks: bits pay for a whole family or not at all."""
    families: list[tuple[list[fx.Node], list[fx.Node]]] = []
    for node in step.body.graph.nodes:
        if node.target is not COUNT:
            continue
        counts, masks = [node], list(node.args[0])
        for family in [family for family in families if set(family[1]) & set(masks)]:
            families.remove(family)
            counts, masks = [*family[0], *counts], list(dict.fromkeys([*family[1], *masks]))
        families.append((counts, masks))
    return families


def _packed(graph: fx.Graph, mask: fx.Node) -> fx.Node:
    """The mask's bits, made once."""
    known = next((user for user in mask.users if user.target is gf.pack_mask.default), None)
    if known is not None:
        return known
    with graph.inserting_after(mask):
        return emit(graph, gf.pack_mask.default, mask)


def _bytes(node: fx.Node) -> int:
    value = node.meta["val"]
    return int(value.numel()) * int(value.element_size())


def _packed_bytes(mask: fx.Node) -> int:
    return -(-int(mask.meta["val"].numel()) // 8)
