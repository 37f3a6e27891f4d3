"""The corpus: small whole files, and a few broken ones, that every harness starts from.

    python -m tests.fuzz.seeds [FOLDER]

writes it again below tests/fuzz/corpus, or below FOLDER. Inputs that were findings lie there too, as `fixed-...`, and
stay.
"""

from __future__ import annotations

import io
import json
import struct
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gfcompile.runtime import checkpoint, tensorfile
from tests.frontend.onnx_files import ints, model_of, random
from tests.fuzz.harness import CORPUS
from tests.fuzz.model_seeds import model_seeds
from tests.runtime.conftest import manifest, weights

BUILD_ID = "b0"  # of the program that c_programs.py builds
SEPARATOR = b"\n====\n"  # between the files of an artifact: c/artifact.c
FIXED = "fixed-"

Seeds = Iterator[tuple[str, bytes]]


def joined(chunks: Sequence[bytes | memoryview]) -> bytes:
    return b"".join(map(bytes, chunks))


def tensor_seeds() -> Seeds:
    kinds = {name: np.arange(3).astype(name) for name in tensorfile.CODES}
    yield "empty", joined(tensorfile.encode({}, {}))
    yield "dtypes", joined(tensorfile.encode(kinds, {}))
    yield "shapes", joined(tensorfile.encode({"none": np.zeros((2, 0)), "é": np.zeros((1, 2, 3)), "": np.array(1)}, {}))
    yield "words", joined(tensorfile.encode({"a": np.zeros(2, np.float32)}, {"format": "pt", "note": 'a "b"\\\n'}))
    yield "cut", joined(tensorfile.encode(kinds, {}))[:-1]
    bytes_at = '{"dtype":"U8","shape":[2],"data_offsets":'
    yield "overlap", tensors_of(f'{{"a":{bytes_at}[0,2]}},"b":{bytes_at}[1,3]}}}}', b"abc")
    yield "header_cut", (1 << 40).to_bytes(8, "little") + b"{}"
    entry = '{"dtype":"none","shape":[],"data_offsets":[0,0]}'
    yield "control_characters", tensors_of(rf'{{"a\u001b[31m\n":{entry}}}', b"")
    yield "half_a_pair", tensors_of(rf'{{"\ud800":{entry}}}', b"")
    yield "huge", tensors_of('{"a":{"dtype":"F64","shape":[4611686018427387904,4],"data_offsets":[0,0]}}', b"")


