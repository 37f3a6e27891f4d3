"""Pickled modules: what loads, what is refused and in which words, and that a refused file runs nothing."""

import collections
import functools
import io
import os
import pickle
import re
import sys
import zipfile

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gfcompile.errors import UserError
from gfcompile.frontend.load import load_model
from gfcompile.frontend.trace import run_once
from tests.frontend.model_files import GARBAGE, NET_SOURCE, Calls, assert_same_function, save_pickle, small_net, text_of


@pytest.fixture
def net_package(tmp_path, monkeypatch, forget_modules):
    """A folder with the package `gf_test_pkg`, importable."""
    folder = tmp_path / "site"
    (folder / "gf_test_pkg").mkdir(parents=True)
    (folder / "gf_test_pkg" / "__init__.py").write_text("")
    (folder / "gf_test_pkg" / "nets.py").write_text(NET_SOURCE)
    monkeypatch.syspath_prepend(str(folder))
    return folder


NEITHER = "neither a tensor nor a module of torch.nn, torchvision, timm or segmentation_models_pytorch"

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
        "act": F.relu, "gate": torch.sigmoid, "gelu": F.gelu, "norm": functools.partial(nn.LayerNorm, eps=1e-6),
        "kind": torch.float16, "size": torch.Size([2, 3]), "device": torch.device("cpu"), "layout": torch.strided,
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
            assert (module.norm.func.kind, module.norm.keywords) == (nn.LayerNorm, {"eps": 1e-6})
        else:
            assert getattr(module, name) == value
    assert module[0].weight.tag == module.marked.tag == "kept"
    assert isinstance(module[0].weight, nn.Parameter)


@pytest.mark.parametrize("held", [nn.Linear, functools.partial(nn.Linear, out_features=1)])
def test_a_class_may_be_kept_but_not_called(tmp_path, held):
    """This layer calls an attribute in its forward pass; some libraries have constructors that load files."""
    layer = nn.TransformerEncoderLayer(8, 1, 1)
    layer.activation, layer.activation_relu_or_gelu = held, 0
    path = str(tmp_path / "net.pt")
    torch.save(layer, path)
    module = load_model(path).module
    refused = f"{path}: makes a 'Linear' while it runs; if you trust the file, add --trust"
    with pytest.raises(UserError, match=f"^{re.escape(refused)}$"):
        run_once(module, (torch.zeros(2, 8, 8),))


@pytest.fixture
def packaged(tmp_path, net_package):
    """A saved module of an installed package, and the module."""
    from gf_test_pkg.nets import Net

    net = Net()
    torch.save(net, tmp_path / "net.pt")
    for name in ("gf_test_pkg.nets", "gf_test_pkg"):
        del sys.modules[name]
    return tmp_path / "net.pt", net


@pytest.mark.parametrize("name", ["gf_test_pkg", "gf_test_pkg.nets"])
def test_class_of_a_package_that_the_user_names(packaged, name):
    path, net = packaged
    assert_same_function(load_model(str(path), imports=[name]).module, net)


def test_a_package_that_is_a_folder_here(packaged, net_package, monkeypatch):
    path, net = packaged
    monkeypatch.chdir(net_package)
    assert_same_function(load_model(str(path), imports=["gf_test_pkg"]).module, net)


def test_class_of_a_package_that_nobody_named(packaged):
    path, _ = packaged
    assert text_of(path) == (
        f"{path}: its class 'gf_test_pkg.nets.Net' is not of torch.nn, torchvision, timm or"
        " segmentation_models_pytorch; if the package is yours, add --import gf_test_pkg, or save the model as .pt2;"
        " if you trust the file, add --trust"
    )
    assert "gf_test_pkg" not in sys.modules


def test_a_name_that_is_neither_a_file_nor_a_package(packaged):
    path, _ = packaged
    assert text_of(path, imports=["my/net"]) == (
        "--import: no such file 'my/net'; give a Python file, or the name of a package"
    )


