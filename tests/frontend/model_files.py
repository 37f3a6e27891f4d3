"""What the tests of loading share: source and modules to save, text of a refusal, files that are no model."""

import zipfile

import pytest
import torch
from torch import nn

from gfcompile.errors import UserError
from gfcompile.frontend.load import load_model

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

def broken():
    return 1 / 0
"""

GARBAGE = [b"", b"not a model", b"PK\x03\x04 not an archive", bytes(range(256)) * 20]


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
