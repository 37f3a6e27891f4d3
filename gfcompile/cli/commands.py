"""What each command does: parsed options in, an exit code out."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from gfcompile.cli.imports import import_compiler
from gfcompile.cli.options import given_settings
from gfcompile.cli.screen import Screen, write
from gfcompile.errors import UserError
from gfcompile.frontend.spec import check_spec
from gfcompile.settings.schema import Losses, Machine, Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from gfcompile.codegen.tuned.database import Databases
    from gfcompile.job import Analysis, Job
    from gfcompile.report import Report
    from gfcompile.targets import Target

OK, FAILED = 0, 1


def compile(args: argparse.Namespace) -> int:
    """`gfcompile MODEL`."""
    screen = Screen(args.quiet, args.json)
    screen.progress("starting", transient=True)  # importing torch and tvm takes seconds
    settings = given_settings(args, Settings)
    _refuse_early(args, settings)
    with _runtime_meanwhile(settings):
        return _compile(args, screen, settings)


def _compile(args: argparse.Namespace, screen: Screen, settings: Settings) -> int:
    import_compiler()
    from gfcompile.api import find_databases, find_machine
    from gfcompile.cli.tune import tune_job
    from gfcompile.compiler import compile_job
    from gfcompile.report import as_data, read_report
    from gfcompile.report.summary import head_text, summary_text, usage_text
    from gfcompile.targets import explain_foreign

    machine = find_machine(settings)
    job, name, source = load_job(args, screen, settings, machine)
    out = Path(settings.out) if settings.out is not None else Path(f"{name}_step")
    dump = Path(settings.dump) if settings.dump is not None else None
    folder: Path | None = None
    if args.tune:
        code = tune_job(job, machine, args, screen)
        if code != OK:
            return code
    tuning = find_databases(settings.tuning)
    if args.dry_run:
        report = _analyse(job, screen, dump, dump, machine, tuning)
    else:
        folder = compile_job(job, out, machine, screen.progress, dump, settings.debug, tuning)
        report = read_report(folder)
    screen.clear()
    if args.json:
        found = {"artifact": str(folder) if folder else None, "input": source, **as_data(report)}
        screen.result(json.dumps(found, indent=1))
    elif not args.quiet:
        is_foreign = explain_foreign(machine) is not None
        end = usage_text(folder, is_foreign) if folder else "dry run: no code was generated"
        screen.result(f"{head_text(report, folder, is_foreign)}\n\n{summary_text(report)}\n\n{end}")
    return OK


def _runtime_meanwhile(settings: Settings) -> AbstractContextManager[None]:
    """Another core compiles the runtime's C, if that was never done, while this one imports torch and tvm."""
    from gfcompile.codegen.forks import in_background
    from gfcompile.codegen.link import compile_runtime, find_linked, runtime_flags

    flags = runtime_flags(settings.cache_prefix, settings.debug)
    return in_background(lambda: compile_runtime(find_linked(settings), flags))


def _refuse_early(args: argparse.Namespace, settings: Settings) -> None:
    """What can be seen to be wrong before anything heavy is imported."""
    from gfcompile.artifact.destination import check_destination
    from gfcompile.cli.tune import check_budget
    from gfcompile.targets import read_target

    check_budget(args)
    check_spec(args.model)
    read_target(settings.target)
    if settings.out is not None and not args.dry_run:
        check_destination(Path(settings.out))


def check(args: argparse.Namespace) -> int:
    """`gfcompile check`."""
    screen = Screen(args.quiet, args.json)
    screen.progress("starting", transient=True)
    check_spec(args.model)
    import_compiler()
    from gfcompile.report.summary import text_table
    from gfcompile.stages import find_unsupported

    job, _, _ = load_job(args, screen)
    plan, found = find_unsupported(job, screen.progress)
    screen.clear()
    filtered = [layer for layer in plan.trained if layer.r is not None]
    if args.json:
        screen.result(json.dumps({"compiles": not found, "unsupported": [vars(each) for each in found]}, indent=1))
    elif found:
        rows = [
            (
                each.operator,
                str(each.count),
                ", ".join(each.layers),
                each.line or "",
                "freeze what is before it" if each.only_backward else "replace it in the model",
                each.detail or "",
            )
            for each in found
        ]
        table = text_table(("operator", "times", "near layer", "line", "way out", "detail"), rows)
        screen.result(f"{table}\n\nnot compiled as it is: {len(found)} operators have no translation")
    else:
        exact = "".join(f"\n  {layer} stays exact: {reason}" for layer, reason in plan.refused)
        screen.result(f"it compiles: {len(plan.trained)} layers trained, {len(filtered)} of them filtered{exact}")
    return FAILED if found else OK


