"""Run in a process of its own: train an artifact on one batch, and write its losses and weights.

train_artifact.py FOLDER BATCH.npz STEPS OUT.npz
"""

import importlib
import sys
from pathlib import Path

import numpy as np

folder, batch, steps, out = Path(sys.argv[1]), np.load(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
sys.path.insert(0, str(folder.parent))
with importlib.import_module(folder.name).load() as step:
    losses = [step.train(batch["x"], batch["y"]) for _ in range(steps)]
    np.savez(out, losses=losses, **step.state_dict())
