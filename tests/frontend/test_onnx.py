"""ONNX files in: exported networks against the modules they came from, names, the way back, and files that are bad."""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import gfcompile
from gfcompile.errors import ContractError, UserError
from gfcompile.frontend.load import load_model
from gfcompile.frontend.onnx.write_back import STATE_KEY, fill
from tests.frontend.model_files import GARBAGE, text_of
from tests.frontend.onnx_files import export, ints, model_of, random, reference
from tests.models import randomise_statistics
from tests.models.densenet import densenet_like
from tests.models.mobilenet_v3 import mobilenet_v3_like
from tests.models.resnet import ResNet
from tests.selection import often
from tests.tolerances import EXACT_GRADIENT, LOGITS, assert_near


class UNetLike(nn.Module):
    """Every normalisation, a transposed convolution, sizes computed from tensors, an upsampled output."""

    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.down2 = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.PReLU(16))
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.mix = nn.Sequential(
            nn.Conv2d(16, 8, 3, padding=1, bias=False), nn.InstanceNorm2d(8, affine=True), nn.GELU()
        )
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Conv2d(8, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down1(x)
        coarse = self.down2(F.max_pool2d(fine, 2))
        up = F.pad(self.up(coarse), (0, 0, 0, fine.shape[2] - 2 * coarse.shape[2]), mode="replicate")
        y = self.head(self.mix(torch.cat([fine, up], 1)[:, :, ::2]))
        return F.interpolate(y, size=x.shape[2:], mode="bilinear", align_corners=False)


MODELS = {
    "resnet": (lambda: ResNet((1, 1, 1, 1), 10, width=8), (2, 3, 33, 33)),
    "mobilenet_v3": (lambda: mobilenet_v3_like(10, width=0.25), (2, 3, 32, 32)),
    "densenet": (lambda: densenet_like(10, width=8, depths=(2, 2)), (2, 3, 32, 32)),
    "unet": (UNetLike, (2, 3, 17, 16)),
}
PRESERVED = {"do_constant_folding": False, "training": torch.onnx.TrainingMode.PRESERVE}
EXPORTS = {
    "torchscript": (False, {}),  # batch norms folded into convolutions
    "torchscript_opset11": (False, {"opset_version": 11}),
    "torchscript_unfolded": (False, PRESERVED),
    "dynamo": (True, {}),  # batch norms folded, weights in a file beside it
    "dynamo_unfolded": (True, {"optimize": False}),
}
UNFOLDED = ("torchscript_unfolded", "dynamo_unfolded")
# the larger two by each exporter once: the dynamo one takes seconds
FILES = [
    *((name, exporter) for name in ("resnet", "mobilenet_v3") for exporter in ("torchscript", "dynamo")),
    *((name, exporter) for name in ("densenet", "unet") for exporter in EXPORTS),
]
OFTEN_FILES = [each for each in FILES if each[0] == "unet" or each[1] == "torchscript"]


@functools.cache
def original(name: str) -> tuple[nn.Module, Tensor]:
    build, shape = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = randomise_statistics(build(), seed=1).eval()
        return module, torch.randn(shape)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model's file as an exporter writes it; each pair is written once."""

    @functools.cache
    def path_of(name: str, exporter: str) -> str:
        dynamo, options = EXPORTS[exporter]
        path = str(tmp_path_factory.mktemp("onnx") / f"{name}.onnx")
        return export(*original(name), path, dynamo, **options)

    return path_of


def numpy_state(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


def write(model, folder, name: str = "net.onnx") -> str:
    onnx.save(model, folder / name)
    return str(folder / name)


# ---- exported networks


@pytest.mark.slow
@pytest.mark.parametrize(("name", "exporter"), often(FILES, OFTEN_FILES))
def test_exported_network(name, exporter, exported):
    module, x = original(name)
    path = exported(name, exporter)
    loaded = load_model(path)
    assert loaded.example_shape == tuple(x.shape)
    assert loaded.fixed_mode is False
    expected = module(x)
    assert_near(loaded.module(x).detach(), expected.detach(), 1e-5, "output")

    traced = torch.export.export(loaded.module, (x,), strict=False)
    assert_near(traced.module()(x).detach(), expected.detach(), 1e-5, "output of the trace")
    assert not [node for node in traced.graph.nodes if "sym" in str(node.target) or "item" in str(node.target)]

    filled = fill(loaded.onnx_skeleton, numpy_state(loaded.module))
    onnx.checker.check_model(filled)
    np.testing.assert_array_equal(reference(filled, x)[0], reference(path, x)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "exporter"),
    [*itertools.product(("densenet", "unet"), UNFOLDED), ("resnet", UNFOLDED[0]), ("mobilenet_v3", UNFOLDED[0])],
)
def test_gradients_and_names_of_an_unfolded_network(name, exporter, exported):
    module, x = original(name)
    ours = load_model(exported(name, exporter)).module
    extra = ours.state_dict().keys() - module.state_dict().keys()
    # the TorchScript exporter writes a group norm as an instance norm with weights of its own, then the group norm's
    is_split_norm = name == "unet" and exporter == "torchscript_unfolded"
    assert extra == ({"down1.1_2.weight", "down1.1_2.bias"} if is_split_norm else set())
    gradients = []
    for net in (module, ours):
        net.zero_grad()
        (net(x) ** 2).sum().backward()
        gradients.append({key: parameter.grad for key, parameter in net.named_parameters()})
    for key, expected in gradients[0].items():
        assert_near(gradients[1][key], expected, EXACT_GRADIENT, key)


@pytest.mark.slow
@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
def test_gradients_reach_every_weight_of_a_folded_network(exporter, exported):
    module, x = original("resnet")
    ours = load_model(exported("resnet", exporter)).module
    inputs = []
    for net in (module, ours):
        net.zero_grad()
        image = x.clone().requires_grad_()
        (net(image) ** 2).sum().backward()
        inputs.append(image.grad)
    assert_near(inputs[1], inputs[0], EXACT_GRADIENT, "input")
    assert_near(ours.fc.weight.grad, module.fc.weight.grad, EXACT_GRADIENT, "fc.weight")
    assert all(parameter.grad.abs().max() > 0 for parameter in ours.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("exporter", ["torchscript", "dynamo", "torchscript_unfolded"])
def test_layers_keep_their_names(exporter, exported):
    """A layer is the module its weights are in; a folded batch norm is its convolution's bias, trained with it."""
    module, _ = original("mobilenet_v3")
    ours = load_model(exported("mobilenet_v3", exporter)).module
    weights = Counter(name.rpartition(".")[0] for name, _ in ours.named_parameters())
    kinds = nn.Conv2d | nn.Linear if exporter != "torchscript_unfolded" else nn.Conv2d | nn.Linear | nn.BatchNorm2d
    layers = {name: part for name, part in module.named_modules() if isinstance(part, kinds)}
    assert weights.keys() == layers.keys()
    if exporter == "torchscript_unfolded":
        assert weights == {name: len(list(part.parameters())) for name, part in layers.items()}
    else:
        assert set(weights.values()) == {2}


def test_equal_initializers_are_trained_apart(tmp_path):
    """The TorchScript exporter stores equal tensors once and copies them by Identity nodes."""
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4)).eval()
    x = torch.randn(2, 3, 5, 5)
    path = export(net, x, str(tmp_path / "net.onnx"), False, **PRESERVED)
    assert "Identity" in {node.op_type for node in onnx.load(path).graph.node}
    loaded = load_model(path)
    assert loaded.module.state_dict().keys() == net.state_dict().keys()
    state = numpy_state(loaded.module) | {"3.bias": random(4)}
    changed = reference(fill(loaded.onnx_skeleton, state), x)[0] - reference(path, x)[0]
    np.testing.assert_allclose(changed, np.broadcast_to(random(4)[:, None, None], changed.shape), rtol=1e-5)


