"""Code that the user names: `--import model.py` or `--import package`, and `package.module:name`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gfcompile.errors import UserError
from gfcompile.frontend.foreign import one_line


@dataclass(frozen=True)
class UserCode:
    """Where a model's classes may come from besides the usual libraries."""

    files: tuple[types.ModuleType, ...] = ()
    packages: tuple[str, ...] = ()

    def covers(self, module_name: str) -> bool:
        """Whether a module belongs to a package that was named, or was made from a file that was."""
        return any(is_below(module_name, package) for package in self.packages) or any(
            module_name == file.__name__ for file in self.files
        )


def read_imports(names: Sequence[str]) -> UserCode:
    """Run the Python files among `names`; the others are packages, imported only where a model asks for them."""
    files, packages = [], []
    for name in names:
        if name.endswith(".py") or Path(name).is_file():
            files.append(_import_file(name))
        elif all(part.isidentifier() for part in name.split(".")):
            packages.append(name)
        else:
            raise UserError(f"--import: no such file '{name}'; give a Python file, or the name of a package")
    return UserCode(tuple(files), tuple(packages))


def is_below(module_name: str, package: str) -> bool:
    """Whether a module is the package or inside it."""
    return module_name == package or module_name.startswith(f"{package}.")


def import_attribute(spec: str, what: str) -> Any:
    """The object `package.module:attribute` names; the working directory is searched first; `what` begins an error."""
    module_name, _, attribute = spec.partition(":")
    if not module_name or not attribute:
        raise UserError(f"{what}: '{spec}' is not of the form package.module:name; write both parts")
    with importable(Path.cwd()):
        try:
            module = importlib.import_module(module_name)
        except (Exception, SystemExit) as error:  # another's code runs here and may raise anything
            raise UserError(
                f"{what}: cannot import '{module_name}' ({one_line(error)});"
                " run from the folder that holds it, or install it"
            ) from error
    if not hasattr(module, attribute):
        raise UserError(f"{what}: module '{module_name}' has no '{attribute}'; check the name after the colon")
    return getattr(module, attribute)


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """The folder is searched first for what is imported meanwhile."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _import_file(path: str) -> types.ModuleType:
    """Run a Python file as a module of its own, its folder importable meanwhile."""
    if not Path(path).is_file():
        raise UserError(f"--import: no such file '{path}'; check the path")
    name = "gfcompile_import_" + "".join(letter if letter.isalnum() else "_" for letter in Path(path).stem)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"--import: '{path}' is not a Python file; give the .py file that defines the model's classes")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses in the file look their module up
    with importable(Path(path).resolve().parent):
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            del sys.modules[name]
            raise UserError(f"--import: '{path}' fails when it is run ({one_line(error)}); mend the file") from error
    return module
