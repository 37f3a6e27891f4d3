"""linear_step.c on a machine with the stand-in driver."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gfcompile.codegen.link import RUNTIME, runtime_sources
from tests.cuda.emulator import build, build_driver, driver_environment
from tests.cuda.images import write_cubin, write_ptx, write_table
from tests.missing import skip_for_want

HERE = Path(__file__).parent
EXTENTS = {"forward": [512, 256, 16, 128], "loss": [128, 128, 4], "backward": [512, 128, 128, 4, 256, 16]}
KERNELS = (*EXTENTS, "update")
CUBIN, PTX = (53, write_cubin(53, KERNELS)), (53, write_ptx(53, KERNELS))
FLAGS = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-DGF_FEATURES")


@dataclass(frozen=True)
class Machine:
    """A compiler's prefix and what runs its programs."""

    prefix: str
    emulator: tuple[str, ...] = ()

    def require(self) -> None:
        for tool in self.emulator[:1]:
            if not shutil.which(tool):
                skip_for_want(f"'{tool}' is not installed; apt install qemu-user-static")


X86 = Machine("")
AARCH64 = Machine("aarch64-linux-gnu-", ("qemu-aarch64-static", "-cpu", "cortex-a57", "-L", "/usr/aarch64-linux-gnu"))


class Board:
    """A machine with the stand-in driver, and programs for it."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        machine.require()
        self.machine, self.folder = machine, folder
        self.driver = build_driver(folder / "driver", f"{machine.prefix}gcc")
        source = (HERE / "linear_step.cu").read_text()
        compiler = f"{machine.prefix}g++"
        self.kernels = build(source, folder / "kernels.so", race_check=True, compiler=compiler, extents=EXTENTS)
        self._programs: dict[tuple[object, ...], Path] = {}
        self._objects = folder / "objects"
        self._objects.mkdir()
        sources = [HERE / "run_step.c", *runtime_sources("cuda")]
        self._compile("-c", *map(str, sources), folder=self._objects)

    def _compile(self, *arguments: str, folder: Path) -> None:
        subprocess.run([f"{self.machine.prefix}gcc", *FLAGS, f"-I{RUNTIME}", *arguments], cwd=folder, check=True)

    def program(self, images: Sequence[tuple[int, bytes]], *defines: str) -> Path:
        """run_step.c with the runtime and linear_step.c, whose modules are these images."""
        key = (tuple(images), defines)
        if key not in self._programs:
            place = self.folder / f"program_{len(self._programs)}"
            place.mkdir()
            (place / "images.inc").write_text(write_table(images))
            options = [*(f"-D{name}" for name in defines), f"-I{place}", str(HERE / "linear_step.c")]
            objects = [str(path) for path in self._objects.iterdir()]
            self._compile(*options, *objects, "-lm", "-ldl", "-o", "run", folder=place)
            self._programs[key] = place / "run"
        return self._programs[key]

    def run(
        self,
        *calls: str,
        images: Sequence[tuple[int, bytes]] = (CUBIN, PTX),
        defines: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        **settings: object,
    ) -> list[str]:
        """The lines that the program prints; then those on its standard error."""
        program = self.program(images, *defines)
        variables = driver_environment(self.driver, self.kernels, **settings) if environment is None else environment
        run = list(self.machine.emulator)
        if run:
            run += [option for name, value in variables.items() for option in ("-E", f"{name}={value}")]
        done = subprocess.run(
            [*run, str(program), *calls],
            env={**os.environ, **({} if self.machine.emulator else variables)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
        return [*done.stdout.splitlines(), *done.stderr.splitlines()]
