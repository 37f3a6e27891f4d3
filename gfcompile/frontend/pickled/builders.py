"""What a pickle may call while it loads, each with the arguments that it is meant for.

A builder stands in a pickle's place for a function or a type: it makes data out of data, and calls nothing that the
file could choose.
"""

from __future__ import annotations

import collections
import functools
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gfcompile.frontend.archive import EXPANDED
from gfcompile.frontend.foreign import MalformedError, refuse_without_trust

TORCH_FUNCTIONS = object()  # stands for the class that torch's own functions are attributes of
_ACTIVATIONS = {name: getattr(torch, name) for name in ("relu", "sigmoid", "tanh", "selu", "celu", "prelu", "square")}
_FUNCTIONS = frozenset(_ACTIVATIONS.values()) | frozenset(
    getattr(F, name)
    for name in (
        "celu", "elu", "gelu", "glu", "gumbel_softmax", "hardshrink", "hardsigmoid", "hardswish", "hardtanh",
        "leaky_relu", "log_softmax", "logsigmoid", "mish", "normalize", "prelu", "relu", "relu6", "rrelu", "selu",
        "sigmoid", "silu", "softmax", "softmin", "softplus", "softshrink", "softsign", "tanh", "tanhshrink",
        "threshold", "interpolate", "pad", "dropout", "avg_pool2d", "adaptive_avg_pool2d",
    )
)  # fmt: skip
_LARGEST_KEY = 1 << 60  # larger integers can be chosen to share a hash
Scalar = (str, int, float, bool, complex, bytes, types.NoneType, torch.dtype)


@dataclass(frozen=True)
class Builder:
    """`build` checks its arguments; `name` is what the pickle calls it."""

    name: str
    build: Callable[..., Any]

    def __call__(self, arguments: tuple[Any, ...]) -> Any:
        try:
            return self.build(*arguments)
        except TypeError as error:
            raise MalformedError(f"'{self.name}' cannot be made of what it is given") from error


@dataclass(frozen=True)
class StorageKind:
    """A class of torch's storages, which a pickle names beside the key of a record."""

    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Storage:
    """The bytes of a record; tensors that share them share their values."""

    content: bytearray
    dtype: torch.dtype

    @functools.cached_property
    def values(self) -> Tensor:
        if not self.content:
            return torch.empty(0, dtype=self.dtype)
        return torch.frombuffer(self.content, dtype=torch.uint8).view(self.dtype)


@dataclass(frozen=True)
class ModuleClass:
    """Names what a module is. Models keep classes in attributes (a ResNet its kind of norm); were they classes still, a
    forward pass that calls an attribute would make any module with any arguments, and some constructors load files."""

    kind: type[nn.Module]
    path: str  # of the file

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        refuse_without_trust(self.path, f"makes a '{self.kind.__qualname__}' while it runs")


def is_module_class(value: object) -> bool:
    """Not those that are made by running source text or another interpreter: they are code in disguise."""
    return (
        isinstance(value, type)
        and issubclass(value, nn.Module)
        and not issubclass(value, torch.fx.GraphModule | torch.jit.ScriptModule)
    )


def is_torch_function(value: object) -> bool:
    """An activation or the like, as modules keep for their forward pass; a pickle may hold it but not call it."""
    return isinstance(value, types.FunctionType | types.BuiltinFunctionType) and value in _FUNCTIONS


def check_key(key: object) -> None:
    """Of a dictionary or a set: what has a hash of its own that takes no time."""
    for part in key if type(key) is tuple else (key,):
        is_small = type(part) is not int or abs(part) < _LARGEST_KEY
        if not is_small or not isinstance(part, (str, int, bytes, types.NoneType, torch.dtype, Enum)):
            raise MalformedError(f"a '{type(key).__name__}' is a key in it")


def set_partial(made: functools.partial[Any], state: Any) -> None:
    """The state of a partial, which says again what it calls."""
    _expect(type(state) is tuple and len(state) == 4, "functools.partial")
    function, arguments, keywords, attributes = state
    _check_held_callable(function)
    plain = type(arguments) is tuple and (keywords is None or type(keywords) is dict) and not attributes
    _expect(plain and all(map(_is_simple, (*arguments, *(keywords or {}).values()))), "functools.partial")
    made.__setstate__((function, arguments, keywords or {}, None))  # type: ignore[attr-defined]


