"""Read a model: `.pt2`, `.pt`/`.pth`, `package.module:factory`, or an nn.Module at hand.

A model file may come from anywhere, and both pickles and torch.export archives can carry code. Without `trust`, a
pickle may rebuild tensors, plain containers and nn.Module subclasses; an archive may hold tensors and known ops.
"""

import ast
import collections
import functools
import importlib
import importlib.util
import io
import itertools
import json
import keyword
import pickle
import pkgutil
import re
import sys
import types
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from gfcompile.errors import UserError


@dataclass(frozen=True)
class LoadedModel:
    """A module and what its origin told about it."""

    module: nn.Module
    origin: str  # as the user wrote it: the start of messages
    name: str  # a Python identifier: the artifact's name begins with it
    example_shape: tuple[int, ...] | None = None
    fixed_mode: bool = False  # .pt2: train or eval behaviour was decided at export


def load_model(
    spec: str, *, weights: str | None = None, trust: bool = False, imports: Sequence[str] = ()
) -> LoadedModel:
    """Load `spec`, then the safetensors file `weights` into it; `imports` are Python files that define its classes."""
    user_files = [_import_file(path) for path in imports]
    suffix = Path(spec).suffix.lower()
    if suffix == ".onnx":
        raise UserError(
            f"{spec}: '.onnx' files come in a later version; export the model as .pt2 with torch.export.save"
        )
    if suffix == ".safetensors":
        raise UserError(f"{spec}: '.safetensors' holds weights only; use package.module:factory --weights {spec}")
    if suffix in (".pt", ".pth", ".pt2"):
        if not Path(spec).is_file():
            raise UserError(f"{spec}: no such file; check the path")
        loaded = _load_exported(spec, trust) if suffix == ".pt2" else _load_pickled(spec, trust, user_files)
    elif ":" in spec:
        loaded = _call_factory(spec)
    else:
        raise UserError(f"model: '{spec}' is not a model; give a .pt2, .pt or .pth file, or package.module:factory")
    _check_initialized(loaded)
    if weights is not None:
        _load_weights(loaded.module, weights, spec)
    return loaded


def from_module(module: nn.Module) -> LoadedModel:
    """Wrap a module the caller built."""
    class_name = type(module).__name__
    loaded = LoadedModel(module, origin=class_name, name=_identifier(class_name.lower()))
    _check_initialized(loaded)
    return loaded


def import_attribute(spec: str, what: str) -> Any:
    """The object `package.module:attribute` names; the working directory is searched first; `what` begins an error."""
    module_name, _, attribute = spec.partition(":")
    if not module_name or not attribute:
        raise UserError(f"{what}: '{spec}' is not of the form package.module:name; write both parts")
    with _importable(Path.cwd()):
        try:
            module = importlib.import_module(module_name)
        except Exception as error:  # another's code runs here and may raise anything
            raise UserError(
                f"{what}: cannot import '{module_name}' ({_one_line(error)});"
                " run from the folder that holds it, or install it"
            ) from error
    if not hasattr(module, attribute):
        raise UserError(f"{what}: module '{module_name}' has no '{attribute}'; check the name after the colon")
    return getattr(module, attribute)


# ---- package.module:factory and --weights


def _call_factory(spec: str) -> LoadedModel:
    factory = import_attribute(spec, "model")
    if not callable(factory):
        raise UserError(
            f"model: '{spec}' is a {type(factory).__name__}, not callable; name a function that returns a module"
        )
    with _importable(Path.cwd()):
        try:
            module = factory()
        except TypeError as error:
            raise UserError(
                f"model: '{spec}' cannot be called without arguments ({_one_line(error)});"
                " name a function that needs none"
            ) from error
    if not isinstance(module, nn.Module):
        raise UserError(f"model: '{spec}' returned a '{type(module).__name__}'; it must return a torch.nn.Module")
    return LoadedModel(module, origin=spec, name=_identifier(spec.partition(":")[2]))


