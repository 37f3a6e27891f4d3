"""The steps of many plans of one job: the model is looked at once and traced once, with all that any of them trains."""

from __future__ import annotations

from dataclasses import replace

from gfcompile.frontend.narrow import are_equal, drop_unread, narrow
from gfcompile.frontend.trace import trace_training
from gfcompile.job import Surveyed, Traced
from gfcompile.plan import Plan, make_plan
from gfcompile.progress import Progress, silent
from gfcompile.settings.schema import Request
from gfcompile.stages import trace_steps
from gfcompile.step import Step


class Traces:
    """`whole` trains all that may be trained; other plans' steps are cut out of it.

    A model that looks at what is trained computes something else when less is: `check` finds out.
    """

    def __init__(self, surveyed: Surveyed, request: Request, progress: Progress = silent) -> None:
        self.surveyed = surveyed
        traced = trace_steps(surveyed, make_plan(surveyed.layers, request), progress)
        self.whole = replace(traced, job=replace(surveyed.job, request=request))
        self.are_cut = True

    def __call__(self, request: Request) -> Traced:
        """As a trace of this request alone would be."""
        plan = make_plan(self.surveyed.layers, request)
        is_part = plan.trained_parameters <= self.whole.plan.trained_parameters
        training = narrow(self.whole.training, plan) if self.are_cut and is_part else self._trace(plan)
        return replace(self.whole, job=replace(self.surveyed.job, request=request), plan=plan, training=training)

    def check(self, request: Request) -> None:
        """Trace this one, of the plans that train least: if that is not what would be cut out, nothing is cut again.

        With all of a model frozen and with all of it trained, whatever it does about either is seen.
        """
        cut = self(request)
        traced = self._trace(cut.plan)
        drop_unread(traced)
        self.are_cut = self.are_cut and are_equal(cut.training, traced)

    def _trace(self, plan: Plan) -> Step:
        job = self.surveyed.job
        target = job.loss.target_like(self.surveyed.output)
        return trace_training(self.surveyed.module, job.example, target, job.loss, plan)
