"""`gfcompile plan`: what to do with each layer within a budget."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gfcompile.budget.plan_path import check_out
from gfcompile.cli.commands import find_machine
from gfcompile.cli.compile_command import compile_command
from gfcompile.cli.options import OPTIMIZER_SETTINGS
from gfcompile.cli.screen import Screen
from gfcompile.errors import UserError
from gfcompile.settings import by_pattern, read_bytes, read_count

if TYPE_CHECKING:
    from torch import Tensor

OK = 0


def plan(args: argparse.Namespace) -> int:
    if args.memory is None:
        raise UserError("plan: needs a budget; give --memory, as in --memory 2MB")
    memory = read_bytes("--memory", args.memory)
    step_flops = read_count("--step-flops", args.step_flops) if args.step_flops is not None else None
    check_out(args.out)
    screen = Screen(args.quiet, args.json)
    screen.progress("starting", transient=True)
    from gfcompile.budget.page import as_data, found_text, write_found
    from gfcompile.budget.planner import make_planner
    from gfcompile.codegen.tuned.database import Databases
    from gfcompile.frontend.batch_file import read_batch
    from gfcompile.frontend.example import example_input
    from gfcompile.frontend.load import load_model
    from gfcompile.frontend.losses import resolve_loss
    from gfcompile.frontend.rehearsal import rehearse
    from gfcompile.job import Job
    from gfcompile.optimizers import resolve_optimizer, starting_rate
    from gfcompile.plan import Request

    machine = find_machine(args)
    loss = resolve_loss(args.loss or "cross_entropy")
    settings = {name: getattr(args, name) for name in OPTIMIZER_SETTINGS}
    optimizer = resolve_optimizer(args.optimizer, {**settings, "groups": by_pattern(args.group) or None})
    data = read_batch(args.data) if args.data is not None else None
    loaded = load_model(args.model, weights=args.weights, trust=args.trust, imports=args.imports)
    shape = by_commas(data[0]) if args.input is None and data is not None else None
    if data is not None and shape is not None and args.batch is None:
        example, source = data[0], f"input {shape}: from {args.data}"
    else:
        example, source = example_input(loaded, args.input or shape, args.batch)
    screen.say(source if shape is None else source.replace("from --input", f"from {args.data}"))
    rehearse(loaded, example)
    request = Request(args.layers, train=tuple(args.train), batchnorm=by_pattern(args.batchnorm), dropout=args.dropout)
    lr = starting_rate(args.optimizer, optimizer, args.lr)
    job = Job(loaded.module, example, loss, request, optimizer, lr, loaded.fixed_mode)
    planner = make_planner(
        job, machine, args.r, args.sparse, data, Databases.open(args.db), screen.progress, f"--data {args.data}"
    )
    found = planner.measured(planner.find(memory, step_flops))
    write_found(found, args.out)
    screen.clear()
    command = compile_command(args, by_commas(example) if shape is not None else None)
    end = f"wrote {args.out}; compile it with: {command}"
    screen.result(json.dumps(as_data(found), indent=1) if args.json else f"{found_text(found)}\n\n{end}")
    return OK


def by_commas(inputs: Sequence[Tensor]) -> str:
    """As --input takes shapes."""
    return ",".join("x".join(map(str, x.shape)) for x in inputs)
