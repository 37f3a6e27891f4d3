"""Memory: what was planned is what is taken, nothing is taken in a step, and nobody writes beside their buffer."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gfcompile.artifact.library import GUARD, Sources, emit
from gfcompile.codegen.build import symbol_of
from gfcompile.codegen.link import link_library
from gfcompile.codegen.program import Call
from gfcompile.compiler import write_step
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Analysis, Job
from gfcompile.optimizers import SGD
from gfcompile.runtime.errors import StepError
from gfcompile.runtime.library import Library
from gfcompile.runtime.step import Step
from gfcompile.settings.schema import Request
from gfcompile.targets import find_target
from tests.lean import analyse_lean
from tests.missing import skip_for_want
from tests.models.zoo import INPUTS, ZOO
from tests.runtime.harness import build_program, write_arrays
from tests.selection import often
from tests.store import Store

pytestmark = pytest.mark.slow

CACHED = "separable"  # is compiled with its frozen prefix cut off as well
# residual as ResNet, depthwise as MobileNet; with batch norms of both kinds
NETS: dict[str, str | dict[str, str]] = {"squeeze_excite": "train", "separable": {"*": "eval", "4.*": "train"}}
BUILDS = ["release", "debug"]
THREADS, STEPS = 3, 100
ALIGNMENT = 64


def batch_of(net: str, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(INPUTS[net], generator=generator), torch.randint(0, 5, INPUTS[net][:1], generator=generator)


Compiled = Callable[[str, str], Path]


@pytest.fixture(scope="module")
def compiled(store: Store) -> Compiled:
    """The artifact of a net, as a release or for debugging."""

    def make(net: str, kind: str) -> Path:
        options = {"layers": 2, "r": 2, "lr": 0.05, "momentum": 0.9, "batchnorm": NETS[net]}
        options |= {"cache_prefix": net == CACHED, "debug": kind == "debug"}
        return store.compiled(ZOO[net](), batch_of(net, 0)[0], f"{net}_step", **options)

    return make


# ---- what is taken, and when


@dataclass(frozen=True)
class Counted:
    """What count_step.c saw: (call, bytes) by phase, and the losses of its steps."""

    requests: dict[str, list[tuple[str, int]]]
    losses: list[float]
    cached_losses: list[float]

    def asked(self, phase: str) -> list[tuple[str, int]]:
        return [(call, count) for call, count in self.requests[phase] if call != "pages"]

    def new_pages(self, phase: str) -> int:
        return dict(self.requests[phase])["pages"]


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The program, and the library that is loaded before it."""
    if os.confstr("CS_GNU_LIBC_VERSION") is None:
        pytest.skip("the counting allocator is written for glibc, which this machine does not have")
    folder = tmp_path_factory.mktemp("counter")
    shim = build_program("count_allocations.c", folder / "libcount.so", "-shared", "-fvisibility=default")
    return build_program("count_step.c", folder / "count_step"), shim


