"""`gfcompile quality`: how far filtered gradients are from exact ones on a user's batch."""

from __future__ import annotations

import argparse
import json

from gfcompile.cli.imports import import_compiler
from gfcompile.cli.options import given_settings
from gfcompile.cli.screen import Screen
from gfcompile.errors import UserError
from gfcompile.frontend.spec import check_spec
from gfcompile.settings.planning import Measuring
from gfcompile.settings.schema import Request, Which

OK = 0


def quality(args: argparse.Namespace) -> int:
    """`gfcompile quality`."""
    if args.data is None:
        raise UserError(
            "quality: needs a batch of yours; give --data FILE.npz, written with numpy.savez(path, x=..., y=...)"
        )
    settings = given_settings(args, Measuring)
    screen = Screen(args.quiet, args.json)
    screen.progress("starting", transient=True)
    check_spec(args.model)
    import_compiler()
    from gfcompile.frontend.batch_file import read_batch
    from gfcompile.frontend.load import load_model
    from gfcompile.frontend.losses import resolve_loss
    from gfcompile.frontend.rehearsal import rehearse
    from gfcompile.job import Job
    from gfcompile.noise.quality import measure_quality

    loss = resolve_loss(settings.loss)
    x, y = read_batch(args.data, args.batch)
    loaded = load_model(args.model, weights=args.weights, trust=args.trust, imports=args.imports)
    rehearse(loaded, x)
    job = Job(loaded.module, x, loss, settings.narrowed(Which).widened(Request), fixed_mode=loaded.fixed_mode)
    found = measure_quality(job, y, settings.r, settings.cosine, f"--data {args.data}", screen.progress)
    if args.out is not None:
        found.write(args.out)
    screen.clear()
    screen.result(json.dumps(found.as_data(), indent=1) if args.json else str(found))
    return OK
