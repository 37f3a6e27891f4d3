"""The order of calls, the arena, what runs in place, and the driver."""

from tests.faults.fault import Fault

ARENA = "tests/codegen/test_arena.py"
ORDER = "tests/codegen/test_order.py"

FAULTS = (
    Fault(
        "slot-free-one-call-early",
        "gfcompile/codegen/arena.py",
        "slots[other].last >= slots[index].first]",
        "slots[other].last > slots[index].first]",
        "a result may lie on an operand of the very call that computes it",
        (f"{ARENA}::test_made_up_programs",),
    ),
    Fault(
        "slot-taken-over-while-read",
        "gfcompile/codegen/arena.py",
        "dying = {buffer for buffer in call.inputs if last[buffer] == index}",
        "dying = set(call.inputs)",
        "an output takes over the slot of an input that is read again",
        (f"{ARENA}::test_a_slot_still_read_is_not_taken_over", f"{ARENA}::test_made_up_programs"),
    ),
    Fault(
        "update-ignores-readers",
        "gfcompile/codegen/order.py",
        "before[updater[buffer]] |= 1 << index",
        "before[updater[buffer]] |= 0",
        "an in-place update may run before a call that reads the old weight",
        (f"{ORDER}::test_an_update_waits_for_a_late_reader", f"{ORDER}::test_made_up_programs"),
    ),
    Fault(
        "backward-before-the-loss",
        "gfcompile/codegen/order.py",
        "self.before[index] |= 1 << loss",
        "self.before[index] |= 0",
        "work of the backward pass may run before the loss",
        (f"{ORDER}::test_the_halves_stay_apart", f"{ORDER}::test_made_up_programs"),
    ),
    Fault(
        "one-position-is-enough",
        "gfcompile/codegen/program.py",
        "legal = all((at, position) in allowed for position in positions)",
        "legal = any((at, position) in allowed for position in positions)",
        "an input passed twice is taken over though one of its uses forbids it",
        ("tests/codegen/test_program.py::test_heirs",),
    ),
    Fault(
        "stencil-in-place",
        "gfcompile/codegen/inplace.py",
        "if load.source.same_as(buffer) and not analyzer.can_prove_equal(_position(buffer, load.indices), place):",
        "if load.source.same_as(buffer) and not _position(buffer, load.indices).same_as(place) and not stage.loads:",
        "a kernel that reads its neighbours may write over them",
        ("tests/codegen/test_inplace.py::test_refusals",),
    ),
    Fault(
        "second-wish-not-delivered",
        "gfcompile/codegen/driver.py",
        "self.placement.delivered.get(buffer) == position",
        "buffer in self.placement.delivered",
        "a model that returns one tensor twice fills one of its two outputs",
        (
            "tests/codegen/test_driver.py",
            "tests/codegen/test_program.py::test_a_result_wanted_twice_is_delivered_once_and_an_input_never",
        ),
    ),
)
