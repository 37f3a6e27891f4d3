"""Artifacts with something changed, each tried in a process that may end of it.

    python -m tests.runtime.variants FOLDER < variants

The folder holds an artifact, a batch (x.npy, y.npy) and a checkpoint. A variant is a line of JSON: a file with one bit
to flip, or a whole manifest. Printed is a line for each: what was refused, or a hash of what was computed.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from gfcompile.runtime.errors import StepError
from gfcompile.runtime.manifest import MANIFEST, write_manifest
from gfcompile.runtime.step import Step

ROOT = Path(__file__).parents[2]
CHECKPOINT = "run.ckpt"
REFUSED, RAN = "refused: ", "ran: "


def prepare(folder: Path, x: np.ndarray, y: np.ndarray) -> None:
    """The batch and a checkpoint for an artifact."""
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    with Step.load(folder, threads=1) as step:
        step.train(x, y)
        step.save_checkpoint(folder / CHECKPOINT)


def draw_flips(path: Path, count: int) -> list[dict[str, Any]]:
    bits = path.stat().st_size * 8
    draw = random.Random(path.name)
    return [{"file": path.name, "bit": draw.randrange(bits)} for _ in range(count)]


def flip(path: Path, bit: int) -> bytes:
    """Change the file, as another one of its name: a library may be mapped. Returns what it was."""
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[bit // 8] ^= 1 << bit % 8
    replace(path, bytes(changed))
    return whole


def replace(path: Path, content: bytes) -> None:
    mode = path.stat().st_mode
    path.unlink()
    path.write_bytes(content)
    path.chmod(mode)


def try_each(folder: Path, variants: Iterable[dict[str, Any]]) -> list[str]:
    """What became of each; the first is the artifact as it is."""
    lines = [json.dumps(variant) for variant in variants]
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.runtime.variants", str(folder)],
        input="\n".join(lines), capture_output=True, text=True, cwd=ROOT, timeout=600, check=False,
    )  # fmt: skip
    found = done.stdout.splitlines()
    reached = lines[len(found) - 1] if 0 < len(found) <= len(lines) else "the artifact as it is"
    assert done.returncode == 0, f"exit code {done.returncode} at {reached[:500]}\n{done.stderr}"
    assert len(found) == 1 + len(lines), "a refusal of several lines"
    return found


def assert_harmless(found: list[str], least_refused: int) -> None:
    """Each was refused, or nothing came of it."""
    whole, *others = found
    assert whole.startswith(RAN)
    changed = [outcome for outcome in others if outcome != whole and not outcome.startswith(REFUSED)]
    assert not changed
    assert len([outcome for outcome in others if outcome.startswith(REFUSED)]) >= least_refused


def assert_trainer_refuses(folder: Path, name: str, count: int) -> None:
    """gf-train ends with one line and the code of a failure at every flip of this file, having trained without."""
    checkpoint, places = (folder / CHECKPOINT).read_bytes(), draw_flips(folder / name, count)
    words = ["--data", "x.npy", "--labels", "y.npy", "--steps", "2", "--threads", "1", "--checkpoint", CHECKPOINT]

    def train() -> tuple[int, str]:
        done = subprocess.run(
            [folder / "gf-train", *words], cwd=folder, capture_output=True, text=True, check=False, timeout=60
        )
        return done.returncode, done.stdout if done.returncode == 0 else done.stderr

    code, said = train()
    assert (code, said.splitlines()[-1]) == (0, "done after 2 steps")
    for place in places:
        replace(folder / CHECKPOINT, checkpoint)
        (folder / f"{CHECKPOINT}.previous").unlink(missing_ok=True)
        before = flip(folder / name, place["bit"])
        code, said = train()
        assert code == 1, f"exit code {code} at {place}: {said}"
        assert (said[:11], said.count("\n")) == ("gf-train: '", 1), said
        replace(folder / name, before)


def _use(folder: Path) -> str:
    """Call everything; the numbers that count are the losses, predictions and gradients."""
    x, y = (np.load(folder / f"{name}.npy") for name in ("x", "y"))
    try:
        with Step.load(folder, threads=1) as step:
            step.load_checkpoint(folder / CHECKPOINT)
            predicted = step.predict(x)
            several = predicted.values() if isinstance(predicted, dict) else [predicted]
            gradients = step.gradients(x, y)
            results = [step.train(x, y, lr=0.05), *several, *(gradients[name] for name in sorted(gradients))]
            if "features" in step.manifest:
                features = step.features(x)
                results += [*features, step.train_features(features, y, lr=0.05)]
            results += step.channels.values()
            step.train(x, y)  # at the manifest's own rate
            step.state_dict()
            step.save_checkpoint(folder / "again.ckpt")
    except StepError as error:
        return f"{REFUSED}{error}"
    digest = hashlib.sha256()
    for result in results:
        digest.update(np.asarray(result).tobytes())
    return f"{RAN}{digest.hexdigest()}"


def _main(folder: Path) -> None:
    print(_use(folder), flush=True)
    for line in sys.stdin:
        variant = json.loads(line)
        if "manifest" in variant:
            path = folder / MANIFEST
            whole = path.read_bytes()
            write_manifest(folder, variant["manifest"])
        else:
            path = folder / variant["file"]
            whole = flip(path, variant["bit"])
        print(_use(folder), flush=True)
        replace(path, whole)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
