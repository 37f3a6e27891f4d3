"""One pass over an exported program against PyTorch's own three, and what a forward pass may not change."""

import copy

import pytest
import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.exported_program import _decompose_exported_program
from torch.utils.checkpoint import checkpoint

from gfcompile.errors import UserError
from gfcompile.frontend.decompositions import decompositions
from gfcompile.frontend.dialect import ASSERTIONS
from gfcompile.frontend.differentiate import CoreProgram, differentiate, flatten
from tests.passes.nets import SHAPE, Residual, SqueezeExcite, conv, plain, with_head


class InPlace(nn.Module):
    """Values changed under views of them, a buffer that is rolled, and a window of it that is overwritten."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv(3, 4)
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        left = y.transpose(2, 3)[:, :1, :4]
        left += 1
        y[:, :3].mul_(2).relu_()
        self.seen[1:].copy_(y.detach().mean((0, 2, 3))[:3])
        self.steps += 1
        return y * (1 + self.seen.view(4, 1, 1))


class Attention(nn.Module):
    """Products that PyTorch takes apart in one way or another, by what they are differentiated for."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.flatten(2).transpose(1, 2)
        return self.attention(pixels, pixels, pixels)[0].transpose(1, 2).reshape(x.shape)


class Gated(torch.autograd.Function):
    """A function with a derivative of its own, which torch.export drops: what is left is that of its formula."""

    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        context.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:
        (x,) = context.saved_tensors
        return gradient * x.sigmoid()


class Guarded(nn.Module):
    """What says of itself whether it is differentiated, and how."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            mask = (x > 0).float() + x.sigmoid()
        with torch.autocast("cpu", enabled=False):
            x = x.float() * mask + x.detach()
        return checkpoint(torch.relu, Gated.apply(x), use_reentrant=False)


NETS = {
    "residual": lambda: with_head(conv(3), Residual(conv(), nn.ReLU(inplace=True), conv(bias=False))),
    "norms": lambda: with_head(plain(3), nn.BatchNorm2d(4), nn.Hardswish(inplace=True), conv(), nn.GroupNorm(2, 4)),
    "gates": lambda: with_head(conv(3), SqueezeExcite(), nn.MaxPool2d(3, 2, 1), conv(), nn.SiLU()),
    "in place": lambda: with_head(InPlace(), conv()),
    "attention": lambda: with_head(conv(3), Attention(), conv(groups=4)),
    "guarded": lambda: with_head(conv(3), Guarded(), conv()),
}
NOTHING = {"alias", "empty_permuted", "full_like"}  # where C++ takes operators apart, a one is a tensor of ones
TRAINED = {"all": lambda name: True, "the last": lambda name: not name.startswith("0.")}
Call = tuple[str, tuple[tuple[int, ...], ...]]


class WithLoss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor]:
        return (nn.functional.cross_entropy(self.model(x), y),)


def export(model: nn.Module) -> ExportedProgram:
    return torch.export.export(WithLoss(model), (torch.zeros(SHAPE), torch.zeros(2, dtype=torch.int64)), strict=False)


def by_pytorch(program: ExportedProgram, loss: int | None) -> ExportedProgram:
    return _decompose_exported_program(
        program,
        cia_to_decomp={},
        python_decomp_table=decompositions(),
        joint_loss_index=loss,
        decompose_custom_triton_ops=False,
    )


def calls(graph: fx.Graph) -> list[Call]:
    """Operators with the shapes that they give, sorted. PyTorch's graph has aliases too, and what nobody reads."""
    kept = copy.deepcopy(graph)
    kept.eliminate_dead_code()
    nodes = [node for node in kept.nodes if node.op == "call_function" and node.target not in ASSERTIONS]
    named = [(getattr(node.target, "_opname", "getitem"), shapes(node.meta["val"])) for node in nodes]
    return sorted(call for call in named if call[0] not in NOTHING)


def shapes(value: object) -> tuple[tuple[int, ...], ...]:
    values = value if isinstance(value, list | tuple) else [value]
    return tuple(tuple(part.shape) for part in values if isinstance(part, Tensor))


def outputs(program: ExportedProgram | CoreProgram) -> list[tuple[object, object]]:
    signature = program.signature if isinstance(program, CoreProgram) else program.graph_signature
    return [(spec.kind, spec.target) for spec in signature.output_specs]


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("trained", TRAINED)
def test_operators_are_those_of_pytorch(name: str, trained: str) -> None:
    torch.manual_seed(0)
    model = NETS[name]().train()
    for parameter, tensor in model.named_parameters():
        tensor.requires_grad_(TRAINED[trained](parameter))
    ours, theirs = differentiate(export(model)), by_pytorch(export(model), 0)
    assert outputs(ours) == outputs(theirs)
    assert calls(ours.graph) == calls(theirs.graph)


@pytest.mark.parametrize("name", NETS)
def test_prediction_is_that_of_pytorch(name: str) -> None:
    model = NETS[name]().eval()
    with torch.no_grad():
        ours, theirs = flatten(export(model)), by_pytorch(export(model), None)
    assert outputs(ours) == outputs(theirs)
    assert calls(ours.graph) == calls(theirs.graph)


