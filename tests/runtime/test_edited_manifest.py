"""Manifests that somebody edited, with a right checksum: one line says what is wrong, and nothing ends the process.

Arrays are made by the manifest's shapes and filled by the library, so every disagreement must be found before a call.
"""

from __future__ import annotations

import copy
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gfcompile.runtime.manifest import AGAIN, write_manifest
from tests.manifests import manifest_of

from .conftest import Build
from .trainer import link_trainer
from .variants import REFUSED, assert_harmless, prepare, try_each

Change = Callable[[dict[str, Any]], Any]
DIGEST = "0" * 64
DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]

# What the text says of a manifest that is no manifest, and of one that is another library's.
SHAPELESS: list[tuple[Change, str]] = [
    (lambda m: m.pop("inputs"), "has no inputs"),
    (lambda m: m["inputs"][1].pop("shape"), "has no inputs[1].shape"),
    (lambda m: m["loss"].pop("settings"), "has no loss.settings"),
    (lambda m: m["outputs"][0].pop("key"), "has no outputs[0].key"),
    (lambda m: m.update(inputs={}), "inputs is an object of 0, expected a list"),
    (lambda m: m.update(loss=None), "loss is 'None', expected an object"),
    (lambda m: m.update(batch="4"), "batch is '4', expected a whole number of 1 or more"),
    (lambda m: m.update(batch=True), "batch is 'True', expected a whole number of 1 or more"),
    (lambda m: m.update(batch=0), "batch is '0', expected a whole number of 1 or more"),
    (lambda m: m.update(lr=float("inf")), "lr is 'inf', expected a number that float32 holds, 0 or more"),
    (lambda m: m.update(lr=float("nan")), "lr is 'nan', expected a number that float32 holds, 0 or more"),
    (lambda m: m.update(dropout=0), "dropout is '0', expected true or false"),
    (lambda m: m["state"][2].update(name="\ud800"), r"state[2].name is '\ud800', expected a text"),
    (lambda m: m["state"][2].update(name="a\0b"), r"state[2].name is 'a\x00b', expected a text"),
    (lambda m: m["state"][0].update(dtype="O"), "state[0].dtype is 'O', expected the name of a type"),
    (lambda m: m["state"][0].update(dtype=[]), "state[0].dtype is a list of 0, expected the name of a type"),
    (lambda m: m["inputs"][0].update(shape=[4, 2.0]), "inputs[0].shape[1] is '2.0', expected a whole number"),
    (lambda m: m["inputs"][0].update(shape=[4, -2]), "inputs[0].shape[1] is '-2', expected a whole number"),
    (lambda m: m["inputs"][0].update(shape=[4, 2**63]), "inputs[0].shape[1] is '9223372036854775808', expected a whole"
     " number"),
    (lambda m: m["inputs"][0].update(shape=DEEP), "inputs[0].shape[0] is a list of 1, expected a whole number"),
    (lambda m: m["state"][0]["layout"].update(permute="01"), "state[0].layout.permute is '01', expected a list"),
    (lambda m: m.update(refusals=[["fc"]]), "refusals[0] is a list of 1, expected a list of 2"),
    (lambda m: m.update(gradients=[["fc.bias"]]), "gradients[0] is a list of 1, expected a text"),
    (lambda m: m.update(shared=["fc.bias"]), "shared is a list of 1, expected an object"),
    (lambda m: m.update(shared={"fc.bias": 1}), "shared['fc.bias'] is '1', expected a text"),
    (lambda m: m.update(optimizer={"name": "sgd", "groups": {"*": 1}}), "optimizer.groups['*'] is '1', expected an"
     " object"),
    (lambda m: m["checkpoint"].update(steps="-1"), "checkpoint has an unknown 'steps'"),
    (lambda m: m.update(build_id="x" * 64), f"build_id is '{'x' * 40}...', expected 64 hex digits"),
    (lambda m: m.update(library="../linear_step/libstep.so"), "library is '../linear_step/libstep.so', expected a plain"
     " file name"),
    (lambda m: m.update(library="/etc/passwd"), "library is '/etc/passwd', expected a plain file name"),
    (lambda m: m.update(library=".."), "library is '..', expected a plain file name"),
    (lambda m: m.update(library=""), "library is '', expected a plain file name"),
    (lambda m: m.update(library="libstep.so\n"), r"library is 'libstep.so\n', expected a plain file name"),
    (lambda m: m["files"].update({"../secret": DIGEST}), "a key of files is '../secret', expected a plain file name"),
    (lambda m: m["files"].update({"libstep.so": None}), "files['libstep.so'] is 'None', expected 64 hex digits"),
]  # fmt: skip
FOREIGN: list[tuple[Change, str]] = [
    (lambda m: m["inputs"].append(m["inputs"][0]), "the number of inputs, '4' and '3'"),
    (lambda m: m["inputs"].pop(), "the number of inputs, '2' and '3'"),
    (lambda m: m["inputs"].reverse(), "inputs[0].name, 'sample_weight' and 'x'"),
    (lambda m: m["inputs"][1].update(role="input"), "inputs[1].role, 'input' and 'target'"),
    (lambda m: m["inputs"][0].update(shape=[4, 1]), "inputs[0].shape, '[4, 1]' and '[4, 2]'"),
    (lambda m: m["inputs"][0].update(shape=[2**62, 2]), "inputs[0].shape, '[4611686018427387904, 2]' and '[4, 2]'"),
    (lambda m: m["inputs"][2].update(shape=[]), "inputs[2].shape, '[]' and '[4]'"),
    (lambda m: m["inputs"][0].update(dtype="int8"), "inputs[0].dtype, 'int8' and 'float32'"),
    (lambda m: m["outputs"][0].update(shape=[1, 1]), "outputs[0].shape, '[1, 1]' and '[4, 3]'"),
    (lambda m: m["outputs"][0].update(dtype="float16"), "outputs[0].dtype, 'float16' and 'float32'"),
    (lambda m: m.update(outputs=[]), "the number of outputs, '0' and '1'"),
    (lambda m: m["state"].pop(), "the number of state, '5' and '6'"),
    (lambda m: m["state"][0].update(layout=None), "state[0].layout, 'None' and '{'shape': [2, 3], 'permute': [1, 0]}'"),
    (lambda m: m["state"][0]["layout"].update(permute=[7, 9]), "state[0].layout,"
     " '{'shape': [2, 3], 'permute': [7, 9]}' and '{'shape': [2, 3], 'permute': [1, 0]}'"),
    (lambda m: m["state"][1].update(name="fc.weight"), "state[1].name, 'fc.weight' and 'fc.bias'"),
    (lambda m: m["gradients"].reverse(), "gradients, '['fc.bias', 'fc.weight']' and '['fc.weight', 'fc.bias']'"),
    (lambda m: m.update(gradients=[]), "gradients, '[]' and '['fc.weight', 'fc.bias']'"),
    (lambda m: m.update(batch=3), "batch, '3' and '4'"),
    (lambda m: m.update(batch=2**62), "batch, '4611686018427387904' and '4'"),
    (lambda m: m["loss"].update(classes=5), "loss.classes, '5' and '3'"),
    (lambda m: m["loss"].update(classes=None), "loss.classes, 'None' and '3'"),
    (lambda m: m["loss"].update(settings={"ignore_index": 99}), "loss.settings.ignore_index, '99' and 'None'"),
    (lambda m: m.pop("features"), "the number of features.tensors, '0' and '2'"),
    (lambda m: m["features"]["tensors"][1].update(shape=[4, 100]), "features.tensors[1].shape, '[4, 100]' and '[4]'"),
]  # fmt: skip


