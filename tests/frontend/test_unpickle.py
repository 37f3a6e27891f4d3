"""Pickled modules: what loads, what is refused and in which words, and that a refused file runs nothing."""

import collections
import functools
import io
import os
import pickle
import sys
import zipfile

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gfcompile.frontend.load import load_model
from tests.frontend.model_files import GARBAGE, NET_SOURCE, Calls, assert_same_function, small_net, text_of


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
    assert text_of(tmp_path / "net.pt").startswith(
        f"{tmp_path}/net.pt: cannot be read as a PyTorch file (RuntimeError: "
    )
