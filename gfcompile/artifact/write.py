"""Write the artifact: an importable folder with the library, the weights, the manifest, the graphs and the report."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tvm
from safetensors.torch import save_file

from gfcompile.artifact.selftest import make_selftest
from gfcompile.codegen.arena import plan_arena
from gfcompile.codegen.build import KernelBuilder
from gfcompile.codegen.cuda.build import CudaKernelBuilder, CudaKernels
from gfcompile.codegen.description import About, Description, Drawn, Entry, describe
from gfcompile.codegen.driver import Planned, write_driver
from gfcompile.codegen.link import (
    RUNTIME,
    link_executable,
    link_library,
    linker_words,
    runtime_sources,
    trainer_program,
    trainer_sources,
)
from gfcompile.codegen.tuned.tasks import KERNELS, write_tasks
from gfcompile.errors import UserError
from gfcompile.export.export import MODEL
from gfcompile.frontend.losses import main_output
from gfcompile.frontend.trace import output_keys
from gfcompile.job import Analysis
from gfcompile.passes.prefix import fingerprint
from gfcompile.report import write_report
from gfcompile.runtime import tensorfile
from gfcompile.runtime.manifest import CONSTANTS, FORMAT, SELFTEST, TRAINER, WEIGHTS, write_manifest
from gfcompile.step import Role
from gfcompile.targets import Target
from gfcompile.version import __version__

LIBRARY = "libstep.so"
WRAPPER = (
    "__init__",
    "agreement",
    "batch",
    "checkpoint",
    "errors",
    "generations",
    "library",
    "manifest",
    "schema",
    "state",
    "step",
    "tensorfile",
)
FEATURES_WRAPPER, FEATURES_FLAGS = ("feature_cache",), ("-DGF_FEATURES",)  # what a prefix cache adds
ID_PLACE = "0" * 64
GUARD = 128  # bytes on either side of a slot in a debug build: two vectors of the widest unit
DEBUG_FLAGS = ("-g",)  # a debugger then knows the lines of the driver and the runtime


@dataclass(frozen=True)
class Sources:
    """What the library is linked from, the runtime's C aside."""

    driver: Path
    objects: list[Path]
    build_id: str
    flags: tuple[str, ...] = ()  # for the runtime's C
    cuda: CudaKernels | None = None


def check_destination(out: Path) -> None:
    """Refuse early what could not be written at the end."""
    if not out.name.isidentifier():
        raise UserError(
            f"--out {out}: '{out.name}' is not a Python module name; use letters, digits and _, it will be imported"
        )
    if out.exists() and not (out / "manifest.json").is_file() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out {out}: exists and is not an artifact; choose another folder or remove it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise UserError(f"--out {out}: cannot write there ({error.strerror}); choose another folder") from error


