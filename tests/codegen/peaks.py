"""How many bytes of the arena a program's order keeps alive at its worst call, by the definition of a life."""

from gfcompile.codegen.program import Program


def peak_bytes(program: Program) -> int:
    """The largest sum of slots alive at one call in the program's present order: no placement can need less."""
    last, placed = program.last_reads(), program.temporaries()
    alive, peak = set[int](), 0
    for index, call in enumerate(program.calls):
        born = placed.intersection(call.born)
        alive |= born
        dying = {buffer for buffer in alive.intersection(call.inputs) if last[buffer] == index}
        heirs = program.heirs(call, dying | born) if dying else {}  # they take the slot of an input that dies here
        peak = max(peak, sum(program.buffers[buffer].slot_bytes for buffer in alive - heirs.keys()))
        alive = {buffer for buffer in alive if last[buffer] > index}
    return peak
