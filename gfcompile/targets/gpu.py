"""`Gpu`: what schedules and reports must know about an NVIDIA GPU, most of it told by its architecture."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
WARP = 32


@dataclass(frozen=True)
class Gpu:
    """One GPU. All but the number of multiprocessors follows from `arch`."""

    arch: str  # as NVRTC and ptxas call it: sm_53
    multiprocessors: int
    registers_per_multiprocessor: int  # of 32 bits
    registers_per_block: int
    shared_bytes_per_block: int  # of static shared memory
    shared_bytes_per_multiprocessor: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    warp: int = WARP

    @property
    def capability(self) -> int:
        """53 of sm_53."""
        return int(self.arch.removeprefix("sm_"))


# NVIDIA's CUDA C++ Programming Guide, "Technical Specifications per Compute Capability":
# registers per block, shared KiB per multiprocessor, threads and blocks resident on one. In all of them a
# multiprocessor has 64 Ki registers and a block 48 KiB of static shared memory.
_LIMITS = {
    "sm_53": (32 * KIB, 64, 2048, 32),
    "sm_60": (64 * KIB, 64, 2048, 32),
    "sm_61": (64 * KIB, 96, 2048, 32),
    "sm_62": (32 * KIB, 64, 2048, 32),
    "sm_70": (64 * KIB, 96, 2048, 32),
    "sm_72": (64 * KIB, 96, 2048, 32),
    "sm_75": (64 * KIB, 64, 1024, 16),
    "sm_80": (64 * KIB, 164, 2048, 32),
    "sm_86": (64 * KIB, 100, 1536, 16),
    "sm_87": (64 * KIB, 164, 1536, 16),
    "sm_89": (64 * KIB, 100, 1536, 24),
    "sm_90": (64 * KIB, 228, 2048, 32),
}
ARCHS = tuple(_LIMITS)


def make_gpu(arch: str, multiprocessors: int) -> Gpu:
    """The GPU of a known architecture (one of `ARCHS`)."""
    registers, shared_kib, threads, blocks = _LIMITS[arch]
    return Gpu(
        arch=arch,
        multiprocessors=multiprocessors,
        registers_per_multiprocessor=64 * KIB,
        registers_per_block=registers,
        shared_bytes_per_block=48 * KIB,
        shared_bytes_per_multiprocessor=shared_kib * KIB,
        threads_per_multiprocessor=threads,
        blocks_per_multiprocessor=blocks,
    )