def check_attributes(state: Any, owner: type) -> Mapping[str, Any]:
    """Attributes of an object that is no module: names of its own, none that its class already gives a meaning."""
    _expect(isinstance(state, dict), owner.__name__)
    taken = _names_of(owner)
    for name in state:
        if type(name) is not str or not name.isidentifier() or name.startswith("__") or name in taken:
            raise MalformedError(f"it sets '{name}' of a '{owner.__name__}'")
    return state


@functools.cache
def _names_of(owner: type) -> frozenset[str]:
    return frozenset(dir(owner))


def _expect(right: bool, name: str) -> None:
    if not right:
        raise MalformedError(f"'{name}' cannot be made of what it is given")


def _is_simple(value: object) -> bool:
    """A value, a class or a function to hold, or a tuple of values: nothing that can be nested without end."""
    if isinstance(value, ModuleClass) or is_torch_function(value):
        return True
    return all(isinstance(part, Scalar) for part in (value if type(value) is tuple else (value,)))


def _check_held_callable(value: object) -> None:
    if not isinstance(value, ModuleClass) and not is_torch_function(value):
        raise MalformedError("a 'functools.partial' calls neither a module class nor a function of torch.nn.functional")


def _is_whole(value: object) -> bool:
    return type(value) is int and value >= 0


def _tensor(
    storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any = False, hooks: Any = None, other: Any = None
) -> Tensor:
    dtype = storage.dtype if isinstance(storage, Storage) else None
    return _strided(storage, dtype, offset, size, stride, requires_grad, hooks, other)


def _tensor_v3(
    storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any, dtype: Any, metadata: Any = None
) -> Tensor:
    return _strided(storage, dtype, offset, size, stride, requires_grad, hooks, metadata)


def _strided(
    storage: Any, dtype: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any, metadata: Any
) -> Tensor:
    sizes = isinstance(size, tuple) and isinstance(stride, tuple) and len(size) == len(stride)
    _expect(isinstance(storage, Storage) and isinstance(dtype, torch.dtype), "torch.Tensor")
    _expect(sizes and all(map(_is_whole, (offset, *size, *stride))), "torch.Tensor")
    _expect(type(requires_grad) is bool and not hooks and not metadata, "torch.Tensor")
    values = storage.values if dtype == storage.dtype else storage.values.view(torch.uint8).view(dtype)
    _expect(math.prod(size) <= max(values.numel(), EXPANDED), "torch.Tensor")
    tensor = torch.as_strided(values, size, stride, offset).detach()  # raises where it would leave the storage
    return tensor.requires_grad_(requires_grad)


def _parameter(data: Any, requires_grad: Any, hooks: Any, attributes: Any = None) -> nn.Parameter:
    _expect(isinstance(data, Tensor) and type(requires_grad) is bool and not hooks, "torch.nn.Parameter")
    made = nn.Parameter(data.detach(), requires_grad)
    _set_attributes(made, attributes)
    return made


def _typed(maker: Any, kind: Any, arguments: Any, attributes: Any) -> Tensor:
    """torch's way to write a tensor that has attributes: what makes it, its class, and these."""
    makers = (BUILDERS[f"torch._utils.{name}"] for name in _TENSOR_MAKERS)
    _expect(isinstance(maker, Builder) and maker in makers and type(arguments) is tuple, "torch.Tensor")
    made = maker(arguments)
    _expect(kind is type(made), "torch.Tensor")
    _set_attributes(made, attributes)
    return made


def _set_attributes(made: Tensor, attributes: Any) -> None:
    for name, value in check_attributes(attributes or {}, Tensor).items():
        _expect(_is_simple(value), f"the attribute '{name}' of a tensor")
        setattr(made, name, value)


def _ordered(pairs: Any = ()) -> collections.OrderedDict[Any, Any]:
    _expect(type(pairs) in (tuple, list) and all(type(pair) in (tuple, list) for pair in pairs), "OrderedDict")
    for key, _ in pairs:
        check_key(key)
    return collections.OrderedDict(pairs)


