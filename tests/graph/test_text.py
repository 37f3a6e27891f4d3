"""The text of a graph: what `print_graph` writes, `parse_graph` reads, and a pass finds there all that it needs."""

from __future__ import annotations

import contextlib
import operator
from textwrap import dedent
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gfcompile.errors import UserError
from gfcompile.frontend.losses import resolve_loss
from gfcompile.geometry.layouts import WeightLayout
from gfcompile.graph.text import Printer, print_graph
from gfcompile.graph.text_reader import MOST_DRAWN, parse_graph
from gfcompile.graph.text_shapes import Shapes
from gfcompile.job import Job
from gfcompile.optimizers import SGD, AdamW, Optimizer, RMSprop
from gfcompile.passes import pipeline
from gfcompile.passes.base import Pass
from gfcompile.passes.static_moves import StaticMoves
from gfcompile.settings.schema import Request
from gfcompile.stages import trace
from gfcompile.step import Role, Step, Value
from tests.models.definitions import DEFINITIONS
from tests.models.zoo import INPUTS, ZOO
from tests.passes.tiny import numbers
from tests.selection import often

OPTIMIZERS: dict[str, Optimizer] = {
    "plain": SGD(),
    "grouped": SGD(momentum=0.9, dampening=0.1, clip_norm=1.0),
    "separable": AdamW(),
    "concat": RMSprop(momentum=0.9, centered=True, clip_value=0.5),
}
STATISTICS = {"conv_head", "separable", "squeeze_excite"}  # networks trained with those of the batch
SPARSE = {"grouped": {"*": 0.5}, "dilated": {"*": 0.25}}
HALF = dedent(
    """\
    def step(
        x,  # input x float32[2, 3]
        m,  # constant m float32[3, 2]{1, 3}
    ):
        mm = aten.mm(x, m)  # float32[2, 2]
        max_1 = aten.max.dim(mm, 1)  # float32[2], int64[2]
        getitem = getitem(max_1, 1)  # int64[2]
        return (
            mm,  # output output
            getitem,  # output output1
        )
    """
)


def both(model: nn.Module, inputs: tuple[Tensor, ...], loss: str, request: Request) -> tuple[Step, Step]:
    """The training step as traced, and the prediction step."""
    traced = trace(Job(model, inputs, resolve_loss(loss), request))
    return traced.training, traced.forward


def assert_reads_back(step: Step, passes: list[Pass]) -> None:
    """After every pass: printing, reading and running it again gives the same text, its log included.

    One printer for all passes takes over lines; that of what was read prints every line anew.
    """
    printer = Printer()
    for each in passes:
        again = parse_graph(printer.print(step, "before"), step.tensors)
        step = each.run(step)
        assert print_graph(each.run(again), "after") == printer.print(step, "after"), each.name


@pytest.mark.slow
@pytest.mark.parametrize("name", often(ZOO, ["grouped", "separable"]))
def test_every_pass_over_the_zoo(name: str) -> None:
    request = Request(
        layers=2,
        r={"*": 2},
        batchnorm="train" if name in STATISTICS else "eval",
        sparse=SPARSE.get(name),
        compat="reference" if name == "conv_head" else None,
        train_affine=name == "concat",
    )
    loss = "mse" if name == "regression" else "cross_entropy"
    training, prediction = both(ZOO[name](), (torch.zeros(INPUTS[name]),), loss, request)
    if name == "separable":  # the other networks' gradients are lowered within their training steps
        gradients = pipeline.run(training.duplicate(training.plan), pipeline.filtering_passes(calculus=True))
        assert_reads_back(gradients, pipeline.gradient_passes()[len(pipeline.FILTERING) :])
    assert_reads_back(training, pipeline.training_passes(OPTIMIZERS.get(name, SGD(momentum=0.9))))
    assert_reads_back(prediction, pipeline.prediction_passes())


@pytest.mark.coverage
@pytest.mark.parametrize("name", list(DEFINITIONS))
def test_every_pass_over_every_definition(name: str) -> None:
    definition = DEFINITIONS[name]
    request = Request(layers=definition.layers, r={"*": 2})
    training, prediction = both(definition.make(), definition.example(), definition.loss, request)
    assert_reads_back(training, pipeline.training_passes(SGD(momentum=0.9)))
    assert_reads_back(prediction, pipeline.prediction_passes())


