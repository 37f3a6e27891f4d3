"""The space of every template: unasked it is what the compiler does, and whatever is decided computes the same."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.s_tir.schedule import ScheduleError
from tvm_ffi import structural_equal

from gfcompile.codegen import kernels
from gfcompile.codegen.schedules import choose_schedule, find_workspace, follow, schedule, start
from gfcompile.codegen.schedules.choices import Choices, Decided, Option
from gfcompile.codegen.scheduling import Scheduler
from gfcompile.codegen.tuned.database import Database, Databases
from gfcompile.codegen.tuned.keys import kernel_hash, target_key
from gfcompile.codegen.tuned.record import read_record, write_record
from gfcompile.targets import find_target
from gfcompile.tuning import space
from gfcompile.tuning.space import Candidate, Drawn, Sampled, draw, list_templates, schedule_function
from tests.tuning.kernels import PAIRS, kernel, scaled
from tests.tuning.records import trial

NATIVE = find_target("native")
TOLERANCE = 5e-6  # as in tests/codegen/test_schedules.py: float32 sums of a few hundred values in another order


def product(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    r = te.reduce_axis((0, int(a.shape[1])), "r")
    return te.compute((a.shape[0], b.shape[1]), lambda i, j: te.sum(a[i, r] * b[r, j], axis=[r]), name="product")


def product_along(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    r = te.reduce_axis((0, int(a.shape[1])), "r")
    return te.compute((a.shape[0], b.shape[0]), lambda i, j: te.sum(a[i, r] * b[j, r], axis=[r]), name="product")


def conv_and_more(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    y = kernels.conv2d(x, w, *PAIRS, 1)
    return te.compute(y.shape, lambda *at: te.max(y[at] + x[at], tirx.const(0, "float32")), name="epilogue")


def weight_gradient(g: te.Tensor, x: te.Tensor) -> te.Tensor:
    return kernels.conv2d_weight_grad(g, x, (3, 3), *PAIRS, 1, 16)


KERNELS = {
    "winograd": kernel(lambda x, w: kernels.winograd_conv2d(x, w, (1, 1), 4), (2, 8, 8, 32), (2, 3, 3, 32, 16)),
    "conv": kernel(lambda x, w: kernels.conv2d(x, w, *PAIRS, 1), (2, 12, 12, 32), (2, 3, 3, 32, 16)),
    "conv-epilogue": kernel(conv_and_more, (1, 8, 8, 16), (1, 3, 3, 16, 16)),
    "depthwise": kernel(lambda x, w: kernels.depthwise_conv2d(x, w, *PAIRS), (1, 8, 8, 32), (3, 3, 1, 32)),
    "outer": kernel(weight_gradient, (4, 12, 12, 32), (4, 12, 12, 32)),
    "outer-one-slice": kernel(weight_gradient, (1, 8, 8, 32), (1, 8, 8, 16)),
    "gemm": kernel(product, (24, 40), (40, 96)),
    "dot": kernel(product_along, (12, 128), (10, 128)),
    "reduction": kernel(lambda x: kernels.patch_mean(x, (2, 4, 0, 0, 8), (2, 4, 0, 0, 8)), (4, 8, 8, 96)),
}
SPACES = [(name, drawn) for name, function in KERNELS.items() for drawn in list_templates(function, NATIVE)]
EACH = pytest.mark.parametrize(
    ("function", "drawn"),
    [(KERNELS[name], drawn) for name, drawn in SPACES],
    ids=[f"{name}-by-{drawn.candidate.template}" for name, drawn in SPACES],
)


def same(a: tirx.PrimFunc | None, b: tirx.PrimFunc) -> bool:
    return a is not None and structural_equal(a, b)


def compute(function: tirx.PrimFunc, scheduled: tirx.PrimFunc) -> np.ndarray:
    """Its one output, for inputs that are the same every time."""
    *inputs, out = ([int(size) for size in parameter.shape] for parameter in function.params)
    rng = np.random.default_rng(0)
    arrays = [tvm.runtime.tensor(rng.standard_normal(shape, "float32")) for shape in inputs]
    result = tvm.runtime.tensor(np.full(out, np.nan, "float32"))
    module = tvm.IRModule({"main": scheduled.with_attr("global_symbol", "main")})
    tvm.compile(module, tvm.target.Target(NATIVE.tvm))["main"](*arrays, result)
    return result.numpy()


DRAWN: dict[tuple[str, str], list[Drawn]] = {}  # drawing takes long, and many tests ask


def some_of(function: tirx.PrimFunc, drawn: Drawn) -> list[Drawn]:
    """Candidates of a template: the ends of every choice, and two at random."""
    key = kernel_hash(function), drawn.candidate.template
    if key not in DRAWN:
        DRAWN[key] = draw_some(function, drawn)
    return DRAWN[key]


def draw_some(function: tirx.PrimFunc, drawn: Drawn) -> list[Drawn]:
    chance = random.Random(0)
    found: dict[object, Drawn] = {}
    for take in (lambda options: options[0], lambda options: options[-1], chance.choice, chance.choice):
        one = drawn
        try:
            for _ in range(2):  # a choice may be there only after another one
                decisions = {name: take(options) for name, options in one.options.items()}
                one = draw(function, NATIVE, Candidate(drawn.candidate.template, decisions))
        except ScheduleError:
            continue  # no slices of so few rows
        found[one.candidate.key] = one
    return list(found.values())


class Asked(Choices):
    """Takes what is proposed, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Sequence[Option], Option]] = []

    def pick(self, name, options, proposed):
        self.asked.append((name, options, proposed))
        return proposed


