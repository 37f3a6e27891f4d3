"""torch.export archives: what loads, what is refused and in which words, and that a refused file runs nothing."""

import json
import zipfile

import pytest
import torch
from torch import nn

from gfcompile.frontend.exported.guards import guard
from gfcompile.frontend.exported.operators import ADMITTED, find_operator
from gfcompile.frontend.load import load_model
from tests.frontend.model_files import GARBAGE, assert_same_function, small_net, text_of


def export(path, module=None, **options) -> None:
    torch.manual_seed(0)
    module = small_net().eval() if module is None else module
    torch.export.save(torch.export.export(module, (torch.randn(2, 3, 8, 8),), **options), path)


def rewrite(path, changes) -> None:
    """Change records of an archive: name -> function of the old bytes, or bytes of a new record."""
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    root = next(iter(records)).partition("/")[0]
    for name, change in changes.items():
        full = f"{root}/{name}"
        records[full] = change if isinstance(change, bytes) else change(records[full])
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in records.items():
            archive.writestr(name, content)


def test_exported(tmp_path):
    net = small_net().eval()
    export(tmp_path / "net.pt2", net)
    loaded = load_model(str(tmp_path / "net.pt2"))
    assert_same_function(loaded.module, net)
    assert (loaded.name, loaded.example_shape, loaded.fixed_mode) == ("net", (2, 3, 8, 8), True)
    assert loaded.module.state_dict().keys() == net.state_dict().keys()


def test_exported_with_a_dynamic_batch(tmp_path):
    net = nn.Sequential(small_net(), nn.Conv2d(4, 2, 3, stride=2), nn.Flatten(), nn.Dropout()).eval()
    export(tmp_path / "net.pt2", net, dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},))
    loaded = load_model(str(tmp_path / "net.pt2"))
    assert loaded.example_shape == (2, 3, 8, 8)
    assert loaded.module(torch.randn(5, 3, 8, 8)).shape[0] == 5


def test_exported_with_dynamic_sizes(tmp_path):
    size = torch.export.Dim("size", min=8, max=64)
    net = nn.Sequential(small_net(), nn.Conv2d(4, 2, 3, stride=2), nn.AdaptiveAvgPool2d(1)).eval()
    export(tmp_path / "net.pt2", net, dynamic_shapes=({2: size, 3: size},))
    assert load_model(str(tmp_path / "net.pt2")).example_shape == (2, 3, 8, 8)


class Sum(nn.Module):
    def forward(self, x, y):
        return x + y


def test_exported_with_two_inputs(tmp_path):
    program = torch.export.export(Sum(), (torch.zeros(2), torch.zeros(2)))
    torch.export.save(program, tmp_path / "sum.pt2")
    assert text_of(tmp_path / "sum.pt2") == (
        f"{tmp_path}/sum.pt2: takes 2 inputs; export a model that takes one batch tensor"
    )


def test_not_an_export_archive(tmp_path):
    torch.save(small_net(), tmp_path / "net.pt2")
    assert text_of(tmp_path / "net.pt2") == (
        f"{tmp_path}/net.pt2: is not a torch.export archive of torch 2.8 or later; export the model again"
    )


def set_in_graph(find, key, value):
    """A change of models/model.json: in the first dict that `find` accepts, `key` becomes `value`."""

    def walk(part):
        if isinstance(part, dict):
            if find(part):
                part[key] = value
                return True
            return any(walk(item) for item in part.values())
        return isinstance(part, list) and any(walk(item) for item in part)

    def change(old: bytes) -> bytes:
        graph = json.loads(old)
        assert walk(graph)
        return json.dumps(graph).encode()

    return change


def weight_config(**values):
    def change(old: bytes) -> bytes:
        config = json.loads(old)
        next(iter(config["config"].values())).update(values)
        return json.dumps(config).encode()

    return change


IS_NODE = {"target", "inputs"}.issubset
TREE = '[1, {"type": "collections.defaultdict", "context": "null", "children_spec": []}]'
SHAPE = {"as_expr": {"expr_str": "eval('__1__')", "hint": {"as_int": 2}}}


def is_result_of_conv(part: dict) -> bool:
    return part.get("as_tensor") == {"name": "conv2d"}


@pytest.mark.parametrize(
    ("changes", "deed"),
    [
        ({"data/aotinductor/model/model.so": b"\x7fELF"}, "holds native code in 'data/aotinductor/model/model.so'"),
        (
            {"data/weights/model_weights_config.json": weight_config(use_pickle=True)},
            "holds an object other than a tensor in 'data/weights/weight_0'",
        ),
        (
            {"data/weights/model_weights_config.json": weight_config(path_name="opaque_obj_0")},
            "holds an object other than a tensor in 'data/weights/opaque_obj_0'",
        ),
        *(
            (
                {"models/model.json": set_in_graph(IS_NODE, "target", target)},
                f"calls '{target}', which is not an operator that gfcompile knows",
            )
            for target in (
                "torch.os.system",
                "torch.ops.load_library.__call__",
                "torch.ops.aten.from_file.default",
                "torch.ops.prims.iota.default",
                "torch.ops.higher_order.print",
                "_operator.call",
                "#extension:call",
            )
        ),
        (
            {"models/model.json": set_in_graph(is_result_of_conv, "as_tensor", {"name": "a = 1; b"})},
            "calls a value 'a = 1; b', which is no name",
        ),
    ],
)
def test_exported_with_code(tmp_path, changes, deed):
    export(tmp_path / "net.pt2")
    rewrite(tmp_path / "net.pt2", changes)
    assert text_of(tmp_path / "net.pt2") == f"{tmp_path}/net.pt2: {deed}; if you trust the file, add --trust"