def _load_weights(module: nn.Module, path: str, spec: str) -> None:
    if Path(path).suffix.lower() != ".safetensors":
        raise UserError(f"{path}: weights must be a '.safetensors' file; convert them with safetensors.torch.save_file")
    if not Path(path).is_file():
        raise UserError(f"{path}: no such file; check the path of --weights")
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path}: not a readable safetensors file ({_one_line(error)}); write it again") from error
    own = module.state_dict()
    for key in own.keys() & tensors.keys():
        if own[key].shape != tensors[key].shape:
            raise UserError(
                f"{path}: '{key}' has shape {_by_x(tensors[key].shape)} but '{spec}' wants {_by_x(own[key].shape)};"
                " use the weights of the same model"
            )
    result = module.load_state_dict(tensors, strict=False)
    # safetensors stores a tied tensor once, under one of its names
    present = {own[key].data_ptr() for key in own.keys() & tensors.keys()}
    missing = [key for key in result.missing_keys if own[key].data_ptr() not in present]
    if missing or result.unexpected_keys:
        parts = [
            f"{label} {_first_few(keys)}"
            for label, keys in (("missing", missing), ("unexpected", result.unexpected_keys))
            if keys
        ]
        raise UserError(f"{path}: does not fit '{spec}': {'; '.join(parts)}; use the weights of the same model")


# ---- .pt and .pth

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


def _load_pickled(path: str, trust: bool, user_files: list[types.ModuleType]) -> LoadedModel:
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
            f"{path}: cannot be read as a PyTorch file ({_one_line(error)}); write it again with torch.save(model, ...)"
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
    return LoadedModel(content, origin=path, name=_identifier(Path(path).stem))


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
        _refuse(self.path, deed)

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
            f"{path}: its class '{module_name}.{name}' cannot be imported ({_one_line(error)});"
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


# ---- .pt2

_TENSOR_CONFIGS = re.compile(r"data/(weights|constants)/.*_config\.json")
# Ops an exported graph may call. Without this, "torch.os.system" is found by attribute and runs.
_ALLOWED_TARGET = re.compile(
    r"torch\.ops\.(aten|prims|higher_order|torchvision)\.\w+(\.\w+)?|torch\._?sym_\w+|math\.\w+"
    r"|_operator\.(getitem|add|sub|mul|floordiv|truediv|mod|pow|neg|pos|eq|ne|lt|le|gt|ge|and_|or_|not_)"
)
_ALLOWED_TREES = {"builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict", None}
_ALLOWED_IN_EXPRESSION = {
    "Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Pow", "Mod", "Max", "Min", "floor", "ceiling",
    "FloorDiv", "CeilDiv", "CleanDiv", "PythonMod", "PowByNatural", "CeilToInt", "FloorToInt", "TruncToInt",
    "RoundToInt", "IntTrueDiv", "FloatTrueDiv", "ToFloat", "Identity", "Piecewise", "ExprCondPair", "And", "Or", "Not",
    "Equality", "Unequality", "StrictLessThan", "LessThan", "StrictGreaterThan", "GreaterThan", "true", "false",
    "oo", "int_oo",
}  # fmt: skip


def _load_exported(path: str, trust: bool) -> LoadedModel:
    try:
        if not trust:
            _screen_archive(path)
        program = torch.export.load(path)
        # guards would be compiled from text in the file; shapes are fixed by our own trace
        module = program.module(check_guards=False)
    except UserError:
        raise
    except Exception as error:  # a damaged archive can raise anything
        raise UserError(
            f"{path}: cannot be read as a torch.export archive ({_one_line(error)});"
            " write it again with torch.export.save"
        ) from error
    inputs = [node for node in program.graph.nodes if node.name in program.graph_signature.user_inputs]
    if len(inputs) != 1:
        raise UserError(f"{path}: takes {len(inputs)} inputs; export a model that takes one batch tensor")
    return LoadedModel(
        module, origin=path, name=_identifier(Path(path).stem),
        example_shape=_example_shape(program, inputs[0]), fixed_mode=True,
    )  # fmt: skip


def _example_shape(program: torch.export.ExportedProgram, placeholder: torch.fx.Node) -> tuple[int, ...] | None:
    if program.example_inputs:
        args, kwargs = program.example_inputs
        shape = next(value.shape for value in (*args, *kwargs.values()))
    else:
        shape = placeholder.meta["val"].shape
    sizes = [size if isinstance(size, int) else size.node.hint for size in shape]
    return None if None in sizes else tuple(sizes)