@pytest.mark.slow
def test_every_template_that_asks_has_an_example() -> None:
    named = {name.partition("-")[0] for name in KERNELS}
    assert {choose_schedule(function, NATIVE)[0] for function in KERNELS.values()} == named
    assert named == set(space._TRIED) - {"matmul", "rest"}  # which are of GPUs
    for name, function in KERNELS.items():
        assert list_templates(function, NATIVE)[0].candidate.template == name.partition("-")[0]
    assert {(name, drawn.candidate.template) for name, drawn in SPACES} >= {("conv", "gemm"), ("outer", "gemm")}
    tried = [one for name, drawn in SPACES for one in some_of(KERNELS[name], drawn)]
    asked = {name.partition(" ")[0] for one in tried for name in one.options}  # a sum's have its place after them
    assert asked == {"block", "lanes", "tile", "order", "padding", "rows", "parts", "slice", "tasks", "turns"}


def test_a_kernel_that_no_template_asks_about_has_no_space() -> None:
    assert list_templates(scaled(2.0), NATIVE) == []


@EACH
def test_a_proposal_is_an_option_and_names_are_asked_once(function: tirx.PrimFunc, drawn: Drawn) -> None:
    asked = Asked()
    rule = next(rule for rule in space.rules_for(NATIVE) if rule.name == drawn.candidate.template)
    assert rule.apply(start(function), NATIVE, asked)
    for name, options, proposed in asked.asked:
        assert proposed in options, name
        assert len(set(options)) == len(options), name
    names = [name for name, *_ in asked.asked]
    assert names == list(drawn.options) == list(drawn.candidate.decisions)
    assert max(len(options) for _, options, _ in asked.asked) > 1


@EACH
def test_unasked_it_is_what_the_compiler_does(function: tirx.PrimFunc, drawn: Drawn) -> None:
    again = draw(function, NATIVE, Candidate(drawn.candidate.template, drawn.candidate.decisions))
    assert same(again.function, drawn.function)
    usual, scheduled = choose_schedule(function, NATIVE)
    assert same(scheduled, drawn.function) == (usual == drawn.candidate.template)


@pytest.mark.slow
@EACH
def test_every_candidate_computes_the_same(function: tirx.PrimFunc, drawn: Drawn) -> None:
    want = compute(function, schedule(function, NATIVE))
    candidates = some_of(function, drawn)
    assert len(candidates) >= 2
    assert not all(same(one.function, drawn.function) for one in candidates)
    for one in candidates:
        error = np.abs(compute(function, one.function) - want).max()
        assert error <= TOLERANCE * max(1.0, float(np.abs(want).max())), one.candidate


