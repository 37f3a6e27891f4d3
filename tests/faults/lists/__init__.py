"""The list, by theme. Sites are in code that seldom changes; a fault changes what the program does, not how fast.

To add one: a mistake that somebody could make, at a place where the text to find is unique, and the cheapest tests that
should notice it. `python -m tests.faults NAME` says whether they do.
"""

from tests.faults.fault import Fault
from tests.faults.lists import figures, frontend, gpu, kernels, passes, programs, runtime, training

ALL: tuple[Fault, ...] = (
    *passes.FAULTS,
    *kernels.FAULTS,
    *programs.FAULTS,
    *gpu.FAULTS,
    *runtime.FAULTS,
    *frontend.FAULTS,
    *training.FAULTS,
    *figures.FAULTS,
)