def tensors_of(header: str, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header.encode() + data


def state() -> dict[str, np.ndarray]:
    """What a checkpoint of tests/runtime/linear_program.c holds."""
    own = weights()
    return {
        "parameter/fc.weight": own["fc.weight"],
        "parameter/fc.bias": own["fc.bias"],
        "optimizer/momentum_buffer/fc.weight": np.full((2, 3), 0.5, np.float32),
        "optimizer/momentum_buffer/fc.bias": np.zeros(3, np.float32),
        "buffer/fc.count": own["fc.count"],
    }


def checkpoint_seeds() -> Seeds:
    words = {
        "format": checkpoint.FORMAT, "artifact": "linear_step", "build_id": BUILD_ID, "compatible": "c0",
        "frozen": "f0", "steps": "3", "lr": "0.25", "note": 'epoch 1, "a"',
    }  # fmt: skip
    drawn = {**words, "draws": checkpoint.DRAWS.format(7, 3, 1)}
    yield "whole", joined(tensorfile.seal(state(), words))
    yield "draws", joined(tensorfile.seal(state(), drawn))
    yield "broken_seal", joined(tensorfile.seal(state(), words)).replace(b'"3"', b'"4"')
    yield "large_numbers", joined(tensorfile.seal(state(), {**words, "steps": "9223372036854775807", "lr": "1e308"}))
    yield "other_shape", joined(tensorfile.seal({**state(), "buffer/fc.count": np.zeros(0, np.int64)}, words))
    yield "no_note", joined(tensorfile.seal(state(), {key: word for key, word in words.items() if key != "note"}))


def training_seeds() -> Seeds:
    """The format of c/training.c."""

    def written(first: int, note: str, steps: int = 3, lr: str = "0.25") -> bytes:
        words = {
            "format": checkpoint.FORMAT, "artifact": "linear_step", "build_id": BUILD_ID, "compatible": "c0",
            "frozen": "f0", "steps": str(steps), "lr": lr, "note": note,
        }  # fmt: skip
        return bytes([first]) + joined(tensorfile.seal(state(), words))

    note = "gf-train seed {} samples {} size 4 epoch {} batch {}"
    yield "begun", written(1, note.format(0, 6, 0, 1))
    yield "all_done", written(0, note.format(7, 6, 1, 0))
    yield "other_data", written(0, note.format(7, 60000, 1, 0))
    yield "not_ours", written(2, "epoch 3")
    yield "late_batch", written(0, note.format(0, 6, 0, 9))
    yield "far", written(4, note.format(2**64 - 1, 6, 2**63 - 1, 2**63 - 1), steps=2**63 - 1)
    yield "many_steps", written(5, note.format(0, 6, 0, 0), steps=2**63 - 1)
    yield "large_rate", written(1, note.format(0, 6, 0, 0), lr="1e300")


def artifact_of(own_weights: Mapping[str, np.ndarray] | None = None, **changes: Any) -> bytes:
    """The bundle of c/artifact.c: a manifest with marks for checksums, then its files."""
    random_numbers = np.random.default_rng(1)
    x, y = random_numbers.normal(size=(4, 2)).astype(np.float32), random_numbers.normal(size=(4, 3)).astype(np.float32)
    one = np.ones(4, np.float32)
    selftest = {
        "input/x": x, "target/target": y, "sample_weight/sample_weight": one,
        "loss": one[:1], "tolerance": np.array([1e-3], np.float32),
        "norm/fc.weight": one[:1], "norm/fc.bias": one[:1], "values/fc.weight": one, "values/fc.bias": one[:3],
    }  # fmt: skip
    files = [own_weights or weights(), {"scale": np.array([1.5], np.float32)}, selftest]
    names = ("weights", "constants", "selftest")
    table = {f"{name}.safetensors": f"@{index}@" for index, name in enumerate(names, 1)} | {"libstep.so": "@4@"}
    seal = {"sha256": tensorfile.ZEROS.decode()}  # the harnesses try it so, and with the digits that fit
    content = {**seal, **manifest(), "build_id": BUILD_ID, "files": table, **changes}
    text = json.dumps(content, indent=1).encode()
    return SEPARATOR.join([text, *(joined(tensorfile.encode(each, {})) for each in files)])


def artifact_seeds() -> Seeds:
    whole = artifact_of()
    yield "whole", whole
    text, *files = artifact_of(format=1).split(SEPARATOR)
    unsealed = {key: value for key, value in json.loads(text).items() if key != "sha256"}
    yield "unsealed", SEPARATOR.join([json.dumps(unsealed).encode(), *files])
    yield "other_format", artifact_of(format=77)
    yield "no_files", artifact_of(files={})
    small = {name: value for name, value in weights().items() if name != "fc.bias"}
    yield "other_shape", artifact_of({**small, "fc.bias": np.zeros(1, np.float32)})
    yield "no_selftest", SEPARATOR.join(whole.split(SEPARATOR)[:3])
    yield "manifest_alone", whole.split(SEPARATOR)[0]


def json_seeds() -> Seeds:
    yield "values", b'{"a": [1, -2.5e+3, 0, 1E-7, true, false, null, "x"], "b": {}, "c": []}'
    yield "strings", rb'["\u00e9\ud83d\ude00\"\\\/\b\f\n\r\t", "", " \u0001"]'
    yield "utf8", '{"é": "😀", "é": "twice"}'.encode()
    yield "deep", b"[" * 32 + b"]" * 32
    yield "too_deep", b"[" * 40 + b"]" * 40
    yield "whole_numbers", b"[4611686018427387904, 9223372036854775808, 18446744073709551616, 00, 1.0]"
    yield "spaces", b' \n\t\r{ "a" :\t[ ] , "b":1 }\n '
    yield "cut_escape", rb'"\u00'


def npy_of(array: np.ndarray, version: tuple[int, int] = (1, 0)) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version)
    return out.getvalue()