def test_batch_norms_can_train(exported):
    module, x = original("densenet")
    ours = load_model(exported("densenet", "dynamo_unfolded")).module
    theirs = densenet_like(10, width=8, depths=(2, 2)).eval()
    theirs.load_state_dict(module.state_dict())
    for net in (ours, theirs):
        for part in net.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.train()
    assert_near(ours(x).detach(), theirs(x).detach(), LOGITS, "output")
    state = ours.state_dict()
    for key, expected in theirs.state_dict().items():
        assert_near(state[key], expected, 1e-5, key)


def test_dropout_is_a_module(tmp_path):
    model = model_of("a = Relu(x)\ny = Dropout(a, r)", x=(2, 3, 4, 4), r=np.float32(0.25))
    module = load_model(write(model, tmp_path)).module
    dropouts = [part for part in module.modules() if isinstance(part, nn.Dropout)]
    assert [(part.p, part.training) for part in dropouts] == [(0.25, False)]
    dropouts[0].train()
    assert (module(torch.ones(2, 3, 4, 4)) == 0).any()


def test_open_sizes(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()
    x, path = torch.randn(2, 3, 8, 8), str(tmp_path / "net.onnx")
    export(net, x, path, False, input_names=["x"], dynamic_axes={"x": {0: "batch"}})
    loaded = load_model(path)
    assert loaded.example_shape == (8, 3, 8, 8)
    more = torch.randn(5, 3, 8, 8)
    torch.testing.assert_close(loaded.module(more), net(more))
    export(net[0], x, path, False, input_names=["x"], dynamic_axes={"x": {2: "height", 3: "width"}})
    assert load_model(path).example_shape is None


def test_several_inputs_and_outputs(tmp_path):
    path = write(model_of("s = Sub(x, z)\np, q = Split<axis=1>(s)", x=(2, 4), z=(2, 4)), tmp_path)
    loaded = load_model(path)
    x, z = torch.randn(2, 4), torch.randn(2, 4)
    found = loaded.module(x, z)
    assert loaded.example_shape is None
    assert [tuple(part.shape) for part in found] == [(2, 2), (2, 2)]
    torch.testing.assert_close(torch.cat(found, 1), x - z)
    with pytest.raises(TypeError, match="takes 2 inputs: x, z"):
        loaded.module(x)


# ---- other frameworks, names


def test_graph_in_the_manner_of_tf2onnx(tmp_path):
    """NHWC outside, transposes, a bias in an Add of its own, names with slashes and colons."""
    names = {
        "k": "net/conv2d/Conv2D/ReadVariableOp:0", "b": "net/conv2d/BiasAdd/ReadVariableOp:0",
        "w": "net/dense/MatMul/ReadVariableOp:0", "c": "net/dense/BiasAdd/ReadVariableOp:0",
    }  # fmt: skip
    model = model_of(
        """t = Transpose<perm=[0,3,1,2]>(x)
        h = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(t, k)
        i = Add(h, b)
        r = Relu(i)
        u = Transpose<perm=[0,2,3,1]>(r)
        f = Reshape(u, s)
        m = MatMul(f, w)
        y = Add(m, c)""",
        x=(2, 7, 6, 3), k=random(4, 3, 3, 3), b=random(1, 4, 1, 1), s=ints(-1, 48), w=random(48, 5), c=random(5),
    )  # fmt: skip
    for node, name in zip(
        model.graph.node, ["", "net/conv2d/Conv2D", "net/conv2d/BiasAdd", "", "", "", "net/dense/MatMul"]
    ):
        node.name = name
        node.input[:] = [names.get(value, value) for value in node.input]
    model.graph.node[-1].input[1] = names["c"]
    for tensor in model.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    loaded = load_model(write(model, tmp_path))
    shapes = {name: tuple(tensor.shape) for name, tensor in loaded.module.state_dict().items()}
    assert shapes == {
        "net.conv2d.weight": (4, 3, 3, 3), "net.conv2d.bias": (1, 4, 1, 1),
        "net.dense.weight": (48, 5), "net.dense.bias": (5,),
    }  # fmt: skip
    x = torch.from_numpy(random(2, 7, 6, 3))
    assert_near(loaded.module(x).detach(), reference(model, x)[0], 1e-5, "output")
    filled = fill(loaded.onnx_skeleton, numpy_state(loaded.module))
    np.testing.assert_array_equal(reference(filled, x)[0], reference(model, x)[0])


def test_names_without_paths(tmp_path):
    """Unnamed nodes, names torch does not take, and two weights that wish for the same place."""
    lines = "a = Conv(x, W, B)\nb = Conv(a, half)\ny = Conv(b, C)"
    model = model_of(
        lines, x=(1, 2, 4, 4), W=random(3, 2, 1, 1), B=random(3), half=random(2, 3, 1, 1), C=random(2, 2, 1, 1)
    )
    model.graph.node[1].name = "/half/Conv"
    model.graph.node[2].name = "/half/Conv_1"
    state = load_model(write(model, tmp_path)).module.state_dict()
    assert list(state) == ["conv_0.weight", "conv_0.bias", "half_.weight", "half__2.weight"]


def test_shared_weight_is_one_parameter(tmp_path):
    model = model_of("a = Conv(x, w)\ny = Conv(a, w)", x=(1, 2, 4, 4), w=random(2, 2, 1, 1))
    loaded = load_model(write(model, tmp_path))
    assert [name for name, _ in loaded.module.named_parameters()] == ["conv_0.weight"]
    loaded.module(torch.ones(1, 2, 4, 4)).sum().backward()
    w = torch.from_numpy(random(2, 2, 1, 1)).requires_grad_()
    F.conv2d(F.conv2d(torch.ones(1, 2, 4, 4), w), w).sum().backward()
    torch.testing.assert_close(loaded.module.conv_0.weight.grad, w.grad)


def test_batch_norms_that_share_a_tensor(tmp_path):
    lines = "a = BatchNormalization(x, s, b, m, v)\ny = BatchNormalization(a, s, c, m, v)"
    values = {"s": random(3), "b": random(1, 3)[0], "c": random(3) + 1, "m": random(3), "v": np.abs(random(3))}
    model = model_of(lines, x=(2, 3, 4, 4), **values)
    loaded = load_model(write(model, tmp_path))
    first, second = (part for part in loaded.module.modules() if isinstance(part, nn.BatchNorm2d))
    assert first.weight is second.weight
    assert first.bias is not second.bias
    x = torch.from_numpy(random(2, 3, 4, 4))
    assert_near(loaded.module(x).detach(), reference(model, x)[0], 1e-5, "output")


def test_constants_of_formulas_are_no_weights(tmp_path):
    lines = "a = Add(x, three)\nb = Clip(a, low, high)\nc = Mul(b, x)\nd = Div(c, six)\ny = Conv(d, conv.weight)"
    numbers = {"three": 3, "low": 0, "high": 6, "six": 6}
    model = model_of(
        lines.replace("conv.weight", "w"), x=(1, 2, 4, 4), w=random(2, 2, 1, 1),
        **{name: np.float32(value) for name, value in numbers.items()},
    )  # fmt: skip
    module = load_model(write(model, tmp_path)).module
    assert list(module.state_dict()) == ["conv_4.weight"]
    traced = torch.export.export(module, (torch.randn(1, 2, 4, 4),), strict=False)
    assert not traced.constants


def test_local_functions_and_constant_nodes(tmp_path):
    """A function's nodes are inlined; a Constant node that is a weight is trainable and written back."""
    double = helper.make_function(
        "local", "ConvTwice", ["x", "w"], ["y"],
        [helper.make_node("Conv", ["x", "w"], ["h"]), helper.make_node("Conv", ["h", "w"], ["y"])],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    model = model_of("w = Relu(x)\ny = Relu(w)", x=(1, 2, 4, 4))
    value = numpy_helper.from_array(random(2, 2, 1, 1), "value")
    del model.graph.node[:]
    model.graph.node.extend(
        [
            helper.make_node("Constant", [], ["w"], value=value),
            helper.make_node("ConvTwice", ["x", "w"], ["y"], domain="local"),
        ]
    )
    model.functions.append(double)
    model.opset_import.append(helper.make_opsetid("local", 1))
    loaded = load_model(write(model, tmp_path))
    (name,) = loaded.module.state_dict()
    x = torch.from_numpy(random(1, 2, 4, 4))
    assert_near(loaded.module(x).detach(), reference(model, x)[0], 1e-5, "output")
    filled = fill(loaded.onnx_skeleton, {name: 2 * random(2, 2, 1, 1)})
    assert_near(reference(filled, x)[0], 4 * reference(model, x)[0], 1e-5, "output with twice the weight")


# ---- the way back


def test_skeleton(tmp_path):
    model = model_of("y = Gemm(x, w, c)", x=(2, 3), w=random(3, 4), c=random(4))
    helper.set_model_props(model, {"author": "me"})
    skeleton = load_model(write(model, tmp_path)).onnx_skeleton
    bare = onnx.load_from_string(skeleton)
    entries = {entry.key: entry.value for entry in bare.metadata_props}
    assert json.loads(entries[STATE_KEY]) == {"w": "gemm_0.weight", "c": "gemm_0.bias"}
    assert [(t.name, list(t.dims), t.data_type, t.raw_data) for t in bare.graph.initializer] == [
        ("w", [3, 4], TensorProto.FLOAT, b""),
        ("c", [4], TensorProto.FLOAT, b""),
    ]
    state = {"gemm_0.weight": 2 * random(3, 4), "gemm_0.bias": random(4)}
    filled = fill(skeleton, state)
    assert {entry.key: entry.value for entry in filled.metadata_props} == {"author": "me"}
    x = torch.from_numpy(random(2, 3))
    np.testing.assert_allclose(
        reference(filled, x)[0], x.numpy() @ (2 * random(3, 4)) + random(4), rtol=1e-5, atol=1e-6
    )

    with pytest.raises(UserError) as caught:
        fill(skeleton, {"gemm_0.weight": random(3, 4)})
    assert str(caught.value) == ("state: 'gemm_0.bias' is missing; use the state of the model the ONNX graph came from")
    with pytest.raises(UserError) as caught:
        fill(skeleton, state | {"gemm_0.weight": random(4, 3)})
    assert str(caught.value) == (
        "state: 'gemm_0.weight' has shape 4x3 but the ONNX graph wants 3x4; use the state of the model it came from"
    )
    with pytest.raises(ContractError, match=r"the skeleton has no 'gfcompile\.state' entry"):
        fill(model.SerializeToString(), state)


@pytest.mark.coverage  # tests/end_to_end/test_onnx.py has it of a network, by the command line
def test_compiled_from_onnx(tmp_path):
    """Trained by the compiled step, then written back: ONNX Runtime predicts what the step predicts."""
    model = model_of(
        """a = Conv<pads=[1,1,1,1]>(x, conv1.weight, conv1.bias)
        b = Relu(a)
        c = Conv<pads=[1,1,1,1], strides=[2,2]>(b, conv2.weight)
        d = BatchNormalization(c, bn.weight, bn.bias, bn.running_mean, bn.running_var)
        e = Relu(d)
        f = GlobalAveragePool(e)
        g = Flatten(f)
        y = Gemm(g, fc.weight, fc.bias)""".replace(".", "_"),
        x=(4, 3, 8, 8),
        conv1_weight=random(8, 3, 3, 3), conv1_bias=random(8), conv2_weight=random(8, 8, 3, 3),
        bn_weight=random(8), bn_bias=random(8), bn_running_mean=random(8), bn_running_var=np.abs(random(8)) + 1,
        fc_weight=random(8, 5), fc_bias=random(5),
    )  # fmt: skip
    path = write(model, tmp_path)
    loaded = load_model(path)
    x, target = torch.from_numpy(random(4, 3, 8, 8)), torch.tensor([0, 1, 2, 3])
    step = gfcompile.compile(loaded.module, x, layers=2, r=2, lr=0.05)
    assert_near(step.predict(x), reference(path, x)[0], LOGITS, "prediction before training")
    losses = [step.train(x, target) for _ in range(5)]
    assert losses[-1] < losses[0]
    state = {name: tensor.numpy() for name, tensor in step.state_dict().items()}
    filled = fill(loaded.onnx_skeleton, state)
    onnx.checker.check_model(filled)
    assert_near(reference(filled, x)[0], step.predict(x), LOGITS, "prediction after training")


# ---- what is refused


def refusal(model, folder) -> str:
    return text_of(write(model, folder)).replace(str(folder) + "/", "")


def test_missing_file():
    assert text_of("no.onnx") == "no.onnx: no such file; check the path"


@pytest.mark.parametrize("content", GARBAGE)
def test_garbage(content, tmp_path):
    (tmp_path / "net.onnx").write_bytes(content)
    path = tmp_path / "net.onnx"
    text = text_of(path)
    if content:
        assert text.startswith(f"{path}: cannot be read as an ONNX model (DecodeError: ")
        assert text.endswith("); export it again")
    else:
        assert text == f"{path}: holds no ONNX graph; export the model again"


def test_truncated_file(tmp_path):
    path = tmp_path / "net.onnx"
    whole = model_of("y = Conv(x, w)", x=(1, 8, 9, 9), w=random(8, 8, 3, 3)).SerializeToString()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        assert text_of(path).startswith(f"{path}: ")


def test_external_data(tmp_path):
    model = model_of("y = Conv(x, w)", x=(1, 8, 9, 9), w=random(8, 8, 3, 3))
    x, expected = torch.from_numpy(random(1, 8, 9, 9)), reference(model, torch.from_numpy(random(1, 8, 9, 9)))[0]
    path = tmp_path / "net.onnx"
    onnx.save(model, path, save_as_external_data=True, location="net.onnx.data", size_threshold=0)
    assert_near(load_model(str(path)).module(x).detach(), expected, 1e-5, "output")
    data = (tmp_path / "net.onnx.data").read_bytes()
    (tmp_path / "net.onnx.data").write_bytes(data[: len(data) // 2])
    assert text_of(path).startswith(f"{path}: ")
    (tmp_path / "net.onnx.data").unlink()
    text = text_of(path)
    assert text.startswith(f"{path}: its weights in 'net.onnx.data' cannot be read (")
    assert text.endswith("); keep them in the same folder")


def test_external_data_of_another_folder(tmp_path):
    """A file may not read what lies outside its folder."""
    (tmp_path / "secre").write_bytes(random(8, 8, 3, 3).tobytes())
    (tmp_path / "inside").mkdir()
    model = model_of("y = Conv(x, w)", x=(1, 8, 9, 9), w=random(8, 8, 3, 3))
    path = tmp_path / "inside" / "net.onnx"
    onnx.save(model, path, save_as_external_data=True, location="net.data", size_threshold=0)
    path.write_bytes(path.read_bytes().replace(b"net.data", b"../secre"))
    assert text_of(path).startswith(f"{path}: its weights in '../secre' cannot be read (")


@pytest.mark.parametrize("seed", range(5))
def test_damaged_bytes_never_end_in_a_traceback(seed, tmp_path):
    whole = model_of(
        """s = Shape(x)
        r = Reshape(x, s)
        a = Conv<pads=[1,1,1,1]>(r, w)
        b = Constant<value_float=2.0>()
        y = Mul(a, b)""",
        x=(1, 2, 4, 4),
        w=random(2, 2, 3, 3),
    ).SerializeToString()
    generator, refused = np.random.default_rng(seed), 0
    for _ in range(40):
        damaged = bytearray(whole)
        for position in generator.integers(0, len(whole), 3):
            damaged[position] = generator.integers(256)
        (tmp_path / "net.onnx").write_bytes(damaged)
        try:
            load_model(str(tmp_path / "net.onnx"))
        except UserError:
            refused += 1
    assert refused > 10


def test_unknown_operators_are_listed_at_once(tmp_path):
    model = model_of(
        "a = Det(x)\nb = Det(x)\nc = NonZero(x)\nn = Cast<to=1>(c)\nm = Add(a, b)\ny = Mul(m, n)", x=(3, 3)
    )
    model.graph.node.append(helper.make_node("Warp", ["y"], ["z"], "w1", domain="mine"))
    model.graph.output[0].name = "z"
    model.opset_import.append(helper.make_opsetid("mine", 1))
    assert refusal(model, tmp_path) == (
        "net.onnx: operators that are not known: Det (2x: 'det_0', 'det_1'), NonZero (1x: 'nonzero_2'),"
        " mine.Warp (1x: 'w1'); export the model without them, or give it as .pt2"
    )


RELU = "t () => (float y1) {y1 = Relu(x)}, else_branch = e () => (float y2) {y2 = Neg(x)}"
ADVICE = "; export the model without it, or give it as .pt2"


@pytest.mark.parametrize(
    ("lines", "values", "reason"),
    [
        ("r = ReduceMax<keepdims=0>(x)\nc = Cast<to=9>(r)\ny = If(c) <then_branch = " + RELU + ">", {},
         "node 'if_2' (If): its condition depends on the input's values"),
        ("i = Cast<to=7>(x)\nf = Reshape(i, m)\ny = Reshape(x, f)", {"m": ints(-1)},
         "node 'reshape_2' (Reshape): 'f' depends on the input's values"),
        ("v, y = MaxPool<kernel_shape=[2,2]>(x)", {}, "node 'maxpool_0' (MaxPool): its output 'y' is not computed"),
        ('y = Resize<coordinate_transformation_mode="tf_crop_and_resize">(x, r, s)',
         {"r": random(8), "s": np.array([1, 1, 2, 2], np.float32)},
         "node 'resize_0' (Resize): coordinate_transformation_mode 'tf_crop_and_resize' cannot be expressed"),
        ('y = Resize<mode="linear", antialias=1>(x, , s)', {"s": np.array([1, 1, 2, 2], np.float32)},
         "node 'resize_0' (Resize): antialias is not known"),
        ("y = GatherND<batch_dims=1>(x, i)", {"i": np.zeros((2, 1), np.int64)},
         "node 'gathernd_0' (GatherND): it has batch axes"),
        ('y = ScatterND<reduction="mul">(x, i, u)', {"i": np.zeros((1, 4), np.int64), "u": random(1)},
         "node 'scatternd_0' (ScatterND): reduction 'mul' is not known"),
        ("y = Cast<to=8>(x)", {}, "node 'cast_0' (Cast): type STRING is not known"),
    ],
)  # fmt: skip
def test_nodes_that_cannot_be_computed(lines, values, reason, tmp_path):
    model = model_of(lines, 18, x=(2, 3, 4, 4), **values)
    assert refusal(model, tmp_path) == f"net.onnx: {reason}{ADVICE}"


def test_types(tmp_path):
    halves = model_of("h = Cast<to=10>(x)\ny = Conv(h, w)", x=(1, 2, 4, 4), w=random(2, 2, 1, 1).astype(np.float16))
    assert refusal(halves, tmp_path) == "net.onnx: has weights of type float16; export the model in float32"
    pixels = model_of("y = Relu(x)", x=(1, 2, 4, 4))
    pixels.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    assert refusal(pixels, tmp_path) == ("net.onnx: input 'x' is of type uint8; export the model with a float32 input")


def test_broken_graphs(tmp_path):
    old = model_of("y = Relu(x)", x=(1, 2), opset=6)
    assert refusal(old, tmp_path) == "net.onnx: is written in opset 6; export it again with opset 7 or later"
    loose = model_of("y = Relu(x)", x=(1, 2))
    loose.graph.node[0].input[0] = "nobody"
    assert refusal(loose, tmp_path) == (
        "net.onnx: node 'relu_0' (Relu) reads 'nobody', which nothing writes; export it again"
    )
    deaf = model_of("y = Relu(x)", x=(1, 2))
    deaf.graph.output[0].name = "z"
    assert refusal(deaf, tmp_path) == "net.onnx: nothing writes the output 'z'; export it again"
    twice = model_of("y = Add(x, w)", x=(1, 2), w=random(2))
    twice.graph.initializer.append(twice.graph.initializer[0])
    assert refusal(twice, tmp_path) == "net.onnx: two constants are called 'w'; export it again"
    constant = model_of("y = Add(w, w)", w=random(2))
    assert refusal(constant, tmp_path) == "net.onnx: takes no input; export a model that takes one batch tensor"
    short = model_of("y = Add(x, w)", x=(1, 2), w=random(2))
    short.graph.initializer[0].raw_data = b"\0\0\0\0\0"
    text = refusal(short, tmp_path)
    assert text.startswith("net.onnx: tensor 'w' is damaged (")
    assert text.endswith("); export it again")
