"""Keep masks in their smallest form: one byte a patch, or one bit a pixel.

    where(le, 0, g)                       ==>  where(gf.unpack_mask(gf.pack_mask(le)), 0, g)
    gf.mask_count([a, b], ...)            ==>  gf.packed_mask_count([gf.pack_mask(a), gf.pack_mask(b)], ...)

Exact. The first where a mask is read pixel by pixel and the tensor it comes from need not be kept; the second where the
bits of the masks take fewer bytes than their counts (small patches, and products of masks after residual joins, which
share the bits but not the counts).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import fx

from gfcompile.graph.crossing import Crossing
from gfcompile.graph.nodes import emit
from gfcompile.graph.shapes import shape_of
from gfcompile.ops import gf
from gfcompile.passes.base import Found, Pass, Site
from gfcompile.step import Step

COUNT = gf.mask_count.default


@dataclass(frozen=True)
class ReadMask(Site):
    """A mask, the gradients that read it, and the first of them."""

    readers: tuple[fx.Node, ...]
    first: fx.Node


@dataclass(frozen=True)
class PackMasks(Pass[Site]):
    """Sites are masks that gradients read, and counts that are dearer than bits."""

    name: ClassVar[str] = "pack_masks"

    def find(self, step: Step) -> Found[Site]:
        crossing = Crossing(step)
        read = _read_masks(crossing)
        for mask in read:
            readers = tuple(user for user in mask.users if user in crossing.gradients)
            yield ReadMask(mask, readers, min(readers, key=crossing.position.__getitem__))
        for counts, masks in _families(step):
            if len({shape_of(mask) for mask in masks}) == 1:
                bits = sum(_packed_bytes(mask) for mask in masks if mask not in read)
                if bits < sum(_bytes(count) for count in counts):
                    yield from map(Site, counts)

    def rewrite(self, step: Step, site: Site) -> None:
        if isinstance(site, ReadMask):
            self._read_bits(step.body.graph, site)
        else:
            self._count_bits(step.body.graph, site.node)

    def _count_bits(self, graph: fx.Graph, count: fx.Node) -> None:
        masks, wanted, rows, cols = count.args
        with graph.inserting_before(count):
            bits = [_packed(graph, mask) for mask in masks]
            packed = emit(graph, gf.packed_mask_count.default, bits, wanted, list(shape_of(masks[0])), rows, cols)
        count.replace_all_uses_with(packed)
        graph.erase_node(count)

    def _read_bits(self, graph: fx.Graph, site: ReadMask) -> None:
        with graph.inserting_after(site.node):
            bits = _packed(graph, site.node)
        with graph.inserting_before(site.first):
            unpacked = emit(graph, gf.unpack_mask.default, bits, list(shape_of(site.node)))
        for reader in site.readers:
            reader.replace_input_with(site.node, unpacked)


def _read_masks(crossing: Crossing) -> dict[fx.Node, None]:
    """Masks of whole maps that gradients read and whose sources nothing else keeps, in order."""
    sources = {
        node: crossing.sources(node)
        for node in crossing.forward_work
        if _is_map_mask(node) and any(user in crossing.gradients for user in node.users)
    }
    masks = set(sources)
    while True:
        kept = crossing.kept(masks)
        stay = {mask for mask in masks if not kept.isdisjoint(sources[mask])}
        if not stay:
            return {mask: None for mask in sources if mask in masks}
        masks -= stay


def _is_map_mask(node: fx.Node) -> bool:
    value = node.meta.get("val")
    is_boolean = isinstance(value, torch.Tensor) and value.dtype is torch.bool and value.dim() == 4
    return is_boolean and node.target is not gf.unpack_mask.default


def _families(step: Step) -> list[tuple[list[fx.Node], list[fx.Node]]]:
    """Counts that share masks, with their masks: bits pay for a whole family or not at all."""
    families: dict[int, tuple[list[fx.Node], list[fx.Node]]] = {}
    family_of: dict[fx.Node, int] = {}  # mask -> its family
    for number, node in enumerate(step.body.graph.find_nodes(op="call_function", target=COUNT)):
        counts, masks = [node], list(node.args[0])
        for other in sorted({family_of[mask] for mask in masks if mask in family_of}):
            its_counts, its_masks = families.pop(other)
            counts, masks = [*its_counts, *counts], list(dict.fromkeys([*its_masks, *masks]))
        families[number] = counts, masks
        family_of.update(dict.fromkeys(masks, number))
    return list(families.values())


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
