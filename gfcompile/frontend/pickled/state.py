"""What modules out of a pickle may hold, looked at when all of them are there and before any of them runs.

A module is run by what its class says. State that puts something else in the place of a method, a hook or a child would
make it run what the file says.
"""

from __future__ import annotations

import collections
import functools
import keyword
import re
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from gfcompile.frontend.foreign import MalformedError, refuse_without_trust
from gfcompile.frontend.pickled.builders import ModuleClass, Scalar, is_torch_function
from gfcompile.frontend.pickled.names import name_of

_FRESH = vars(nn.Module())
_HOOKS = {name for name, value in _FRESH.items() if name.endswith("hooks") and isinstance(value, dict)} | {
    name for name in _FRESH if "_hooks_" in name
}
_PLAIN = (*Scalar, Enum, torch.device, torch.layout, torch.memory_format, range, slice)
_CONTAINERS = (
    list, tuple, torch.Size, dict, collections.OrderedDict, collections.defaultdict, collections.Counter, set,
    frozenset, collections.deque,
)  # fmt: skip
_CHILD = re.compile(r"(?!__)[^.\"'\\\x00-\x1f]+")  # torch writes names into the source that it generates
_GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}
_RECURRENT = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN_TANH": nn.RNN, "RNN_RELU": nn.RNN}
_DEEPEST = 40  # containers within containers
_MODULES_DEEPEST = 200


def check_modules(path: str, root: nn.Module, made: list[nn.Module]) -> None:
    """Refuse a state that replaces code or hides something that is neither data nor a module."""
    seen: set[int] = set()
    for module in made:
        for name, value in vars(module).items():
            _check_name(path, module, name, value)
            if name in _HOOKS and value:
                refuse_without_trust(path, f"holds a hook in '{name}' of a '{name_of(module)}'")
            _check_value(path, module, name, value, seen)
        for name, kinds in (("_modules", nn.Module), ("_parameters", Tensor), ("_buffers", Tensor)):
            _check_children(path, module, name, kinds)
        if isinstance(module, nn.RNNBase):
            _check_recurrent(module)
    _check_depth(root)


def _check_name(path: str, module: nn.Module, name: object, value: Any) -> None:
    """Where the class, or nn.Module itself, has something, an attribute may stand that nobody can call."""
    if type(name) is str and name.isidentifier() and not name.startswith("__"):
        is_taken = hasattr(type(module), name) and name not in _FRESH
        if not is_taken or isinstance(value, Scalar):
            return
    refuse_without_trust(path, f"replaces '{name}' of a '{name_of(module)}'")


def _check_children(path: str, module: nn.Module, name: str, kind: type) -> None:
    children = vars(module).get(name)
    if not isinstance(children, dict):
        raise MalformedError(f"a '{name_of(module)}' has lost its state")
    for key, child in children.items():
        if type(key) is not str or not key.isprintable() or not _CHILD.fullmatch(key) or keyword.iskeyword(key):
            refuse_without_trust(path, f"calls a part of a '{name_of(module)}' '{key}', which is no name")
        if key in vars(module) or callable(getattr(type(module), key, None)):
            raise MalformedError(f"a '{name_of(module)}' has two '{key}'")
        if child is not None and not isinstance(child, kind):
            refuse_without_trust(path, f"holds a '{name_of(child)}' among the '{name}' of a '{name_of(module)}'")


def _check_recurrent(module: nn.RNNBase) -> None:
    """The shapes of all weights: the kernels of recurrent layers take them on trust."""
    names = ("input_size", "hidden_size", "num_layers", "proj_size")
    sizes: list[Any] = [getattr(module, name, None) for name in names]
    if not all(type(size) is int and size >= least for size, least in zip(sizes, (1, 1, 1, 0))):
        raise MalformedError(f"a '{name_of(module)}' has sizes that it cannot have")
    if module.mode not in _GATES or not isinstance(module, _RECURRENT[module.mode]):
        raise MalformedError(f"a '{name_of(module)}' has a mode that it cannot have")
    width, hidden, layers, projected = sizes
    expected: dict[str, tuple[int, ...]] = {}
    if layers <= len(module._parameters):  # else some are missing
        for layer in range(layers):
            for end in ("", "_reverse") if module.bidirectional else ("",):
                rows = _GATES[module.mode] * hidden
                inputs = width if layer == 0 else (projected or hidden) * (2 if module.bidirectional else 1)
                expected[f"weight_ih_l{layer}{end}"] = (rows, inputs)
                expected[f"weight_hh_l{layer}{end}"] = (rows, projected or hidden)
                if module.bias:
                    expected |= {f"bias_ih_l{layer}{end}": (rows,), f"bias_hh_l{layer}{end}": (rows,)}
                if projected:
                    expected[f"weight_hr_l{layer}{end}"] = (projected, hidden)
    found = {name: tuple(tensor.shape) for name, tensor in module._parameters.items() if tensor is not None}
    if found != expected:
        raise MalformedError(f"the weights of a '{name_of(module)}' have other shapes than it says")
    held, names = (vars(module).get(name) for name in ("_flat_weights", "_flat_weights_names"))
    own = [module._parameters[name] for name in expected]
    if type(held) is not list or names != list(expected) or [*map(id, held)] != [*map(id, own)]:
        raise MalformedError(f"a '{name_of(module)}' reads other weights than its own")


def _check_value(path: str, module: nn.Module, name: str, value: Any, seen: set[int]) -> None:
    """Walk containers, each once; modules in them are looked at by themselves."""
    waiting = [(value, 0)]
    while waiting:
        part, depth = waiting.pop()
        if isinstance(part, (*_PLAIN, ModuleClass, Tensor, nn.Module)) or is_torch_function(part):
            continue
        if id(part) in seen:
            continue
        seen.add(id(part))
        if depth == _DEEPEST:
            raise MalformedError(f"'{name}' of a '{name_of(module)}' is nested too deeply")
        if type(part) is functools.partial:
            waiting += [(held, depth + 1) for held in (*part.args, *part.keywords.values())]
        elif type(part) in _CONTAINERS:
            held = (*part.keys(), *part.values()) if isinstance(part, dict) else part
            waiting += [(each, depth + 1) for each in held]
        else:
            refuse_without_trust(path, f"holds a '{name_of(part)}' in '{name}' of a '{name_of(module)}'")


def _check_depth(root: nn.Module) -> None:
    """Modules are walked by recursion everywhere in torch; one within itself would never end."""
    depths: dict[nn.Module, int] = {}
    path: dict[nn.Module, None] = {}
    waiting: list[tuple[nn.Module, bool]] = [(root, False)]
    while waiting:
        module, is_done = waiting.pop()
        if is_done:
            del path[module]
            children = [child for child in module._modules.values() if child is not None]
            depths[module] = 1 + max((depths[child] for child in children), default=0)
            if depths[module] > _MODULES_DEEPEST:
                raise MalformedError("its modules are nested too deeply")
        elif module in path:
            raise MalformedError(f"a '{name_of(module)}' is a part of itself")
        elif module not in depths:
            path[module] = None
            waiting.append((module, True))
            waiting += [(child, False) for child in module._modules.values() if child is not None]
