"""The steps of many plans of one job: the model is looked at once and traced once, with all that any of them trains."""

from __future__ import annotations

from dataclasses import replace

from gfcompile.frontend.narrow import are_equal, drop_unread, narrow
from gfcompile.job import Surveyed, Traced
from gfcompile.plan import make_plan
from gfcompile.progress import Progress, silent
from gfcompile.settings.schema import Request
from gfcompile.stages import trace_steps


class Traces:
    """`whole` trains all that may be trained; other plans' steps are cut out of it.

    A model that looks at what is trained computes something else when less is: `check` finds out, if plans that train
    least show it. `Arenas.confirm` finds it of the plan that is chosen.
    """

    def __init__(self, surveyed: Surveyed, request: Request, progress: Progress = silent) -> None:
        self.surveyed = surveyed
        traced = trace_steps(surveyed, make_plan(surveyed.layers, request), progress)
        self.whole = replace(traced, job=replace(surveyed.job, request=request))
        self.are_cut, self.checked = True, request

    def __call__(self, request: Request) -> Traced:
        """As a trace of this request alone would be."""
        plan = make_plan(self.surveyed.layers, request)
        if not self.are_cut or not plan.trained_parameters <= self.whole.plan.trained_parameters:
            return self.own(request)
        training = narrow(self.whole.training, plan)
        return replace(self.whole, job=replace(self.surveyed.job, request=request), plan=plan, training=training)

    def own(self, request: Request) -> Traced:
        """A trace of this request alone, as the compiler makes it."""
        traced = trace_steps(self.surveyed, make_plan(self.surveyed.layers, request))
        return replace(traced, job=replace(self.surveyed.job, request=request))

    def check(self, request: Request) -> None:
        """Trace this one, of the plans that train least: if that is not what would be cut out, nothing is cut again.

        With all of a model frozen and with all of it trained, whatever it does about either is seen.
        """
        cut, own = self(request).training, self.own(request).training
        drop_unread(own)
        self.are_cut = self.are_cut and are_equal(cut, own)
        self.checked = request
