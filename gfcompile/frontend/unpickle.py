"""Read the module that torch.save wrote into a `.pt` or `.pth` file.

A pickle can carry code. Without `trust` it may rebuild tensors, plain containers and nn.Module subclasses only.
"""

import collections
import functools
import importlib
import io
import pickle
import pkgutil
import sys
import types
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import torch
from torch import nn

from gfcompile.errors import UserError
from gfcompile.frontend.foreign import one_line, refuse_without_trust

# What a pickle may call while it loads: they build data, import nothing and take no code that they would run.
_REBUILDERS: dict[str, Any] = {
    name: pkgutil.resolve_name(name)
    for name in (
        *(f"torch._utils._rebuild_{kind}" for kind in (
            "tensor", "tensor_v2", "tensor_v3", "parameter", "parameter_with_state",
            "qtensor", "sparse_tensor", "meta_tensor_no_storage")),
        "torch._tensor._rebuild_from_type_v2", "torch.serialization._get_layout", "torch.device", "torch.Size",
        "collections.OrderedDict", "collections.defaultdict", "collections.Counter", "collections.deque",
        *(f"builtins.{kind}" for kind in (
            "set", "frozenset", "list", "dict", "tuple", "slice", "range", "complex", "bytes")),
        "_codecs.encode", "functools.partial",
    )
}  # fmt: skip
# Modules made by running source text or another interpreter: their classes are code in disguise.
_MODULES_OF_CODE = (torch.fx.GraphModule, torch.jit.ScriptModule)


def unpickle_module(path: str, trust: bool, user_files: list[types.ModuleType]) -> nn.Module:
    """The module in a `.pt` or `.pth` file; its classes are looked up in `user_files` first, then imported."""
    kind: Any = _TrustingUnpickler if trust else _RestrictedUnpickler
    base = type("Unpickler", (kind,), {"path": path, "user_files": user_files})
    # torch.load asks a "pickle module" for these names only
    pickle_module = types.SimpleNamespace(
        __name__="gfcompile_pickle", Unpickler=base, load=lambda file, **options: base(file, **options).load()
    )
    try:
        with open(path, "rb") as file:
            is_zip = file.read(4) == b"PK\x03\x04"
        if is_zip and "constants.pkl" in torch._C.PyTorchFileReader(path).get_all_records():
            raise UserError(
                f"{path}: is a 'TorchScript' archive, which has no Python modules left;"
                " export the original model as .pt2 with torch.export.save"
            )
        # bytes instead of a path keep torch.load from its oldest format, which unpacks a tar file
        source = path if is_zip else io.BytesIO(Path(path).read_bytes())
        content = torch.load(source, map_location="cpu", weights_only=False, pickle_module=pickle_module)
        if isinstance(content, nn.Module):
            content.state_dict()  # fails on a module whose state was left out
    except UserError:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise UserError(
            f"{path}: cannot be read as a PyTorch file ({one_line(error)}); write it again with torch.save(model, ...)"
        ) from error
    if isinstance(content, dict):
        raise UserError(
            f"{path}: holds weights (a '{type(content).__name__}' of {len(content)} entries), not a module;"
            " save them with safetensors.torch.save_file and use package.module:factory --weights file.safetensors"
        )
    if not isinstance(content, nn.Module):
        raise UserError(
            f"{path}: holds a '{type(content).__name__}', not a module; save the module with torch.save(model, ...)"
        )
    return content


class _TrustingUnpickler(pickle.Unpickler):
    """Ordinary pickle semantics, and the classes of `--import` files."""

    path: str
    user_files: list[types.ModuleType]

    def find_class(self, module_name: str, name: str) -> Any:
        return _find_global(self.path, *_modern_name(module_name, name), self.user_files)


