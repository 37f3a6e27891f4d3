"""The driver's C, where a whole step seldom gets: results that the caller wants twice, or that are an input."""

from gfcompile.codegen.arena import plan_arena
from gfcompile.codegen.build import Kernels
from gfcompile.codegen.driver import Planned, _Function
from gfcompile.codegen.program import Buffer, Call, Program
from gfcompile.codegen.state import StateTable
from gfcompile.step import Role, Value


def test_a_result_wanted_twice_is_copied_to_the_second_place():
    x = Value(Role.INPUT, "x")
    buffers = [Buffer("x", (4,), "float32", x), Buffer("y", (4,), "float32")]
    outputs = [Value(Role.OUTPUT, name) for name in "abc"]
    program = Program("predict", buffers, [Call("work", (0,), (1,))], [0, 1, 1], outputs, {})
    kernels = Kernels({"predict": {"work": "gf_work"}}, [], 0, None)
    lines = _Function(Planned(program, plan_arena(program)), StateTable(), kernels, [x]).text().splitlines()
    assert lines[-5:] == [
        "  if ((code = gf_work((void *)inputs[0], (void *)outputs[1]))) return code;",
        "  memcpy(outputs[0], inputs[0], 16);",
        "  memcpy(outputs[2], outputs[1], 16);",
        "  return 0;",
        "}",
    ]
