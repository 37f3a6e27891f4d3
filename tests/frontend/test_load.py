"""Model files in: what loads, what is refused and in which words, and that a refused file runs nothing."""

import collections
import functools
import io
import json
import os
import pickle
import sys
import zipfile

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from gfcompile.errors import UserError
from gfcompile.frontend.load import from_module, load_model

NET_SOURCE = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(x)

def net():
    return Net()

def needs(width):
    return Net()

def number():
    return 3
"""


def small_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())


def text_of(spec, **options) -> str:
    with pytest.raises(UserError) as caught:
        load_model(str(spec), **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_same_function(ours: nn.Module, theirs: nn.Module) -> None:
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=0)


@pytest.fixture
def forget_modules():
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("gf_test_", "gfcompile_import_")):
            del sys.modules[name]


@pytest.fixture
def net_package(tmp_path, monkeypatch, forget_modules):
    """A folder with the package `gf_test_pkg`, importable."""
    folder = tmp_path / "site"
    (folder / "gf_test_pkg").mkdir(parents=True)
    (folder / "gf_test_pkg" / "__init__.py").write_text("")
    (folder / "gf_test_pkg" / "nets.py").write_text(NET_SOURCE)
    monkeypatch.syspath_prepend(str(folder))
    return folder


def save_pickle(path, pickled: bytes) -> None:
    """A file as torch.save lays it out, around a hand-made pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (("data.pkl", pickled), ("version", b"3\n"), ("byteorder", b"little")):
            archive.writestr(f"model/{name}", content)


class Calls:
    """Pickles as a call of `function`."""

    def __init__(self, function, *arguments, state=None):
        self.reduced = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.reduced


# ---- pickled modules


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("suffix", [".pt", ".pth"])
def test_saved_module(tmp_path, suffix, zipped):
    net, path = small_net().eval(), tmp_path / f"my-net{suffix}"
    torch.save(net, path, _use_new_zipfile_serialization=zipped)
    loaded = load_model(str(path))
    assert_same_function(loaded.module, net)
    assert (loaded.origin, loaded.name) == (str(path), "my_net")
    assert (loaded.example_shape, loaded.fixed_mode) == (None, False)


def test_higher_protocol(tmp_path):
    net = small_net().eval()
    torch.save(net, tmp_path / "net.pt", pickle_protocol=5)
    assert_same_function(load_model(str(tmp_path / "net.pt")).module, net)


def test_module_with_the_usual_attributes(tmp_path):
    net = small_net()
    kept = {
        "act": F.relu, "gelu": F.gelu, "norm": functools.partial(nn.LayerNorm, eps=1e-6), "kind": torch.float16,
        "size": torch.Size([2, 3]), "device": torch.device("cpu"), "layout": torch.strided,
        "names": {"a", "b"}, "fixed": frozenset([1]), "table": collections.OrderedDict(a=1),
        "count": collections.defaultdict(list, x=[1]), "last": collections.deque([1, 2]), "span": slice(1, 2),
        "steps": range(3), "raw": b"\xff", "root": 1j, "tree": {"a": [(1, None, True)]},
    }  # fmt: skip
    for name, value in kept.items():
        setattr(net, name, value)
    net[0].weight.tag = "kept"
    net.register_buffer("marked", torch.arange(3))
    net.marked.tag = "kept"
    torch.save(net, tmp_path / "net.pt")
    module = load_model(str(tmp_path / "net.pt")).module
    for name, value in kept.items():
        if name == "norm":
            assert (module.norm.func, module.norm.keywords) == (nn.LayerNorm, {"eps": 1e-6})
        else:
            assert getattr(module, name) == value
    assert module[0].weight.tag == module.marked.tag == "kept"
    assert isinstance(module[0].weight, nn.Parameter)


