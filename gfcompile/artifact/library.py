"""From placed programs to a library: kernels compiled, the driver generated, both linked with the runtime's C."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from gfcompile.artifact.manifest import LIBRARY, describe_step
from gfcompile.codegen.arena import plan_arena
from gfcompile.codegen.build import Counted, KernelBuilder, compile_ahead
from gfcompile.codegen.cuda.build import CudaKernelBuilder, CudaKernels
from gfcompile.codegen.driver import Planned, write_driver
from gfcompile.codegen.link import (
    compile_runtime,
    link_executable,
    link_library,
    linker_words,
    runtime_flags,
    runtime_sources,
    trainer_program,
    trainer_sources,
)
from gfcompile.codegen.scheduling import Scheduler
from gfcompile.job import Analysis, Job, Lowered
from gfcompile.progress import Progress
from gfcompile.runtime.manifest import TRAINER
from gfcompile.targets import Target

ID_PLACE = "0" * 64
GUARD = 128  # bytes on either side of a slot in a debug build: two vectors of the widest unit


@dataclass(frozen=True)
class Sources:
    """What the library is linked from, the runtime's C aside."""

    driver: Path
    objects: list[Path]
    build_id: str
    flags: tuple[str, ...] = ()  # for the runtime's C
    cuda: CudaKernels | None = None
    debug: bool = False  # watches its memory, and takes more of it


def emit(
    analysis: Analysis,
    folder: Path,
    progress: Progress,
    debug: bool = False,
    timed: bool = False,
    name: str = "step",
) -> Sources:
    """Compile the kernels and generate the driver, in a new folder. `name` is what the library will call itself."""
    guard = GUARD if debug else 0
    programs = list(analysis.programs.values())
    if debug:
        programs = [Planned(planned.program, plan_arena(planned.program, guard)) for planned in programs]
    folder.mkdir()
    on_gpu = analysis.scheduler.target.kind == "cuda"
    builder = (CudaKernelBuilder if on_gpu else KernelBuilder)(analysis.scheduler)
    for planned in programs:
        builder.add(planned.program, planned.placement)
    kernels = builder.build(folder, _counted(progress))
    draft = write_driver(programs, analysis.state, describe_step(analysis, name), kernels, ID_PLACE, guard, timed)
    digest = hashlib.sha256(draft.encode())
    for path in kernels.objects:
        digest.update(path.read_bytes())
    if kernels.stubs is not None:
        digest.update(kernels.stubs.read_text().replace(str(folder), "").encode())
    build_id = digest.hexdigest()
    driver = folder / "step.c"
    driver.write_text(draft.replace(ID_PLACE, build_id))
    flags = runtime_flags(analysis.job.cache_prefix, debug)
    linked = kernels.objects if kernels.stubs is None else [kernels.stubs]
    return Sources(driver, linked, build_id, flags, kernels if isinstance(kernels, CudaKernels) else None, debug)


def compile_kernels_ahead(lowered: Lowered, scheduler: Scheduler, progress: Progress) -> None:
    """Most of them, before calls are in order and tensors have places: the other cores need not wait for that."""
    compile_ahead(lowered.modules.values(), scheduler, _counted(progress))


def _counted(progress: Progress) -> Counted:
    return lambda done, total, name: progress(f"compiling kernel {done}/{total} {name}")


def compile_runtime_meanwhile(job: Job, target: Target, debug: bool) -> Thread:
    """To be waited for before linking. What goes wrong is said there, where it is tried again."""
    flags = runtime_flags(job.cache_prefix, debug)
    thread = Thread(target=lambda: compile_runtime(target, flags), daemon=True)
    thread.start()
    return thread


def link(sources: Sources, folder: Path, target: Target, progress: Progress) -> None:
    """The library and the program that trains without Python, into the artifact's folder."""
    progress(linker_words(target))
    link_library(sources.driver, sources.objects, folder / LIBRARY, target, sources.flags)
    _link_trainer(sources, folder, target)


def _link_trainer(sources: Sources, folder: Path, target: Target) -> None:
    """The program that trains without Python. It loads the library of its own folder, wherever that is copied to.

    It is not linked to it: the system would map the library, damaged or not, before the program can look at it.
    """
    if target.libc == "musl":  # a static program loads no library: it holds everything
        everything = [*trainer_program(), sources.driver, *runtime_sources(target.kind)]
        link_executable(everything, sources.objects, folder / TRAINER, target, (*sources.flags, "-DGF_STATIC"))
    else:
        loader = ("-Wl,--no-as-needed", "-ldl")  # named before the sources that use it
        link_executable(trainer_sources(), [], folder / TRAINER, target, (*sources.flags, *loader))
