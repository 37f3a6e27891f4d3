"""CUDA C as C++ for the emulator: shared arrays get their place, and the kernels are listed in a table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

KERNEL = re.compile(
    r'extern "C" __global__ void\s+(?:__launch_bounds__\((?P<bound>\d+)[^)]*\)\s*)?'
    r"(?P<name>\w+)\((?P<params>[^)]*)\)\s*\{"
)
SHARED = re.compile(
    r"__shared__\s+(?:alignas\((?P<align>\d+)\)\s*)?(?P<type>[\w ]+?)\s+(?P<name>\w+)\[(?P<count>\d+)\];"
)
VECTOR = re.compile(r"\*\((\w+[234])\*\)\(")
BARRIERS = re.compile(r"__syncthreads|__syncwarp|__shfl\w*_sync|__activemask")


@dataclass(frozen=True)
class Kernel:
    """A kernel's definition, as it stands in the source."""

    name: str
    most_threads: int
    parameters: tuple[tuple[str, str], ...]  # type and name
    shared: tuple[re.Match[str], ...]
    body: tuple[int, int]  # from after its opening brace to its closing one
    has_barriers: bool
    has_warp_barriers: bool


def find_kernels(source: str) -> list[Kernel]:
    found = []
    for match in KERNEL.finditer(source):
        end = _closing_brace(source, match.end())
        body = source[match.end() : end]
        parameters = tuple(_parameter(text) for text in match["params"].split(",") if text.strip())
        shared = tuple(SHARED.finditer(body))
        if body.count("__shared__") != len(shared):
            raise ValueError(f"kernel '{match['name']}': shared memory that is no array of a fixed size")
        waits = (bool(BARRIERS.search(body)), "__syncwarp" in body)
        found.append(Kernel(match["name"], int(match["bound"] or 0), parameters, shared, (match.end(), end), *waits))
    return found


def translate(source: str, race_check: bool, extents: Mapping[str, Sequence[int]] | None = None) -> str:
    """The translation unit. Lines keep their numbers, so that the emulator's messages name those of `source`."""
    kernels = find_kernels(source)
    pieces, done = [], 0
    for kernel in kernels:
        begin, end = kernel.body
        pieces += [source[done:begin], " GF_COORDINATES;", _rewrite_body(kernel, source[begin:end])]
        done = end
    text = re.sub(r"^\s*#include <cuda\.h>", "", "".join([*pieces, source[done:]]), flags=re.M)
    blocks = "\n".join(_shared_block(kernel) for kernel in kernels if kernel.shared)
    tables = "\n".join(_table(kernel, (extents or {}).get(kernel.name, ())) for kernel in kernels)
    rows = ",\n".join(f"  gf_row_{kernel.name}" for kernel in kernels)
    return f"""#include "gf_emulator.hpp"
{blocks}
#line 1 "kernels.cu"
{text}
{tables}
namespace gf {{
const Kernel kernels[] = {{
{rows}
}};
const int kernel_count = {len(kernels)};
const bool checks_races = {"true" if race_check else "false"};
}}
"""


def _closing_brace(source: str, at: int) -> int:
    depth = 1
    for match in re.compile(r"[{}]").finditer(source, at):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return match.start()
    raise ValueError("a kernel without its closing brace")


def _parameter(text: str) -> tuple[str, str]:
    kind, name = re.sub(r"\b__restrict__\b", " ", text).rsplit(None, 1)
    stars = name.count("*")  # `float *x` as well as `float* x`
    return kind.strip() + "*" * stars, name.lstrip("*")


def _rewrite_body(kernel: Kernel, body: str) -> str:
    block = f"reinterpret_cast<gf_shared_{kernel.name} *>(gf::shared_memory)"
    body = SHARED.sub(lambda match: f"auto &{match['name']} = {block}->{match['name']};", body)
    return VECTOR.sub(r"*gf::vector_at<\1>(", body)


def _shared_block(kernel: Kernel) -> str:
    members = []
    for match in kernel.shared:
        align = f"alignas({match['align']}) " if match["align"] else ""
        members.append(f"  {align}{match['type']} {match['name']}[{match['count']}];")
        members.append(f"  char guard_behind_{match['name']}[gf::SHARED_GUARD];")
    total = " + ".join(f"sizeof(gf_shared_{kernel.name}::{match['name']})" for match in kernel.shared)
    head = f"struct gf_shared_{kernel.name} {{"
    check = f'static_assert({total} <= gf::SHARED_BYTES, "{kernel.name}: more than 48 KB of shared memory");'
    return "\n".join([head, *members, "};", check])


def _table(kernel: Kernel, extents: Sequence[int]) -> str:
    if extents and len(extents) != len(kernel.parameters):
        raise ValueError(f"kernel '{kernel.name}': {len(extents)} extents for {len(kernel.parameters)} parameters")
    calls = ", ".join(f"*({kind} *)arguments[{i}]" for i, (kind, _) in enumerate(kernel.parameters))
    sizes = extents or [0] * len(kernel.parameters)
    arguments = ", ".join(
        f'{{"{name}", {"true" if kind.endswith("*") else "false"}, sizeof({kind}), {size}}}'
        for (kind, name), size in zip(kernel.parameters, sizes, strict=True)
    )
    block = f"gf_shared_{kernel.name}"
    arrays = ", ".join(
        f'{{"{m["name"]}", offsetof({block}, {m["name"]}), sizeof({block}::{m["name"]})}}' for m in kernel.shared
    )
    name, most = kernel.name, kernel.most_threads
    barriers = f"{int(kernel.has_barriers)}, {int(kernel.has_warp_barriers)}"
    return f"""static void gf_call_{name}(void *const *arguments) {{ (void)arguments; {name}({calls}); }}
static const gf::Argument gf_arguments_{name}[] = {{{arguments or "{}"}}};
static const gf::Array gf_arrays_{name}[] = {{{arrays or "{}"}}};
#define gf_row_{name} {{"{name}", gf_call_{name}, {most}, {barriers}, gf_arguments_{name}, {len(kernel.parameters)}, \
gf_arrays_{name}, {len(kernel.shared)}, {f"sizeof({block})" if kernel.shared else "0"}}}"""
