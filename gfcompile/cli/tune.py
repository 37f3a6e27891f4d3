"""`gfcompile tune`: measure which choices of the schedule templates are fastest, and look at what was measured."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gfcompile.cli.imports import import_compiler
from gfcompile.cli.options import given_settings
from gfcompile.cli.screen import Screen
from gfcompile.errors import UserError
from gfcompile.interrupts import noting
from gfcompile.settings.schema import Machine

if TYPE_CHECKING:
    from gfcompile.codegen.tuned.database import Database
    from gfcompile.codegen.tuned.tasks import Task
    from gfcompile.job import Job, Lowered
    from gfcompile.targets import Target
    from gfcompile.tuning.procedure import Procedure
    from gfcompile.tuning.status import Budget, Status
    from gfcompile.tuning.trial import Runner

OK, INTERRUPTED = 0, 130
DEFAULT_MINUTES = 10.0
_MINUTE = 60
_LAST_PORT = 65535


def tune(args: argparse.Namespace) -> int:
    """`gfcompile tune`."""
    screen = Screen(args.quiet, args.json)
    if args.show is not None:
        return _show(args.show, screen)
    if args.merge is not None:
        return _merge(args.merge, _named_database(args), screen)
    if args.export is not None:
        return _export(args.export, _named_database(args), screen)
    if args.model is None:
        raise UserError("tune: no model; give a MODEL or an ARTIFACT, or one of --show, --merge, --export")
    budget = read_budget(args)
    _check_boards(args)
    target, tasks, lowered = _find_tasks(args, screen)
    return tune_tasks(tasks, target, args, budget, screen, args.json, lowered)


def check_budget(args: argparse.Namespace) -> None:
    """Of a compile: what belongs to tuning is of no use without it."""
    for option, value in (("--trials", args.trials), ("--minutes", args.minutes)):
        if value is not None and not args.tune:
            raise UserError(f"{option} {value:g}: is for --tune, or for gfcompile tune")
    if args.tune:
        read_budget(args)


def tune_job(job: Job, target: Target, args: argparse.Namespace, screen: Screen) -> int:
    """Before it is compiled, whose result is the command's."""
    from gfcompile.stages import lower_job, place

    args.rpc = args.key = None
    lowered = lower_job(job, target.kind, progress=screen.progress)
    tasks = place(lowered, target, screen.progress).tasks
    return tune_tasks(tasks, target, args, read_budget(args), screen, False, lowered)


def read_budget(args: argparse.Namespace) -> Budget:
    """How long to tune."""
    from gfcompile.tuning.status import Budget

    for option, value in (("--trials", args.trials), ("--minutes", args.minutes)):
        if value is not None and value <= 0:
            raise UserError(f"{option} {value:g}: must be more than 0")
    if args.trials is None and args.minutes is None:
        return Budget(seconds=DEFAULT_MINUTES * _MINUTE)
    return Budget(args.trials, args.minutes * _MINUTE if args.minutes is not None else None)


def tune_tasks(
    tasks: list[Task],
    target: Target,
    args: argparse.Namespace,
    budget: Budget,
    screen: Screen,
    as_json: bool,
    lowered: Lowered | None,
) -> int:
    """Spend the budget; an interrupt ends it early, and nothing that was measured is lost.

    What was found is then looked at inside the step, if that is known (`lowered`) and runs here.
    """
    from gfcompile.codegen.tuned.database import Database, user_path
    from gfcompile.codegen.tuned.record import EMULATED
    from gfcompile.tuning.messages import head_text, progress_text, summary_text
    from gfcompile.tuning.procedure import Procedure

    path = _named_database(args) or user_path()
    database = Database.open(path)
    for problem in database.problems:
        screen.say(problem)
    if target.kind == "cuda" and args.rpc is None:
        return _rank_tasks(tasks, target, database, path, budget, screen, as_json)
    runner = _find_runner(args, target)
    found: dict[str, float] = {}

    def show(status: Status) -> None:
        screen.progress(progress_text(status))
        for kernel in status.kernels:
            ratio = kernel.best.ratio if kernel.best is not None else None
            if ratio is not None and runner.kind != EMULATED and ratio > found.get(kernel.task.kernel, 1.0):
                found[kernel.task.kernel] = ratio
                screen.say(f"{kernel.task.name}: {ratio:.2f}x")

    workers = max(1, len(os.sched_getaffinity(0)))
    local = args.rpc is None
    procedure = Procedure(tasks, target, database, runner, workers, lowered, local, show, screen.progress)
    screen.say(head_text(procedure, path, budget))
    try:
        with noting(procedure.interrupt):
            procedure.run(budget)
    except KeyboardInterrupt:
        procedure.interrupt()
    finally:
        runner.close()
    screen.clear()
    if as_json:
        about = {"database": str(path), "numbers_are": runner.kind, "interrupted": procedure.interrupted}
        screen.result(json.dumps({**about, **_as_mapping(procedure)}, indent=1))
    else:
        screen.say(summary_text(procedure, path))
    return INTERRUPTED if procedure.interrupted else OK


