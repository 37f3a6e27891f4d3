"""Records as if something had been measured: decisions that the compiler can follow, times by hand."""

from __future__ import annotations

from typing import Any

from gfcompile.codegen.tuned.keys import target_key
from gfcompile.codegen.tuned.record import Record
from gfcompile.codegen.tuned.tasks import Task
from gfcompile.targets import find_target
from gfcompile.tuning.space import Candidate, draw, list_templates
from tests.tuning.records import trial

NATIVE = find_target("native")


def forge(task: Task, other: int = 0, **changes: Any) -> Record:
    """A trial of another number of turns, or tasks, than the compiler's own (its `other`-th): much faster."""
    usual = list_templates(task.function, NATIVE)[0]
    name = next(name for name, options in usual.options.items() if len(options) > 1 + other and "t" in name)
    others = [each for each in usual.options[name] if each != usual.candidate.decisions[name]]
    wanted = Candidate(usual.candidate.template, {**usual.candidate.decisions, name: others[other]})
    decided = draw(task.function, NATIVE, wanted).candidate
    values = {"ratio": 9.0, **changes}
    return trial(
        kernel=task.kernel,
        name=task.name,
        target=target_key(NATIVE),
        template=decided.template,
        decisions=decided.decisions,
        **values,
    )