def test_class_of_an_installed_package(tmp_path, net_package):
    from gf_test_pkg.nets import Net

    net = Net()
    torch.save(net, tmp_path / "net.pt")
    for name in ("gf_test_pkg.nets", "gf_test_pkg"):
        del sys.modules[name]
    assert_same_function(load_model(str(tmp_path / "net.pt")).module, net)


@pytest.fixture
def orphan(tmp_path, net_package, monkeypatch):
    """A saved module whose package is gone."""
    from gf_test_pkg.nets import Net

    torch.save(Net(), tmp_path / "net.pt")
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(net_package)])
    for name in ("gf_test_pkg.nets", "gf_test_pkg"):
        del sys.modules[name]
    return tmp_path / "net.pt"


@pytest.mark.parametrize("trust", [False, True])
def test_class_that_cannot_be_imported(orphan, trust):
    assert text_of(orphan, trust=trust) == (
        f"{orphan}: its class 'gf_test_pkg.nets.Net' cannot be imported"
        " (ModuleNotFoundError: No module named 'gf_test_pkg');"
        " add --import model.py with the file that defines it, or save the model as .pt2"
    )


@pytest.mark.parametrize("trust", [False, True])
def test_import_satisfies_the_module_of_its_name(orphan, net_package, trust):
    loaded = load_model(str(orphan), imports=[str(net_package / "gf_test_pkg" / "nets.py")], trust=trust)
    assert type(loaded.module).__name__ == "Net"


def test_import_satisfies_main(tmp_path, monkeypatch, forget_modules):
    namespace: dict = {"__name__": "__main__"}
    exec(NET_SOURCE, namespace)
    monkeypatch.setattr(sys.modules["__main__"], "Net", namespace["Net"], raising=False)
    torch.save(namespace["Net"](), tmp_path / "net.pt")
    monkeypatch.delattr(sys.modules["__main__"], "Net")
    assert text_of(tmp_path / "net.pt").startswith(
        f"{tmp_path}/net.pt: its class '__main__.Net' cannot be imported (AttributeError: "
    )
    (tmp_path / "gf_test_model.py").write_text(NET_SOURCE)
    loaded = load_model(str(tmp_path / "net.pt"), imports=[str(tmp_path / "gf_test_model.py")])
    assert type(loaded.module).__name__ == "Net"


def test_import_of_bad_files(tmp_path):
    assert text_of("net.pt", imports=["no/model.py"]) == "--import: no such file 'no/model.py'; check the path"
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    assert text_of("net.pt", imports=[str(broken)]) == (
        f"--import: '{broken}' fails when it is run (ZeroDivisionError: division by zero); mend the file"
    )
    other = tmp_path / "model.txt"
    other.write_text("")
    assert text_of("net.pt", imports=[str(other)]) == (
        f"--import: '{other}' is not a Python file; give the .py file that defines the model's classes"
    )


# ---- pickles that carry code


@pytest.mark.parametrize("zipped", [True, False])
def test_foreign_code_does_not_run(tmp_path, zipped):
    marker, path, net = tmp_path / "marker", tmp_path / "model.pt", small_net()
    net.extra = Calls(os.system, f"touch {marker}")
    torch.save(net, path, _use_new_zipfile_serialization=zipped)
    assert text_of(path) == (
        f"{path}: holds 'posix.system', which is neither a tensor nor a module; if you trust the file, add --trust"
    )
    assert not marker.exists()
    loaded = load_model(str(path), trust=True)
    assert marker.exists()
    assert loaded.module.extra == 0


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (eval, "builtins.eval"),
        (getattr, "builtins.getattr"),
        (__import__, "builtins.__import__"),
        (open, "io.open"),
        (functools.reduce, "_functools.reduce"),
        (torch.load, "torch.serialization.load"),
        (F.handle_torch_function, "torch.overrides.handle_torch_function"),
    ],
)
def test_functions_are_refused_by_name(tmp_path, function, name):
    save_pickle(tmp_path / "model.pt", pickle.dumps([function], 2, fix_imports=False))
    assert text_of(tmp_path / "model.pt") == (
        f"{tmp_path}/model.pt: holds '{name}', which is neither a tensor nor a module;"
        " if you trust the file, add --trust"
    )


