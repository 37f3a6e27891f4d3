"""Run by test_artifact.py in a process of its own: an artifact alone, where only numpy can be imported.

    python standalone.py ARTIFACT OUT.npz STEPS THREADS [--resume CHECKPOINT] [--save CHECKPOINT]

Trains on batches first to last; OUT.npz gets the losses, the logits of one batch and the whole state.
"""

import argparse
import importlib
import sys

import numpy as np

FORBIDDEN = ("torch", "tvm", "tvm_ffi", "gfcompile", "safetensors")
BATCH, CLASSES = 4, 10


def batch(index: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(index)
    return random.normal(size=(BATCH, 3, 64, 64)).astype(np.float32), random.integers(0, CLASSES, BATCH)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("artifact")
    parser.add_argument("out")
    parser.add_argument("steps", type=int)
    parser.add_argument("threads", type=int)
    parser.add_argument("--resume")
    parser.add_argument("--save")
    arguments = parser.parse_args()
    for name in FORBIDDEN:
        assert name not in sys.modules
        sys.modules[name] = None  # type: ignore[assignment]  # importing it raises ImportError from now on
    parent, _, name = arguments.artifact.rpartition("/")
    sys.path.insert(0, parent)
    step = importlib.import_module(name).load(threads=arguments.threads)
    assert step.threads == arguments.threads
    if arguments.resume:
        step.load_checkpoint(arguments.resume)
    losses = [step.train(*batch(step.steps)) for _ in range(arguments.steps)]
    if arguments.save:
        step.save_checkpoint(arguments.save)
    state = {f"state/{key}": np.asarray(value) for key, value in step.state_dict().items()}
    np.savez(arguments.out, losses=np.array(losses), logits=step.predict(batch(1000)[0]), steps=step.steps, **state)
    assert all(sys.modules[name] is None for name in FORBIDDEN)


if __name__ == "__main__":
    main()
