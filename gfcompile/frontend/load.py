"""Read a model: `.pt2`, `.onnx`, `.pt`/`.pth`, `package.module:factory`, or an nn.Module at hand."""

import itertools
import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from gfcompile.errors import UserError
from gfcompile.frontend.exported.load import load_archive
from gfcompile.frontend.foreign import one_line, shortened
from gfcompile.frontend.imports import UserCode, import_attribute, importable, read_imports
from gfcompile.frontend.onnx.load import load_onnx
from gfcompile.frontend.pickled.load import unpickle_module
from gfcompile.frontend.spec import check_spec


@dataclass(frozen=True)
class LoadedModel:
    """A module and what its origin told about it."""

    module: nn.Module
    origin: str  # as the user wrote it: the start of messages
    name: str  # a Python identifier: the artifact's name begins with it
    example_shape: tuple[int, ...] | None = None
    is_foreign: bool = False  # from a file that the user has not said to trust
    fixed_mode: bool = False  # .pt2: train or eval behaviour was decided at export
    onnx_skeleton: bytes | None = None  # .onnx: the file's graph without its weights, for `onnx.write_back`


def load_model(
    spec: str, *, weights: str | None = None, trust: bool = False, imports: Sequence[str] = ()
) -> LoadedModel:
    """Load `spec`, then the safetensors file `weights` into it; `imports` name the files or packages of its classes."""
    code = read_imports(imports)
    suffix = check_spec(spec)
    if suffix is not None:
        try:
            loaded = replace(_read_file(spec, suffix, trust, code), is_foreign=not trust)
        except UserError as error:
            raise UserError(shortened(str(error))) from error
    else:
        loaded = _call_factory(spec)
    _check_initialized(loaded)
    if weights is not None:
        _load_weights(loaded.module, weights, spec)
    return loaded


def _read_file(path: str, suffix: str, trust: bool, code: UserCode) -> LoadedModel:
    name = _identifier(Path(path).stem)
    if suffix == ".pt2":
        module, example_shape = load_archive(path, trust)
        return LoadedModel(module, origin=path, name=name, example_shape=example_shape, fixed_mode=True)
    if suffix == ".onnx":
        onnx = load_onnx(path)
        return LoadedModel(
            onnx.module, origin=path, name=name, example_shape=onnx.example_shape, onnx_skeleton=onnx.skeleton
        )
    return LoadedModel(unpickle_module(path, trust, code), origin=path, name=name)


def from_module(module: nn.Module) -> LoadedModel:
    """Wrap a module the caller built."""
    class_name = type(module).__name__
    loaded = LoadedModel(module, origin=class_name, name=_identifier(class_name.lower()))
    _check_initialized(loaded)
    return loaded


# ---- package.module:factory and --weights


def _call_factory(spec: str) -> LoadedModel:
    factory = import_attribute(spec, "model")
    if not callable(factory):
        raise UserError(
            f"model: '{spec}' is a {type(factory).__name__}, not callable; name a function that returns a module"
        )
    with importable(Path.cwd()):
        try:
            module = factory()
        except TypeError as error:
            raise UserError(
                f"model: '{spec}' cannot be called without arguments ({one_line(error)});"
                " name a function that needs none"
            ) from error
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise UserError(f"model: '{spec}' fails when it is called ({one_line(error)}); mend it") from error
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
        raise UserError(f"{path}: not a readable safetensors file ({one_line(error)}); write it again") from error
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


# ---- checks, imports, names


def _check_initialized(loaded: LoadedModel) -> None:
    for name, tensor in (*loaded.module.named_parameters(), *loaded.module.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise UserError(
                f"{loaded.origin}: '{name}' has no shape yet; run the model once before it is compiled or saved"
            )


def _identifier(text: str) -> str:
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return f"model_{name}" if not name.isidentifier() or keyword.iskeyword(name) else name


def _by_x(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _first_few(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return ", ".join(f"'{key}'" for key in itertools.islice(keys, 3)) + more
