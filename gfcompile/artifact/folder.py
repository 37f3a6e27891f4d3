"""The artifact: an importable folder with the library, the weights, the manifest, the graphs and the report."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file

from gfcompile.artifact.destination import check_destination
from gfcompile.artifact.library import Sources
from gfcompile.artifact.manifest import LIBRARY, make_manifest
from gfcompile.artifact.selftest import make_selftest
from gfcompile.codegen.link import RUNTIME
from gfcompile.codegen.tuned.tasks import KERNELS, write_tasks
from gfcompile.errors import UserError
from gfcompile.export.export import MODEL
from gfcompile.job import Analysis
from gfcompile.progress import Progress
from gfcompile.report import write_report
from gfcompile.runtime import tensorfile
from gfcompile.runtime.manifest import CONSTANTS, SELFTEST, TRAINER, WEIGHTS, write_manifest
from gfcompile.settings.words import option

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
FRONT = Path(__file__).with_name("init.py.txt")  # not a module here: it imports its neighbours in an artifact
FEATURES_WRAPPER = ("feature_cache",)  # what a prefix cache adds


@dataclass(frozen=True)
class Scratch:
    """Where an artifact is made: `folder` becomes the artifact, `sources` is thrown away."""

    folder: Path
    sources: Path


@contextlib.contextmanager
def new_artifact(out: Path) -> Iterator[Scratch]:
    """Everything is written beside `out` and moved there at the end: a failure leaves nothing behind."""
    check_destination(out)
    with _full_disk_is_named(out), tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        folder = Path(scratch) / out.name
        folder.mkdir()
        yield Scratch(folder, Path(scratch) / "sources")
        _replace(folder, out, Path(scratch))


def write_artifact(
    analysis: Analysis,
    sources: Sources,
    folder: Path,
    progress: Progress,
    dumps: Mapping[str, bytes],
    model: bytes | None = None,
    wait: Callable[[], object] = lambda: None,
) -> None:
    """All but the library and the program, into its folder; both are there when `wait` returns.

    `model` is what `export` will fill with trained weights; a skeleton that came with the model itself goes first.
    The report of a debug library is that of the step without its guards.
    """
    manifest = make_manifest(analysis, folder.name, sources.build_id, sources.debug)
    progress("writing the artifact")
    with ThreadPoolExecutor(1) as other:  # PyTorch computes most of it without Python's lock
        selftest = other.submit(copy_context().run, make_selftest, analysis, manifest)
        _write_files(analysis, sources, folder, dumps)
        tensorfile.write(folder / SELFTEST, selftest.result())
    for name in (WEIGHTS, CONSTANTS):  # safetensors lets their owner alone read them
        shutil.copymode(folder / SELFTEST, folder / name)
    files = [LIBRARY, TRAINER, WEIGHTS, CONSTANTS, SELFTEST]
    skeleton = analysis.job.skeleton or model
    if skeleton is not None:
        (folder / MODEL).write_bytes(skeleton)
        files.append(MODEL)
    wait()
    manifest["files"] = {name: _sha256(folder / name) for name in files}
    write_manifest(folder, manifest)


def _write_files(analysis: Analysis, sources: Sources, folder: Path, dumps: Mapping[str, bytes]) -> None:
    save_file({name: tensor.contiguous() for name, tensor in analysis.original.items()}, folder / WEIGHTS)
    save_file(analysis.state.constants, folder / CONSTANTS)
    _write_wrapper(folder, WRAPPER + (FEATURES_WRAPPER if "features" in analysis.programs else ()))
    dumps = {**dumps, KERNELS: write_tasks(analysis.tasks)}
    if sources.cuda is not None:
        dumps = {**dumps, "kernels.cu": sources.cuda.source.encode()}
    for name, content in dumps.items():
        path = folder / "graphs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    write_report(analysis, folder, sources.cuda.usages if sources.cuda is not None else ())


@contextlib.contextmanager
def _full_disk_is_named(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"{option('out', str(out))}: cannot write there ({error.strerror}); choose another folder"
        ) from error


def _write_wrapper(folder: Path, modules: Sequence[str]) -> None:
    runtime = folder / "_runtime"
    runtime.mkdir()
    for name in modules:
        shutil.copyfile(RUNTIME / f"{name}.py", runtime / f"{name}.py")
    shutil.copyfile(FRONT, folder / "__init__.py")
    shutil.copyfile(RUNTIME / "gf_step.h", folder / "gf_step.h")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _replace(folder: Path, out: Path, scratch: Path) -> None:
    """Move the new artifact in; an old one goes only once the new one stands complete beside it."""
    if out.exists():
        out.rename(scratch / "replaced")
    folder.rename(out)