def test_a_step_by_hand_has_what_the_text_says() -> None:
    step = parse_graph(HALF)
    assert step.inputs == [Value(Role.INPUT, "x"), Value(Role.CONSTANT, "m")]
    assert step.outputs == [Value(Role.OUTPUT, "output"), Value(Role.OUTPUT, "output1")]
    assert step.placeholders()[1].meta["val"].stride() == (1, 3)
    assert [node.target for node in step.body.graph.nodes if node.op == "call_function"] == [
        torch.ops.aten.mm.default,
        torch.ops.aten.max.dim,
        operator.getitem,
    ]
    assert print_graph(step, "again").splitlines()[1:] == HALF.splitlines()
    x, m = torch.rand(2, 3), torch.rand(3, 2)
    product, index = step.run(x, m)
    torch.testing.assert_close(product, x @ m)
    torch.testing.assert_close(index, (x @ m).max(1)[1])


def test_shapes_may_be_left_out() -> None:
    short = "\n".join(line.split("  # ")[0] if " = " in line else line for line in HALF.splitlines())
    assert short.count("float32") == 2
    assert print_graph(parse_graph(short), "") == print_graph(parse_graph(HALF), "")


def test_what_is_remembered_of_one_text_is_right_for_the_next() -> None:
    """Equal calls are inferred once; 1, 1.0 and True are not equal here, nor are strides."""
    text = "def step(\n    x,  # input x {}\n):\n    y = aten.{}\n    return (\n        y,  # output y\n    )\n"
    shapes = Shapes()

    def result(kind: str, call: str) -> Tensor:
        (node,) = parse_graph(text.format(kind, call), shapes=shapes).results()
        return node.meta["val"]

    assert result("int64[2, 3]", "add.Tensor(x, 1)").dtype is torch.int64
    assert result("int64[2, 3]", "add.Tensor(x, 1.0)").dtype is torch.float32
    assert result("bool[2, 3]", "add.Tensor(x, True)").dtype is torch.bool
    assert result("bool[2, 3]", "add.Tensor(x, 1)").dtype is torch.int64
    assert result("int64[2, 3]", "t(x)").stride() == (1, 3)
    assert result("int64[2, 3]{1, 2}", "t(x)").stride() == (2, 1)
    assert result("int64[2, 3]", "t(x)") is result("int64[2, 3]", "t(x)")


def test_a_graph_can_be_read_without_values() -> None:
    text = HALF.replace("):", f"    w,  # parameter w float32[{MOST_DRAWN + 1}]\n):", 1)
    assert parse_graph(text, {"m": torch.ones(3, 2)}, draw=False).tensors.keys() == {"m"}
    with pytest.raises(UserError, match="graph: line 4: 'w' is too large to be drawn; give its tensor with --weights"):
        parse_graph(text)


def test_tensors_are_those_given_or_drawn_by_their_name() -> None:
    text = dedent(
        """\
        def step(
            w,  # parameter conv.weight float32[64, 2]
            var,  # buffer bn.running_var float64[5]
            table,  # constant table int64[3]
        ):
            return (
                w,  # output output
            )
        # unread: 'other'
        """
    )
    drawn, again = parse_graph(text).tensors, parse_graph(text).tensors
    assert list(drawn) == ["conv.weight", "bn.running_var", "table", "other"]
    assert all(torch.equal(drawn[name], again[name]) for name in drawn)
    weight, other = drawn["conv.weight"], parse_graph(text.replace("conv.weight", "another")).tensors["another"]
    assert 0.5 <= weight.min() < 0.6 < 1.4 < weight.max() < 1.5
    assert not torch.equal(weight, other)
    assert drawn["bn.running_var"].dtype is torch.float64
    assert drawn["table"].tolist() == [0, 0, 0]
    given_weight = torch.full((64, 2), 3.0)
    assert parse_graph(text, {"conv.weight": given_weight}).tensors["conv.weight"] is given_weight


def test_a_packed_weight_keeps_its_tensor_as_the_model_has_it() -> None:
    layout = WeightLayout.for_conv([8, 2, 3, 3], 1)
    text = (
        f"def step(\n    w,  # parameter w float32[1, 3, 3, 2, 8]\n):\n    return (\n    )\n# layout: 'w', {layout!r}\n"
    )
    step = parse_graph(text)
    assert step.layouts == {"w": layout}
    assert step.tensors["w"].shape == (8, 2, 3, 3)


