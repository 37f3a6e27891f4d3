"""`gfcompile plan`: what to do with each layer within a budget."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gfcompile.budget.plan_path import check_out
from gfcompile.cli.compile_command import compile_command
from gfcompile.cli.imports import import_compiler
from gfcompile.cli.options import given_settings
from gfcompile.cli.screen import Screen
from gfcompile.errors import UserError
from gfcompile.frontend.spec import check_spec
from gfcompile.settings.planning import Planning

if TYPE_CHECKING:
    from torch import Tensor

OK, INTERRUPTED = 0, 130


def plan(args: argparse.Namespace) -> int:
    """`gfcompile plan`."""
    settings = given_settings(args, Planning)
    if settings.memory is None:
        raise UserError("plan: needs a budget; give --memory, as in --memory 2MB")
    check_out(args.out)
    screen = Screen(args.quiet, args.json)
    screen.progress("starting", transient=True)
    check_spec(args.model)
    import_compiler()
    from gfcompile.api import plan_within, planning_job
    from gfcompile.budget.page import as_data, found_text, write_found
    from gfcompile.budget.planner import Stopped
    from gfcompile.frontend.batch_file import read_batch
    from gfcompile.frontend.example import example_input
    from gfcompile.frontend.load import load_model
    from gfcompile.frontend.rehearsal import rehearse

    data = read_batch(args.data) if args.data is not None else None
    loaded = load_model(args.model, weights=args.weights, trust=args.trust, imports=args.imports)
    shape = by_commas(data[0]) if args.input is None and data is not None else None
    if data is not None and shape is not None and args.batch is None:
        example, source = data[0], f"input {shape}: from {args.data}"
    else:
        example, source = example_input(loaded, args.input or shape, args.batch)
    screen.say(source if shape is None else source.replace("from --input", f"from {args.data}"))
    rehearse(loaded, example)
    job = planning_job(loaded, example, settings)
    code = OK
    try:
        found = plan_within(job, settings, data, screen.progress, f"--data {args.data}")
    except Stopped as stop:
        found, code = stop.found, INTERRUPTED
    write_found(found, args.out)
    screen.clear()
    command = compile_command(args, by_commas(example) if shape is not None else None)
    end = f"wrote {args.out}; compile it with: {command}"
    screen.result(json.dumps(as_data(found), indent=1) if args.json else f"{found_text(found)}\n\n{end}")
    return code


def by_commas(inputs: Sequence[Tensor]) -> str:
    """As --input takes shapes."""
    return ",".join("x".join(map(str, x.shape)) for x in inputs)