@pytest.fixture(scope="module", params=often(BUILDS, ["release"]))
def counted(
    request: pytest.FixtureRequest,
    compiled: Compiled,
    counter: tuple[Path, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, Counted]:
    """An artifact, and what a process of its own saw of it."""
    artifact = compiled(CACHED, request.param)
    with Step.load(artifact) as step:
        arrays = write_arrays(step, *batch_of(CACHED, 1), tmp_path_factory.mktemp("arrays") / "arrays")
    program, shim = counter
    command = [str(program), str(artifact / "libstep.so"), str(arrays), str(THREADS), str(STEPS)]
    environment = {**os.environ, "LD_PRELOAD": str(shim)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    requests: dict[str, list[tuple[str, int]]] = {}
    losses: dict[str, list[float]] = {"loss": [], "cached_loss": []}
    for line in done.stdout.splitlines():
        phase, *rest = line.split()
        if phase in losses:
            losses[phase].append(float.fromhex(rest[0]))
        else:
            requests.setdefault(phase, []).append((rest[0], int(rest[1])))
    return artifact, Counted(requests, losses["loss"], losses["cached_loss"])


def test_the_library_takes_what_was_planned(counted: tuple[Path, Counted]) -> None:
    """The arena, the state, a scratch a thread: each asked for once, at creation, in exactly its planned size."""
    artifact, found = counted
    manifest = json.loads((artifact / "manifest.json").read_text())
    planned = dict(found.requests["planned"])
    if not manifest["debug"]:  # a debug arena is larger than the report's by its guards
        assert planned["arena"] == json.loads((artifact / "report.json").read_text())["memory"]["arena_bytes"]
    sizes = [math.prod(entry["shape"]) * np.dtype(entry["dtype"]).itemsize for entry in manifest["state"]]
    assert planned["state"] == sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)
    taken = Counter(size for call, size in found.asked("create") if call == "aligned_alloc")
    assert taken >= Counter(planned.values())
    tables = taken - Counter(planned.values())
    assert tables.total() == 3  # the step, the pointers to its tensors, what each thread keeps
    assert sum(tables.elements()) < 256 + 8 * len(sizes) + ALIGNMENT + 640 * THREADS
    of_threads = [size for call, size in found.asked("create") if call != "aligned_alloc"]
    assert sum(of_threads) < 4096 * THREADS  # the C library's, for the threads' locals


@pytest.mark.parametrize(
    "phase", ["train", "gradients", "predict", "features", "train_features", "refused", "elsewhere"]
)
def test_no_step_allocates(counted: tuple[Path, Counted], phase: str) -> None:
    """The first step included, on all threads, and from a thread that did not create the step."""
    _, found = counted
    assert found.asked(phase) == []
    assert found.new_pages(phase) == 0


def test_the_counted_steps_did_train(counted: tuple[Path, Counted]) -> None:
    artifact, found = counted
    with Step.load(artifact, THREADS) as step:
        expected = [step.train(*batch_of(CACHED, 1), lr=0.05) for _ in range(STEPS)]
    assert found.losses == expected
    assert found.cached_losses == expected
    assert expected[-1] < expected[0]


def test_the_counter_sees_every_kind_of_request(counted: tuple[Path, Counted]) -> None:
    """The control: the same counter, over calls that do allocate."""
    _, found = counted
    assert {
        ("malloc", 12345),  # on a thread of its own
        ("malloc", 1001),
        ("realloc", 1002),
        ("calloc", 1003),
        ("aligned_alloc", 1024),
        ("posix_memalign", 1005),
        ("memalign", 1006),
        ("mmap", 1 << 20),
        ("sbrk", 0),
        ("brk", 0),
    } <= set(found.asked("control"))
    assert found.new_pages("control") >= (1 << 20) // os.sysconf("SC_PAGE_SIZE")


# ---- the debug build


@pytest.mark.parametrize("net", often(NETS, [CACHED]))
def test_a_debug_build_gives_the_same_bits(compiled: Compiled, net: str) -> None:
    """No guard is broken, and nobody reads what was not written: it would be NaN here."""
    with Step.load(compiled(net, "release"), 2) as release, Step.load(compiled(net, "debug"), 2) as debug:
        for seed in range(5):
            x, y = (tensor.numpy() for tensor in batch_of(net, seed))
            found, expected = debug.gradients(x, y), release.gradients(x, y)
            assert {name: array.tobytes() for name, array in found.items()} == {
                name: array.tobytes() for name, array in expected.items()
            }
            assert debug.train(x, y) == release.train(x, y)
            if net == CACHED:
                features = release.features(x)
                assert [part.tobytes() for part in debug.features(x)] == [part.tobytes() for part in features]
                assert debug.train_features(features, y) == release.train_features(features, y)
            assert debug.predict(x).tobytes() == release.predict(x).tobytes()
        after, wanted = debug.state_dict(), release.state_dict()
        assert [after[name].tobytes() for name in wanted] == [array.tobytes() for array in wanted.values()]


def test_a_debug_build_says_so_and_reports_the_release(compiled: Compiled) -> None:
    release, debug = (compiled("separable", kind) for kind in BUILDS)
    assert json.loads((release / "manifest.json").read_text())["debug"] is False
    assert json.loads((debug / "manifest.json").read_text())["debug"] is True
    reports = [json.loads((folder / "report.json").read_text())["memory"] for folder in (release, debug)]
    assert reports[0] == reports[1]
    with Step.load(debug) as step:
        assert step._library.arena_bytes >= reports[0]["arena_bytes"] + 2 * GUARD


@dataclass(frozen=True)
class Tiny:
    """A step small enough to be linked many times: its analysis, its sources by kind, an artifact, a batch."""

    analysis: Analysis
    sources: dict[str, Sources]
    artifact: Path
    batch: tuple[np.ndarray, np.ndarray]

    def link(self, library: Path, kind: str, *flags: str, replaced: dict[Path, Path] | None = None) -> Path:
        sources = self.sources[kind]
        objects = [(replaced or {}).get(path, path) for path in sources.objects]
        link_library(sources.driver, objects, library, find_target("native"), flags)
        return library


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 20),
    )  # fmt: skip
    x, y = torch.randn(2, 3, 9, 9), torch.tensor([1, 3])
    job = Job(net, (x,), resolve_loss("cross_entropy"), Request(layers=2), SGD(0.9))
    analysis = analyse_lean(job)
    folder = tmp_path_factory.mktemp("tiny")
    sources = {kind: emit(analysis, folder / kind, str, kind == "debug") for kind in BUILDS}
    artifact = write_step(analysis, folder / "tiny_step", str)
    return Tiny(analysis, sources, artifact, (x.numpy(), y.numpy()))