def test_gradients_and_buffers_are_those_of_eager() -> None:
    torch.manual_seed(0)
    model, x, y = NETS["in place"]().train().double(), torch.randn(SHAPE).double(), torch.tensor([0, 1])
    program = differentiate(
        torch.export.export(WithLoss(model), (x, y), strict=False),
    )
    values = iter([x, y])
    inputs = [
        program.tensors[spec.target].clone() if spec.target else next(values) for spec in program.signature.input_specs
    ]
    found = dict(zip(outputs(program), fx.Interpreter(program.body).run(*inputs), strict=True))
    wrapped = WithLoss(model)
    (loss,) = wrapped(x, y)
    loss.backward()
    state = dict(wrapped.named_buffers()) | {name: tensor.grad for name, tensor in wrapped.named_parameters()}
    for (_, name), value in found.items():
        torch.testing.assert_close(value, loss.detach() if name is None else state[name], rtol=1e-12, atol=1e-12)
    assert len(found) == 1 + len(state)


class Changes(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(3, 1, 1), requires_grad=False), conv(3)
        self.constant, self.what = torch.ones(1), what

    def forward(self, x: Tensor) -> Tensor:
        {"scale": self.scale, "constant": self.constant, "x": x}[self.what].mul_(2)
        return self.head(x * self.scale * self.constant)


@pytest.mark.parametrize("what", ["scale", "constant"])
def test_what_is_no_buffer_may_not_change(what: str) -> None:
    program = torch.export.export(Changes(what), (torch.ones(SHAPE),), strict=False)
    with pytest.raises(UserError) as refused:
        flatten(program)
    assert str(refused.value) == f"model: its forward pass changes '{what}' in place; only buffers may change"


def test_a_batch_that_changes_is_read_as_it_becomes() -> None:
    program = flatten(torch.export.export(Changes("x"), (torch.ones(SHAPE),), strict=False))
    assert not {"mul_", "copy_"} & {target for target, _ in calls(program.graph)}
    assert [target for _, target in outputs(program)] == [None]


def test_a_loss_without_what_is_trained_is_refused() -> None:
    class Deaf(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heard, self.deaf = conv(3), conv(3)

        def forward(self, x: Tensor) -> Tensor:
            return self.heard(x).mean((2, 3)) + 0 * self.deaf(x).detach().sum()

    with pytest.raises(UserError, match="the loss does not depend on all that is to be trained"):
        differentiate(export(Deaf()))


def test_a_size_that_values_decide_is_refused() -> None:
    class Sparse(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[x > 0].sum()

    with pytest.raises(UserError) as refused:
        flatten(torch.export.export(Sparse(), (torch.ones(SHAPE),), strict=False))
    assert str(refused.value) == (
        "model: 'index' gives as much as values ask for, such as the places where a mask is true; every tensor of a"
        " step has its size: use torch.where"
    )


class Averages(nn.Module):
    """A buffer that is updated from what is differentiated, and an input that a parameter scales in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.scale = conv(3, 4), nn.Parameter(torch.full((3, 1, 1), 2.0))
        self.register_buffer("mean", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(self.scale)
        y = self.conv(x)
        self.mean.copy_(0.9 * self.mean + 0.1 * y.mean((0, 2, 3)))
        return (y - self.mean.view(1, -1, 1, 1)).relu().mean((2, 3))


def test_only_parameters_are_trained() -> None:
    torch.manual_seed(0)
    model, x, y = Averages().double(), torch.randn(SHAPE).double(), torch.tensor([0, 1])
    program = differentiate(torch.export.export(WithLoss(model), (x.clone(), y), strict=False))
    values = iter([x.clone(), y])
    inputs = [
        program.tensors[spec.target].clone() if spec.target else next(values) for spec in program.signature.input_specs
    ]
    found = dict(zip(outputs(program), fx.Interpreter(program.body).run(*inputs), strict=True))
    wrapped = WithLoss(model)
    (loss,) = wrapped(x.clone(), y)
    loss.backward()
    state = dict(wrapped.named_buffers()) | {name: tensor.grad for name, tensor in wrapped.named_parameters()}
    assert [name for _, name in found if name is not None] == ["model.mean", *dict(wrapped.named_parameters())]
    for (_, name), value in found.items():
        torch.testing.assert_close(value, loss.detach() if name is None else state[name].detach())


class Overlapping(nn.Module):
    def __init__(self, part: int) -> None:
        super().__init__()
        self.conv = conv(3, 4)
        self.register_buffer("whole", torch.ones(4))
        self.register_buffer("part", self.whole[:part] if part else self.whole)

    def forward(self, x: Tensor) -> Tensor:
        self.whole.add_(1)
        return self.conv(x) * self.part.sum()


def test_a_buffer_that_changes_with_another_is_refused() -> None:
    with pytest.raises(UserError) as refused:
        flatten(torch.export.export(Overlapping(2), (torch.ones(SHAPE),), strict=False))
    assert str(refused.value) == (
        "model: its forward pass changes 'whole', and 'part' lies in the same memory; give one of them a copy with"
        " .clone()"
    )
    assert outputs(flatten(torch.export.export(Overlapping(0), (torch.ones(SHAPE),), strict=False)))