def idx_of(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def array_seeds() -> Seeds:
    """The format of c/arrays.c."""

    def pair(first: int, images: bytes, targets: bytes) -> bytes:
        return bytes([first]) + len(images).to_bytes(2, "little") + images + targets

    labels = np.array([0, 4], np.int64)
    yield "idx", pair(0, idx_of(np.arange(18).reshape(2, 3, 3)), idx_of(labels))
    yield "direct", pair(0, npy_of(random(2, 3, 4, 4)), npy_of(labels))
    yield "channels_last", pair(8, npy_of(random(2, 5, 5, 3).astype(np.float64)), npy_of(labels.astype(np.int32)))
    yield "grey", pair(4, npy_of(np.zeros((2, 1, 2, 2), np.uint8)), npy_of(np.zeros((2, 3, 5), np.int64)))
    yield "ignored", pair(1, npy_of(random(2, 1, 3, 5)), npy_of(np.full((2, 3, 5), 255, np.int64)))
    yield "fractions", pair(2, npy_of(random(3, 6)), npy_of(random(3, 3)))
    yield "numbers", pair(3, npy_of(random(2)), npy_of(labels))
    yield "scaled", pair(6, npy_of(random(3, 6)), npy_of(random(3, 3)))
    yield "version_2", pair(2, npy_of(random(3, 6), (2, 0)), npy_of(random(3, 3), (2, 0)))
    yield "fortran", pair(2, npy_of(np.asfortranarray(random(3, 6))), npy_of(random(3, 3)))
    yield "nan", pair(2, npy_of(np.full((3, 6), np.nan, np.float32)), npy_of(random(3, 3)))
    yield "label_too_large", pair(0, idx_of(np.zeros((2, 4, 4))), idx_of(np.array([0, 5])))
    yield "cut", pair(0, idx_of(np.arange(18).reshape(2, 3, 3))[:-1], idx_of(labels))
    yield "large_label", pair(3, npy_of(random(2)), npy_of(np.full(2, 2**63 - 1)))
    yield "large_target", pair(2, npy_of(random(3, 6)), npy_of(np.full((3, 3), 1e300)))
    escaped = npy_of(random(3, 3)).replace(b"'<f4'", b"'\x1b[m'")
    yield "control_characters", pair(2, npy_of(random(3, 6)), escaped)
    yield "compressed", pair(0, b"\x1f\x8b\x08", idx_of(labels))


def option_seeds() -> Seeds:
    yield "usual", b"--data\nx.npy\n--labels\ny.npy\n--epochs\n3\n--lr\n0.01\n--checkpoint\nrun.ckpt"
    yield "scaling", b"--data=x\n--labels=y\n--scale\n0.5\n--mean\n0.1,0.2,0.3\n--std=1,2,3"
    yield "evaluation", b"--data\nx\n--labels\ny\n--eval-data\na\n--eval-labels\nb\n--seed\n7\n--threads\n2"
    yield "every", b"--data\n.\n--checkpoint\nc\n--checkpoint-every\n10\n--steps\n5\n--progress\n0"
    yield "selftest", b"--selftest"
    yield "help", b"--help"
    yield "version", b"--vers"
    yield "many_threads", b"--data\nx\n--labels\ny\n--threads\n2147483648"
    yield "many_means", b"--mean\n" + b",".join([b"1"] * 200)
    yield "wrong", b"--epochs\n0\n--lr\nnan\nmore\n--mean\n1,,2"


def trial_seeds() -> Seeds:
    """The format of c/trial.c."""

    def call(*values: int | float) -> bytes:
        return b"".join(
            struct.pack("<iIq", 1, 0, value) if isinstance(value, int) else struct.pack("<iId", 3, 0, value)
            for value in values
        )

    yield "failure", bytes([0, 200]) + call(1, 0.001, 0.5) + b'it said "no\\"'
    yield "result", bytes([5, 60]) + call(2, 0.001, 0.5) + struct.pack("<8f", *range(8))
    yield "no_time", bytes([8, 0]) + call(2, 0.001, -1.0) + struct.pack("<4d", 1, float("nan"), float("inf"), 4)
    yield "no_number", bytes([8, 10]) + call(2, 0.001, float("nan"))
    yield "long_text", bytes([0, 255]) + call(1, 0.001, 0.5) + b"much too long; " * 80
    yield "two_arguments", bytes([2, 10]) + call(1, 0.5)
    yield "other_types", bytes([11, 10]) + call(1.0, 2, 3) + bytes(range(64))


def onnx_seeds() -> Seeds:
    conv = "h = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w, b)\ny = Relu (h)"
    arrays = {"w": random(2, 1, 3, 3), "b": random(2)}
    yield "conv", model_of(conv, x=(2, 1, 4, 4), **arrays).SerializeToString()
    classifier = "p = GlobalAveragePool (x)\nf = Flatten (p)\ny = Gemm <transB = 1> (f, fc, c)"
    yield "classifier", model_of(classifier, x=(2, 3, 4, 4), fc=random(5, 3), c=random(5)).SerializeToString()
    norm = "n = BatchNormalization (x, g, b, m, v)\na = Add (n, x)\ny = MaxPool <kernel_shape = [2, 2]> (a)"
    statistics = dict.fromkeys(("g", "b", "m", "v"), np.ones(3, np.float32))
    yield "norm", model_of(norm, x=(2, 3, 4, 4), **statistics).SerializeToString()
    shapes = "s = Shape (x)\ng = Gather (s, i)\nc = Concat <axis = 0> (g, k)\ny = Reshape (x, c)"
    yield "shapes", model_of(shapes, x=(2, 3, 4, 4), i=ints(0), k=ints(-1)).SerializeToString()
    resize = 'y = Resize <mode = "nearest"> (x, , k)'
    named = model_of("y = Relu (x)", x=(2, 3))
    named.graph.output[0].name = "a\n\x1b[31m"
    yield "control_characters", named.SerializeToString()
    yield "resize", model_of(resize, x=(1, 2, 3, 3), k=np.array([1, 1, 2, 2], np.float32)).SerializeToString()


PLAN = """\
format = "gfcompile-plan-1"

[layers]
"conv1" = { do = "freeze" }
"conv2" = { do = "filter", r = 4, sparse = 0.5 }
"fc"    = { do = "exact" }
"""
TARGET = """\
description = "a board"
lanes = 4
registers = 32
cores = 4
cache_kib = 512
in_order = true
link = ["aarch64-linux-gnu-gcc"]
glibc = "2.17"

[tvm]
kind = "llvm"
mtriple = "aarch64-linux-gnu"
mcpu = "cortex-a53"
mattr = ["+neon"]

[machine.watts]
value = 5.5
source = "a data sheet"
"""
GPU = """\

[gpu]
arch = "sm_53"
multiprocessors = 1
"""
RECORD: Mapping[str, Any] = {
    "kernel": "ab12", "name": "conv", "template": "tile", "target": "native", "versions": "1",
    "decisions": {"rows": 4, "order": "nk", "split": [2, 8]}, "kind": "measured", "seconds": 0.001,
    "reference_seconds": 0.002, "ratio": 2.0, "spread": 0.01, "failure": None, "machine": {"cores": 2, "cpu": "x"},
    "date": "2026-11-01T00:00:00+00:00",
}  # fmt: skip
TIMES = dict.fromkeys(("seconds", "reference_seconds", "ratio", "spread"))


def setting_seeds() -> Seeds:
    yield "plan.toml", PLAN.encode()
    yield "target.toml", TARGET.encode()
    yield "gpu.toml", (TARGET.replace("lanes", 'kind = "cuda"\nlanes', 1) + GPU).encode()
    yield "alias.toml", b'alias = "rpi4"\n'
    records = [RECORD, {**RECORD, "failure": "it crashed"}, {**RECORD, **TIMES, "kind": "ranked", "score": -1.5}]
    yield "tuning.jsonl", b"".join(json.dumps(record).encode() + b"\n" for record in records)
    yield "cut.jsonl", json.dumps(RECORD).encode()[:-9] + b"\n" + json.dumps(RECORD).encode()


def zip_of(members: Mapping[str, bytes]) -> bytes:
    """Stored, not compressed, and always the same bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, content in members.items():
            file.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), content)
    return out.getvalue()


def npz_of(**arrays: np.ndarray) -> bytes:
    return zip_of({f"{name}.npy": npy_of(array) for name, array in arrays.items()})


def batch_seeds() -> Seeds:
    labels = np.array([0, 2], np.int64)
    yield "batch.npz", npz_of(x=random(2, 3), y=labels)
    yield "several.npz", npz_of(x0=random(2, 3), x1=labels, y=labels.astype(np.uint8))
    yield "other.npz", npz_of(x=np.array([True, False]), y=np.array(["a", "b"]))
    yield "no_array.npz", zip_of({"x.npy": b"some words", "y.npy": npy_of(labels)})
    yield "empty", b""
    yield "no_python.npy", npy_of(np.zeros(3, np.uint8)).replace(b"(3,), }", b"(3,(   ")
    yield "rows.npy", npy_of(np.array([1 << 32, 0, 7], np.uint64))
    yield "header.json", b'{"format": "gfcompile-features-2", "fingerprint": "f", "samples": 3, "dtype": "float32"}'


GRAPH = """\
def step(
    w,  # parameter conv.weight float32[4, 3, 3, 3]
    x,  # input x float32[2, 3, 8, 8]{192, 1, 24, 3}
    target,  # target "a target" float32[2, 4, 8, 8]
):
    y = aten.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)  # float32[2, 4, 8, 8]
    clamp = aten.clamp(y, -inf, max=1e30)
    product = aten.mul.Tensor(clamp, target)
    loss = aten.sum(product, dtype=torch.float32)
    back = gf.filtered_convolution_backward(target, x, w, [1, 1], [1, 1], [1, 1], 1, 2, False)
    gradient = getitem(back, 1)  # float32[4, 3, 3, 3]
    full = aten.full([2], nan, dtype=torch.float32, device=device(type='cpu'), pin_memory=None)
    return (
        loss,  # loss loss
        gradient,  # gradient conv.weight
    )