def inspect(args: argparse.Namespace) -> int:
    """`gfcompile inspect`."""
    from gfcompile.report import Report, SurveyReport, as_data, read_report
    from gfcompile.report.summary import head_text, summary_text

    screen = Screen(args.quiet, args.json)
    folder = Path(args.model)
    if folder.is_dir():
        report: SurveyReport = read_report(folder)
    elif args.quick:
        from gfcompile.plan import make_plan
        from gfcompile.report import survey_report
        from gfcompile.stages import make_survey

        job, _, _ = load_job(args, screen)
        layers = make_survey(job)
        plan = make_plan(layers, job.request)
        report = survey_report(layers, plan, plan.refused, job.example[0].shape)
    else:
        job, _, _ = load_job(args, screen)
        report = _analyse(job, screen, None, args.out)
    screen.clear()
    head = f"{head_text(report, None, False)}\n\n" if isinstance(report, Report) else ""
    screen.result(json.dumps(as_data(report), indent=1) if args.json else head + summary_text(report))
    return OK


def verify(args: argparse.Namespace) -> int:
    """`gfcompile verify`."""
    from gfcompile.report.summary import text_table

    screen = Screen(args.quiet, args.json)
    screen.progress("starting", transient=True)
    import_compiler()
    from gfcompile.api import find_machine
    from gfcompile.codegen.tuned.database import Databases
    from gfcompile.compiler import compile_job
    from gfcompile.frontend.load import load_model
    from gfcompile.frontend.losses import resolve_loss
    from gfcompile.runtime.manifest import read_manifest
    from gfcompile.targets import explain_foreign
    from gfcompile.verify.compare import verify as compare

    wanted = given_settings(args, Machine)
    machine = find_machine(wanted)
    foreign = explain_foreign(machine) if args.artifact is None else None
    if foreign is not None:
        raise UserError(f"--target {wanted.target}: {foreign}; what is verified must run here")
    with tempfile.TemporaryDirectory(prefix="gfcompile-verify-") as scratch:
        if args.artifact is None:
            job, _, _ = load_job(args, screen)
            module, loss = job.module, job.loss
            artifact = compile_job(
                job, Path(scratch) / "verified_step", machine, screen.progress, tuning=Databases.open()
            )
        else:
            artifact = args.artifact
            manifest = read_manifest(artifact)
            module = load_model(args.model, weights=args.weights, trust=args.trust, imports=args.imports).module
            own = {"name": manifest["loss"]["name"], **manifest["loss"]["settings"]}
            loss = resolve_loss(given_settings(args, Losses).loss if "loss" in args else own)
        checks = compare(module, loss, artifact, args.data, screen.progress)
    screen.clear()
    passed = all(check.passed for check in checks)
    if args.json:
        rows = [{**vars(check), "error": f"{check.error:.3e}", "passed": check.passed} for check in checks]
        screen.result(json.dumps({"passed": passed, "checks": rows}, indent=1))
    else:
        verdicts = ["ok" if check.passed else "FAIL" for check in checks]
        table = [
            (check.what, check.against, f"{check.error:.1e}", f"{check.tolerance:.0e}", verdict)
            for check, verdict in zip(checks, verdicts, strict=True)
        ]
        failures = verdicts.count("FAIL")
        end = f"PASS: {len(checks)} checks" if passed else f"FAIL: {failures} of {len(checks)} checks"
        screen.result(text_table(("what", "against", "relative error", "allowed", ""), table) + f"\n\n{end}")
    return OK if passed else FAILED


