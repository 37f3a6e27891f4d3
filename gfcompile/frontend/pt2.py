"""Load a `.pt2` archive that torch.export.save wrote.

An archive can carry code. Without `trust` it is screened first: it may hold tensors and known ops only.
"""

import ast
import io
import json
import pickle
import re
import zipfile
from typing import Any

import torch
from torch import nn

from gfcompile.errors import UserError
from gfcompile.frontend.foreign import one_line, refuse_without_trust

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
_PLAIN_NODES = (
    ast.Expression, ast.Call, ast.Name, ast.Load, ast.Constant, ast.keyword, ast.Tuple,
    ast.BinOp, ast.UnaryOp, ast.Compare, ast.operator, ast.unaryop, ast.cmpop,
)  # fmt: skip


def load_archive(path: str, trust: bool) -> tuple[nn.Module, tuple[int, ...] | None]:
    """The module in a `.pt2` archive, and the shape of its example input where the archive tells it."""
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
            f"{path}: cannot be read as a torch.export archive ({one_line(error)});"
            " write it again with torch.export.save"
        ) from error
    inputs = [node for node in program.graph.nodes if node.name in program.graph_signature.user_inputs]
    if len(inputs) != 1:
        raise UserError(f"{path}: takes {len(inputs)} inputs; export a model that takes one batch tensor")
    return module, _example_shape(program, inputs[0])


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
            refuse_without_trust(path, f"holds native code in '{record}'")
        if record.startswith("data/") and record.endswith(".pt"):
            _screen_pickle(path, record, reader.get_record(record))
        if _TENSOR_CONFIGS.fullmatch(record):
            folder = record.rpartition("/")[0]
            for entry in json.loads(reader.get_record(record))["config"].values():
                name = f"{folder}/{entry['path_name']}"
                if entry["path_name"].startswith(("custom_obj", "opaque_obj")):
                    refuse_without_trust(path, f"holds an object other than a tensor in '{name}'")
                if entry["use_pickle"]:
                    _screen_pickle(path, name, reader.get_record(name))
        if record.startswith("models/"):
            _screen_graph(path, json.loads(reader.get_record(record)))


def _screen_pickle(path: str, record: str, content: bytes) -> None:
    try:
        if content:
            torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, LookupError, ValueError, EOFError):  # what garbage leads torch to
        refuse_without_trust(path, f"holds something other than tensors in '{record}'")


def _screen_graph(path: str, part: Any) -> None:
    """Walk the graph's JSON for the strings that torch.export.load looks up or evaluates."""
    if isinstance(part, list):
        for item in part:
            _screen_graph(path, item)
    if not isinstance(part, dict):
        return
    for target in ([part["target"]] if "inputs" in part and "target" in part else []) + [part.get("as_operator")]:
        if isinstance(target, str) and not _ALLOWED_TARGET.fullmatch(target):
            refuse_without_trust(path, f"calls '{target}'")
    expression = part.get("expr_str")
    if isinstance(expression, str) and not _is_plain_expression(expression):
        refuse_without_trust(path, f"holds the expression '{expression}'")
    for key in ("in_spec", "out_spec"):
        spec = part.get(key)
        if isinstance(spec, str) and spec and not _is_plain_tree(json.loads(spec)):
            refuse_without_trust(path, f"holds a structure of its own in '{key}'")
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
