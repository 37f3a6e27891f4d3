"""Exported programs: each function changes the JSON of a small one, or the records of its archive."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.frontend.hostile.traces import touch
from tests.frontend.model_files import Calls, small_net

Change = Callable[[dict[str, Any], Path], None]
PROGRAMS: dict[str, Change] = {}
ARCHIVES: dict[str, Callable[[dict[str, bytes], Path], None]] = {}


def write_programs(folder: Path) -> None:
    for name in (*PROGRAMS, *ARCHIVES):
        path = folder / f"{name}.pt2"
        torch.manual_seed(0)
        torch.export.save(torch.export.export(small_net().eval(), (torch.randn(2, 3, 8, 8),)), path)
        with zipfile.ZipFile(path) as archive:
            records = {each.partition("/")[2]: archive.read(each) for each in archive.namelist()}
        if name in ARCHIVES:
            ARCHIVES[name](records, folder)
        else:
            part = json.loads(records["models/model.json"])
            PROGRAMS[name](part, folder)
            records["models/model.json"] = json.dumps(part).encode()
        with zipfile.ZipFile(path, "w") as archive:
            for each, content in records.items():
                archive.writestr(f"model/{each}", content)


def program(change: Change) -> Change:
    PROGRAMS[change.__name__] = change
    return change


def _enum_tree(folder: Path) -> str:
    """A pytree whose context, JSON within JSON, makes torch look up `ctypes.cdll[...]`: a library is loaded."""
    context = f'{{"\\u005f_enum__": 1, "fqn": "ctypes:cdll", "name": "{folder}/ran.so"}}'
    leaf = {"type": None, "context": None, "children_spec": []}
    dictionary = {"type": "builtins.dict", "context": f"[{context}]", "children_spec": [leaf]}
    return json.dumps([1, {"type": "builtins.tuple", "context": "null", "children_spec": [dictionary]}])


def _signature(part: dict[str, Any]) -> dict[str, Any]:
    return next(entry["signature"] for entry in part["graph_module"]["module_call_graph"] if entry["fqn"] == "")


@program
def an_enum_in_the_inputs(part: dict[str, Any], folder: Path) -> None:
    _signature(part)["in_spec"] = _enum_tree(folder)


@program
def an_enum_in_the_outputs(part: dict[str, Any], folder: Path) -> None:
    _signature(part)["out_spec"] = _enum_tree(folder)


def _nodes(part: dict[str, Any]) -> list[Any]:
    return part["graph_module"]["graph"]["nodes"]


def _prepend(part: dict[str, Any], target: str, arguments: dict[str, Any], output: str) -> None:
    inputs = [{"name": name, "arg": value, "kind": 1} for name, value in arguments.items()]
    node = {**copy.deepcopy(_nodes(part)[0]), "target": target, "inputs": inputs, "name": output}
    node["outputs"] = [{"as_tensor": {"name": output}}]
    _nodes(part).insert(0, node)
    values = part["graph_module"]["graph"]["tensor_values"]
    values[output] = {**values["conv2d"], "sizes": [{"as_int": 4}], "strides": [{"as_int": 1}]}


@program
def a_file_that_is_written(part: dict[str, Any], folder: Path) -> None:
    _prepend(
        part,
        "torch.ops.aten.from_file.default",
        {"filename": {"as_string": str(folder / "ran")}, "shared": {"as_bool": True}, "size": {"as_int": 4}},
        "opened",
    )


@program
def a_tensor_that_is_saved(part: dict[str, Any], folder: Path) -> None:
    _nodes(part)[0]["target"] = "torch.ops.aten.save.default"


@program
def any_memory(part: dict[str, Any], folder: Path) -> None:
    _nodes(part)[0]["target"] = "torch.ops.aten.set_.source_Storage_storage_offset"


@program
def a_library_that_is_loaded(part: dict[str, Any], folder: Path) -> None:
    _nodes(part)[0]["target"] = "torch.ops.load_library"


@program
def a_function_of_another_module(part: dict[str, Any], folder: Path) -> None:
    _nodes(part)[0]["target"] = "torch.os.system"


@program
def a_higher_order_operator(part: dict[str, Any], folder: Path) -> None:
    _nodes(part)[0]["target"] = "torch.ops.higher_order.print"


@program
def a_number_for_a_type(part: dict[str, Any], folder: Path) -> None:
    """ATen takes the number of an enum for the enum, whatever it is."""
    arguments = {"self": {"as_tensor": {"name": "input"}}, "dtype": {"as_int": -1}}
    _prepend(part, "torch.ops.aten.sum.default", arguments, "total")


@program
def a_number_that_overflows(part: dict[str, Any], folder: Path) -> None:
    """Kernels multiply sizes without looking."""
    conv = next(node for node in _nodes(part) if node["target"].startswith("torch.ops.aten.conv2d"))
    conv["inputs"] = [each for each in conv["inputs"] if each["name"] != "dilation"]
    conv["inputs"].append({"name": "dilation", "arg": {"as_ints": [1, (1 << 62) - 1000]}, "kind": 1})


@program
def an_input_of_gigabytes(part: dict[str, Any], folder: Path) -> None:
    part["graph_module"]["graph"]["tensor_values"]["input"]["sizes"][1] = {"as_int": 1 << 40}


@program
def a_name_that_is_code(part: dict[str, Any], folder: Path) -> None:
    """fx writes names into the source that it runs."""
    code = f"conv2d\n    __import__('os').system('{touch(folder)}')\n    conv2d_1"
    text = json.dumps(part["graph_module"]).replace('"conv2d"', json.dumps(code))
    part["graph_module"] = json.loads(text)


@program
def an_argument_name_that_is_code(part: dict[str, Any], folder: Path) -> None:
    _signature(part)["forward_arg_names"] = [f"x=__import__('os').system('{touch(folder)}')"]


@program
def an_expression(part: dict[str, Any], folder: Path) -> None:
    code = f"__import__('os').system('{touch(folder)}')"
    sizes = part["graph_module"]["graph"]["tensor_values"]["input"]["sizes"]
    sizes[0] = {"as_expr": {"expr_str": code, "hint": {"as_int": 2}}}


@program
def a_function_in_its_history(part: dict[str, Any], folder: Path) -> None:
    for node in _nodes(part):
        node["metadata"] = {"source_fn_stack": "conv2d,torch.os.system", "custom": "{}"}
        node["target"] = "torch.ops.aten.__class__.__base__"


def archive(change: Callable[[dict[str, bytes], Path], None]) -> Callable[[dict[str, bytes], Path], None]:
    ARCHIVES[change.__name__] = change
    return change


@archive
def a_name_of_a_weight_that_is_code(records: dict[str, bytes], folder: Path) -> None:
    code = f'0"+__import__("os").system("{touch(folder)}")+"'
    for name in ("data/weights/model_weights_config.json", "models/model.json"):
        records[name] = records[name].replace(b'"0.weight"', json.dumps(f"{code}.weight").encode())


def _with_config(records: dict[str, bytes], **values: Any) -> None:
    config = json.loads(records["data/weights/model_weights_config.json"])
    next(iter(config["config"].values())).update(values)
    records["data/weights/model_weights_config.json"] = json.dumps(config).encode()


def _pickled_command(folder: Path) -> bytes:
    whole = io.BytesIO()
    torch.save(Calls(os.system, touch(folder)), whole)
    return whole.getvalue()


@archive
def a_pickled_weight(records: dict[str, bytes], folder: Path) -> None:
    _with_config(records, use_pickle=True)
    records["data/weights/weight_0"] = _pickled_command(folder)


@archive
def a_pickled_object(records: dict[str, bytes], folder: Path) -> None:
    _with_config(records, use_pickle=True, path_name="opaque_obj_0")
    records["data/weights/opaque_obj_0"] = pickle.dumps(Calls(os.system, touch(folder)))


@archive
def native_code(records: dict[str, bytes], folder: Path) -> None:
    records["data/aotinductor/model/model.so"] = (folder / "ran.so").read_bytes()


def _with_first_weight(records: dict[str, bytes], **about: Any) -> None:
    config = json.loads(records["data/weights/model_weights_config.json"])
    next(iter(config["config"].values()))["tensor_meta"].update(about)
    records["data/weights/model_weights_config.json"] = json.dumps(config).encode()


@archive
def a_weight_beyond_its_record(records: dict[str, bytes], folder: Path) -> None:
    _with_first_weight(records, storage_offset={"as_int": 1 << 30})


@archive
def gigabytes_of_one_value(records: dict[str, bytes], folder: Path) -> None:
    _with_first_weight(records, sizes=[{"as_int": 1 << 40}], strides=[{"as_int": 0}])


@archive
def a_weight_in_the_place_of_a_method(records: dict[str, bytes], folder: Path) -> None:
    config = records["data/weights/model_weights_config.json"].decode()
    first = next(iter(json.loads(config)["config"]))
    for name in ("data/weights/model_weights_config.json", "models/model.json"):
        records[name] = records[name].replace(f'"{first}"'.encode(), b'"_wrapped_call"')