def export(args: argparse.Namespace) -> int:
    """`gfcompile export`."""
    outputs = {"--onnx": args.onnx, "--state-dict": args.state_dict}
    if not any(outputs.values()):
        raise UserError("export: nothing to write; give --onnx OUT.onnx, --state-dict OUT.safetensors, or both")
    screen = Screen(args.quiet, args.json)
    from gfcompile.export.trained import check_absent, read_trained, write_weights

    for option, path in outputs.items():
        check_absent(option, path)
    trained = read_trained(args.source, args.checkpoint, args.artifact)
    if trained.warning is not None:
        write(f"gfcompile: warning: {trained.warning}", sys.stderr)
    if args.onnx is not None:
        screen.progress("writing the model", transient=True)
        from gfcompile.export.export import write_trained_model

        write_trained_model(trained.folder, trained.manifest, trained.state, args.onnx)
    if args.state_dict is not None:
        write_weights(trained.state, args.state_dict)
    screen.clear()
    written = {option.removeprefix("--").replace("-", "_"): str(path) for option, path in outputs.items() if path}
    if args.json:
        screen.result(json.dumps({"artifact": str(trained.folder), "steps": trained.steps, **written}, indent=1))
    elif not args.quiet:
        screen.result(f"wrote {' and '.join(written.values())} after {trained.steps} steps of training")
    return OK


def passes(args: argparse.Namespace) -> int:
    """`gfcompile passes`."""
    from gfcompile.report.pass_list import list_passes

    rows = list_passes()
    lines = [
        f"{index:02} {row['name']:<18} {row['what']}\n{'':<22}why here: {row['why_here']}"
        for index, row in enumerate(rows, 1)
    ]
    write(json.dumps(rows, indent=1) if args.json else "\n".join(lines), sys.stdout)
    return OK


def targets(args: argparse.Namespace) -> int:
    """`gfcompile targets`."""
    from gfcompile.cli.toolchain import list_needs

    rows = list_needs()
    lines = [
        f"{name:<16} {row['description']}\n{'':<16} link: {row['link']}; test: {row['test']}"
        for name, row in rows.items()
    ]
    write(json.dumps(rows, indent=1) if args.json else "\n".join(lines), sys.stdout)
    return OK


def diff(args: argparse.Namespace) -> int:
    """`gfcompile diff`."""
    from gfcompile.export import dumps

    write(dumps.diff(args.folder, args.first, args.second).rstrip("\n") or "no difference", sys.stdout)
    return OK


def load_job(
    args: argparse.Namespace, screen: Screen, settings: Settings | None = None, machine: Target | None = None
) -> tuple[Job, str, str]:
    """Load the model; returns the job, the model's name, and the sentence about its input shape (printed here).

    Where layers are to be chosen by a budget, by what a step for `machine` keeps; native if there is none.
    """
    settings = settings if settings is not None else given_settings(args, Settings, out=None)
    screen.progress("loading the model", transient=True)
    from gfcompile.api import make_job
    from gfcompile.frontend.example import example_input
    from gfcompile.frontend.load import load_model
    from gfcompile.frontend.rehearsal import rehearse
    from gfcompile.targets import find_target

    loaded = load_model(args.model, weights=args.weights, trust=args.trust, imports=args.imports)
    example, source = example_input(loaded, args.input, args.batch)
    screen.say(source)
    rehearse(loaded, example)
    job = make_job(loaded, example, settings, machine or find_target("native"), screen.progress)
    return job, loaded.name, source


def _analyse(
    job: Job,
    screen: Screen,
    dump: Path | None,
    report: Path | None,
    target: Target | None = None,
    tuning: Databases | None = None,
) -> Report:
    """The report, written to a folder of its own if one is given; `dump` gets the graphs."""
    from gfcompile.codegen.tuned.database import Databases
    from gfcompile.export.dumps import Dumps
    from gfcompile.report import make_report, write_report
    from gfcompile.stages import analyse

    observe = Dumps(dump).observe if dump is not None else None
    analysis = analyse(job, observe, screen.progress, target, tuning or Databases.open())
    if report is not None:
        _write(write_report, analysis, report)
    return make_report(analysis)


def _write(write_report: Callable[[Analysis, Path], None], analysis: Analysis, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_report(analysis, folder)
    except OSError as error:
        raise UserError(f"{folder}: the report cannot be written there ({error.strerror}); choose another") from error
