"""The example batch a model is traced with: its shape from the user, the file, or the first convolution."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from gfcompile.errors import UserError
from gfcompile.frontend.load import LoadedModel
from gfcompile.settings.words import option

GUESSED_BATCH, GUESSED_SIZE = 8, 224
LARGEST = 1 << 28  # values of an input that only the file asks for: a gigabyte


def example_input(
    loaded: LoadedModel, shape: str | tuple[int, ...] | None, batch: int | None
) -> tuple[tuple[Tensor, ...], str]:
    """Float32 batches with fixed random values, one per input, and the sentence that says where their shape comes from.

    `shape` may name several inputs, as in 8x3x224x224,8x10.
    """
    conv = _first_conv(loaded.module)
    if isinstance(shape, str) and "," in shape and all("x" in part for part in shape.lower().split(",")):
        several = [_parse_shape(part) for part in shape.split(",")]
        return _draw(
            several if batch is None else [(batch, *sizes[1:]) for sizes in several], f"from {option('input')}"
        )
    if shape is not None:
        sizes, source = _parse_shape(shape), f"from {option('input')}"
        if conv is not None:
            _check_channels(loaded, sizes, *conv)
    elif loaded.example_shape is not None:
        sizes, source = loaded.example_shape, f"from the example in {loaded.origin}"
    elif conv is not None:
        layer, channels = conv
        sizes = (GUESSED_BATCH, channels, GUESSED_SIZE, GUESSED_SIZE)
        guessed = f"{GUESSED_SIZE}x{GUESSED_SIZE}" + ("" if batch is not None else f", batch {GUESSED_BATCH}")
        source = f"a guess (channels of '{layer}', {guessed}); set it with --input NxCxHxW"
    else:
        raise UserError(
            f"{loaded.origin}: does not say the shape of its input; give it, as in {option('input', '8x3x224x224')}"
        )
    if shape is None and math.prod(sizes) > LARGEST:
        raise UserError(
            f"{loaded.origin}: wants an input of {_by_x(sizes)}, which is too large; give one with {option('input')}"
        )
    if batch is not None:
        if batch < 1:
            raise UserError(f"{option('batch')}: '{batch}' is not a batch size; use 1 or more")
        sizes, source = (batch, *sizes[1:]), f"batch from {option('batch')}, the rest {source}"
    return _draw([sizes], source)


def _draw(shapes: list[tuple[int, ...]], source: str) -> tuple[tuple[Tensor, ...], str]:
    generator = torch.Generator().manual_seed(0)
    values = tuple(torch.randn(sizes, generator=generator) for sizes in shapes)
    return values, f"input {' and '.join(map(_by_x, shapes))}: {source}"


def _parse_shape(shape: str | tuple[int, ...]) -> tuple[int, ...]:
    text = shape if isinstance(shape, str) else _by_x(shape)
    parts = text.lower().split("x")
    if len(parts) < 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise UserError(f"{option('input')}: '{text}' is not a shape; write sizes joined by x, as in 8x3x224x224")
    sizes = tuple(map(int, parts))
    if 0 in sizes:
        raise UserError(f"{option('input')}: '{text}' has a size of zero; every size must be 1 or more")
    return sizes


def _check_channels(loaded: LoadedModel, sizes: tuple[int, ...], layer: str, channels: int) -> None:
    if len(sizes) == 4 and sizes[1] == channels:
        return
    # the first convolution by name need not be the first to run, nor see the input as it is: let the model decide
    if _accepts(loaded.module, sizes):
        return
    if len(sizes) != 4:
        raise UserError(
            f"{option('input')}: '{_by_x(sizes)}' has {len(sizes)} sizes but '{layer}' is 2-D; write it as NxCxHxW"
        )
    fitting = _by_x((sizes[0], channels, *sizes[2:]))
    raise UserError(
        f"{option('input')}: '{_by_x(sizes)}' has {sizes[1]} channels but '{layer}' takes {channels}; use"
        f" {option('input', fitting)}"
    )


def _accepts(module: nn.Module, sizes: tuple[int, ...]) -> bool:
    """Whether the model runs on this shape, found without computing a value."""
    mode = FakeTensorMode()
    state = {name: mode.from_tensor(tensor) for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    with mode, torch.no_grad():
        try:
            torch.func.functional_call(module, state, (torch.empty(sizes),))
        except (RuntimeError, ValueError, AssertionError, IndexError, TypeError):
            return False  # what a layer says about a shape it cannot take
    return True


def _first_conv(module: nn.Module) -> tuple[str, int] | None:
    """Name and input channels of the first 2-D convolution; an exported program has them as nodes, not as modules."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Conv2d) and type(layer.in_channels) is int and layer.in_channels > 0:
            return name or type(layer).__name__, layer.in_channels
    if isinstance(module, torch.fx.GraphModule):
        for node in module.graph.nodes:
            if node.target is torch.ops.aten.conv2d.default and node.args[1].op == "get_attr":
                weight = module.get_parameter(node.args[1].target)  # [Co, Ci / groups, kH, kW]
                groups = node.args[6] if len(node.args) > 6 else 1
                return node.args[1].target.removesuffix(".weight"), weight.shape[1] * groups
    return None


def _by_x(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))