class _RestrictedUnpickler(pickle._Unpickler):
    """An unpickler whose calls, not only whose names, are limited.

    It extends pickle's Python implementation because the C one cannot be told what an opcode may do: a permitted class
    called with chosen arguments, or state set on a function, would run or change code.
    """

    path: str
    user_files: list[types.ModuleType]
    stack: list[Any]  # pickle's own
    metastack: list[list[Any]]

    def refuse(self, deed: str) -> NoReturn:
        refuse_without_trust(self.path, deed)

    def find_class(self, module_name: str, name: str) -> Any:
        module_name, name = _modern_name(module_name, name)
        full_name = f"{module_name}.{name}"
        if full_name in _REBUILDERS:
            return _REBUILDERS[full_name]
        # no module class lives in the standard library: nothing of it is imported only to be refused
        if module_name.partition(".")[0] not in sys.stdlib_module_names:
            found = _find_global(self.path, module_name, name, self.user_files)
            if _is_module_class(found) or isinstance(found, torch.dtype) or found is torch.Tensor:
                return found
            if _is_torch_function(found):
                return found
        self.refuse(f"holds '{full_name}', which is neither a tensor nor a module")

    def load_reduce(self) -> None:
        function, arguments = self.stack[-2:]
        through = function is _REBUILDERS["torch._tensor._rebuild_from_type_v2"]  # it calls its first argument
        for called in (function, arguments[0]) if through else (function,):
            if not any(called is rebuilder for rebuilder in _REBUILDERS.values()):
                self.refuse(f"calls '{_name_of(called)}' while it loads")
        self.stack[-2:] = [function(*arguments)]

    def load_newobj(self) -> None:
        made, arguments = self.stack[-2:]
        if not _is_module_class(made) or arguments != ():
            self.refuse(f"makes '{_name_of(made)}' with arguments of its own")
        self.stack[-2:] = [made.__new__(made)]

    def load_build(self) -> None:
        state, built = self.stack.pop(), self.stack[-1]
        if _is_module_class(type(built)) or type(built) is functools.partial:
            type(built).__setstate__(built, state)  # the class's, never one planted in the instance
        elif type(built) is collections.OrderedDict:
            vars(built).update(state)
        else:
            self.refuse(f"sets the state of '{_name_of(built)}'")

    # the append or __setitem__ of any other object would be a call of the file's choice

    def load_append(self) -> None:
        self._fill(self.stack[-2], (list, collections.deque))
        super().load_append()  # type: ignore[misc]

    def load_appends(self) -> None:
        self._fill(self.metastack[-1][-1], (list, collections.deque))
        super().load_appends()  # type: ignore[misc]

    def load_setitem(self) -> None:
        self._fill(self.stack[-3], (dict,))
        super().load_setitem()  # type: ignore[misc]

    def load_setitems(self) -> None:
        self._fill(self.metastack[-1][-1], (dict,))
        super().load_setitems()  # type: ignore[misc]

    def load_additems(self) -> None:
        self._fill(self.metastack[-1][-1], (set,))
        super().load_additems()  # type: ignore[misc]

    def _fill(self, container: object, kinds: tuple[type, ...]) -> None:
        if not isinstance(container, kinds):
            self.refuse(f"fills '{_name_of(container)}'")

    def refuse_opcode(self) -> None:
        self.refuse("uses a pickle instruction that torch.save never writes")

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        **dict.fromkeys(
            b"".join((pickle.INST, pickle.OBJ, pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2, pickle.EXT4)), refuse_opcode
        ),
        pickle.REDUCE[0]: load_reduce,
        pickle.NEWOBJ[0]: load_newobj,
        pickle.BUILD[0]: load_build,
        pickle.APPEND[0]: load_append,
        pickle.APPENDS[0]: load_appends,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.ADDITEMS[0]: load_additems,
    }


def _modern_name(module_name: str, name: str) -> tuple[str, str]:
    """Protocol 2, which torch.save writes, spells a few names as Python 2 did."""
    module_name = {"__builtin__": "builtins", "copy_reg": "copyreg"}.get(module_name, module_name)
    return module_name, "range" if (module_name, name) == ("builtins", "xrange") else name


def _find_global(path: str, module_name: str, name: str, user_files: list[types.ModuleType]) -> Any:
    """Resolve a global: in an `--import` file if its module is `__main__` or named like the file, else by import."""
    stem = module_name.rpartition(".")[2]
    for file in user_files:
        if stem in ("__main__", Path(str(file.__file__)).stem) and hasattr(file, name):
            return getattr(file, name)
    try:
        found: Any = importlib.import_module(module_name)
        for part in name.split("."):
            if found is not sys.modules[module_name] and not isinstance(found, type):
                raise AttributeError(f"'{name}' does not name a class")
            found = getattr(found, part)
        return found
    except Exception as error:  # importing runs the package's code, which may raise anything
        raise UserError(
            f"{path}: its class '{module_name}.{name}' cannot be imported ({one_line(error)});"
            " add --import model.py with the file that defines it, or save the model as .pt2"
        ) from error


def _is_module_class(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, nn.Module) and not issubclass(value, _MODULES_OF_CODE)


def _is_torch_function(value: object) -> bool:
    """A function of torch.nn.functional, as modules keep for their activation; a pickle may hold it but not call it."""
    if isinstance(value, types.FunctionType):
        return value.__module__ == "torch.nn.functional" and not value.__name__.startswith("_")
    return isinstance(value, types.BuiltinFunctionType) and value.__module__ == "torch._C._nn"


def _name_of(value: Any) -> str:
    named = value if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType) else type(value)
    return f"{named.__module__}.{named.__qualname__}"
