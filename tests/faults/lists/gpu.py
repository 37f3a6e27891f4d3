"""Schedules for GPUs, their launches, and the launcher."""

from tests.faults.fault import Fault

SCHEDULES = "tests/cuda/test_schedules.py"
LAUNCHER = "tests/cuda/test_launcher.py"
MASKS = 'return kept.replace("__activemask()", _WHOLE_WARP)'
EXTENTS = "_extents(extents, _GRID), _extents(extents, _BLOCK)"

FAULTS = (
    Fault(
        "dropped-barrier",
        "gfcompile/codegen/cuda/launches.py",
        MASKS,
        MASKS + '.replace("__syncthreads();", "")',
        "threads read shared memory before the others have written it",
        (f"{SCHEDULES}::test_products",),
    ),
    Fault(
        "lanes-on-their-way",
        "gfcompile/codegen/cuda/launches.py",
        MASKS,
        "return kept",
        "shuffles ask which lanes are active, and may miss some",
        (f"{SCHEDULES}::test_whole_warps_sum_together",),
    ),
    Fault(
        "grid-one-block-short",
        "gfcompile/codegen/cuda/launches.py",
        EXTENTS,
        "tuple(max(1, size - 1) for size in _extents(extents, _GRID)), _extents(extents, _BLOCK)",
        "the last blocks of a kernel are never launched",
        (f"{SCHEDULES}::test_products",),
    ),
    Fault(
        "arguments-in-the-order-of-launches",
        "gfcompile/codegen/cuda/launches.py",
        "positions = [int(name.removeprefix(_PARAMETER).removesuffix(_ITS_DATA)) for name in names]",
        "positions = list(range(len(names)))",
        "a kernel that reads some of its function's buffers gets the first ones",
        (
            f"{SCHEDULES}::test_products",
            f"{SCHEDULES}::test_every_kernel_of_a_step",
        ),
    ),
    Fault(
        "workspaces-overlap",
        "gfcompile/codegen/cuda/launches.py",
        "accumulate(map(_slot_bytes, shared), initial=0)",
        "accumulate((_slot_bytes(buffer) // 2 for buffer in shared), initial=0)",
        "intermediates of a kernel overlap in its workspace",
        (f"{SCHEDULES}::test_intermediates_lie_apart_in_the_workspace",),
    ),
    Fault(
        "stores-what-pads-a-tile",
        "gfcompile/codegen/schedules/gpu/fusion.py",
        "if own <= 0 and not _is_pointwise(",
        "if own < -99 and not _is_pointwise(",
        "an epilogue finds a place for what only pads a tile",
        (
            f"{SCHEDULES}::test_products",
            f"{SCHEDULES}::test_every_kernel_of_a_step",
        ),
    ),
    Fault(
        "sum-of-threads-left-over",
        "gfcompile/codegen/schedules/gpu/rest.py",
        "beside = max(divisors(prod(block.spatial), WARP)) if _is_side_by_side(block) else 1",
        "beside = min(prod(block.spatial), WARP) if _is_side_by_side(block) else 1",
        "threads without a point of their own store a sum",
        (
            f"{SCHEDULES}::test_reductions_that_threads_cannot_share",
            f"{SCHEDULES}::test_any_number_of_threads_sums_the_same",
            f"{SCHEDULES}::test_every_kernel_of_a_step",
        ),
    ),
    Fault(
        "older-code-for-newer",
        "gfcompile/runtime/gf_device_cuda.c",
        "if (image->is_ptx) return arch <= here;",
        "if (image->is_ptx) return arch >= here;",
        "PTX is loaded on devices older than it",
        (LAUNCHER,),
    ),
    Fault(
        "inputs-on-each-other",
        "gfcompile/runtime/gf_staging.c",
        "    at += gf_align_up(value->bytes);\n  }\n  return (const void *const *)staging->taken;",
        "  }\n  return (const void *const *)staging->taken;",
        "all inputs of a step are uploaded to one place",
        (LAUNCHER,),
    ),
    Fault(
        "results-before-they-are-there",
        "gfcompile/runtime/gf_device_cuda.c",
        "int code = cu.cuStreamSynchronize(gpu.stream), last = gpu.last_launched;",
        "int code = CUDA_SUCCESS, last = gpu.last_launched;",
        "a step returns before the device has finished",
        (LAUNCHER,),
    ),
)
