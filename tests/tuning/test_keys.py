"""Keys: equal for what is the same, in every process; different for whatever makes a difference."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import tvm
from tvm import te, tirx

from gfcompile.codegen.schedules import choices
from gfcompile.codegen.scheduling import kernel_key
from gfcompile.codegen.tuned import keys
from gfcompile.codegen.tuned.keys import kernel_hash, target_key, versions
from gfcompile.targets import find_target

SOURCE = Path(__file__).parents[2]


def make(shape: tuple[int, ...] = (8, 4), name: str = "one", scale: float = 2.0) -> tirx.PrimFunc:
    """Row sums of exponentials: operators, a reduction and a literal."""
    given = te.placeholder(shape, name=f"{name}_in")
    k = te.reduce_axis((0, shape[-1]), name=f"{name}_k")
    out = te.compute(
        shape[:-1], lambda *at: te.sum(te.exp(given[(*at, k)]) * tirx.const(scale, "float32"), k), name=f"{name}_out"
    )
    return te.create_prim_func([given, out]).with_attr("global_symbol", name)


def test_names_do_not_matter_and_all_else_does() -> None:
    assert kernel_hash(make()) == kernel_hash(make(name="two"))
    assert kernel_key(make()) == kernel_key(make(name="two"))
    assert kernel_hash(make()) == kernel_hash(make().without_attr("global_symbol"))
    assert kernel_hash(make(scale=3.0)) != kernel_hash(make())
    assert kernel_hash(make().with_attr("gf.scheduled", True)) != kernel_hash(make())


def test_shapes_of_the_same_small_numbers_differ() -> None:
    shapes = list(itertools.product(range(1, 6), repeat=3))
    hashes = {kernel_hash(make(shape)) for shape in shapes}
    assert len(hashes) == len(shapes)
    assert all(len(each) == 16 and int(each, 16) >= 0 for each in hashes)


@pytest.mark.slow
def test_another_process_finds_the_same_hash() -> None:
    """Objects lie elsewhere there: sixteen of them made before, other seeds."""
    child = (
        "from tests.tuning.test_keys import kernel_hash, make\n"
        "before = [make(scale=float(i)) for i in range(16)]\n"
        "print(kernel_hash(make(name='elsewhere')), kernel_hash(make((3, 5, 7))))"
    )
    environment = {"PYTHONHASHSEED": "77", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", child], cwd=SOURCE, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [kernel_hash(make()), kernel_hash(make((3, 5, 7)))]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("x86-64-v3", "x86-64-v3 x86_64 lanes 8 registers 16 cores 4 cache 256K"),
        ("rpi3", "cortex-a53 aarch64 +neon lanes 4 registers 32 cores 4 cache 128K in order"),
        (
            "jetson-nano",
            "cortex-a57 aarch64 +neon lanes 4 registers 32 cores 4 cache 512K gpu sm_53 multiprocessors 1",
        ),
    ],
)
def test_the_keys_of_shipped_targets(name: str, key: str) -> None:
    assert target_key(find_target(name)) == key


def test_a_key_holds_what_code_depends_on_and_nothing_else() -> None:
    target = find_target("jetson-nano")
    assert target.gpu is not None
    key = target_key(target)
    same = {"name": "mine", "description": "x", "link": ["cc"], "glibc": None, "libc": "musl", "emulator": ()}
    assert target_key(dataclasses.replace(target, **same)) == key
    gpu = dataclasses.replace(target.gpu, multiprocessors=2)
    others = [
        *({"tvm": {**target.tvm, name: value}} for name, value in (("mcpu", "cortex-a72"), ("mattr", ["+neon", "+a"]))),
        {"tvm": {**target.tvm, "mtriple": "x86_64-linux-gnu"}},
        *({name: 3} for name in ("lanes", "registers", "cores")),
        *({"cache": 1024}, {"in_order": True}, {"gpu": None}, {"gpu": gpu}),
    ]
    found = {target_key(dataclasses.replace(target, **each)) for each in others}
    assert len(found | {key}) == len(others) + 1


def test_versions_are_those_of_tvm_and_of_the_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    assert versions() == f"tvm {tvm.__version__}, templates {choices.TEMPLATES}"
    monkeypatch.setattr(keys, "TEMPLATES", 12)
    assert versions().endswith(", templates 12")