def _screen_archive(path: str) -> None:
    """Refuse what torch.export.load would run: native code, pickles of more than tensors, and text it evaluates."""
    reader = torch._C.PyTorchFileReader(path)  # the reader torch.export.load uses, so both see the same records
    records = reader.get_all_records()
    if "archive_format" not in records or "version" in zipfile.ZipFile(path).namelist():
        raise UserError(f"{path}: is not a torch.export archive of torch 2.8 or later; export the model again")
    for record in records:
        if record.startswith("data/aotinductor/"):
            _refuse(path, f"holds native code in '{record}'")
        if record.startswith("data/") and record.endswith(".pt"):
            _screen_pickle(path, record, reader.get_record(record))
        if _TENSOR_CONFIGS.fullmatch(record):
            folder = record.rpartition("/")[0]
            for entry in json.loads(reader.get_record(record))["config"].values():
                name = f"{folder}/{entry['path_name']}"
                if entry["path_name"].startswith(("custom_obj", "opaque_obj")):
                    _refuse(path, f"holds an object other than a tensor in '{name}'")
                if entry["use_pickle"]:
                    _screen_pickle(path, name, reader.get_record(name))
        if record.startswith("models/"):
            _screen_graph(path, json.loads(reader.get_record(record)))


def _screen_pickle(path: str, record: str, content: bytes) -> None:
    try:
        if content:
            torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError):
        _refuse(path, f"holds something other than tensors in '{record}'")


def _screen_graph(path: str, part: Any) -> None:
    """Walk the graph's JSON for the strings that torch.export.load looks up or evaluates."""
    if isinstance(part, list):
        for item in part:
            _screen_graph(path, item)
    if not isinstance(part, dict):
        return
    for target in ([part["target"]] if "inputs" in part and "target" in part else []) + [part.get("as_operator")]:
        if isinstance(target, str) and not _ALLOWED_TARGET.fullmatch(target):
            _refuse(path, f"calls '{target}'")
    expression = part.get("expr_str")
    if isinstance(expression, str) and not _is_plain_expression(expression):
        _refuse(path, f"holds the expression '{expression}'")
    for key in ("in_spec", "out_spec"):
        spec = part.get(key)
        if isinstance(spec, str) and spec and not _is_plain_tree(json.loads(spec)):
            _refuse(path, f"holds a structure of its own in '{key}'")
    for item in part.values():
        _screen_graph(path, item)


def _is_plain_expression(text: str) -> bool:
    """Whether sympy, which evaluates the text as Python, meets only arithmetic on symbols."""
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    symbol_names = [
        argument for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Symbol"
        for argument in call.args
    ]  # fmt: skip
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Name)
            and node.id not in _ALLOWED_IN_EXPRESSION
            and not re.fullmatch(r"[suz]\d+", node.id)
        ):
            return False
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in symbol_names:
            return False  # sympy would evaluate a string inside a string
        if not isinstance(node, _PLAIN_NODES):
            return False
    return True


_PLAIN_NODES = (
    ast.Expression, ast.Call, ast.Name, ast.Load, ast.Constant, ast.keyword, ast.Tuple,
    ast.BinOp, ast.UnaryOp, ast.Compare, ast.operator, ast.unaryop, ast.cmpop,
)  # fmt: skip


def _is_plain_tree(spec: Any) -> bool:
    """Whether a pytree description is made of built-in containers; other types name a module to import."""
    if isinstance(spec, list):
        return all(_is_plain_tree(item) for item in spec)
    if isinstance(spec, dict):
        return (
            spec.get("type") in _ALLOWED_TREES
            and "__enum__" not in str(spec.get("context"))
            and _is_plain_tree(spec.get("children_spec"))
        )
    return True


# ---- shared


def _refuse(path: str, deed: str) -> NoReturn:
    raise UserError(f"{path}: {deed}; if you trust the file, add --trust")


def _check_initialized(loaded: LoadedModel) -> None:
    for name, tensor in (*loaded.module.named_parameters(), *loaded.module.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise UserError(
                f"{loaded.origin}: '{name}' has no shape yet; run the model once before it is compiled or saved"
            )


def _import_file(path: str) -> types.ModuleType:
    """Run a Python file as a module of its own, its folder importable meanwhile."""
    if not Path(path).is_file():
        raise UserError(f"--import: no such file '{path}'; check the path")
    name = f"gfcompile_import_{_identifier(Path(path).stem)}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"--import: '{path}' is not a Python file; give the .py file that defines the model's classes")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses in the file look their module up
    with _importable(Path(path).resolve().parent):
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # the user's code may raise anything
            del sys.modules[name]
            raise UserError(f"--import: '{path}' fails when it is run ({_one_line(error)}); mend the file") from error
    return module


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _identifier(text: str) -> str:
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return f"model_{name}" if not name.isidentifier() or keyword.iskeyword(name) else name


def _one_line(error: BaseException) -> str:
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _by_x(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _first_few(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return ", ".join(f"'{key}'" for key in itertools.islice(keys, 3)) + more