@contextlib.contextmanager
def _full_disk_is_named(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(f"--out {out}: cannot write there ({error.strerror}); choose another folder") from error


def build(
    analysis: Analysis,
    out: Path,
    progress: Callable[[str], None],
    dumps: Mapping[str, bytes],
    debug: bool = False,
    model: bytes | None = None,
    timed: bool = False,
) -> Path:
    """Everything is written beside `out` and moved there at the end: a failure leaves nothing behind.

    `model` is what `export` will fill with trained weights; a skeleton that came with the model itself goes first.
    A `debug` library watches its memory and takes more of it; the report stays that of the step without.
    """
    check_destination(out)
    with _full_disk_is_named(out), tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        folder = Path(scratch) / out.name
        folder.mkdir()
        sources = write_sources(analysis, Path(scratch) / "sources", progress, debug, timed, out.name)
        progress(linker_words(analysis.scheduler.target))
        flags = (*sources.flags, *(DEBUG_FLAGS if debug else ()))
        link_library(sources.driver, sources.objects, folder / LIBRARY, analysis.scheduler.target, flags)
        _link_trainer(sources, folder, analysis.scheduler.target, flags)
        manifest = _manifest(analysis, out.name, sources.build_id, debug)
        progress("computing the self-test")
        tensorfile.write(folder / SELFTEST, make_selftest(analysis, manifest))
        progress("writing the artifact")
        _write_tensors(analysis, folder)
        _write_wrapper(folder, WRAPPER + (FEATURES_WRAPPER if "features" in analysis.programs else ()))
        dumps = {**dumps, KERNELS: write_tasks(analysis.tasks)}
        if sources.cuda is not None:
            dumps = {**dumps, "kernels.cu": sources.cuda.source.encode()}
        for name, content in dumps.items():
            path = folder / "graphs" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        files = [LIBRARY, TRAINER, WEIGHTS, CONSTANTS, SELFTEST]
        skeleton = analysis.job.skeleton or model
        if skeleton is not None:
            (folder / MODEL).write_bytes(skeleton)
            files.append(MODEL)
        manifest["files"] = {name: _sha256(folder / name) for name in files}
        write_manifest(folder, manifest)
        write_report(analysis, folder, sources.cuda.usages if sources.cuda is not None else ())
        _replace(folder, out, Path(scratch))
    return out


def write_sources(
    analysis: Analysis,
    folder: Path,
    progress: Callable[[str], None],
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
    kernels = builder.build(folder, lambda done, total, name: progress(f"compiling kernel {done}/{total} {name}"))
    draft = write_driver(programs, analysis.state, describe_step(analysis, name), kernels, ID_PLACE, guard, timed)
    digest = hashlib.sha256(draft.encode())
    for path in kernels.objects:
        digest.update(path.read_bytes())
    if kernels.stubs is not None:
        digest.update(kernels.stubs.read_text().replace(str(folder), "").encode())
    build_id = digest.hexdigest()
    driver = folder / "step.c"
    driver.write_text(draft.replace(ID_PLACE, build_id))
    flags = FEATURES_FLAGS if "features" in analysis.programs else ()
    linked = kernels.objects if kernels.stubs is None else [kernels.stubs]
    return Sources(driver, linked, build_id, flags, kernels if isinstance(kernels, CudaKernels) else None)


def describe_step(analysis: Analysis, name: str) -> Description:
    """What the driver's tables and the manifest are both made of; `name` is the artifact's."""
    job, state = analysis.job, analysis.state
    roles = {value.role for value in analysis.steps["train"].inputs}
    about = About(
        name=name,
        target=analysis.scheduler.target.name,
        version=__version__,
        loss=job.loss.name,
        lr=job.lr,
        batch=int(job.example[0].shape[0]),
        pads=job.loss.per_sample and Role.SAMPLE_WEIGHT in roles and analysis.plan.batchnorm != "train",
        classes=main_output(analysis.output).shape[1] if job.loss.name == "cross_entropy" else None,
        ignored=dict(job.loss.settings).get("ignore_index"),
        compatible=_compatible_key(state.of_role(Role.PARAMETER)),
        frozen=_frozen_key(analysis),
    )
    steps = {program: analysis.steps[program] for program in analysis.programs}
    return describe(steps, state.entries, about, _draws(analysis), analysis.plan.sparse_strategy)


def _draws(analysis: Analysis) -> dict[str, Drawn]:
    """By layer. Strategy "norm" decides now."""
    found: dict[str, Drawn] = {}
    kernels = {layer.name: layer.kernel for layer in analysis.plan.sparse}
    for name, draw in analysis.plan.draws().items():
        always: list[int] = []
        kernel = kernels[name]
        if analysis.plan.sparse_strategy == "norm" and kernel is not None:
            always = draw.largest(analysis.original[kernel].numpy())
        found[name] = Drawn(draw, tuple(always))
    return found


def _compatible_key(parameters: Sequence[Entry]) -> str:
    """Names and shapes of what is trained: whatever the target, the patch or the layout, a checkpoint fits."""
    rows = sorted([entry.name, list(entry.shape)] for entry in parameters)
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _frozen_key(analysis: Analysis) -> str:
    """Hash of what is not trained: a checkpoint makes sense over the same frozen weights only."""
    kept = {entry.name for entry in analysis.state.of_role(Role.PARAMETER, Role.BUFFER)}
    digest = hashlib.sha256()
    for name, tensor in sorted(analysis.original.items()):
        if name not in kept:
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _link_trainer(sources: Sources, folder: Path, target: Target, flags: Sequence[str]) -> None:
    """The program that trains without Python. It loads the library of its own folder, wherever that is copied to.

    It is not linked to it: the system would map the library, damaged or not, before the program can look at it.
    """
    if target.libc == "musl":  # a static program loads no library: it holds everything
        everything = [*trainer_program(), sources.driver, *runtime_sources(target.kind)]
        link_executable(everything, sources.objects, folder / TRAINER, target, (*flags, "-DGF_STATIC"))
    else:
        loader = ("-Wl,--no-as-needed", "-ldl")  # named before the sources that use it
        link_executable(trainer_sources(), [], folder / TRAINER, target, (*flags, *loader))


def _write_tensors(analysis: Analysis, folder: Path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in analysis.original.items()}, folder / WEIGHTS)
    save_file(analysis.state.constants, folder / CONSTANTS)
    for name in (WEIGHTS, CONSTANTS):  # safetensors lets their owner alone read them
        shutil.copymode(folder / SELFTEST, folder / name)


def _write_wrapper(folder: Path, modules: Sequence[str]) -> None:
    runtime = folder / "_runtime"
    runtime.mkdir()
    for name in modules:
        shutil.copyfile(RUNTIME / f"{name}.py", runtime / f"{name}.py")
    shutil.copyfile(RUNTIME / "artifact_init.py", folder / "__init__.py")
    shutil.copyfile(RUNTIME / "gf_step.h", folder / "gf_step.h")


def _manifest(analysis: Analysis, name: str, build_id: str, debug: bool) -> dict[str, Any]:
    job, plan = analysis.job, analysis.plan
    description = describe_step(analysis, name)
    about = description.about
    keys = output_keys(analysis.output)
    outputs = [
        {"key": keys[index] if keys else None, **entry.as_mapping()} for index, entry in enumerate(description.outputs)
    ]
    return {
        "format": FORMAT,
        "name": name,
        "build_id": build_id,
        "library": LIBRARY,
        "batch": about.batch,
        "lr": job.lr,
        "checkpoint": {"compatible": about.compatible, "frozen": about.frozen},
        "loss": {
            "name": job.loss.name,
            "per_sample": job.loss.per_sample,
            "settings": dict(job.loss.settings),
            "classes": about.classes,
        },
        "optimizer": {
            **job.optimizer.as_mapping(),
            "state_bytes": sum(entry.bytes for entry in analysis.state.of_role(Role.OPTIMIZER)),
        },
        "inputs": [entry.as_mapping() for entry in description.inputs],
        "outputs": outputs,
        **_features(analysis, description),
        "state": [entry.with_layout() for entry in description.state],
        "gradients": [entry.name for entry in description.gradients],
        "state_dict": list(analysis.original),
        "shared": analysis.shared,
        "plan": {
            "trained": [
                {"layer": layer.name, "role": layer.role, "r": layer.r, "channels": layer.channels}
                for layer in plan.trained
            ],
            "exact": plan.exact,
            "compat": "reference" if plan.reference else None,
            "sparse_strategy": plan.sparse_strategy,
        },
        "filtered_layers": analysis.filtered_layers,
        "refusals": [[refusal.layer, refusal.reason] for refusal in analysis.refusals],
        "batchnorm": plan.batchnorm,
        "norms": dict(plan.norms),
        "dropout": plan.dropout,
        "target": analysis.scheduler.target.name,
        "architecture": analysis.scheduler.target.architecture,
        "debug": debug,
        "versions": {
            "gfcompile": __version__,
            "torch": torch.__version__,
            "tvm": tvm.__version__,
            "python": platform.python_version(),
        },
    }


def _features(analysis: Analysis, description: Description) -> dict[str, Any]:
    """The values at the cut, with the batch as their first axis, and the fingerprint of what they depend on."""
    if "features" not in analysis.programs:
        return {}
    key = fingerprint(analysis.steps["features"], __version__)
    return {"features": {"fingerprint": key, "tensors": [entry.as_mapping() for entry in description.features]}}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _replace(folder: Path, out: Path, scratch: Path) -> None:
    """Move the new artifact in; an old one goes only once the new one stands complete beside it."""
    if out.exists():
        out.rename(scratch / "replaced")
    folder.rename(out)
