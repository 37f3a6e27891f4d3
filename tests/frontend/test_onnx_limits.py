"""Small ONNX files that stand for gigabytes or hours: each is refused, in words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest
import torch
from onnx import ModelProto, TensorProto, helper, numpy_helper

from gfcompile.frontend.load import load_model
from gfcompile.frontend.trace import run_once
from tests.frontend.model_files import text_of
from tests.frontend.onnx_files import ints, model_of

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]


def saved(model: ModelProto, folder: Path) -> Path:
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    return folder / "net.onnx"


def test_functions_of_functions(tmp_path: Path) -> None:
    """Each calls the one before twice."""
    model = model_of("y = Relu (x)", x=(1, 4))
    model.opset_import.append(OPSETS[1])
    before = helper.make_node("Relu", ["a"], ["b"])
    for number in range(30):
        first, second = (helper.make_node(before.op_type, *ends, domain=before.domain) for ends in
                         ((["a"], ["c"]), (["c"], ["b"])))  # fmt: skip
        model.functions.append(helper.make_function("local", f"F{number}", ["a"], ["b"], [first, second], OPSETS))
        before = helper.make_node(f"F{number}", ["a"], ["b"], domain="local")
    model.graph.node[0].op_type, model.graph.node[0].domain = "F29", "local"
    path = saved(model, tmp_path)
    assert text_of(path) == f"{path}: its functions stand for more than 200000 nodes; export it without functions"


def test_copies_of_a_constant(tmp_path: Path) -> None:
    copies = "".join(f"c{number} = Identity (w)\n" for number in range(60))
    path = saved(model_of(f"{copies}y = Relu (x)", x=(1, 4), w=np.zeros(1 << 19, np.float32)), tmp_path)
    assert text_of(path).startswith(
        f"{path}: cannot be read as an ONNX model (its copies of constants are larger than what they are copies of)"
    )


def test_tensors_that_are_the_file_itself(tmp_path: Path) -> None:
    model = model_of("y = Relu (x)", x=(1, 4), pad=np.zeros(1 << 16, np.float32))
    for number in range(3):
        tensor = model.graph.initializer.add(name=f"t{number}", data_type=TensorProto.FLOAT, dims=[1])
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="net.onnx")
    path = saved(model, tmp_path)
    assert text_of(path) == f"{path}: refers to more weights than its files hold; export it again"


def test_loops_are_not_arithmetic(tmp_path: Path) -> None:
    model = model_of("m = RegexFullMatch (s)\ny = Relu (x)", opset=20, x=(1, 4), s=np.zeros(1, np.float32))
    model.graph.node[1].input[0] = "m"
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array(["a"], object), "s"))
    path = saved(model, tmp_path)
    assert text_of(path) == (
        f"{path}: operators that are not known: RegexFullMatch (1x: 'regexfullmatch_0');"
        " export the model without them, or give it as .pt2"
    )


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("c = ConstantOfShape (s)", {"s": ints(1 << 20, 1 << 20)}),
        ("c = Expand (v, s)", {"v": np.ones(1, np.float32), "s": ints(1 << 20, 1 << 20)}),
        ("c = Tile (v, s)", {"v": np.ones((1, 1), np.float32), "s": ints(1 << 20, 1 << 20)}),
        ("c = Range (s, v, t)", {"s": np.array(0), "v": np.array(1 << 40), "t": np.array(1)}),
    ],
)
def test_values_made_of_a_few_numbers(line: str, values: dict, tmp_path: Path) -> None:
    kept = "f = Cast <to = 1> (c)\nm = ReduceMax <keepdims = 0> (f)\ny = Add (x, m)"
    model = helper.make_model(model_of("y = Relu (x)", x=(1, 4)).graph, opset_imports=OPSETS[:1], ir_version=10)
    del model.graph.node[:]
    model.graph.node.extend(onnx.parser.parse_node(each) for each in f"{line}\n{kept}".splitlines())
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    module = load_model(str(saved(model, tmp_path))).module
    with pytest.raises(Exception, match=r"makes 1\.1e\+12 values of a few"):
        run_once(module, (torch.zeros(1, 4),))
