"""The globals that a pickle may name: decided by their module's name before anything is imported."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import types
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.nn.functional
from torch import nn

from gfcompile.errors import UserError
from gfcompile.frontend.foreign import one_line, refuse_without_trust
from gfcompile.frontend.imports import UserCode, importable, is_below
from gfcompile.frontend.pickled.builders import (
    BUILDERS,
    TORCH_FUNCTIONS,
    Builder,
    ModuleClass,
    StorageKind,
    is_module_class,
    is_torch_function,
)

# Where module classes may be defined. Others of torch's hold graphs, source or other interpreters.
LIBRARIES = (
    "torch.nn.modules", "torchvision.models", "torchvision.ops", "timm.layers", "timm.models",
    "segmentation_models_pytorch",
)  # fmt: skip
IN_WORDS = "torch.nn, torchvision, timm or segmentation_models_pytorch"
_WRAPPERS = {
    "torch.optim.swa_utils.AveragedModel": ("AveragedModel", "module"),
    "torch._dynamo.eval_frame.OptimizedModule": ("torch.compile", "_orig_mod"),
    "torch.nn.parallel.data_parallel.DataParallel": ("DataParallel", "module"),
    "torch.nn.parallel.distributed.DistributedDataParallel": ("DistributedDataParallel", "module"),
}

_STORAGES = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool, "ComplexDouble": torch.complex128, "ComplexFloat": torch.complex64,
}  # fmt: skip
_VALUES: dict[str, Any] = {
    **{f"torch.{name}Storage": StorageKind(dtype) for name, dtype in _STORAGES.items()},
    "torch.storage.UntypedStorage": StorageKind(torch.uint8),
    **{f"torch.{name}": value for name, value in vars(torch).items()
       if isinstance(value, torch.dtype | torch.memory_format)},
    "torch.Tensor": torch.Tensor,
    "torch._C._VariableFunctionsClass": TORCH_FUNCTIONS,
    "torch.nn.parameter.Parameter": nn.Parameter,
    **BUILDERS,
}  # fmt: skip
_FUNCTIONS = {"torch.nn.functional": torch.nn.functional, "torch._C._nn": torch._C._nn}


class Names:
    """Looks up what one file names."""

    def __init__(self, path: str, code: UserCode) -> None:
        self._path, self._code = path, code

    def find(self, module_name: str, name: str) -> Any:
        """A builder, a value, a function to hold, or a module or enum class; anything else is refused."""
        module_name, name = modern_name(module_name, name)
        full_name = f"{module_name}.{name}"
        if full_name in _VALUES:
            return _VALUES[full_name]
        if module_name in _FUNCTIONS:
            found = getattr(_FUNCTIONS[module_name], name, None)
            if is_torch_function(found):
                return found
            self._refuse(full_name)
        found = self._find_class(module_name, name)
        is_enum = isinstance(found, type) and issubclass(found, Enum)
        if not (is_enum or is_module_class(found)) or not self._may_define(found.__module__):
            self._refuse(full_name)
        return found if is_enum else ModuleClass(found, self._path)

    def _find_class(self, module_name: str, name: str) -> Any:
        found = in_user_files(module_name, name, self._code)
        if found is not None:
            return found
        package = module_name.partition(".")[0]
        if module_name == "__main__":
            raise UserError(
                f"{self._path}: its class '__main__.{name}' was defined in a script;"
                " add --import model.py with the file that defines it, or save the model as .pt2"
            )
        if package == "numpy":
            raise UserError(
                f"{self._path}: holds a value of numpy's; convert it before saving, as in float(value) or"
                " torch.from_numpy(array), or save the model as .pt2"
            )
        if f"{module_name}.{name}" in _WRAPPERS:
            maker, inside = _WRAPPERS[f"{module_name}.{name}"]
            raise UserError(
                f"{self._path}: holds what {maker} put around a model; save the model inside it,"
                f" as in torch.save(model.{inside}, ...)"
            )
        if self._may_define(module_name):
            return import_global(self._path, module_name, name, self._code.covers(module_name))
        known = any(is_below(library, package) for library in LIBRARIES)
        if known or package in sys.stdlib_module_names or not re.fullmatch(r"\w+(\.\w+)*", module_name):
            self._refuse(f"{module_name}.{name}")
        raise UserError(
            f"{self._path}: its class '{module_name}.{name}' is not of {IN_WORDS};"
            f" if the package is yours, add --import {package}, or save the model as .pt2;"
            " if you trust the file, add --trust"
        )

    def _may_define(self, module_name: str) -> bool:
        if any(part.startswith("__") for part in module_name.split(".")):
            return False  # a package's __main__ is a program
        return self._code.covers(module_name) or any(is_below(module_name, library) for library in LIBRARIES)

    def _refuse(self, full_name: str) -> NoReturn:
        refuse_without_trust(self._path, f"holds '{full_name}', which is neither a tensor nor a module of {IN_WORDS}")


def modern_name(module_name: str, name: str) -> tuple[str, str]:
    """Protocol 2, which torch.save writes, spells a few names as Python 2 did."""
    module_name = {"__builtin__": "builtins", "copy_reg": "copyreg"}.get(module_name, module_name)
    return module_name, "range" if (module_name, name) == ("builtins", "xrange") else name


def in_user_files(module_name: str, name: str, code: UserCode) -> Any:
    """The global in an `--import` file, if its module is `__main__` or named like the file; else None."""
    stem = module_name.rpartition(".")[2]
    for file in code.files:
        if stem in ("__main__", Path(str(file.__file__)).stem) and name in vars(file):
            return vars(file)[name]
    return None


def import_global(path: str, module_name: str, name: str, is_users: bool) -> Any:
    """Import a module and find a name in it; dots lead into classes only. The working directory is searched for what
    the user named: whoever sends a model may send a folder `torchvision` beside it."""
    try:
        with importable(Path.cwd()) if is_users else contextlib.nullcontext():
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


def name_of(value: Any) -> str:
    """How a message calls a value: by its own name, or that of its type."""
    if isinstance(value, Builder):
        return value.name
    if isinstance(value, ModuleClass):
        value = value.kind
    named = value if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType) else type(value)
    return f"{named.__module__}.{named.__qualname__}"
