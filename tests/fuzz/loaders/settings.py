"""What people edit: plans, targets and tuning databases. Each reader gets every input."""

from __future__ import annotations

from pathlib import Path
from random import Random

from gfcompile.budget.planfile import _PlanFile
from gfcompile.codegen.tuned.database import Database
from gfcompile.plan import Layer
from gfcompile.targets.schema import read_fields
from gfcompile.targets.spec import find_target
from tests.fuzz.check import Check, refused
from tests.fuzz.mutate import change_json, change_tokens

LAYERS = [Layer("conv1", "conv", ("a",)), Layer("conv2", "conv", ("b",)), Layer("fc", "linear", ("c",))]


def read(data: bytes) -> None:
    path = Path("a.toml")
    path.write_bytes(data)
    plan = refused(_PlanFile, path)
    if plan is not None:
        refused(plan.read, LAYERS)
    if refused(read_fields, path) is not None:
        refused(find_target, str(path))
    database = refused(Database.open, path)
    for record in database.records if database is not None else ():
        database.best(record.kernel, record.target)


def change(data: bytes, random: Random) -> bytes:
    if not data.startswith(b"{"):
        return change_tokens(data, random)
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    lines[at] = change_json(lines[at], random)
    return b"\n".join(lines)


CHECK = Check(read, change)