@pytest.fixture
def orphan(tmp_path, net_package, monkeypatch):
    """A saved module whose package is gone."""
    from gf_test_pkg.nets import Net

    torch.save(Net(), tmp_path / "net.pt")
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(net_package)])
    for name in ("gf_test_pkg.nets", "gf_test_pkg"):
        del sys.modules[name]
    return tmp_path / "net.pt"


@pytest.mark.parametrize("options", [{"imports": ["gf_test_pkg"]}, {"trust": True}])
def test_class_that_cannot_be_imported(orphan, options):
    assert text_of(orphan, **options) == (
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
    assert text_of(tmp_path / "net.pt") == (
        f"{tmp_path}/net.pt: its class '__main__.Net' was defined in a script;"
        " add --import model.py with the file that defines it, or save the model as .pt2"
    )
    (tmp_path / "gf_test_model.py").write_text(NET_SOURCE)
    loaded = load_model(str(tmp_path / "net.pt"), imports=[str(tmp_path / "gf_test_model.py")])
    assert type(loaded.module).__name__ == "Net"


# ---- pickles that carry code


@pytest.mark.parametrize("zipped", [True, False])
def test_foreign_code_does_not_run(tmp_path, zipped):
    marker, path, net = tmp_path / "marker", tmp_path / "model.pt", small_net()
    net.extra = Calls(os.system, f"touch {marker}")
    torch.save(net, path, _use_new_zipfile_serialization=zipped)
    assert text_of(path) == (f"{path}: holds 'posix.system', which is {NEITHER}; if you trust the file, add --trust")
    assert not marker.exists()
    loaded = load_model(str(path), trust=True)
    assert marker.exists()
    assert loaded.module.extra == 0


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (eval, "builtins.eval"),
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
        f"{tmp_path}/model.pt: holds '{name}', which is {NEITHER}; if you trust the file, add --trust"
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
        (b"c__builtin__\neval\n", f"holds 'builtins.eval', which is {NEITHER}"),
        (
            b"ctorch.fx.graph_module\nGraphModule\n)\x81",
            f"holds 'torch.fx.graph_module.GraphModule', which is {NEITHER}",
        ),
    ],
)
def test_hand_made_pickles(tmp_path, body, deed):
    save_pickle(tmp_path / "model.pt", b"\x80\x02" + body + b".")
    assert text_of(tmp_path / "model.pt") == f"{tmp_path}/model.pt: {deed}; if you trust the file, add --trust"


def test_a_class_that_a_library_has_only_imported(tmp_path, monkeypatch):
    """Where it was defined decides, not where the file has found it."""
    borrowed = type("Borrowed", (nn.Module,), {"__module__": "elsewhere"})
    monkeypatch.setattr(nn.modules.conv, "Borrowed", borrowed, raising=False)
    save_pickle(tmp_path / "model.pt", b"\x80\x02ctorch.nn.modules.conv\nBorrowed\n)\x81.")
    assert text_of(tmp_path / "model.pt") == (
        f"{tmp_path}/model.pt: holds 'torch.nn.modules.conv.Borrowed', which is {NEITHER};"
        " if you trust the file, add --trust"
    )


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch.nn.functional", "warnings.filters"),
        ("torch.nn.functional", "_pad_circular"),
        ("torch._C._nn", "__name__"),
    ],
)
def test_only_functions_of_torch_are_held(tmp_path, module, name):
    words = b"".join(b"\x8c" + bytes([len(word)]) + word.encode() for word in (module, name))
    save_pickle(tmp_path / "model.pt", b"\x80\x04" + words + b"\x93.")
    assert text_of(tmp_path / "model.pt") == (
        f"{tmp_path}/model.pt: holds '{module}.{name}', which is {NEITHER}; if you trust the file, add --trust"
    )


TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n"
TYPED = b"ctorch._tensor\n_rebuild_from_type_v2\n"


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (TYPED + b"(" + RELU + CONV + b")NtR", "'torch.Tensor' cannot be made of what it is given"),
        (TYPED + b"(" + TYPED + CONV + b")}tR", "'torch.Tensor' cannot be made of what it is given"),
        (TENSOR + b"(NK\x00)))}tR", "'torch.Tensor' cannot be made of what it is given"),
        (TENSOR + b")R", "'torch._utils._rebuild_tensor_v2' cannot be made of what it is given"),
        (b"c__builtin__\nset\n(c__builtin__\nxrange\nJ\x00\x00\x00\x40\x85RtR", "'a container' cannot be made of"),
        (b"c__builtin__\nset\n(](}etR", "a 'dict' is a key in it"),
        (b"ccollections\ndefaultdict\n(" + CONV + b"tR", "'defaultdict' cannot be made of what it is given"),
        (b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x03\x00\x00\x00hextR", "'bytes' cannot be made of what it is given"),
        (b"c__builtin__\ngetattr\n(" + CONV + b"X\x07\x00\x00\x00forwardtR", "it asks for 'forward' of something that"),
        (b"c__builtin__\ngetattr\n(" + RELU + b"X\x0b\x00\x00\x00__globals__tR", "it asks for '__globals__' of"),
        (b"cfunctools\npartial\n(NtR", "a 'functools.partial' calls neither a module class nor a function of"),
        (CONV + b")\x81", "a 'torch.nn.modules.conv.Conv2d' has lost its state"),
        (b"X\x01\x00\x00\x00aQ", "it refers to something that is neither a storage nor a class"),
    ],
)
def test_builders_take_what_they_are_meant_for(tmp_path, body, what):
    save_pickle(tmp_path / "model.pt", b"\x80\x02" + body + b".")
    text = text_of(tmp_path / "model.pt")
    assert text.startswith(f"{tmp_path}/model.pt: cannot be read as a PyTorch file ({what}")


def state_of_a_relu(name: str, value: object) -> bytes:
    whole = io.BytesIO()
    net = nn.Sequential(nn.ReLU())
    net[0].__dict__[name] = value
    torch.save(net, whole)
    with zipfile.ZipFile(whole) as archive:
        return archive.read("archive/data.pkl")


@pytest.mark.parametrize(
    ("name", "value", "deed"),
    [
        ("forward", F.relu, "replaces 'forward' of a 'torch.nn.modules.activation.ReLU'"),
        ("extra_repr", functools.partial(F.relu), "replaces 'extra_repr' of a 'torch.nn.modules.activation.ReLU'"),
        ("__setstate__", F.relu, "replaces '__setstate__' of a 'torch.nn.modules.activation.ReLU'"),
        ("__call__", 1, "replaces '__call__' of a 'torch.nn.modules.activation.ReLU'"),
        ("_call_impl", nn.ReLU, "replaces '_call_impl' of a 'torch.nn.modules.activation.ReLU'"),
        ("not a name", 1, "replaces 'not a name' of a 'torch.nn.modules.activation.ReLU'"),
        ("_forward_hooks", {0: F.relu}, "holds a hook in '_forward_hooks' of a 'torch.nn.modules.activation.ReLU'"),
        ("_modules", {"a": F.gelu}, "holds a 'torch._C._nn.gelu' among the '_modules' of a 'torch.nn.modules"),
        ("_buffers", {"a": 1}, "holds a 'builtins.int' among the '_buffers' of a 'torch.nn.modules.activation.ReLU'"),
        ("_modules", {"a\n": None}, "calls a part of a 'torch.nn.modules.activation.ReLU' 'a ', which is no name"),
    ],
)
def test_state_in_the_place_of_code(tmp_path, name, value, deed):
    save_pickle(tmp_path / "model.pt", state_of_a_relu(name, value))
    assert text_of(tmp_path / "model.pt").startswith(f"{tmp_path}/model.pt: {deed}")


def test_a_message_stays_short(tmp_path):
    save_pickle(tmp_path / "model.pt", state_of_a_relu("_modules", {"a'" * 5000: None}))
    assert len(text_of(tmp_path / "model.pt")) == 1003


