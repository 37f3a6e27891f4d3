"""Read the module that torch.save wrote into a `.pt` or `.pth` file.

A pickle can carry code. Without `trust` it may rebuild tensors, plain containers and modules of known libraries only,
and neither torch.load nor pickle's own machine sees the file.
"""

from __future__ import annotations

import io
import pickle
import types
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gfcompile.errors import UserError
from gfcompile.frontend.archive import Archive, is_archive
from gfcompile.frontend.foreign import MalformedError, one_line
from gfcompile.frontend.imports import UserCode
from gfcompile.frontend.pickled.names import Names, import_global, in_user_files, modern_name
from gfcompile.frontend.pickled.state import check_modules
from gfcompile.frontend.pickled.unpickler import RestrictedUnpickler

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of the format that torch.save wrote before 1.6


def unpickle_module(path: str, trust: bool, code: UserCode) -> nn.Module:
    """The module in a `.pt` or `.pth` file; its classes are looked up in the user's files first, then imported."""
    try:
        content = _load_trusted(path, code) if trust else _load_restricted(path, code)
        if isinstance(content, nn.Module):
            content.state_dict()  # fails on a module whose state was left out
    except UserError:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise UserError(
            f"{path}: cannot be read as a PyTorch file ({one_line(error)}); write it again with torch.save(model, ...)"
        ) from error
    if isinstance(content, dict):
        held = next((key for key, value in content.items() if isinstance(value, nn.Module)), None)
        if held is not None:
            raise UserError(
                f"{path}: holds a dictionary with a module under '{held}'; save the module alone with"
                " torch.save(model, ...)"
            )
        raise UserError(
            f"{path}: holds weights (a '{type(content).__name__}' of {len(content)} entries), not a module;"
            " save them with safetensors.torch.save_file and use package.module:factory --weights file.safetensors"
        )
    if not isinstance(content, nn.Module):
        raise UserError(
            f"{path}: holds a '{type(content).__name__}', not a module; save the module with torch.save(model, ...)"
        )
    return content


def _load_restricted(path: str, code: UserCode) -> Any:
    unpickler, content = (_read_archive if is_archive(path) else _read_old_format)(path, Names(path, code))
    if isinstance(content, nn.Module):
        check_modules(path, content, unpickler.made)
        for module in unpickler.made:  # classes bring the state of their older versions up to date here
            type(module).__setstate__(module, dict(vars(module)))
    return content


def _read_archive(path: str, names: Names) -> tuple[RestrictedUnpickler, Any]:
    with Archive(path) as archive:
        _refuse_torchscript(path, "constants.pkl" in archive)
        if "byteorder" in archive and archive.read("byteorder") != b"little":
            raise MalformedError("it was written on a machine of another byte order")

        def fetch(key: str, size: int) -> bytearray:
            record = archive.read(f"data/{key}")
            if len(record) != size:
                raise MalformedError(f"its record 'data/{key}' has {len(record)} bytes instead of {size}")
            return record

        unpickler = RestrictedUnpickler(io.BytesIO(archive.read("data.pkl")), path, names, fetch)
        return unpickler, unpickler.load()


def _read_old_format(path: str, names: Names) -> tuple[RestrictedUnpickler, Any]:
    """Five pickles: a number that marks the format, its version, facts about the machine, the object, the order of its
    storages; then these, each a count of values and the values."""
    file = io.BytesIO(Path(path).read_bytes())
    storages: dict[str, bytearray] = {}
    room = len(file.getvalue())

    def fetch(key: str, size: int) -> bytearray:
        nonlocal room
        room -= size
        if room < 0:
            raise MalformedError("its storages are larger than the file")
        storages[key] = bytearray(size)
        return storages[key]

    def read() -> tuple[RestrictedUnpickler, Any]:
        unpickler = RestrictedUnpickler(file, path, names, fetch)
        return unpickler, unpickler.load()

    begins = _MAGIC.to_bytes(10, "little") in file.getvalue()[:20]
    if not begins or read()[1] != _MAGIC or read()[1] != _PROTOCOL:
        raise MalformedError("it does not begin as a file of torch.save does")
    about = read()[1]
    if not isinstance(about, dict) or about.get("little_endian") is not True:
        raise MalformedError("it was written on a machine of another byte order")
    unpickler, content = read()
    keys = read()[1]
    if type(keys) is not list or not all(type(key) is str for key in keys) or sorted(keys) != sorted(storages):
        raise MalformedError("it does not hold the storages that it names")
    for key in keys:
        count = int.from_bytes(file.read(8), "little")
        if (count and len(storages[key]) % count) or file.readinto(storages[key]) != len(storages[key]):
            raise MalformedError(f"its storage '{key}' is cut off")
    return unpickler, content


def _refuse_torchscript(path: str, is_script: bool) -> None:
    if is_script:
        raise UserError(
            f"{path}: is a 'TorchScript' archive, which has no Python modules left;"
            " export the original model as .pt2 with torch.export.save"
        )


# ---- files that the user trusts


def _load_trusted(path: str, code: UserCode) -> Any:
    base = type("Unpickler", (_TrustingUnpickler,), {"path": path, "code": code})
    # torch.load asks a "pickle module" for these names only
    pickle_module = types.SimpleNamespace(
        __name__="gfcompile_pickle", Unpickler=base, load=lambda file, **options: base(file, **options).load()
    )
    is_zip = is_archive(path)
    if is_zip:
        _refuse_torchscript(path, "constants.pkl" in torch._C.PyTorchFileReader(path).get_all_records())
    # bytes instead of a path keep torch.load from its oldest format, which unpacks a tar file
    source = path if is_zip else io.BytesIO(Path(path).read_bytes())
    return torch.load(source, map_location="cpu", weights_only=False, pickle_module=pickle_module)


class _TrustingUnpickler(pickle.Unpickler):
    """Ordinary pickle semantics, and the classes of `--import` files."""

    path: str
    code: UserCode

    def find_class(self, module_name: str, name: str) -> Any:
        module_name, name = modern_name(module_name, name)
        found = in_user_files(module_name, name, self.code)
        return import_global(self.path, module_name, name, is_users=True) if found is None else found
