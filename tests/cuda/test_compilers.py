"""NVIDIA's compilers on what TVM writes: what they make, what they say, and what is said without them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from tvm import te

from gfcompile import api
from gfcompile.codegen.cuda import packages, ptxas
from gfcompile.codegen.cuda.launches import Launch, make_source
from gfcompile.codegen.cuda.nvrtc import compile_ptx
from gfcompile.codegen.schedules import choose_schedule
from gfcompile.errors import ContractError, UserError
from gfcompile.targets import find_target
from gfcompile.targets.gpu import make_gpu
from tests.models.zoo import ZOO

JETSONS = ("jetson-nano", "jetson-tx2", "jetson-xavier", "jetson-orin")
FIRST_PTX = {"sm_53": "6.4", "sm_62": "6.4", "sm_72": "6.4", "sm_87": "7.4"}


@pytest.fixture(scope="module")
def source() -> str:
    """A sum over the threads of a block, which shuffles."""
    x = te.placeholder((4, 1000), "float32", "x")
    k = te.reduce_axis((0, 1000), "k")
    target = find_target("jetson-nano")
    function = te.create_prim_func([x, te.compute((4,), lambda i: te.sum(x[i, k], axis=[k]), name="total")])
    text, _ = make_source({"total": (choose_schedule(function, target)[1], True)}, target)
    assert "__shfl_down_sync" in text
    return text


@pytest.mark.slow
@pytest.mark.parametrize("jetson", JETSONS)
def test_ptx_for_the_drivers_of_every_jetpack(tmp_path: Path, source: str, jetson: str) -> None:
    """In the oldest version that knows the GPU, which ptxas still assembles, for this GPU and for a later one."""
    gpu = find_target(jetson).gpu
    assert gpu is not None
    path = tmp_path / "kernels.ptx"
    path.write_text(compile_ptx(source, gpu.arch))
    assert re.search(r"^\.version (\S+)$", path.read_text(), re.MULTILINE)[1] == FIRST_PTX[gpu.arch]  # type: ignore[index]
    for arch in (gpu.arch, "sm_90"):
        counted = ptxas.assemble(path, tmp_path / "kernels.cubin", arch)
        (registers, shared, spilled) = counted["total_0_kernel"]
        assert 0 < registers <= 64
        assert shared > 0
        assert spilled == 0
        assert (tmp_path / "kernels.cubin").read_bytes()[:4] == b"\x7fELF"


def test_a_kernel_that_spills_is_seen(tmp_path: Path) -> None:
    """Sixty-four live values in thirty-two registers: the bound on threads allows no more."""
    loads = "".join(f"  float v{i} = x[threadIdx.x * 64 + {i}];\n" for i in range(64))
    uses = "".join(f"  x[threadIdx.x * 64 + {i}] = v{63 - i} * v{(i * 7) % 64};\n" for i in range(64))
    text = f'extern "C" __global__ void __launch_bounds__(1024, 2) crowded(volatile float* x) {{\n{loads}{uses}}}\n'
    (tmp_path / "k.ptx").write_text(compile_ptx(text, "sm_53"))
    registers, _, spilled = ptxas.assemble(tmp_path / "k.ptx", tmp_path / "k.cubin", "sm_53")["crowded"]
    assert registers == 32
    assert spilled > 0


@pytest.mark.parametrize(
    ("arch", "registers", "shared", "threads", "expected"),
    [
        ("sm_53", 32, 0, 256, 1.0),  # eight blocks of 8192 registers are all of 65536
        ("sm_53", 64, 0, 256, 0.5),
        ("sm_53", 33, 0, 256, 6 / 8),  # a warp's registers are rounded up to 1280: 51 warps, six blocks of eight
        ("sm_53", 16, 16 * 1024, 64, 8 / 64),  # four blocks share 64 KiB
        ("sm_53", 16, 0, 32, 32 / 64),  # at most 32 blocks
        ("sm_86", 32, 0, 1024, 32 / 48),  # a second block of 1024 does not fit in 1536 threads
        ("sm_87", 32, 0, 256, 1.0),
        ("sm_87", 32, 40 * 1024, 128, 16 / 48),  # four blocks of 41 KiB, one of them the system's, in 164
    ],
)
def test_occupancy(arch: str, registers: int, shared: int, threads: int, expected: float) -> None:
    """By the arithmetic of NVIDIA's programming guide."""
    assert ptxas.occupancy(registers, shared, threads, make_gpu(arch, 1)) == pytest.approx(expected)


def test_a_block_that_no_multiprocessor_takes() -> None:
    launch = Launch("wide", (1, 1, 1), (512, 1, 1), (0,))
    with pytest.raises(ContractError, match=r"^'wide' takes 33280 registers per block, sm_53 has 32768$"):
        ptxas.make_usages({"wide": (65, 0, 0)}, [launch], make_gpu("sm_53", 1))
    assert ptxas.make_usages({"wide": (64, 0, 0)}, [launch], make_gpu("sm_53", 1))[0].occupancy == 0.5
    with pytest.raises(ContractError, match=r"^ptxas says nothing of 'wide'$"):
        ptxas.make_usages({}, [launch], make_gpu("sm_53", 1))


def test_what_the_compilers_refuse_is_our_bug(tmp_path: Path) -> None:
    with pytest.raises(
        ContractError, match=r"^NVRTC refuses the generated kernels: step\.cu\(1\): error: this declaration"
    ):
        compile_ptx("nonsense", "sm_53")
    (tmp_path / "k.ptx").write_text(".version 6.4\n.target sm_53\nnonsense\n")
    with pytest.raises(ContractError, match=r"^ptxas refuses the generated kernels: .*error"):
        ptxas.assemble(tmp_path / "k.ptx", tmp_path / "k.cubin", "sm_53")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(packages._PACKAGES, "ptxas", "nvidia-cuda-nothing")
    with pytest.raises(UserError) as caught:
        packages.find("ptxas")
    said = "CUDA targets need 'ptxas' of 'nvidia-cuda-nothing', which is not installed; pip install 'gfcompile[cuda]'"
    assert str(caught.value) == said
    with pytest.raises(UserError) as caught:
        api.build(ZOO["plain"](), torch.randn(2, 3, 16, 16), layers=2, target="jetson", out=tmp_path / "tiny_step")
    said = "target 'jetson-nano': NVIDIA's compilers are not installed; pip install 'gfcompile[cuda]'"
    assert str(caught.value) == said


def test_no_guards_on_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        api.build(
            ZOO["plain"](), torch.randn(2, 3, 16, 16), layers=2, target="jetson", out=tmp_path / "tiny_step", debug=True
        )
    said = "debug=True: guards are for steps on a CPU, and target 'jetson-nano' has a GPU; use target='native'"
    assert str(caught.value) == said