def test_plain_state_may_have_the_name_of_a_method(tmp_path):
    """As detectors do, which mark their layers with a `type`."""
    save_pickle(tmp_path / "model.pt", state_of_a_relu("type", "act"))
    assert load_model(str(tmp_path / "model.pt")).module[0].type == "act"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrapper", "maker", "inside"),
    [(torch.compile, "torch.compile", "_orig_mod"), (nn.DataParallel, "DataParallel", "module")],
)
def test_what_is_put_around_a_model(tmp_path, wrapper, maker, inside):
    torch.save(wrapper(small_net()), tmp_path / "net.pt")
    assert text_of(tmp_path / "net.pt") == (
        f"{tmp_path}/net.pt: holds what {maker} put around a model; save the model inside it,"
        f" as in torch.save(model.{inside}, ...)"
    )


def test_a_value_of_numpy(tmp_path):
    net = small_net()
    net.rate = np.float64(0.1)
    torch.save(net, tmp_path / "net.pt")
    assert text_of(tmp_path / "net.pt") == (
        f"{tmp_path}/net.pt: holds a value of numpy's; convert it before saving, as in float(value) or"
        " torch.from_numpy(array), or save the model as .pt2"
    )


def test_a_module_in_a_dictionary(tmp_path):
    torch.save({"epoch": 3, "model": small_net()}, tmp_path / "net.pt")
    assert text_of(tmp_path / "net.pt") == (
        f"{tmp_path}/net.pt: holds a dictionary with a module under 'model'; save the module alone with"
        " torch.save(model, ...)"
    )


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}])
def test_recurrent_layers_load(tmp_path, kind, options):
    torch.save(kind(3, 4, **options), tmp_path / "net.pt")
    assert type(load_model(str(tmp_path / "net.pt")).module) is kind


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda net: setattr(net, "hidden_size", 0), "has sizes that it cannot have"),
        (lambda net: setattr(net, "mode", "GRU"), "has a mode that it cannot have"),
        (lambda net: vars(net).update(weight_ih_l0=torch.zeros(1)), "has two 'weight_ih_l0'"),
        (lambda net: net._flat_weights_names.reverse(), "reads other weights than its own"),
        (lambda net: net._flat_weights.reverse(), "reads other weights than its own"),
    ],
)
def test_recurrent_layers_whose_kernels_would_read_elsewhere(tmp_path, change, what):
    net = nn.LSTM(3, 4)
    change(net)
    torch.save(net, tmp_path / "net.pt")
    assert f"(a 'torch.nn.modules.rnn.LSTM' {what});" in text_of(str(tmp_path / "net.pt"))


def test_a_projected_lstm_loads(tmp_path):
    torch.save(nn.LSTM(3, 4, 2, proj_size=2), tmp_path / "net.pt")
    assert load_model(str(tmp_path / "net.pt")).module.proj_size == 2


def test_tied_weights_stay_tied(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1))
    net[1].weight = net[0].weight
    net.register_buffer("first", net[0].weight.detach()[:1])
    for zipped in (True, False):
        torch.save(net, tmp_path / "net.pt", _use_new_zipfile_serialization=zipped)
        module = load_model(str(tmp_path / "net.pt")).module
        assert module[0].weight is module[1].weight
        assert module.first.data_ptr() == module[0].weight.data_ptr()


# ---- files that hold something else


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


@pytest.mark.parametrize("content", GARBAGE)
def test_garbage(tmp_path, content):
    path = tmp_path / "net.pt"
    path.write_bytes(content)
    text = text_of(path)
    assert text.startswith(f"{path}: cannot be read as a PyTorch file (")
    assert text.endswith("); write it again with torch.save(model, ...)")


def test_truncated(tmp_path):
    whole = io.BytesIO()
    torch.save(small_net(), whole)
    (tmp_path / "net.pt").write_bytes(whole.getvalue()[: len(whole.getvalue()) // 2])
    assert text_of(tmp_path / "net.pt").startswith(f"{tmp_path}/net.pt: cannot be read as a PyTorch file (BadZipFile: ")
