"""The road from a loaded model to the folder of an artifact. `frontend.load` reads files, `api.make_job` settings."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path

import torch

from gfcompile.artifact.destination import check_destination
from gfcompile.artifact.folder import new_artifact, write_artifact
from gfcompile.artifact.library import compile_kernels_ahead, compile_runtime_meanwhile, emit, link
from gfcompile.codegen.cuda import packages
from gfcompile.codegen.forks import count_jobs, promised
from gfcompile.codegen.link import require_linker
from gfcompile.codegen.store import open_store
from gfcompile.codegen.tuned.algorithms import choose_by
from gfcompile.codegen.tuned.database import NOTHING_KNOWN, Databases
from gfcompile.errors import UserError
from gfcompile.export.dumps import Dumps
from gfcompile.job import Analysis, Job
from gfcompile.plan import make_plan
from gfcompile.progress import Progress, silent
from gfcompile.settings.words import flag, option
from gfcompile.stages import (
    give_places,
    look_at,
    lower,
    make_scheduler,
    plan_comparisons,
    rewrite,
    schedule,
    trace_steps,
)
from gfcompile.targets import Target

SELDOM = (1_000_000, 20, 100)  # of Python's collector: objects that were made since it looked last


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """Compiling makes a million objects that live on, and Python's collector looks at all of them again and again."""
    before = gc.get_threshold()
    gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def leaving_a_core() -> Iterator[None]:
    """For a copy of this process: PyTorch's threads turn round and round on theirs while they wait.

    However many processes are allowed, it has as many threads: sums over several may be rounded otherwise.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, min(before, len(os.sched_getaffinity(0)) - 1)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@collecting_seldom()
@leaving_a_core()
def compile_job(
    job: Job,
    out: Path,
    target: Target,
    progress: Progress = silent,
    dump: Path | None = None,
    debug: bool = False,
    tuning: Databases = NOTHING_KNOWN,
) -> Path:
    """Write the artifact of a loaded model to `out`; `dump` gets the numbered graphs even if a later stage fails."""
    check_tools(target, debug)
    check_destination(out)
    dumps = Dumps(dump, job.module.state_dict())

    surveyed = look_at(job, progress)  # the model run once: its layers, its forward pass
    plan = make_plan(surveyed.layers, job.request)  # which are trained, and how their gradients are estimated
    runtime = compile_runtime_meanwhile(job, target, debug)
    scheduler = make_scheduler(target, tuning)
    traced = trace_steps(surveyed, plan, progress)  # forward and backward as graphs
    with promised(lambda: plan_comparisons(traced, scheduler)) as compare:  # on another core
        rewritten = rewrite(traced, target.kind, dumps.observe, progress, choose_by(tuning, target))  # the passes
        lowered = lower(rewritten, progress)  # kernels in TVM's terms, before any schedule
        compile_kernels_ahead(lowered, scheduler, progress)  # on all cores
        scheduled = schedule(lowered, scheduler, progress)  # loops for this machine, calls in order
        analysis = give_places(scheduled, compare)  # every tensor's place in memory
        runtime.join()
        write_step(analysis, out, progress, dumps, debug)  # code, library, folder

    sys.modules.pop(out.name, None)  # an artifact of this name that was imported before
    importlib.invalidate_caches()
    return out


def write_step(
    analysis: Analysis,
    out: Path,
    progress: Progress = silent,
    dumps: Dumps | None = None,
    debug: bool = False,
    timed: bool = False,
) -> Path:
    """Generate code for a step that has its place, link it, and write its artifact.

    A `debug` library watches its memory and takes more of it; a `timed` one has a clock around every call.
    """
    with new_artifact(out) as scratch, ThreadPoolExecutor(1) as other:
        sources = emit(analysis, scratch.sources, progress, debug, timed, out.name)  # objects, and the driver in C
        words, target = copy_context(), analysis.scheduler.target  # errors speak to the same caller there
        linking = other.submit(lambda: words.run(link, sources, scratch.folder, target, progress))  # with the runtime
        graphs, model = (dumps.files, dumps.model) if dumps is not None else ({}, None)
        write_artifact(analysis, sources, scratch.folder, progress, graphs, model, linking.result)
    return out


def check_tools(target: Target, debug: bool = False) -> None:
    """Refuse early what could not be built after minutes of analysis."""
    count_jobs()  # both read what the user set
    open_store()
    require_linker(target)
    if target.kind != "cuda":
        return
    missing = packages.find_missing()
    if missing is not None:
        raise UserError(f"target '{target.name}': NVIDIA's compilers are not installed; {missing}")
    if debug:
        raise UserError(
            f"{flag('debug')}: guards are for steps on a CPU, and target '{target.name}' has a GPU;"
            f" use {option('target', 'native')}"
        )