def test_the_plan_is_what_the_lines_after_the_graph_say() -> None:
    step = parse_graph(
        HALF
        + "# plan: norms={'*': 'eval', 'bn': 'train'}, reference=True\n"
        + "# layer: name='a', r=2, kernel='a.weight'\n# layer: name='b', kind='linear', role='head'\n"
        + "# trained: 'a.weight', 'b.weight'\n# updated: 'bn.running_mean'\n# origin: 'm', 'a.weight'\n"
    )
    assert [(layer.name, layer.kind, layer.role, layer.r) for layer in step.plan.trained] == [
        ("a", "conv", "layer", 2),
        ("b", "linear", "head", None),
    ]
    assert step.plan.trained_parameters == {"a.weight", "b.weight"}
    assert step.plan.batchnorm_of("bn") == "train"
    assert step.plan.reference
    assert step.updated_buffers == {"bn.running_mean"}
    assert step.origins == {"m": "a.weight"}


def test_what_is_trained_follows_from_the_outputs() -> None:
    text = HALF.replace("output output1", "gradient a.weight").replace("output output\n", "buffer bn.mean\n")
    step = parse_graph(text)
    assert step.plan.trained_parameters == {"a.weight"}
    assert step.updated_buffers == {"bn.mean"}


def test_strides_of_the_trace_are_printed_where_they_are_read() -> None:
    """`as_strided` of a transposed tensor takes other elements than of a contiguous one of that shape."""
    text = dedent(
        """\
        def step(
            x,  # input x float32[2, 3]
        ):
            permute = aten.permute(x, [1, 0])  # float32[3, 2]{1, 3}
            as_strided = aten.as_strided(permute, [6], [1])  # float32[6]
            return (
                as_strided,  # output output
            )
        """
    )
    assert print_graph(parse_graph(text), "") == f"# \n{text}"
    as_traced = numbers(StaticMoves().run(parse_graph(text)))
    contiguous = numbers(StaticMoves().run(parse_graph(text.replace("{1, 3}", "{2, 1}"))))
    (value,) = as_traced
    x = numbers(parse_graph(text))[value]
    assert torch.equal(as_traced[value], x)
    assert not torch.equal(contiguous[value], x)


def test_a_new_node_gets_the_name_that_it_would_have_got() -> None:
    step = parse_graph(HALF)
    graph = step.body.graph
    with graph.inserting_before(graph.output_node()):
        erased = [graph.call_function(torch.ops.aten.relu.default, (step.placeholders()[0],)) for _ in range(3)]
    for node in erased:
        graph.erase_node(node)
    text = print_graph(step, "")
    assert text.endswith("# names: {'relu_default': 2}\n")
    again = parse_graph(text).body.graph
    with again.inserting_before(again.output_node()):
        assert again.call_function(torch.ops.aten.relu.default).name == "relu_default_3"


NUMBERS = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats())
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64, torch.bfloat16])


def step_of(target: Any, *args: Any, name: str = "x", **kwargs: Any) -> Step:
    """`target` of an input called x and these arguments."""
    step = parse_graph(
        "def step(\n    x,  # input x float32[4]\n):\n    return (\n        x,  # output output\n    )\n"
    )
    graph = step.body.graph
    with graph.inserting_before(graph.output_node()):
        node = graph.call_function(target, (step.placeholders()[0], *args), kwargs)
    with step.placeholders()[0].meta["val"].fake_mode:
        node.meta["val"] = target(step.placeholders()[0].meta["val"], *args, **kwargs)
    graph.output_node().args = ((node,),)
    step.inputs[0] = Value(Role.CONSTANT, name)
    return step


def arguments_of(step: Step) -> tuple[str, str]:
    (call,) = [node for node in step.body.graph.nodes if node.op == "call_function"]
    return repr(call.args), repr(call.kwargs)


@pytest.mark.slow
@given(NUMBERS, st.lists(st.integers(0, 5), max_size=4), DTYPES)
@settings(max_examples=60, deadline=None)
def test_arguments_read_back_exactly(fill: float, shape: list[int], dtype: torch.dtype) -> None:
    """Numbers to the bit and by type, lists, types, layouts, devices."""
    options = {"dtype": dtype, "layout": torch.strided, "device": torch.device("cpu"), "pin_memory": None}
    step = step_of(torch.ops.aten.new_full.default, shape, fill, **options)
    assert arguments_of(parse_graph(print_graph(step, ""))) == arguments_of(step)


