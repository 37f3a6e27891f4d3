"""The command line. Nothing heavy is imported before it is needed: `gfcompile --help` is instant."""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from gfcompile import interrupts
from gfcompile.cli import commands, graphs, parsers, plan, quality, run_pass, tune
from gfcompile.cli.screen import complain
from gfcompile.errors import ContractError, UserError
from gfcompile.runtime.errors import StepError

OK, USER_ERROR, INTERNAL, INTERRUPTED = 0, 2, 70, 130
COMMANDS = {
    "check": (parsers.check_parser, commands.check),
    "inspect": (parsers.inspect_parser, commands.inspect),
    "quality": (parsers.quality_parser, quality.quality),
    "plan": (parsers.plan_parser, plan.plan),
    "tune": (parsers.tune_parser, tune.tune),
    "verify": (parsers.verify_parser, commands.verify),
    "export": (parsers.export_parser, commands.export),
    "passes": (parsers.passes_parser, commands.passes),
    "targets": (parsers.targets_parser, commands.targets),
    "graphs": (graphs.graphs_parser, graphs.graphs),
    "diff": (parsers.diff_parser, commands.diff),
    "run-pass": (run_pass.run_pass_parser, run_pass.run_pass),
}


def run() -> NoReturn:
    """A process for one command line; `pyproject.toml` names this function."""
    code = main()
    gc.freeze()  # else Python looks for cycles in everything that it is about to forget: a second after a compile
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # as it is where it was closed
                stream.flush()
    except OSError:  # Python says so, and ends with a code of its own
        sys.exit(code)
    os._exit(code)  # taking torch and tvm apart would be another third of a second


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    replay = f"a bug of ours; the command was: gfcompile {shlex.join(arguments)}"
    try:
        with interrupts.noting() as note:
            code = _run(arguments)
        return INTERRUPTED if note.is_set else code
    except SystemExit as leaving:  # argparse, after --help
        return int(leaving.code or OK)
    except KeyboardInterrupt:
        complain("interrupted; no artifact was left half-written", word="")
        return INTERRUPTED
    except BrokenPipeError:  # the reader has gone (`| head`): not an error, and Python must not complain at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (UserError, StepError) as error:
        complain(str(error))
        return USER_ERROR
    except OSError as error:
        complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return USER_ERROR
    except ContractError as error:
        complain(f"{error}; {replay}")
        return INTERNAL
    except Exception as error:  # noqa: BLE001 - the last door: a bug gives its exit code and how to replay it
        traceback.print_exc()
        complain(f"{type(error).__name__}: {error}; {replay}")
        return INTERNAL


def _run(arguments: list[str]) -> int:
    if arguments and arguments[0] in COMMANDS:
        make_parser, command = COMMANDS[arguments[0]]
        given = arguments[1:]
        return command(make_parser().parse_args(given, argparse.Namespace(given=given)))
    if not arguments:
        parsers.compile_parser().print_help(sys.stderr)
        return USER_ERROR
    return commands.compile(parsers.compile_parser().parse_args(arguments))
