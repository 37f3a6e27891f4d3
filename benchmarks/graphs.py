"""A graph of operators compiled as a step is: fused, scheduled, placed in an arena, run on the same threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from gfcompile.codegen.arena import plan_arena
from gfcompile.codegen.build import KernelBuilder
from gfcompile.codegen.description import describe
from gfcompile.codegen.driver import Planned, write_driver
from gfcompile.codegen.link import link_library
from gfcompile.codegen.lower import lower
from gfcompile.codegen.program import make_program
from gfcompile.codegen.scheduling import Scheduler
from gfcompile.codegen.state import StateTable
from gfcompile.plan import Plan
from gfcompile.runtime.library import Library, aligned_empty
from gfcompile.step import Role, Step, Value
from gfcompile.targets import find_target

_NOTHING_ELSE = """
int gf_program_train(char *arena, void *const *state, const void *const *inputs, const float *lr, float *loss) {
  (void)arena; (void)state; (void)inputs; (void)lr; (void)loss;
  return 1;
}

int gf_program_gradients(char *arena, void *const *state, const void *const *inputs, float *loss,
                         void *const *gradients) {
  (void)arena; (void)state; (void)inputs; (void)loss; (void)gradients;
  return 1;
}
"""


class CompiledGraph:
    """`function` over tensors of these shapes; `run` calls it on the arrays in `inputs`, results in `outputs`."""

    def __init__(
        self, function: Callable[..., tuple[Tensor, ...]], shapes: Sequence[Sequence[int]], folder: Path
    ) -> None:
        step = _trace(function, shapes)
        target = find_target("native")
        scheduler, state = Scheduler(target), StateTable()
        program = make_program("predict", lower(step), step, scheduler)
        planned = Planned(program, plan_arena(program))
        state.add("predict", step)
        builder = KernelBuilder(scheduler)
        builder.add(program, planned.placement)
        kernels = builder.build(folder, lambda *_: None)
        description = describe({"predict": step}, state.entries)
        driver = folder / "graph.c"
        driver.write_text(write_driver([planned], state, description, kernels, folder.name) + _NOTHING_ELSE)
        link_library(driver, kernels.objects, folder / "libgraph.so", target)
        self._library = Library(folder / "libgraph.so", folder.name)
        self._handle = self._library.create(os.cpu_count() or 1)
        self.inputs = [aligned_empty(shape, "float32") for shape in shapes]
        self.outputs = [aligned_empty(tuple(node.meta["val"].shape), "float32") for node in step.results()]
        rng = np.random.default_rng(0)
        for array in self.inputs:
            rng.standard_normal(out=array, dtype=np.float32)

    def run(self) -> None:
        self._library.predict(self._handle, self.inputs, self.outputs)


def _trace(function: Callable[..., tuple[Tensor, ...]], shapes: Sequence[Sequence[int]]) -> Step:
    body = make_fx(function, tracing_mode="fake")(*(torch.empty(*shape, device="cpu") for shape in shapes))
    placeholders = [node for node in body.graph.nodes if node.op == "placeholder"]
    results: list[fx.Node] = list(body.graph.output_node().args[0])
    body.graph.output_node().args = (tuple(results),)
    inputs = [Value(Role.INPUT, node.name) for node in placeholders]
    outputs = [Value(Role.OUTPUT, f"output{index}") for index in range(len(results))]
    return Step(body, inputs, outputs, Plan((), frozenset(), False, {}, False), {})
