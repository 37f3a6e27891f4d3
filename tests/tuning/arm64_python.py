"""A Python for 64-bit Arm with TVM's runtime, in a folder: under qemu-user it is a board with an RPC server.

    python -m tests.tuning.arm64_python

fetches it once (140 MB: Debian's packages by apt-get, which installs nothing here, and wheels by pip).
"""

from __future__ import annotations

import compileall
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from gfcompile.codegen.compiled import cache_folder
from tests.missing import skip_for_want

PACKAGES = ("python3.11-minimal", "libpython3.11-stdlib", "libstdc++6")
WHEELS = ("apache-tvm", "apache-tvm-ffi", "numpy", "ml_dtypes", "typing_extensions", "cloudpickle", "psutil")
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
LEFT_OUT = "libtvm_compiler.so"  # a board compiles nothing, and it is most of TVM


def folder() -> Path:
    """Where it is, or will be: beside the objects of the runtime's C."""
    return cache_folder("objects").parent / f"arm64-python-tvm-{importlib.metadata.version('apache-tvm')}"


def board_command(emulator: Sequence[str], place: Path) -> list[str]:
    """The command that is a board's `python`; a test is skipped where the folder was not made.

    TVM's server starts itself again by `sys.executable`, which a kernel without binfmt cannot run if it is a program of
    another machine. So Python is told that it is called `place`, a script that starts the emulator again.
    """
    root = folder()
    if not root.is_dir():
        skip_for_want("there is no Python for arm64; make it with: python -m tests.tuning.arm64_python")
    python = [*emulator, "-L", str(root), "-0", str(place), str(root / "usr/bin/python3.11")]
    place.write_text(f'#!/bin/sh\nexec {" ".join(python)} "$@"\n')
    place.chmod(0o755)
    return [str(place)]


def board_environment() -> dict[str, str]:
    """The board's Python finds its own modules, never this machine's."""
    root = folder()
    own = {"PYTHONHOME": str(root / "usr"), "PYTHONPATH": str(root / "site"), "PYTHONDONTWRITEBYTECODE": ""}
    return {**os.environ, **own, "TVM_USE_RUNTIME_LIB": "1"}


def make() -> None:
    """Fetch and unpack; in a folder beside, moved into place when it is whole."""
    root = folder()
    if root.is_dir():
        return
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as scratch:
        place = Path(scratch) / "root"
        for package in _fetch_packages(Path(scratch)):
            subprocess.run(["dpkg-deb", "--extract", str(package), str(place)], check=True)
        for wheel in _fetch_wheels(Path(scratch)):
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if not name.endswith(LEFT_OUT)]
                archive.extractall(place / "site", names)
        # here, in seconds: under qemu, Python takes a minute to compile what a server imports
        compileall.compile_dir(place, quiet=2, workers=0, stripdir=str(place), prependdir=str(root))
        place.rename(root)


def _fetch_packages(scratch: Path) -> list[Path]:
    """With lists of its own, as if nothing were installed: apt-get then fetches what the packages need, too."""
    state, cache = scratch / "state", scratch / "cache"
    for needed in (state / "lists/partial", cache / "archives/partial"):
        needed.mkdir(parents=True)
    (state / "status").touch()
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",
        "Dir::State": str(state),
        "Dir::State::status": str(state / "status"),
        "Dir::Cache": str(cache),
        "Debug::NoLocking": "true",
    }
    command = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in settings.items())]
    subprocess.run([*command, "update"], check=False)  # other sources of this machine may have nothing for arm64
    subprocess.run([*command, "install", "-y", "--download-only", "--no-install-recommends", *PACKAGES], check=True)
    return sorted((cache / "archives").glob("*.deb"))


def _fetch_wheels(scratch: Path) -> list[Path]:
    """The versions that are installed here: the two ends of a connection are of one TVM."""
    wheels = scratch / "wheels"
    pinned = [f"{name}=={importlib.metadata.version(name)}" for name in WHEELS]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version=3.11", *(f"--platform={name}" for name in PLATFORMS), f"--dest={wheels}", *pinned]
    subprocess.run(command, check=True)
    return sorted(wheels.glob("*.whl"))


if __name__ == "__main__":
    missing = [program for program in ("apt-get", "dpkg-deb") if shutil.which(program) is None]
    if missing:
        sys.exit(f"{' and '.join(missing)} not found: the packages of Python for arm64 come from Debian 12 or later")
    make()
    print(folder())
