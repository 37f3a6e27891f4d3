"""Pickles: each function makes what torch.save writes, or the bytes of a pickle by hand."""

from __future__ import annotations

import collections
import copyreg
import functools
import io
import os
import pickle
import zipfile
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule
from torch._tensor import _rebuild_from_type_v2
from torch.export.unflatten import InterpreterModule

from tests.frontend.hostile.traces import touch
from tests.frontend.model_files import Calls, save_pickle, small_net

PICKLES: dict[str, Callable[[Path], Any]] = {}


def write_pickles(folder: Path) -> None:
    for name, make in PICKLES.items():
        content, path = make(folder), folder / f"{name}.pt"
        if isinstance(content, bytes):
            save_pickle(path, content)
        else:
            torch.save(content, path)
    write_others(folder)


def pickled(make: Callable[[Path], Any]) -> Callable[[Path], Any]:
    PICKLES[make.__name__] = make
    return make


def forged(kind: type, **state: Any) -> Any:
    """A module that was never constructed, with whatever state."""
    module = kind.__new__(kind)
    module.__dict__.update(nn.Identity().__dict__)
    module.__dict__.update(state)
    return module


def interpreter(target: str, *arguments: Any) -> Any:
    """A module that, once called, calls what `target` finds from it by attributes."""
    node = forged(
        nn.Identity, op="call_module", target=target, args=arguments, kwargs={}, _input_nodes={}, meta={}, name="n"
    )
    graph = forged(nn.Identity, nodes=[node])
    return forged(InterpreterModule, graph=graph, graph_module=1, _run_with_interpreter=True)


class Made:
    """Pickles as an object of a class with this state, whatever the class says about its pickles."""

    def __init__(self, kind: type, state: dict[str, Any]) -> None:
        self.kind, self.state = kind, state

    @property
    def __class__(self) -> type:
        return self.kind

    def __reduce_ex__(self, protocol: Any) -> Any:
        return copyreg.__newobj__, (self.kind,), self.state


MARK = ("forward.__func__.__builtins__.update", {"gf_ran": 1})


@pickled
def a_shell_command(folder: Path) -> Any:
    net = small_net()
    net.extra = Calls(os.system, touch(folder))
    return net


@pickled
def a_rebuild_within_a_rebuild(folder: Path) -> Any:
    """Whoever looks at the outer call only lets the inner one call a module."""
    inner = (interpreter(*MARK), nn.Identity, (), {})
    return [Calls(_rebuild_from_type_v2, _rebuild_from_type_v2, nn.Identity, inner, {})]


@pickled
def a_class_that_calls_its_state(folder: Path) -> Any:
    return [Made(OptimizedModule, {"_initialize": interpreter(*MARK), "_orig_mod": nn.ReLU()})]


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _program(body: bytes) -> bytes:
    return b"\x80\x02" + body + b"."