def break_kernel(tiny: Tiny, kind: str, body: str, folder: Path) -> tuple[Library, Call]:
    """A library in which the kernel of the loss does `body` instead; `input` and `output` are its buffers."""
    program, sources = tiny.analysis.programs["train"].program, tiny.sources[kind]
    call = program.calls[program.loss_call()]
    symbol = symbol_of(call.kernel, tiny.analysis.scheduler(program.functions[call.kernel]))
    right = next(path for path in sources.objects if path.stem == symbol)
    names = [f"argument{i}" for i in range(len(call.inputs) + len(call.outputs))]
    sizes = [program.buffers[buffer].bytes for buffer in (*call.inputs, *call.outputs)]
    text = f"""
        #include <string.h>
        enum {{ INPUT_BYTES = {sizes[0]}, OUTPUT_BYTES = {sizes[-1]} }};
        int {right.stem}({", ".join(f"char *{name}" for name in names)}) {{
          char *input = {names[0]}, *output = {names[-1]};
          (void)input, (void)output;
          {body}
          return 0;
        }}"""
    source, wrong = folder / "wrong.c", folder / "wrong.o"
    source.write_text(text)
    subprocess.run(["cc", "-w", "-fPIC", "-c", str(source), "-o", str(wrong)], check=True)
    library = tiny.link(folder / "libwrong.so", kind, replaced={right: wrong})
    return Library(library, sources.build_id), call


def train_once(tiny: Tiny, library: Library) -> float:
    with Step.load(tiny.artifact) as step:
        inputs, _ = step._door.stage("train", *tiny.batch)
        handle = library.create(2)
        try:
            return library.train(handle, inputs, 0.1)
        finally:
            library.destroy(handle)


