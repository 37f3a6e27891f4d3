"""torch.export archives: what loads, what is refused and in which words, and that a refused file runs nothing."""

import io
import json
import os
import zipfile

import pytest
import torch
from torch import nn

from gfcompile.frontend.load import load_model
from gfcompile.frontend.pt2 import _is_plain_expression
from tests.frontend.model_files import GARBAGE, Calls, assert_same_function, small_net, text_of


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


def test_exported_with_code_in_its_example(tmp_path):
    marker, path = tmp_path / "marker", tmp_path / "net.pt2"
    export(path)
    evil = io.BytesIO()
    torch.save(((Calls(os.system, f"touch {marker}"),), {}), evil)
    rewrite(path, {"data/sample_inputs/model.pt": evil.getvalue()})
    assert text_of(path) == (
        f"{path}: holds something other than tensors in 'data/sample_inputs/model.pt';"
        " if you trust the file, add --trust"
    )
    assert not marker.exists()


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


@pytest.mark.parametrize(
    ("changes", "deed"),
    [
        ({"data/aotinductor/model/model.so": b"\x7fELF"}, "holds native code in 'data/aotinductor/model/model.so'"),
        (
            {"data/weights/model_weights_config.json": weight_config(use_pickle=True)},
            "holds something other than tensors in 'data/weights/weight_0'",
        ),
        (
            {"data/weights/model_weights_config.json": weight_config(path_name="opaque_obj_0")},
            "holds an object other than a tensor in 'data/weights/opaque_obj_0'",
        ),
        ({"models/model.json": set_in_graph(IS_NODE, "target", "torch.os.system")}, "calls 'torch.os.system'"),
        (
            {"models/model.json": set_in_graph(IS_NODE, "target", "torch.ops.load_library.__call__")},
            "calls 'torch.ops.load_library.__call__'",
        ),
        ({"models/model.json": set_in_graph(IS_NODE, "as_operator", "_operator.call")}, "calls '_operator.call'"),
        (
            {"models/model.json": set_in_graph(IS_NODE, "expr_str", "eval('1')")},
            "holds the expression 'eval('1')'",
        ),
        (
            {"models/model.json": set_in_graph(lambda part: "in_spec" in part, "in_spec", TREE)},
            "holds a structure of its own in 'in_spec'",
        ),
    ],
)
def test_exported_with_code(tmp_path, changes, deed):
    export(tmp_path / "net.pt2")
    rewrite(tmp_path / "net.pt2", changes)
    assert text_of(tmp_path / "net.pt2") == f"{tmp_path}/net.pt2: {deed}; if you trust the file, add --trust"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("Symbol('s0', positive=True, integer=True)", True),
        ("Add(Mul(Integer(2), Symbol('s0', integer=True)), Integer(-1))", True),
        ("2*s0 + 1", True),
        ("__import__('os').system('x')", False),
        ("Max('__import__(1)', 2)", False),
        ("Symbol('s0').__class__", False),
        ("[x for x in y]", False),
        ("sympify(1)", False),
        ("1 +", False),
    ],
)
def test_expressions(text, plain):
    assert _is_plain_expression(text) is plain


@pytest.mark.parametrize("content", GARBAGE)
def test_garbage(tmp_path, content):
    path = tmp_path / "net.pt2"
    path.write_bytes(content)
    text = text_of(path)
    assert text.startswith(f"{path}: cannot be read as a torch.export archive (")
    assert text.endswith("); write it again with torch.export.save")
