"""Every tensor that crosses from forward to backward: whose it is, why it is kept, what would remove it."""

from __future__ import annotations

import operator

import torch
from torch import fx

from gfcompile.graph.crossing import Crossing
from gfcompile.graph.nodes import operator_name
from gfcompile.graph.ownership import layer_of
from gfcompile.graph.shapes import shape_of
from gfcompile.ops import gf
from gfcompile.report.memory_schema import Kept
from gfcompile.step import Role, Step

aten = torch.ops.aten
STATE_OUTPUTS = (Role.PARAMETER, Role.GRADIENT)
WEIGHT_GRADIENTS = {
    gf.channel_mix_weight_nhwc.default: 1,
    gf.conv2d_weight_grad_nhwc.default: 1,
    aten.mm.default: 1,
}  # where the forward operand stands
PROPAGATION = {gf.scale_by_area.default, gf.channel_mix_nhwc.default, gf.conv2d_input_grad_nhwc.default}
EXACT_INPUT = "its input, which its exact weight gradient reads"
LARGER_PATCH = "a larger patch (--r {layer}=R), or freezing {layer}"


def kept_tensors(step: Step) -> list[Kept]:
    """Of a training step after all passes, the largest first."""
    crossing = Crossing(step)
    explain = _Explanation(step, crossing)
    rows = [explain(node) for node in crossing.saved()]
    return sorted(rows, key=lambda row: (-row.bytes, row.node))


class _Explanation:
    def __init__(self, step: Step, crossing: Crossing) -> None:
        self.step, self.crossing = step, crossing
        self.outputs = {
            node: value.name.rpartition(".")[0]
            for node, value in zip(step.results(), step.outputs, strict=True)
            if value.role in STATE_OUTPUTS
        }
        readers = [user for node in step.placeholders() for user in node.users if self._is_weight(node)]
        ahead = [crossing.position[user] for user in readers if not crossing.is_behind(user)]
        self.last_layer = max(ahead, default=0)

    def _is_weight(self, node: fx.Node) -> bool:
        return self.step.inputs[self.crossing.position[node]].role in (Role.PARAMETER, Role.CONSTANT)

    def __call__(self, node: fx.Node) -> Kept:
        kind, layer, why, remedy = self._reason(node)
        value = node.meta["val"]
        size = int(value.numel()) * int(value.element_size())
        dtype = str(value.dtype).removeprefix("torch.")
        return Kept(node.name, layer, kind, shape_of(node), dtype, size, why, remedy.format(layer=layer))

    def _reason(self, node: fx.Node) -> tuple[str, str, str, str]:
        readers = [user for user in node.users if self.crossing.is_behind(user)]
        origin = node.args[0] if node.target is aten.mul.Scalar else node
        weight_gradients = [r for r in readers if WEIGHT_GRADIENTS.get(r.target) == _position(r, node)]
        trained = next(filter(None, (self._trained_by(reader) for reader in weight_gradients)), None)
        if origin.target is gf.patch_sum.default:
            if trained:
                return "x_tilde", trained, "x̃, the patch sums of its input, for its weight gradient", LARGER_PATCH
            return "statistic", self._above(node), *self._statistic(readers)
        if node.target is gf.mask_count.default:
            why = "pixels of each patch that pass its activation: the gradient's mask"
            return "mask", self._above(node), why, "a larger patch in the layer after it, or freezing {layer}"
        if node.target is gf.pack_mask.default:
            return "mask", self._above(node), *self._bits(readers)
        if trained:
            drawn = "the drawn channels of " if node.target is gf.take_channels.default else ""
            why = f"{drawn}{EXACT_INPUT}"
            return "activation", trained, why, "freezing {layer}, or filtering it where it is a convolution"
        return self._other(node, readers)

    def _statistic(self, readers: list[fx.Node]) -> tuple[str, str]:
        affine = next(filter(None, (self._trained_by(reader) for reader in readers)), None)
        if affine:
            return f"patch sums of a map that the gradients of {affine} are summed over", f"not training {affine}"
        why = "patch sums of an activation's derivative or of a normalised map, which the gradient is multiplied with"
        return why, "a larger patch in the layer after it; ReLU keeps bits instead; --batchnorm eval"

    def _bits(self, readers: list[fx.Node]) -> tuple[str, str]:
        if any(reader.target is gf.unpack_mask.default for reader in readers):
            why = "its activation's mask, one bit per pixel: the gradient is needed at full resolution here"
            return why, "what removes the full-resolution gradient (listed below)"
        return "its activation's mask, one bit per pixel: fewer bytes than counts", "freezing {layer}"

    def _other(self, node: fx.Node, readers: list[fx.Node]) -> tuple[str, str, str, str]:
        if self.crossing.position[node] > self.last_layer:
            return "loss", "loss", "the gradient of the loss reads it", "nothing: it is small"
        if node.target is operator.getitem and not node.meta["val"].is_floating_point():
            return (
                "activation",
                self._above(node),
                "where a max pool found its maxima",
                "training layers after it only",
            )
        if len(shape_of(node)) < 2:
            why = "a statistic of the batch, one number per channel, for the gradient through batch norm"
            return "statistic", self._above(node), why, "--batchnorm eval"
        names = sorted({operator_name(reader) for reader in readers})
        return "activation", self._above(node), f"{', '.join(names)} reads it pixel by pixel", "freezing {layer}"

    def _trained_by(self, node: fx.Node) -> str | None:
        """The layer whose parameter a node's result becomes, before it enters the gradient of another layer."""
        seen, level = {node}, [node]
        while level:
            for each in level:
                if each in self.outputs:
                    return self.outputs[each]
            users = [user for each in level for user in each.users if user.op == "call_function"]
            level = [user for user in users if user not in seen and user.target not in PROPAGATION]
            seen.update(level)
        return None

    def _above(self, node: fx.Node) -> str:
        """The layer whose parameter is read soonest above the node."""
        seen, level = set[fx.Node](), [node]
        while level:
            above = [arg for each in level for arg in each.all_input_nodes if arg not in seen]
            seen.update(above)
            for arg in above:
                layer = layer_of(self.step, arg) if arg.op == "placeholder" else None
                if layer:
                    return layer
            level = above
        return "the frozen part"


def _position(reader: fx.Node, node: fx.Node) -> int | None:
    return reader.args.index(node) if node in reader.args else None