@pytest.mark.parametrize(
    ("value", "deed"),
    [
        (Calls(nn.Conv2d, 1, 1, 1), "calls 'torch.nn.modules.conv.Conv2d' while it loads"),
        (Calls(F.relu, torch.float32), "calls 'torch.nn.functional.relu' while it loads"),
        (Calls(functools.partial(F.relu)), "calls 'functools.partial' while it loads"),
        (Calls(set, state={"a": 1}), "sets the state of 'builtins.set'"),
    ],
)
def test_calls_are_limited_too(tmp_path, value, deed):
    save_pickle(tmp_path / "model.pt", pickle.dumps(value, 2))
    assert text_of(tmp_path / "model.pt") == f"{tmp_path}/model.pt: {deed}; if you trust the file, add --trust"


CONV = b"ctorch.nn.modules.conv\nConv2d\n"
RELU = b"ctorch.nn.functional\nrelu\n"


@pytest.mark.parametrize(
    ("body", "deed"),
    [
        (RELU + b"}b", "sets the state of 'torch.nn.functional.relu'"),
        (CONV + b"K\x01\x85\x81", "makes 'torch.nn.modules.conv.Conv2d' with arguments of its own"),
        (CONV + b"}b", "sets the state of 'torch.nn.modules.conv.Conv2d'"),
        (CONV + b")\x81K\x01a", "fills 'torch.nn.modules.conv.Conv2d'"),
        (CONV + b")\x81(K\x01e", "fills 'torch.nn.modules.conv.Conv2d'"),
        (CONV + b")\x81K\x01K\x01s", "fills 'torch.nn.modules.conv.Conv2d'"),
        (CONV + b")\x81(K\x01K\x01u", "fills 'torch.nn.modules.conv.Conv2d'"),
        (CONV + b")\x81(K\x01\x90", "fills 'torch.nn.modules.conv.Conv2d'"),
        (b"(" + CONV[1:].join([b"i", b""]), "uses a pickle instruction that torch.save never writes"),
        (b"(" + CONV + b"o", "uses a pickle instruction that torch.save never writes"),
        (
            b"ctorch._tensor\n_rebuild_from_type_v2\n(" + RELU + CONV + b")NtR",
            "calls 'torch.nn.functional.relu' while it loads",
        ),
        (
            b"ctorch.fx.graph_module\nGraphModule\n)\x81",
            "holds 'torch.fx.graph_module.GraphModule', which is neither a tensor nor a module",
        ),
    ],
)
def test_hand_made_pickles(tmp_path, body, deed):
    save_pickle(tmp_path / "model.pt", b"\x80\x02" + body + b".")
    assert text_of(tmp_path / "model.pt") == f"{tmp_path}/model.pt: {deed}; if you trust the file, add --trust"


def test_dotted_names_reach_no_module_within_a_module(tmp_path):
    save_pickle(tmp_path / "model.pt", b"\x80\x04\x8c\x13torch.nn.functional\x8c\x10warnings.filters\x93.")
    assert text_of(tmp_path / "model.pt") == (
        f"{tmp_path}/model.pt: its class 'torch.nn.functional.warnings.filters' cannot be imported"
        " (AttributeError: 'warnings.filters' does not name a class);"
        " add --import model.py with the file that defines it, or save the model as .pt2"
    )


def test_state_planted_in_an_instance_is_not_called(tmp_path):
    """A second state would go to the `__setstate__` of the first, were it looked up on the instance."""
    planted = pickle.dumps(nn.ReLU(), 2)[:-1] + b"}X\x0c\x00\x00\x00__setstate__" + RELU + b"sb}b."
    save_pickle(tmp_path / "model.pt", planted)
    assert load_model(str(tmp_path / "model.pt")).module.__dict__["__setstate__"] is F.relu