def has_trees(part: dict) -> bool:
    return "in_spec" in part


def has_sizes(part: dict) -> bool:
    return "sizes" in part


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (set_in_graph(has_trees, "in_spec", TREE), "it takes or gives a 'collections.defaultdict'"),
        (set_in_graph(has_trees, "out_spec", TREE), "it takes or gives a 'collections.defaultdict'"),
        (set_in_graph(IS_NODE, "target", "torch.ops.aten.conv2d.none"), "there is no operator 'torch.ops.aten."),
        (set_in_graph(IS_NODE, "target", "torch.ops.aten.relu.default"), "'aten.relu.default' takes no 'input'"),
        (set_in_graph(lambda part: part.get("name") == "x", "name", "z"), "it reads 'x' before it is computed"),
    ],
)
def test_programs_that_make_no_sense(tmp_path, change, what):
    export(tmp_path / "net.pt2", Named())
    rewrite(tmp_path / "net.pt2", {"models/model.json": change})
    text = text_of(tmp_path / "net.pt2")
    assert text.startswith(f"{tmp_path}/net.pt2: cannot be read as a torch.export archive ({what}")


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = small_net().eval()

    def forward(self, x):
        return self.net(x)


def test_expressions_are_formulas(tmp_path):
    export(tmp_path / "net.pt2")
    rewrite(tmp_path / "net.pt2", {"models/model.json": set_in_graph(has_sizes, "sizes", [SHAPE])})
    assert text_of(tmp_path / "net.pt2") == (
        f"{tmp_path}/net.pt2: holds the expression 'eval('__1__')'; if you trust the file, add --trust"
    )