@pytest.mark.parametrize(
    ("body", "victim", "damage"),
    [
        ("memset(output, 0, OUTPUT_BYTES + 4);", "output", "4 bytes past the end"),
        ("memset(output, 0, OUTPUT_BYTES); output[OUTPUT_BYTES + 127] = 1;", "output", "128 bytes past the end"),
        ("memset(output - 8, 0, OUTPUT_BYTES + 8);", "output", "8 bytes before the start"),
        ("memset(output, 0, OUTPUT_BYTES); input[INPUT_BYTES] = 1;", "input", "1 bytes past the end"),
    ],
)
def test_a_kernel_that_writes_beside_a_buffer_is_named(
    tiny: Tiny, body: str, victim: str, damage: str, tmp_path: Path
) -> None:
    library, call = break_kernel(tiny, "debug", body, tmp_path)
    program = tiny.analysis.programs["train"].program
    index = call.inputs[0] if victim == "input" else call.outputs[-1]
    buffer, born = program.buffers[index], next(i for i, call in enumerate(program.calls) if index in call.outputs)
    with pytest.raises(StepError) as caught:
        train_once(tiny, library)
    assert str(caught.value) == (
        f"train: kernel '{call.kernel}' (call {program.loss_call()}) wrote up to {damage} of '{buffer.name}'"
        f" ({buffer.bytes} bytes, made by call {born}); report this plan as a bug"
    )


def test_a_kernel_that_writes_nothing_shows_in_the_loss(tiny: Tiny, tmp_path: Path) -> None:
    """What no kernel has written is NaN in a debug build; in a release it is whatever lay there, here zeros."""
    (tmp_path / "release").mkdir()
    library, _ = break_kernel(tiny, "debug", "", tmp_path)
    assert math.isnan(train_once(tiny, library))
    library, _ = break_kernel(tiny, "release", "", tmp_path / "release")
    assert math.isfinite(train_once(tiny, library))


# ---- sanitizers


SANITIZERS = {"address,undefined": "AddressSanitizer and UndefinedBehaviorSanitizer", "thread": "ThreadSanitizer"}


def sanitizer_flags(sanitizer: str, folder: Path) -> list[str]:
    """The compiler's flags, or a skip where its libraries are missing."""
    flags = ["-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
    source = folder / "empty.c"
    source.write_text("int main(void) { return 0; }\n")
    command = ["cc", *flags, str(source), "-o", str(folder / "empty")]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        skip_for_want(f"cc cannot link {SANITIZERS[sanitizer]} here; install the compiler's sanitizer libraries")
    if subprocess.run([str(folder / "empty")], capture_output=True, check=False).returncode:
        pytest.skip(f"{SANITIZERS[sanitizer]} cannot run here: this kernel's address layout is too random for it")
    return flags


Sanitized = Callable[[str, str], tuple[Path, Path]]


@pytest.fixture(scope="module")
def sanitized(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Sanitized:
    """tour_step.c and a library whose driver and runtime are under the sanitizer. The kernels come from LLVM,
    uninstrumented: of them the sanitizers see nothing, the guards of the debug build do."""

    @cache
    def make(kind: str, sanitizer: str) -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp("sanitized")
        flags = sanitizer_flags(sanitizer, folder)
        program = build_program("tour_step.c", folder / "tour_step", *flags)
        return program, tiny.link(folder / "libstep.so", kind, *flags)

    return make


def tour(tiny: Tiny, built: tuple[Path, Path], folder: Path, without: str = "") -> subprocess.CompletedProcess[str]:
    program, library = built
    with Step.load(tiny.artifact) as step:
        arrays = write_arrays(step, *tiny.batch, folder / "arrays")
    if without:
        (arrays / without).unlink()
    command = [str(program), str(library), str(arrays)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize(
    ("kind", "sanitizer"),
    often(itertools.product(BUILDS, SANITIZERS), [("debug", "address,undefined"), ("release", "thread")]),
)
def test_driver_and_runtime_are_clean(
    tiny: Tiny, sanitized: Sanitized, kind: str, sanitizer: str, tmp_path: Path
) -> None:
    done = tour(tiny, sanitized(kind, sanitizer), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_the_sanitizer_would_see_the_driver(tiny: Tiny, sanitized: Sanitized, tmp_path: Path) -> None:
    """The control: an array of two inputs, of which the driver reads the third, the weights of the samples."""
    done = tour(tiny, sanitized("release", "address,undefined"), tmp_path, without="input2")
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
    assert "gf_program_train" in done.stderr