@EACH
def test_what_was_drawn_can_be_followed(function: tirx.PrimFunc, drawn: Drawn) -> None:
    """From the line of a database, too."""
    for one in some_of(function, drawn):
        record = read_record(write_record(trial(template=one.candidate.template, decisions=one.candidate.decisions)))
        assert same(follow(record.template, record.decisions, function, NATIVE), one.function), one.candidate


@pytest.mark.slow
@EACH
def test_decisions_stand_in_the_trace(function: tirx.PrimFunc, drawn: Drawn) -> None:
    """As MetaSchedule's own do; the trace alone makes the same kernel."""
    for one in some_of(function, drawn):
        taken: list[Sampled] = []
        sch = start(function)
        schedule_function(one.candidate, NATIVE, taken.append)(sch)
        found = [int(sch.trace.decisions[each]) for each in sch.trace.insts if each.kind.name == "SampleCategorical"]
        decisions = one.candidate.decisions
        assert found == [one.options[name].index(decisions[name]) for name in one.options]
        replayed = start(function)
        sch.trace.apply_to_schedule(replayed, remove_postproc=False)
        assert same(replayed.mod["main"], sch.mod["main"])


def test_what_is_wanted_and_no_option_is_what_is_proposed() -> None:
    function = KERNELS["gemm"]
    usual = draw(function, NATIVE, Candidate("gemm"))
    assert draw(function, NATIVE, Candidate("gemm", {"tile": (7, 7), "none": 3})).candidate.key == usual.candidate.key


def test_a_decision_that_is_no_option_is_an_error_where_it_must_be_followed() -> None:
    with pytest.raises(ScheduleError, match=r"^tile: '\(7, 7\)' is no option$"):
        Decided({"tile": (7, 7)}).pick("tile", [(1, 2)], (1, 2))
    assert Decided({"tile": (7, 7)}).pick("turns", [1, 2], 2) == 2


@pytest.mark.parametrize(
    ("template", "decisions"),
    [
        ("gemm", {"tile": (7, 7)}),
        ("gemm", {"tasks": "many"}),
        ("winograd", {}),  # does not take it
        ("unheard of", {}),
    ],
)
def test_decisions_that_cannot_be_followed_leave_the_kernel_untuned(template: str, decisions: dict) -> None:
    function = KERNELS["gemm"]
    record = trial(kernel=kernel_hash(function), target=target_key(NATIVE), template=template, decisions=decisions)
    found = Scheduler(NATIVE, Databases([Database(records=[record])]))(function)
    assert found.tuned is None
    assert same(found.function, schedule(function, NATIVE))


@pytest.mark.parametrize("template", ["winograd", "unheard of"])
def test_a_template_that_does_not_take_a_kernel(template: str) -> None:
    with pytest.raises(ScheduleError, match=f"^template '{template}' does not take this kernel$"):
        draw(KERNELS["gemm"], NATIVE, Candidate(template))


@pytest.mark.parametrize("name", ["conv", "outer"])
def test_the_compiler_follows_what_was_measured(name: str) -> None:
    function = KERNELS[name]
    one = some_of(function, list_templates(function, NATIVE)[0])[-1]
    assert not same(one.function, schedule(function, NATIVE))
    key = {"kernel": kernel_hash(function), "target": target_key(NATIVE)}
    record = trial(**key, template=one.candidate.template, decisions=one.candidate.decisions)
    found = Scheduler(NATIVE, Databases([Database(records=[record])]))(function)
    assert found.tuned == record
    assert same(found.function, one.function)
    assert found.workspace == find_workspace(one.function)
    emulated = trial(**vars(record) | {"kind": "emulated"})
    assert Scheduler(NATIVE, Databases([Database(records=[emulated])]))(function).tuned is None


def test_a_candidate_that_takes_too_much_scratch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    function = KERNELS["winograd"]
    needed = find_workspace(schedule(function, NATIVE)).each
    assert needed > 0
    monkeypatch.setattr(space, "_MOST_SCRATCH", needed)
    draw(function, NATIVE, Candidate("winograd"))
    monkeypatch.setattr(space, "_MOST_SCRATCH", needed - 1)
    with pytest.raises(ScheduleError, match=r"^winograd: more than 0 MB of scratch per thread$"):
        draw(function, NATIVE, Candidate("winograd"))
    assert list_templates(function, NATIVE) == []