class Region(nn.Module):
    """Several outputs in containers, a part without gradients, a constant, a buffer that is updated, operators that
    return several tensors."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.scales = torch.tensor([1.0, 2.0])

    def forward(self, x):
        first, second = self.norm(self.conv(x)).relu_().split(2, 1)
        values, _ = torch.cat([first, second], 1).flatten(2).max(2)
        with torch.no_grad():
            target, largest = values * 2, values.amax(1)
        return {"out": values * self.scales[0] + target, "rest": [largest, None], "both": (first, second)}


def test_everything_an_exported_program_can_hold(tmp_path):
    torch.manual_seed(0)
    net, x = Region(), torch.randn(2, 3, 8, 8)
    torch.export.save(torch.export.export(net, (x,)), tmp_path / "net.pt2")
    module = load_model(str(tmp_path / "net.pt2")).module
    ours, theirs = module(x), net(x)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert module.state_dict().keys() == net.state_dict().keys()
    torch.testing.assert_close(dict(module.named_buffers())["norm.running_var"], net.norm.running_var, rtol=0, atol=0)
    for result in (ours, theirs):
        result["out"].sum().backward()
    torch.testing.assert_close(module.conv.weight.grad, net.conv.weight.grad, rtol=0, atol=0)


@pytest.mark.slow
def test_a_decomposed_program(tmp_path):
    torch.manual_seed(0)
    net, x = Region(), torch.randn(2, 3, 8, 8)
    torch.export.save(torch.export.export(net, (x,)).run_decompositions(), tmp_path / "net.pt2")
    module = load_model(str(tmp_path / "net.pt2")).module
    torch.testing.assert_close(module(x)["out"], net(x)["out"])
    torch.testing.assert_close(dict(module.named_buffers())["norm.running_var"], net.norm.running_var)


def test_tied_weights_stay_tied(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1))
    net[1].weight = net[0].weight
    export(tmp_path / "net.pt2", net)
    module = load_model(str(tmp_path / "net.pt2")).module
    assert module.state_dict().keys() == net.state_dict().keys()
    assert module.get_parameter("0.weight") is module.get_parameter("1.weight")


def test_an_older_format(tmp_path):
    export(tmp_path / "net.pt2")
    change = set_in_graph(lambda part: "major" in part, "major", 3)
    rewrite(tmp_path / "net.pt2", {"models/model.json": change})
    assert text_of(tmp_path / "net.pt2").startswith(
        f"{tmp_path}/net.pt2: has version '3' of torch.export's format, torch {torch.__version__} writes "
    )


@pytest.mark.parametrize("name", sorted(ADMITTED))
def test_each_admitted_name_is_an_operator_on_tensors(name):
    packet = getattr(torch.ops.aten, name)
    assert any(find_operator(f"torch.ops.aten.{name}.{overload}") for overload in packet.overloads())


@pytest.mark.parametrize(
    "target",
    ["aten.add.str", "aten.copy.t", "aten.sort.any", "aten.index.str", "aten.pow.int", "aten.repeat_interleave.Tensor"],
)
def test_operators_on_words_and_lists_are_not_admitted(target):
    assert find_operator(f"torch.ops.{target}") is None


IMAGES, CHANNELS, SHORT = torch.randn(2, 4, 3, 3), torch.ones(4), torch.ones(1)
aten = torch.ops.aten


@pytest.mark.parametrize(
    ("operator", "arguments", "text"),
    [
        (aten.native_batch_norm.default, (IMAGES, None, None, SHORT, SHORT, True, 0.1, 1e-5), "a batch norm has not"),
        (aten.native_batch_norm.default, (IMAGES, None, None, None, None, False, 0.1, 1e-5), "a batch norm has no s"),
        (
            aten._native_batch_norm_legit_no_training.default,
            (IMAGES, SHORT, None, CHANNELS, CHANNELS, 0.1, 1e-5),
            "a batch norm has not one value for each channel",
        ),
        (aten.div.Tensor_mode, (torch.tensor([1]), torch.tensor([-1])), "integers are divided with rounding to zero"),
        (aten.grid_sampler_2d.default, (IMAGES, torch.zeros(2, 3, 3, 2), 77, 0, False), "a grid is sampled in a way"),
        (aten.native_group_norm.default, (IMAGES, None, None, 2, 4, 1 << 62, 4, 1e-5), "a group norm has other sizes"),
        (aten.native_group_norm.default, (IMAGES, SHORT, None, 2, 4, 9, 2, 1e-5), "a group norm has other sizes"),
        (aten.scaled_dot_product_attention.default, (IMAGES, IMAGES, IMAGES[:, :, :1]), "an attention has not one"),
        (aten._upsample_bilinear2d_aa.default, (IMAGES, [9, 9], False, 1e-10, 1e-10), "an image is resized by another"),
        (aten._upsample_bicubic2d_aa.default, (IMAGES, [9, 9], False, None, 1e-19), "an image is resized by another"),
        (aten.zeros.default, ([1 << 20, 1 << 20],), "a tensor of 1.1e+12 values is made out of nothing"),
        (aten.eye.m, (1 << 20, 1 << 20), "a tensor of 1.1e+12 values is made out of nothing"),
        (aten.arange.start_step, (0, 1, 1e-12), "a tensor of 1e+12 values is made out of nothing"),
        (aten.linspace.default, (0, 1, 1 << 40), "a tensor of 1.1e+12 values is made out of nothing"),
        (aten.repeat.default, (IMAGES, [1 << 20, 1 << 20, 1, 1]), "a tensor of 7.92e+13 values is made out of nothing"),
    ],
)
def test_operators_that_trust_their_arguments_are_asked_first(operator, arguments, text):
    options = {"rounding_mode": "trunc"} if operator is aten.div.Tensor_mode else {}
    with pytest.raises(RuntimeError) as caught:
        guard(operator)(*arguments, **options)
    assert str(caught.value).startswith(text)


def test_guarded_operators_compute_what_they_did():
    statistics = (IMAGES, CHANNELS * 2, CHANNELS, CHANNELS * 3, CHANNELS * 4, 0.1, 1e-5)
    operator = aten._native_batch_norm_legit_no_training.default
    torch.testing.assert_close(guard(operator)(*statistics), operator(*statistics), rtol=0, atol=0)
    for operator, *arguments in (
        (aten.native_group_norm.default, IMAGES, CHANNELS, CHANNELS, 2, 4, 9, 2, 1e-5),
        (aten.scaled_dot_product_attention.default, IMAGES, IMAGES, IMAGES),
        (aten._upsample_bilinear2d_aa.default, IMAGES, [4, 2], False, 1.5, 0.9),
    ):
        assert guard(operator) is not operator
        torch.testing.assert_close(guard(operator)(*arguments), operator(*arguments), rtol=0, atol=0)
    v, g = torch.randn(4, 3, 2, 2), torch.randn(4, 1, 1, 1)
    torch.testing.assert_close(guard(aten._weight_norm.default)(v, g, 0), torch._weight_norm(v, g, 0))
    assert guard(aten.relu.default) is aten.relu.default


def test_sizes_are_numbers_that_fit():
    multiply = find_operator("_operator.mul")
    assert multiply(3, 4) == 12
    with pytest.raises(RuntimeError, match="a size does not fit its integer"):
        multiply(1 << 40, 1 << 40)
    with pytest.raises(RuntimeError, match="a size is computed from something that is no number"):
        multiply("a", 1 << 40)


@pytest.mark.parametrize("content", GARBAGE)
def test_garbage(tmp_path, content):
    path = tmp_path / "net.pt2"
    path.write_bytes(content)
    text = text_of(path)
    assert text.startswith(f"{path}: cannot be read as a torch.export archive (")
    assert text.endswith("); write it again with torch.export.save")
