"""Load a `.pt2` archive that torch.export.save wrote.

torch.export.load evaluates text of the file, imports what it names and unpickles. Without `trust` it never sees the
file: the program is read as data, and its operators are looked up in a table of ours.
"""

from __future__ import annotations

import json

import torch
from torch import nn
from torch._export.serde.schema import SCHEMA_VERSION

from gfcompile.errors import UserError
from gfcompile.frontend.archive import Archive
from gfcompile.frontend.exported.graph import GraphReader
from gfcompile.frontend.exported.tensors import read_tensors
from gfcompile.frontend.foreign import one_line, refuse_without_trust

_MODEL = "models/model.json"


def load_archive(path: str, trust: bool) -> tuple[nn.Module, tuple[int, ...] | None]:
    """The module in a `.pt2` archive, and the shape of its example input where the archive tells it."""
    try:
        return _load_trusted(path) if trust else _read(path)
    except UserError:
        raise
    except Exception as error:  # a damaged archive can raise anything
        raise UserError(
            f"{path}: cannot be read as a torch.export archive ({one_line(error)});"
            " write it again with torch.export.save"
        ) from error


def _read(path: str) -> tuple[nn.Module, tuple[int, ...] | None]:
    with Archive(path) as archive:
        if "archive_format" not in archive or _MODEL not in archive:
            raise UserError(f"{path}: is not a torch.export archive of torch 2.8 or later; export the model again")
        native = next((name for name in archive.names() if name.startswith("data/aotinductor/")), None)
        if native is not None:
            refuse_without_trust(path, f"holds native code in '{native}'")
        program = json.loads(archive.read(_MODEL))
        version = program["schema_version"]["major"]
        if version != SCHEMA_VERSION[0]:
            raise UserError(
                f"{path}: has version '{version}' of torch.export's format, torch {torch.__version__} writes"
                f" {SCHEMA_VERSION[0]}; export the model again"
            )
        reader = GraphReader(path, program["graph_module"], read_tensors(path, archive))
        return reader.read(), reader.example_shape()


def _load_trusted(path: str) -> tuple[nn.Module, tuple[int, ...] | None]:
    program = torch.export.load(path)
    # guards would be compiled from text in the file; shapes are fixed by our own trace
    module = program.module(check_guards=False)
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