def _rank_tasks(
    tasks: list[Task], target: Target, database: Database, path: Path, budget: Budget, screen: Screen, as_json: bool
) -> int:
    """Without a board there is nothing to measure on: a model ranks what NVIDIA's compilers accept."""
    from gfcompile.tuning.messages import ranking_progress, ranking_text
    from gfcompile.tuning.ranking import rank

    ranking = rank(tasks, target, database, budget, lambda now: screen.progress(ranking_progress(now)))
    screen.clear()
    if as_json:
        rows = [{"kernel": each.task.name, "score": each.score, "failures": each.failures} for each in ranking.kernels]
        about = {"database": str(path), "numbers_are": "ranked", "note": ranking.note, "trials": ranking.trials}
        screen.result(json.dumps({**about, "kernels": rows}, indent=1))
    else:
        screen.say(ranking_text(ranking, path))
    return OK


def _find_tasks(args: argparse.Namespace, screen: Screen) -> tuple[Target, list[Task], Lowered | None]:
    import_compiler()
    from gfcompile.api import find_machine
    from gfcompile.cli.commands import load_job
    from gfcompile.codegen.tuned.tasks import read_tasks

    screen.progress("starting", transient=True)
    folder = Path(args.model)
    if folder.is_dir():
        from gfcompile.runtime.manifest import read_manifest

        manifest = read_manifest(folder)
        own = {} if "target" in args else {"target": manifest["target"]}
        machine = given_settings(args, Machine, **own)
        return find_machine(machine), read_tasks(folder), None
    from gfcompile.stages import lower_job, place

    target = find_machine(given_settings(args, Machine))
    job, _, _ = load_job(args, screen)
    lowered = lower_job(job, target.kind, progress=screen.progress)
    return target, place(lowered, target, screen.progress).tasks, lowered


def _find_runner(args: argparse.Namespace, target: Target) -> Runner:
    from gfcompile.tuning.local import LocalRunner
    from gfcompile.tuning.rpc import RpcRunner

    if args.rpc is None:
        return LocalRunner(target)
    host, port = _read_address(args.rpc)
    return RpcRunner(host, port, args.key, "emulated" if args.emulated else "measured")


def _check_boards(args: argparse.Namespace) -> None:
    """Before the model is looked at, which takes a while."""
    if args.rpc is None:
        if args.key is not None:
            raise UserError(f"--key {args.key}: is for --rpc HOST:PORT")
        if args.emulated:
            raise UserError("--emulated: is for --rpc HOST:PORT; programs that run in an emulator here are known to")
        return
    _read_address(args.rpc)
    if args.key is None:
        raise UserError("--rpc: needs --key, the name that the boards gave the tracker")


def _read_address(rpc: str) -> tuple[str, int]:
    host, _, port = rpc.rpartition(":")
    if not host or not port.isdecimal() or int(port) > _LAST_PORT:
        raise UserError(f"--rpc '{rpc}': write HOST:PORT of the tracker, as in 192.168.1.5:9190")
    return host, int(port)


def _show(path: Path, screen: Screen) -> int:
    from gfcompile.codegen.tuned.database import Database
    from gfcompile.codegen.tuned.record import as_mapping
    from gfcompile.tuning.show import show_text

    database = Database.open(path, must_exist=True)
    if screen.json:
        rows = [as_mapping(record) for record in database.records]
        screen.result(json.dumps({"records": rows, "problems": database.problems}, indent=1))
    else:
        screen.result(show_text(database))
    return OK


def _merge(paths: list[Path], out: Path | None, screen: Screen) -> int:
    from gfcompile.tuning.exchange import merge

    if out is None:
        raise UserError("--merge: needs --db OUT, the file to write")
    merged = merge(paths, out)
    for problem in merged.problems:
        screen.say(problem)
    screen.say(f"wrote {out}: {merged.records} trials, {merged.duplicates} duplicates left out")
    return OK


def _export(out: Path, db: Path | None, screen: Screen) -> int:
    from gfcompile.codegen.tuned.database import Database, user_path
    from gfcompile.tuning.exchange import export

    database = _opened(db) if db is not None else Database.open(user_path())
    count = export(database, out)
    screen.say(f"wrote {out}: the best trials of {count} kernels")
    return OK


def _named_database(args: argparse.Namespace) -> Path | None:
    """What --db names."""
    path: Path | None = getattr(args, "tuning", None)
    return path


def _opened(path: Path) -> Database:
    from gfcompile.codegen.tuned.database import Database

    return Database.open(path, must_exist=True)


def _as_mapping(procedure: Procedure) -> dict[str, Any]:
    status, algorithms = procedure.status, procedure.algorithms.status
    rows = [
        {
            "kernel": kernel.task.name,
            "trials": kernel.trials,
            "failures": kernel.failures,
            "ratio": kernel.best.ratio if kernel.best is not None else None,
            "spread": kernel.best.spread if kernel.best is not None else None,
        }
        for kernel in status.kernels
    ]
    chosen = {kernel.task.name: kernel.template for kernel in algorithms.kernels}
    return {
        "trials": status.trials + algorithms.trials,
        "ratio": status.ratio,
        "kernels": rows,
        "algorithms": chosen,
        "rejected": procedure.rejected,
    }
