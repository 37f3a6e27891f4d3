"""What is counted and measured: reports, plans within a budget, noise, tuning."""

from tests.faults.fault import Fault

COUNTS = "tests/report/test_counts.py"
FRONT = "tests/budget/test_front.py"
BEST = "tests/tuning/test_best.py"

FAULTS = (
    Fault(
        "overhead-counted-twice",
        "gfcompile/report/counts.py",
        "return self.forward + self.forward_overhead + self.backward",
        "return self.forward + self.forward_overhead + self.backward + self.backward_overhead",
        "the FLOPs of a filtered layer count its patch means twice",
        (COUNTS, "tests/budget/test_flops.py"),
    ),
    Fault(
        "drawn-channels-kept-whole",
        "gfcompile/report/counts.py",
        "return geometry.batch * (channels or geometry.in_channels) * plane * FLOAT_BYTES",
        "return geometry.batch * geometry.in_channels * plane * FLOAT_BYTES",
        "the report says that a sparse layer keeps all its channels",
        (COUNTS, "tests/report/test_sparse.py", "tests/report/test_report.py::test_drawn_channels"),
    ),
    Fault(
        "mix-counts-summed-taps",
        "gfcompile/graph/multiply_adds.py",
        "kept = prod(size for size, tap in zip(shape[2:], taps, strict=True) if tap)",
        "kept = prod(size for size, tap in zip(shape[2:], taps, strict=True))",
        "a channel mix counts taps that are summed before it",
        ("tests/graph/test_multiply_adds.py",),
    ),
    Fault(
        "front-drops-the-slightly-better",
        "gfcompile/budget/front.py",
        "if at and lost[at - 1] <= points:",
        "if at and lost[at - 1] <= points + 1:",
        "plans that are better by one point are not offered",
        (FRONT,),
    ),
    Fault(
        "decibels-of-amplitudes",
        "gfcompile/noise/similarity.py",
        "snr = 10 * math.log10(self.signal / self.noise)",
        "snr = 20 * math.log10(self.signal / self.noise)",
        "signal-to-noise ratios are twice as good as they are",
        ("tests/noise/test_measure.py",),
    ),
    Fault(
        "slowest-of-the-faster",
        "gfcompile/codegen/tuned/database.py",
        "return max(filter(is_faster, last.values()), key=sure_ratio, default=None)",
        "return min(filter(is_faster, last.values()), key=sure_ratio, default=None)",
        "the compiler takes the least of the schedules that are faster",
        (BEST,),
    ),
    Fault(
        "verify-takes-anything",
        "gfcompile/verify/compare.py",
        "return self.error <= self.tolerance  # a NaN fails",
        "return not self.error > self.tolerance",
        "gfcompile verify passes a step that computes NaN",
        ("tests/end_to_end/test_optimizers.py::test_a_step_that_computes_no_number_passes_no_check",),
    ),
    Fault(
        "board-of-wider-vectors",
        "gfcompile/targets/rpi4.toml",
        "lanes = 4\n",
        "lanes = 8\n",
        "kernels for a Raspberry Pi 4 are laid out for vectors it does not have",
        ("tests/targets/test_spec.py",),
    ),
)
