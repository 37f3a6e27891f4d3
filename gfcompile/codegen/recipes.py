"""What a kernel's code is made from, as texts that are equal in every process: the keys of the store."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from pathlib import Path

import tvm
from tvm import tirx
from tvm_ffi.serialization import from_json_graph_str

from gfcompile.codegen.tuned.keys import target_key
from gfcompile.codegen.tuned.record import Record
from gfcompile.targets import Target
from gfcompile.version import __version__

_COUNTED = re.compile(r"(?P<kind>lv|gv)\d*(?P<rest>(_.*)?)")
_NAME = "global_symbol"
_PACKAGE = Path(__file__).parent.parent
_ROOMS = ("codegen", "geometry", "targets")  # all of ours that decides about a kernel's loops and instructions


def digest_of(*parts: str) -> str:
    """One text for several."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def canonical(function: tirx.PrimFunc) -> tuple[tirx.PrimFunc, str]:
    """The kernel under names of variables that do not depend on the rest of its program, and its fingerprint.

    Relax counts its variables, so the same kernel has `lv66` in one step and `lv69` in another, and so has the debug
    information of its object. Their order stays: TVM sorts a GPU kernel's parameters by name.
    """
    graph = json.loads(tvm.ir.save_json(function.without_attr(_NAME)))
    nodes = graph["nodes"]
    places = {node["data"]["name"] for node in nodes if node["type"] == "ir.Var"}
    places -= {node["data"]["name_hint"] for node in nodes if node["type"] == "s_tir.SBlock"}  # schedules look for them
    counted = {nodes[place]["data"]: _COUNTED.fullmatch(nodes[place]["data"]) for place in places}
    names = sorted(name for name, match in counted.items() if match)
    for place in places:
        match = counted[nodes[place]["data"]]
        if match:
            nodes[place]["data"] = f"{match['kind']}{names.index(match[0]):04}{match['rest']}"
    text = json.dumps(graph)
    made = from_json_graph_str(text)  # TVM's own load_json reads and writes it twice more, for older versions
    if function.attrs is not None and _NAME in function.attrs:
        made = made.with_attr(_NAME, function.attrs[_NAME])
    return made, hashlib.sha256(text.encode()).hexdigest()


def machine_digest(target: Target) -> str:
    """Of what is compiled for, and by which compiler."""
    return digest_of(target_key(target), json.dumps(target.tvm, sort_keys=True), _COMPILER)


def decisions_text(record: Record) -> str:
    """Of a trial, what its schedule follows."""
    return json.dumps([record.template, record.decisions], sort_keys=True)


def _name_compiler() -> str:
    """TVM's version and ours, and our own sources: a template that changed makes other code."""
    digest = hashlib.sha256()
    for room in _ROOMS:
        for path in sorted((_PACKAGE / room).rglob("*.py")):
            digest.update(f"{path.relative_to(_PACKAGE)}\0".encode() + path.read_bytes())
    versions = f"{tvm.__version__} {importlib.metadata.version('apache-tvm-ffi')} {__version__}"
    return f"{versions} {digest.hexdigest()}"


_COMPILER = _name_compiler()  # now: an hour later the files may be those of another release than what was imported