@pytest.fixture
def whole(build: Build, batch: tuple[np.ndarray, np.ndarray]) -> Path:
    """A step of every kind of tensor: labels, features."""
    folder = build("LABELS", "GF_FEATURES")
    prepare(folder, batch[0], np.array([0, 1, 2, 0]))
    return folder


def edited(folder: Path, change: Change) -> dict[str, Any]:
    manifest = copy.deepcopy(manifest_of(folder))
    change(manifest)
    return {"manifest": manifest}


@pytest.mark.slow
def test_what_is_wrong_is_said(whole: Path) -> None:
    expected = [f"{REFUSED}'{whole / 'manifest.json'}': {text}; {AGAIN}" for _, text in SHAPELESS]
    start = f"{REFUSED}'{whole}': the manifest and the library disagree about"
    expected += [f"{start} {text}; {AGAIN}" for _, text in FOREIGN]
    changes = [change for change, _ in (*SHAPELESS, *FOREIGN)]
    assert try_each(whole, [edited(whole, change) for change in changes])[1:] == expected


JUNK = [None, True, 0, -1, 1, 3, 5, 2**31, 2**62, 2**70, 1e308, float("nan"), "", "x", "float64", "int64", "..", "\0",
        [], {}, [[]], [1, 2], {"a": 1}, DEEP]  # fmt: skip


def edit_somewhere(manifest: Any, draw: random.Random) -> None:
    """Delete, replace, repeat or rename one entry, at any depth."""
    node = manifest
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = draw.choice(keys)
        if not isinstance(node[key], (dict, list)) or not node[key] or draw.random() < 0.3:
            break
        node = node[key]
    what = draw.choice(("delete", "replace", "replace", "repeat", "rename"))
    if what == "delete":
        del node[key]
    elif what == "replace":
        node[key] = copy.deepcopy(draw.choice(JUNK))
    elif isinstance(node, list):
        node.insert(draw.randrange(len(node) + 1), copy.deepcopy(node[key]))
    else:
        other = draw.choice(keys) if what == "rename" else "other"
        node[other] = copy.deepcopy(node[key])


@pytest.mark.slow
def test_anything_anywhere(whole: Path) -> None:
    """400 random edits: refused, or of no effect on what is computed."""
    draw = random.Random(0)
    variants = [edited(whole, lambda manifest: edit_somewhere(manifest, draw)) for _ in range(400)]
    assert_harmless(try_each(whole, variants), 200)


@pytest.mark.slow
def test_anything_anywhere_in_gf_train(whole: Path) -> None:
    """It reads less of a manifest: an edit is refused in one line, or it trains as without."""
    program, draw = link_trainer(whole), random.Random(1)
    words = ["--data", "x.npy", "--labels", "y.npy", "--steps", "1", "--progress", "0", "--threads", "1"]
    found: list[tuple[int, str]] = []
    for variant in [{"manifest": manifest_of(whole)}] + [
        edited(whole, lambda manifest: edit_somewhere(manifest, draw)) for _ in range(150)
    ]:
        write_manifest(whole, variant["manifest"])
        done = subprocess.run([program, *words], cwd=whole, capture_output=True, text=True, check=False, timeout=60)
        found.append((done.returncode, done.stdout if done.returncode == 0 else done.stderr))
    assert found[0][0] == 0
    refused = [said for code, said in found if code == 1]
    assert all(said.startswith("gf-train: '") and said.count("\n") == 1 for said in refused), refused
    assert len(refused) > 5
    assert {each for each in found if each[0] != 1} == {found[0]}