def test_module_without_its_state(tmp_path):
    save_pickle(tmp_path / "model.pt", b"\x80\x02" + CONV + b")\x81.")
    assert text_of(tmp_path / "model.pt").startswith(
        f"{tmp_path}/model.pt: cannot be read as a PyTorch file (AttributeError: "
    )


# ---- files that hold something else


def test_missing_file():
    for name in ("no.pt", "no.pth", "no.pt2"):
        assert text_of(name) == f"{name}: no such file; check the path"


def test_weights_instead_of_a_module(tmp_path):
    torch.save(small_net().state_dict(), tmp_path / "net.pth")
    assert text_of(tmp_path / "net.pth") == (
        f"{tmp_path}/net.pth: holds weights (a 'OrderedDict' of 7 entries), not a module; save them with"
        " safetensors.torch.save_file and use package.module:factory --weights file.safetensors"
    )


def test_a_tensor_instead_of_a_module(tmp_path):
    torch.save(torch.zeros(3), tmp_path / "net.pt")
    assert text_of(tmp_path / "net.pt") == (
        f"{tmp_path}/net.pt: holds a 'Tensor', not a module; save the module with torch.save(model, ...)"
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript(tmp_path):
    torch.jit.trace(small_net().eval(), torch.randn(1, 3, 8, 8)).save(str(tmp_path / "net.pt"))
    assert text_of(tmp_path / "net.pt") == (
        f"{tmp_path}/net.pt: is a 'TorchScript' archive, which has no Python modules left;"
        " export the original model as .pt2 with torch.export.save"
    )


@pytest.mark.parametrize("suffix", [".pt", ".pt2"])
@pytest.mark.parametrize("content", [b"", b"not a model", b"PK\x03\x04 not an archive", bytes(range(256)) * 20])
def test_garbage(tmp_path, content, suffix):
    path = tmp_path / f"net{suffix}"
    path.write_bytes(content)
    text = text_of(path)
    if suffix == ".pt":
        assert text.startswith(f"{path}: cannot be read as a PyTorch file (")
        assert text.endswith("); write it again with torch.save(model, ...)")
    else:
        assert text.startswith(f"{path}: cannot be read as a torch.export archive (")
        assert text.endswith("); write it again with torch.export.save")


def test_truncated(tmp_path):
    whole = io.BytesIO()
    torch.save(small_net(), whole)
    (tmp_path / "net.pt").write_bytes(whole.getvalue()[: len(whole.getvalue()) // 2])
    assert text_of(tmp_path / "net.pt").startswith(
        f"{tmp_path}/net.pt: cannot be read as a PyTorch file (RuntimeError: "
    )


def test_other_suffixes():
    assert text_of("net.onnx") == (
        "net.onnx: '.onnx' files come in a later version; export the model as .pt2 with torch.export.save"
    )
    assert text_of("net.safetensors") == (
        "net.safetensors: '.safetensors' holds weights only; use package.module:factory --weights net.safetensors"
    )
    assert text_of("resnet18") == (
        "model: 'resnet18' is not a model; give a .pt2, .pt or .pth file, or package.module:factory"
    )


# ---- .pt2


def export(path, module=None, **options) -> None:
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
    from gfcompile.frontend.load import _is_plain_expression

    assert _is_plain_expression(text) is plain


# ---- factories and weights


@pytest.fixture
def in_folder(tmp_path, monkeypatch, forget_modules):
    (tmp_path / "gf_test_nets.py").write_text(NET_SOURCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_factory_in_the_working_directory(in_folder):
    path = list(sys.path)
    loaded = load_model("gf_test_nets:net")
    assert (type(loaded.module).__name__, loaded.origin, loaded.name) == ("Net", "gf_test_nets:net", "net")
    assert sys.path == path


def test_bad_factories(in_folder):
    assert text_of("gf_test_nets:needs") == (
        "model: 'gf_test_nets:needs' cannot be called without arguments"
        " (TypeError: needs() missing 1 required positional argument: 'width'); name a function that needs none"
    )
    assert text_of("gf_test_nets:number") == (
        "model: 'gf_test_nets:number' returned a 'int'; it must return a torch.nn.Module"
    )
    assert text_of("math:pi") == "model: 'math:pi' is a float, not callable; name a function that returns a module"
    assert text_of("no_such_package:net") == (
        "model: cannot import 'no_such_package' (ModuleNotFoundError: No module named 'no_such_package');"
        " run from the folder that holds it, or install it"
    )
    assert text_of("gf_test_nets:nothing") == (
        "model: module 'gf_test_nets' has no 'nothing'; check the name after the colon"
    )


def test_weights(in_folder):
    weights = {"conv.weight": torch.randn(4, 3, 3, 3), "conv.bias": torch.randn(4)}
    save_file(weights, "w.safetensors")
    state = load_model("gf_test_nets:net", weights="w.safetensors").module.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in weights.items())


def test_weights_that_do_not_fit(in_folder):
    save_file({f"other{i}": torch.zeros(1) for i in range(5)} | {"conv.bias": torch.zeros(4)}, "w.safetensors")
    assert text_of("gf_test_nets:net", weights="w.safetensors") == (
        "w.safetensors: does not fit 'gf_test_nets:net': missing 'conv.weight';"
        " unexpected 'other0', 'other1', 'other2' and 2 more; use the weights of the same model"
    )
    save_file({"conv.weight": torch.zeros(4, 1, 3, 3), "conv.bias": torch.zeros(4)}, "w.safetensors")
    assert text_of("gf_test_nets:net", weights="w.safetensors") == (
        "w.safetensors: 'conv.weight' has shape 4x1x3x3 but 'gf_test_nets:net' wants 4x3x3x3;"
        " use the weights of the same model"
    )


def test_bad_weight_files(in_folder):
    assert text_of("gf_test_nets:net", weights="w.pth") == (
        "w.pth: weights must be a '.safetensors' file; convert them with safetensors.torch.save_file"
    )
    assert text_of("gf_test_nets:net", weights="w.safetensors") == (
        "w.safetensors: no such file; check the path of --weights"
    )
    (in_folder / "w.safetensors").write_bytes(b"garbage")
    text = text_of("gf_test_nets:net", weights="w.safetensors")
    assert text.startswith("w.safetensors: not a readable safetensors file (SafetensorError: ")
    assert text.endswith("); write it again")


def test_tied_weights_are_stored_once(in_folder):
    (in_folder / "gf_test_tied.py").write_text(
        "from torch import nn\ndef tied():\n    a, b = nn.Linear(2, 2), nn.Linear(2, 2)\n"
        "    b.weight = a.weight\n    return nn.Sequential(a, b)\n"
    )
    save_file({"0.weight": torch.ones(2, 2), "0.bias": torch.ones(2), "1.bias": torch.ones(2)}, "w.safetensors")
    module = load_model("gf_test_tied:tied", weights="w.safetensors").module
    assert torch.equal(module[1].weight, torch.ones(2, 2))


# ---- modules at hand


def test_module_at_hand():
    net = small_net()
    loaded = from_module(net)
    assert loaded.module is net
    assert (loaded.origin, loaded.name) == ("Sequential", "sequential")


def test_lazy_module():
    with pytest.raises(UserError) as caught:
        from_module(nn.LazyConv2d(3, 3))
    assert str(caught.value) == (
        "LazyConv2d: 'weight' has no shape yet; run the model once before it is compiled or saved"
    )


@pytest.mark.parametrize(
    ("stem", "name"),
    [("resnet18", "resnet18"), ("my-net.v2", "my_net_v2"), ("2net", "model_2net"), ("class", "model_class")],
)
def test_names_are_identifiers(tmp_path, stem, name):
    torch.save(small_net(), tmp_path / f"{stem}.pt")
    assert load_model(str(tmp_path / f"{stem}.pt")).name == name