@pytest.mark.parametrize(
    ("target", "args", "kwargs"),
    [
        (torch.ops.aten.clamp.default, (None, float("inf")), {}),
        (torch.ops.aten.clamp.default, (-float("inf"), None), {}),
        (torch.ops.aten.gelu.default, (), {"approximate": "tanh"}),
        (torch.ops.aten.clone.default, (), {"memory_format": torch.contiguous_format}),
        (torch.ops.aten._to_copy.default, (), {"device": torch.device("meta"), "dtype": torch.float16}),
    ],
)
def test_other_arguments(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    step = step_of(target, *args, **kwargs)
    again = parse_graph(print_graph(step, ""))
    assert arguments_of(again) == arguments_of(step)
    assert print_graph(again, "") == print_graph(step, "")


@pytest.mark.slow
@given(st.text(st.characters(), min_size=1))
@settings(max_examples=100, deadline=None)
def test_names_read_back_whatever_is_in_them(name: str) -> None:
    step = step_of(torch.ops.aten.relu.default, name=name)
    step.updated_buffers = frozenset({name})
    step.origins = {name: name[::-1]}
    again = parse_graph(print_graph(step, name))
    assert (again.inputs, again.updated_buffers, again.origins) == (step.inputs, step.updated_buffers, step.origins)


def test_a_node_may_have_the_name_of_a_python_function() -> None:
    """`forward(self, input)` is traced to one."""
    text = HALF.replace("x,", "input,").replace("mm(x", "mm(input")
    assert parse_graph(text.replace("(x,", "(input,")).placeholders()[0].name == "input"


BROKEN = [
    ("):", "): (", 4, "is not Python ('(' was never closed); give what --dump wrote"),
    ("def step(", "def other(", 1, "only one function 'step' is read; remove this"),
    ("def step(", "import os\ndef step(", 1, "only one function 'step' is read; remove this"),
    ("    x,", "    *x,", 1, "inputs are plain names, one per line"),
    ("# input x", "# inputs x", 2, "'inputs' is no role; write '# ROLE NAME' with one of input, feature, target,"),
    ("# input x", "# input", 2, "'3]' is no type; write one like float32[2, 3]"),
    ("float32[2, 3]", "float31[2, 3]", 2, "'float31[2, 3]' is no type; write one like float32[2, 3]"),
    ("float32[2, 3]", "Tensor[2, 3]", 2, "'Tensor[2, 3]' is no type; write one like float32[2, 3]"),
    ("float32[2, 3]", "float32[2, -3]", 2, "'float32[2, -3]' is no type; write one like float32[2, 3]"),
    ("{1, 3}", "{1}", 3, "'float32[3, 2]{1}' has 1 strides for 2 axes"),
    ("    mm =", "    mm +=", 5, "is not 'name = operator(arguments)'"),
    ("    mm =", "    mm = x =", 5, "is not 'name = operator(arguments)'"),
    ("aten.mm(x, m)", "x", 5, "is not 'name = operator(arguments)'"),
    ("aten.mm(", "os.system(", 5, "'os.system' is no operator of a graph; use aten.*, gf.* or getitem"),
    ("aten.mm(", "eval(", 5, "'eval' is no operator of a graph; use aten.*, gf.* or getitem"),
    ("aten.mm(", "aten.mmm(", 5, "there is no operator 'aten.mmm'"),
    ("aten.mm(", "aten.__class__(", 5, "there is no operator 'aten.__class__'"),
    ("aten.mm(", "aten.mm.Tensor(", 5, "there is no operator 'aten.mm.Tensor'; its overloads are default, out"),
    ("aten.mm(x, m)", "aten.relu_(x)", 5, "'aten.relu_' does more than to compute tensors; a graph cannot hold it"),
    ("aten.mm(x, m)", "aten.from_file('a')", 5, "'aten.from_file' does more than to compute tensors; a graph cannot"),
    ("aten.mm(x, m)", "aten.mm(x, w)", 5, "'w' is not defined before this line"),
    ("aten.mm(x, m)", "aten.mm(x, mm)", 5, "'mm' is not defined before this line"),
    ("aten.mm(x, m)", "aten.mm(x, open('a'))", 5, "'open('a')' is no value that a graph holds"),
    ("aten.mm(x, m)", "aten.mm(x, torch.load)", 5, "'torch.load' is no value that a graph holds"),
    ("aten.mm(x, m)", "aten.mm(x, device(kind=1))", 5, "'device(kind=1)' is no device"),
    ("aten.mm(x, m)", "aten.mm(**x)", 5, "'**' is not read; write the arguments by name"),
    ("aten.mm(x, m)", "aten.mm(m, m)", 5, "aten.mm.default refuses these arguments (RuntimeError: "),
    ("float32[2, 2]", "float32[2, 5]", 5, "the call gives float32[2, 2], the comment says float32[2, 5]"),
    ("max_1 = ", "mm = ", 6, "'mm' is defined twice"),
    ("max_1 = ", "inf = ", 6, "'inf' is a number; call the node 'inf_1'"),
    ("        mm,", "        1,", 9, "a result is a node, with its role and name after '#'"),
    ("output output1", "output output1 float32[2]", 10, "a result is a node, with its role and name after '#'"),
    ("output output1", "output", 10, "'output' has no name; write '# ROLE NAME'"),
    ("    return (", "    y = (", 8, "the last statement must be 'return (', one result per line"),
]


@pytest.mark.parametrize(("old", "new", "line", "reason"), BROKEN)
def test_a_broken_text_is_refused_with_its_line(old: str, new: str, line: int, reason: str) -> None:
    assert old in HALF
    with pytest.raises(UserError) as caught:
        parse_graph(HALF.replace(old, new, 1), where="dump.txt")
    assert str(caught.value).startswith(f"dump.txt: line {line}: {reason}")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("# layers: 3", "'layers' is no word for a line after the graph; use plan, layer, trained, updated, unread,"),
        ("# layer: name=", "'name=' is not a list of Python values"),
        ("# layer: name=open('a')", "'name=open('a')' holds more than plain Python values"),
        ("# layer: r=2", "'layer: r=2' does not say what a 'layer' line must"),
        ("# plan: speed=3", "'plan: speed=3' does not say what a 'plan' line must"),
        ("# layer: name='a', r='2'", "'layer: name='a', r='2'' does not say what a 'layer' line must (r cannot be"),
        ("# trained: 3", "'trained: 3' does not say what a 'trained' line must (names are strings)"),
        ("# layout: 'w', WeightLayout(order=(-1,))", "''w', WeightLayout(order=(-1,))' holds more than plain Python"),
        ("# layout: 'w', 3", "'layout: 'w', 3' does not say what a 'layout' line must (no WeightLayout)"),
        ("# names: {'a': 'b'}", "'names: {'a': 'b'}' does not say what a 'names' line must (no numbers by name)"),
    ],
)
def test_a_broken_line_after_the_graph(line: str, reason: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_graph(f"{HALF}{line}\n", where="dump.txt")
    assert str(caught.value).startswith(f"dump.txt: line 12: {reason}")


@pytest.mark.parametrize("text", ["", "# nothing\n", "\0", "(" * 500, "-" * 5000 + "1"])
def test_no_graph_at_all(text: str) -> None:
    with pytest.raises(UserError, match=r"^graph: line 1: (there is no function 'step'|is not Python|only one)"):
        parse_graph(text)


def test_weights_of_another_model_are_refused() -> None:
    with pytest.raises(UserError) as caught:
        parse_graph(HALF, {"m": torch.zeros(4, 2)})
    expected = "graph: line 3: the tensor 'm' is float32[4, 2]; give the dump's own weights"
    assert str(caught.value) == expected


@pytest.mark.slow
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_changed_text_is_read_or_refused(data: st.DataObject) -> None:
    """Nothing but a line of refusal comes of a dump that somebody broke."""
    text = HALF + "# layer: name='a', r=2\n# names: {'a': 2}\n"
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 12)))
    new = data.draw(st.text(st.sampled_from(sorted(set(text + "()[]{}'\"\\\0\t*=:;1"))), max_size=6))
    with contextlib.suppress(UserError):
        assert parse_graph(text[:start] + new + text[end:]).body.graph.nodes