def _dictionary() -> dict[Any, Any]:
    return {}


def _default(factory: Any = None) -> collections.defaultdict[Any, Any]:
    kinds = {BUILDERS[f"builtins.{kind.__name__}"]: kind for kind in (list, dict, set)}
    _expect(factory is None or factory in kinds, "defaultdict")
    return collections.defaultdict(kinds[factory] if factory else None)


def _counter(counts: Any = None) -> collections.Counter[Any]:
    _expect(counts is None or type(counts) is dict, "Counter")
    return collections.Counter(counts)


def _filled(kind: Callable[..., Any], hashes: bool = False) -> Callable[..., Any]:
    """A container of a list's values: an iterator of another kind could have any length."""

    def build(values: Any = (), most: Any = None) -> Any:
        _expect(type(values) in (list, tuple) and (most is None or _is_whole(most)), "a container")
        for value in values if hashes else ():
            check_key(value)
        return kind(values) if most is None else kind(values, most)

    return build


def _of_numbers(kind: Callable[..., Any], *types_: type) -> Callable[..., Any]:
    def build(*numbers: Any) -> Any:
        _expect(bool(numbers) and all(type(number) in types_ for number in numbers), "a range of numbers")
        return kind(*numbers)

    return build


def _bytes_of(text: Any = "", encoding: Any = "latin1") -> bytes:
    """Protocol 2 writes bytes as text."""
    _expect(type(text) is str and encoding == "latin1", "bytes")
    return text.encode("latin1")


def _size(sizes: Any) -> torch.Size:
    _expect(isinstance(sizes, tuple) and all(map(_is_whole, sizes)), "torch.Size")
    return torch.Size(sizes)


def _device(name: Any, index: Any = None) -> torch.device:
    _expect(type(name) is str and (index is None or _is_whole(index)), "torch.device")
    return torch.device(name) if index is None else torch.device(name, index)


def _layout(name: Any) -> torch.layout:
    found = getattr(torch, name.removeprefix("torch."), None) if type(name) is str else None
    if not isinstance(found, torch.layout):
        raise MalformedError("'torch.layout' cannot be made of what it is given")
    return found


def _attribute(owner: Any, name: Any) -> Any:
    """Protocol 2 writes a class within a class, and torch's own functions, as attributes."""
    if owner is TORCH_FUNCTIONS and type(name) is str and name in _ACTIVATIONS:
        return _ACTIVATIONS[name]
    found = vars(owner.kind).get(name) if isinstance(owner, ModuleClass) and type(name) is str else None
    if found is None or not is_module_class(found) or found.__module__ != owner.kind.__module__:
        raise MalformedError(f"it asks for '{name}' of something that is no module class")
    return ModuleClass(found, owner.path)


def _partial(function: Any) -> functools.partial[Any]:
    _check_held_callable(function)
    return functools.partial(function)


_TENSOR_MAKERS = (
    "_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter",
    "_rebuild_parameter_with_state",
)  # fmt: skip

_BUILDS: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
    "torch._tensor._rebuild_from_type_v2": _typed,
    "torch.serialization._get_layout": _layout,
    "torch.device": _device,
    "torch.Size": _size,
    "collections.OrderedDict": _ordered,
    "collections.defaultdict": _default,
    "collections.Counter": _counter,
    "collections.deque": _filled(collections.deque),
    "builtins.list": _filled(list),
    "builtins.tuple": _filled(tuple),
    "builtins.dict": _dictionary,
    "builtins.set": _filled(set, hashes=True),
    "builtins.frozenset": _filled(frozenset, hashes=True),
    "builtins.slice": _of_numbers(slice, int, types.NoneType),
    "builtins.range": _of_numbers(range, int),
    "builtins.complex": _of_numbers(complex, int, float),
    "builtins.bytes": lambda: b"",
    "_codecs.encode": _bytes_of,
    "functools.partial": _partial,
    "builtins.getattr": _attribute,
}
BUILDERS = {name: Builder(name, build) for name, build in _BUILDS.items()}