@pickled
def a_package_that_is_a_program(folder: Path) -> bytes:
    """Whoever imports it in order to see what it is has run it."""
    (folder / "gf_hostile").mkdir(exist_ok=True)
    (folder / "gf_hostile" / "__init__.py").write_text("")
    (folder / "gf_hostile" / "__main__.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    return _program(_global("gf_hostile.__main__", "Net"))


@pickled
def the_linker(folder: Path) -> bytes:
    return _program(_global("ziglang.__main__", "Net"))


@pickled
def a_program_of_a_known_library(folder: Path) -> bytes:
    return _program(_global("torchvision.models.__main__", "Net"))


@pickled
def a_number_of_thousands_of_digits(folder: Path) -> Any:
    conv = nn.Conv2d(3, 4, 3)
    conv.in_channels = 10**5000
    return conv


@pickled
def a_child_in_the_place_of_forward(folder: Path) -> Any:
    net = nn.Sequential(nn.Conv2d(3, 4, 3))
    net._modules["forward"] = nn.ReLU()
    return net


@pickled
def gigabytes_of_bytes(folder: Path) -> Any:
    return [Calls(bytes, range(1 << 36))]


@pickled
def gigabytes_of_numbers(folder: Path) -> Any:
    return [Calls(list, Calls(range, 1 << 36))]


@pickled
def a_reserved_buffer(folder: Path) -> bytes:
    return b"\x80\x05\x96" + (1 << 36).to_bytes(8, "little") + b"."


@pickled
def a_forward_of_its_own(folder: Path) -> Any:
    net = small_net()
    net.__dict__["forward"] = functools.partial(nn.Linear, 1, 1)
    return net


@pickled
def a_hook(folder: Path) -> Any:
    net = small_net()
    net._forward_hooks[0] = F.relu
    return net


@pickled
def a_hook_on_the_state(folder: Path) -> Any:
    net = small_net()
    net[0]._state_dict_hooks[0] = F.relu
    return net


@pickled
def a_compiled_call(folder: Path) -> Any:
    net = nn.Sequential(nn.Conv2d(3, 4, 3))
    state = {**vars(net[0]), "_compiled_call_impl": F.relu}
    net._modules["0"] = Made(nn.Conv2d, state)
    return net


@pickled
def a_child_that_is_no_module(folder: Path) -> Any:
    net = small_net()
    net._modules["0"] = functools.partial(nn.Linear, 1, 1)
    return net


@pickled
def a_part_that_copies(folder: Path) -> Any:
    """nn.Module finds its parts by any name: copy.deepcopy would call this one."""
    net = small_net()
    net._modules["__deepcopy__"] = nn.Identity()
    return net


@pickled
def a_tensor_at_any_address(folder: Path) -> Any:
    net = small_net()
    net[0].weight.__array_interface__ = {"data": (0, False)}
    return net


@pickled
def a_part_with_quotes(folder: Path) -> Any:
    net = small_net()
    net._modules['a"b'] = nn.Identity()
    return net


@pickled
def another_class(folder: Path) -> Any:
    net = small_net()
    net.__dict__["__class__"] = InterpreterModule
    return net


@pickled
def a_graph(folder: Path) -> Any:
    return [interpreter(*MARK)]


@pickled
def a_graph_module(folder: Path) -> bytes:
    return _program(_global("torch.fx.graph_module", "GraphModule") + b")\x81")


@pickled
def a_partial_of_a_command(folder: Path) -> Any:
    net = small_net()
    net.extra = functools.partial(os.system, touch(folder))
    return net


@pickled
def a_default_of_a_command(folder: Path) -> Any:
    return collections.defaultdict(os.getcwd, a=1)


@pickled
def dots_out_of_a_module(folder: Path) -> bytes:
    name, found = b"torch.nn.modules.module", b"torch.os.system"
    text = b"\x8c" + bytes([len(name)]) + name + b"\x8c" + bytes([len(found)]) + found + b"\x93"
    return b"\x80\x04" + text + b"X" + (len(touch(folder))).to_bytes(4, "little") + touch(folder).encode() + b"\x85R."


@pickled
def a_new_enum(folder: Path) -> Any:
    return [Calls(Enum, "Net", "ran")]


@pickled
def a_module_within_itself(folder: Path) -> Any:
    net = small_net()
    net._modules["again"] = net
    return net


@pickled
def a_thousand_modules_deep(folder: Path) -> bytes:
    """Too deep for pickle itself to write: one Sequential after another takes the last as its child."""
    state = pickle.dumps(nn.Sequential(), 2)[2:-1]
    empty = _program(state)
    made = pickle.loads(empty)
    assert isinstance(made, nn.Sequential)
    new = _global("torch.nn.modules.container", "Sequential") + b")\x81"
    parts = b"}X\x08\x00\x00\x00_modules}X\x01\x00\x00\x000"
    middle = b"sX\x0b\x00\x00\x00_parameters}sX\x08\x00\x00\x00_buffers}sb"
    return _program((new + parts) * 3000 + state + (b"s" + middle) * 3000)


@pickled
def a_key_that_takes_forever(folder: Path) -> bytes:
    """The hash of a tuple of tuples of tuples, each twice the work of the last."""
    return _program(b")" + b"q\x00h\x00\x86" * 200 + b"q\x01}h\x01NsN\x86")


@pickled
def a_library_beside_the_file(folder: Path) -> bytes:
    """Whoever searches the working directory for a library that is not installed finds this one."""
    (folder / "torchvision" / "models").mkdir(parents=True, exist_ok=True)
    (folder / "torchvision" / "__init__.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    return _program(_global("torchvision.models", "Net"))


@pickled
def weights_that_a_kernel_takes_on_trust(folder: Path) -> Any:
    net = nn.LSTM(512, 512)
    net._parameters["weight_hh_l0"] = nn.Parameter(torch.zeros(1, 1))
    return net


@pickled
def layers_without_end(folder: Path) -> Any:
    net = nn.LSTM(2, 2)
    net.num_layers = 1 << 40
    return net


@pickled
def containers_that_are_freed_by_recursion(folder: Path) -> bytes:
    new = b"ccollections\ndefaultdict\n)R"
    return _program(new + (b"N" + new) * 100_000 + b"s" * 100_000)


@pickled
def keys_of_one_hash(folder: Path) -> bytes:
    key = (1 << 61) - 1
    entries = b"".join(pickle.dumps(key * factor, 2)[2:-1] + b"N" for factor in range(1, 3))
    return _program(b"}(" + entries + b"u")


@pickled
def one_value_repeated(folder: Path) -> Any:
    net = small_net()
    net.register_buffer("large", torch.zeros(1).expand(1 << 31))
    return net


@pickled
def any_function_of_torch(folder: Path) -> Any:
    net = small_net()
    net.act = F.embedding_bag
    return net


@pickled
def text_instructions(folder: Path) -> bytes:
    return b"(S'touch " + str(folder / "ran").encode() + b"'\nios\nsystem\n."


def write_others(folder: Path) -> None:
    """Files that are not the records of `save_pickle`: with storages, and in torch's old format."""
    for name, change in {"more_than_its_record": 1 << 20, "less_than_nothing": -4}.items():
        whole = io.BytesIO()
        torch.save(nn.Linear(2, 2), whole)
        with zipfile.ZipFile(whole) as archive:
            records = {each: archive.read(each) for each in archive.namelist()}
        data = next(each for each in records if each.endswith("data.pkl"))
        size, stride = b"K\x02K\x02\x86", b"K\x02K\x01\x86"
        number = b"J" + change.to_bytes(4, "little", signed=True)
        assert size in records[data]
        assert stride in records[data]
        records[data] = records[data].replace(size, number + b"K\x02\x86", 1)
        with zipfile.ZipFile(folder / f"{name}.pt", "w") as archive:
            for each, content in records.items():
                archive.writestr(each, content)
    net = small_net()
    net.extra = Calls(os.system, touch(folder))
    torch.save(net, folder / "in_the_old_format.pt", _use_new_zipfile_serialization=False)
