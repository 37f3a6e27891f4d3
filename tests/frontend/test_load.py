"""Models in, by the kind of what the user wrote: which words a wrong one meets, factories, weights, modules at hand."""

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from gfcompile.errors import UserError
from gfcompile.frontend.load import from_module, load_model
from tests.frontend.model_files import NET_SOURCE, small_net, text_of

# ---- what is no model


def test_missing_file():
    for name in ("no.pt", "no.pth", "no.pt2"):
        assert text_of(name) == f"{name}: no such file; check the path"


def test_other_suffixes():
    assert text_of("net.safetensors") == (
        "net.safetensors: '.safetensors' holds weights only; use package.module:factory --weights net.safetensors"
    )
    assert text_of("resnet18") == (
        "model: 'resnet18' is not a model; give a .pt2, .onnx, .pt or .pth file, or package.module:factory"
    )


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
    assert text_of("gf_test_nets:broken") == (
        "model: 'gf_test_nets:broken' fails when it is called (ZeroDivisionError: division by zero); mend it"
    )
    Path("gf_test_exit.py").write_text("import sys\nsys.exit('done')\n")
    assert text_of("gf_test_exit:net") == (
        "model: cannot import 'gf_test_exit' (SystemExit: done); run from the folder that holds it, or install it"
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