# plan: norms={'*': 'train'}, reference=True
# layer: name='conv', r=2, kernel='conv.weight'
# unread: 'bn.running_mean'
# origin: 'a', 'conv.weight'
# names: {'relu': 3}
"""
LAYOUT = "WeightLayout(logical_shape=(4, 3, 3, 3), split_shape=(1, 4, 3, 3, 3), order=(0, 3, 4, 2, 1))"


def graph_seeds() -> Seeds:
    yield "filter.txt", GRAPH.encode()
    packed = "def step(\n    w,  # parameter w float32[1, 3, 3, 3, 4]\n):\n    return (\n    )\n"
    yield "packed.txt", f"{packed}# layout: 'w', {LAYOUT}\n".encode()
    yield "unclosed.txt", GRAPH.replace("):", "): (", 1).encode()


SEEDS = {
    "json": json_seeds, "tensorfile": tensor_seeds, "artifact": artifact_seeds, "checkpoint": checkpoint_seeds,
    "arrays": array_seeds, "options": option_seeds, "training": training_seeds, "trial": trial_seeds,
    "onnx": onnx_seeds, "models": model_seeds, "settings": setting_seeds, "batch": batch_seeds,
    "graph": graph_seeds,
}  # fmt: skip


def write(corpus: Path = CORPUS) -> None:
    for name, seeds in SEEDS.items():
        folder = corpus / name
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            if not old.name.startswith(FIXED):
                old.unlink()
        for seed, content in seeds():
            (folder / seed).write_bytes(content)


if __name__ == "__main__":
    write(*map(Path, sys.argv[1:2]))
