"""`Step`: a compiled training step in Python, with numpy alone."""

from __future__ import annotations

import math
import os
import platform
import threading
import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import checkpoint
from .agreement import check_agreement
from .batch import Door
from .errors import StepError
from .library import Draws, Library, aligned_empty
from .manifest import AGAIN, CONSTANTS, SELFTEST, TRAINER, WEIGHTS, check_file, read_manifest, read_tensors
from .state import State, StateArray, fits, merge, physical_shape, unpack
from .tensorfile import Array

if TYPE_CHECKING:
    from .feature_cache import FeatureCache  # ships only where it was asked for

_steps: weakref.WeakSet[Step] = weakref.WeakSet()


class Step:
    """Trains, predicts and checkpoints in place; made by `Step.load`.

    Arrays may be numpy arrays or CPU torch tensors. Every error is a one-line `StepError`, and a batch, a learning rate
    or a checkpoint that is refused has changed nothing. Calls are safe from several threads and after a fork.
    """

    manifest: dict[str, Any]
    filtered_layers: list[str]
    refusals: list[tuple[str, str]]
    note: str  # the caller's own text, which goes along in checkpoints: an epoch, a position in the data

    def __init__(self, folder: str | os.PathLike[str], threads: int | None = None) -> None:
        self._handle = 0
        self._folder = Path(folder)
        manifest = self.manifest = read_manifest(self._folder)
        self.filtered_layers = list(manifest["filtered_layers"])
        self.refusals = [(name, reason) for name, reason in manifest["refusals"]]
        self._counted = 0  # steps that the library does not count: before a checkpoint of its own count was loaded
        self.note = ""
        self.lr = manifest["lr"]
        self._last_loss, self._warned = 0.0, False
        count = _thread_count(threads)
        for name in [manifest["library"], *manifest["files"]]:
            if name not in (WEIGHTS, CONSTANTS, SELFTEST, TRAINER):  # these are checked as they are read
                check_file(self._folder, manifest, name)
        weights, constants = (read_tensors(self._folder, manifest, name) for name in (WEIGHTS, CONSTANTS))
        self._check_machine()
        self._library = Library(self._folder / manifest["library"], manifest["build_id"])
        check_agreement(str(self._folder), manifest, self._library)
        self._door = Door(manifest)
        if "features" in manifest:
            self._features_door = Door(manifest, features=True)
        self._lock = threading.Lock()
        self._handle = self._library.create(count)
        try:
            self._state = State(manifest["state"], self._library, self._handle)
            self._initialise(weights, constants)
        except BaseException:
            self.close()
            raise
        _steps.add(self)

    def _check_machine(self) -> None:
        """The loader's own words for another machine's library are that the file is not there."""
        made_for, here = self.manifest.get("architecture"), platform.machine()
        if made_for is not None and made_for != here:
            raise StepError(
                f"load: '{self._folder}' is for {self.manifest['target']} ({made_for}), this machine is {here};"
                " run it there, or compile for native"
            )

    @classmethod
    def load(cls, folder: str | os.PathLike[str], threads: int | None = None) -> Step:
        """Load an artifact's folder; `threads` None takes all cores the process may use."""
        return cls(folder, threads)

    def train(
        self,
        x: Any,
        y: Any,
        lr: float | None = None,
        seed: int | None = None,
        channels: Mapping[str, Any] | None = None,
    ) -> float:
        """One training step in place; the loss before the update. A non-finite one is returned, and the first warns.

        `seed` draws the dropouts; None takes the number of steps so far, so that each step draws anew. `channels` are
        input channels to update in place of those that the step would draw, by layer: see `Step.channels`.
        """
        rate = self._lr if lr is None else _learning_rate(lr)
        with self._lock:
            handle = self._open()
            inputs, _ = self._door.stage("train", x, y, self._seed(seed), channels)
            return self._count_step(self._library.train(handle, inputs, rate))

    def predict(self, x: Any) -> Array | tuple[Array, ...] | dict[str, Array]:
        """The model's output for up to a batch of samples: a tuple or, if the model's is one, a dict of several."""
        specs = self.manifest["outputs"]
        outputs = [aligned_empty(spec["shape"], spec["dtype"]) for spec in specs]
        with self._lock:
            handle = self._open()
            inputs, samples = self._door.stage("predict", x)
            self._library.predict(handle, inputs, outputs)
        batch = self.manifest["batch"]
        cropped = [out[:samples] if out.ndim and len(out) == batch else out for out in outputs]
        if all(spec["key"] is not None for spec in specs):
            return {spec["key"]: out for spec, out in zip(specs, cropped, strict=True)}
        return cropped[0] if len(cropped) == 1 else tuple(cropped)

    def gradients(
        self, x: Any, y: Any, seed: int | None = None, channels: Mapping[str, Any] | None = None
    ) -> dict[str, Array]:
        """Gradient of the loss by parameter name, in the model's own layout; the state stays as it is.

        Where channels are drawn, those of the next step: the gradient of all others is zero.
        """
        with self._lock:
            handle = self._open()
            entries = {name: self._state.entry("parameter", name) for name in self.manifest["gradients"]}
            physical = [aligned_empty(physical_shape(entry), entry["dtype"]) for entry in entries.values()]
            inputs, _ = self._door.stage("gradients", x, y, self._seed(seed), channels)
            self._library.gradients(handle, inputs, physical)
        pairs = zip(entries.items(), physical, strict=True)
        return {name: unpack(entry, array) for (name, entry), array in pairs}

    def features(self, x: Any) -> tuple[Array, ...]:
        """What the frozen part of the network computes of up to a batch of samples: the same in every epoch."""
        specs = self._features("features")["tensors"]
        found = [aligned_empty(spec["shape"], spec["dtype"]) for spec in specs]
        with self._lock:
            handle = self._open()
            inputs, samples = self._door.stage("features", x)
            self._library.features(handle, inputs, found)
        return tuple(array[:samples] for array in found)

    def train_features(
        self,
        features: Any,
        y: Any,
        lr: float | None = None,
        seed: int | None = None,
        channels: Mapping[str, Any] | None = None,
    ) -> float:
        """`train` on what `features` gave for the samples: only the part after the frozen one is computed."""
        self._features("train_features")
        rate = self._lr if lr is None else _learning_rate(lr)
        with self._lock:
            handle = self._open()
            inputs, _ = self._features_door.stage("train_features", features, y, self._seed(seed), channels)
            return self._count_step(self._library.train_features(handle, inputs, rate))

    def open_cache(self, folder: str | os.PathLike[str], samples: int, dtype: str = "float32") -> FeatureCache:
        """The features of `samples` samples in files of this folder, as far as known; made if there is none yet."""
        self._features("open_cache")
        from .feature_cache import FeatureCache

        return FeatureCache(self, folder, samples, dtype)

    def state_dict(self) -> dict[str, Array]:
        """Every entry of the untouched model in its order, for `model.load_state_dict(..., strict=True)`."""
        with self._lock:
            self._open()
            weights = read_tensors(self._folder, self.manifest, WEIGHTS)
            trained = {name: self._state.get(role, name) for role, name, _ in self._state.items("parameter", "buffer")}
        return {name: value.view(StateArray) for name, value in merge(self.manifest, weights, trained).items()}

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Parameters, optimizer state, buffers, step count, learning rate and `note`, written atomically.

        What was there stays beside it as PATH.previous: `load_checkpoint` takes that if the newest is damaged. A state
        that is not finite, or that a step with a non-finite loss has left, is refused.
        """
        with self._lock:
            self._open()
            items = self._state.items(*checkpoint.ROLES)
            tensors = {f"{role}/{name}": self._state.get(role, name) for role, name, _ in items}
            draws = self._library.get_draws(self._handle)
            drawn = (draws.seed, draws.steps, draws.epoch) if self._drawn() else None
            progress = checkpoint.Progress(self.steps, self._lr, self.note, drawn)
            checkpoint.check_finite(tensors, self.steps, self._last_loss)
            checkpoint.save(path, tensors, self.manifest, progress)

    def load_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Continue where `save_checkpoint` stopped, bit for bit at the same thread count."""
        with self._lock:
            self._open()
            found = checkpoint.load(path, self.manifest)
            for role, name, _ in self._state.items(*checkpoint.ROLES):
                self._state.set(role, name, found.tensors[f"{role}/{name}"])
            progress = found.progress
            self._lr, self.note = progress.lr, progress.note
            self._last_loss, self._warned = 0.0, False
            before = self._library.get_draws(self._handle)
            draws = Draws(*(progress.draws or (before.seed, progress.steps, before.epoch)))
            self._library.set_draws(self._handle, draws)
            self._counted = progress.steps - draws.steps

    @property
    def steps(self) -> int:
        """Steps trained so far, those before a checkpoint included. The library counts: an interrupt cannot."""
        return self._counted + int(self._library.get_draws(self._open()).steps)

    @property
    def channels(self) -> dict[str, Array]:
        """The input channels that the next step will update, by layer; empty for a step that updates all.

        Drawn from `draw_seed` and the number of steps or, by the compiled strategy, from `epoch`; or always the same.
        """
        with self._lock:
            handle = self._open()
            found = {}
            for index, spec in self._drawn():
                found[spec["name"]] = aligned_empty(spec["shape"], spec["dtype"])
                self._library.draw(handle, index, found[spec["name"]])
        return found

    @property
    def draw_seed(self) -> int:
        """The seed of drawn channels. Steps with the same one draw the same; a checkpoint brings its own."""
        with self._lock:
            return int(self._library.get_draws(self._open()).seed)

    @draw_seed.setter
    def draw_seed(self, value: int) -> None:
        self._set_draws(seed=_count("draw_seed", value, 2**32 - 1))

    @property
    def epoch(self) -> int:
        """What strategy "epoch" draws channels from: set it when an epoch begins. Checkpoints keep it."""
        with self._lock:
            return int(self._library.get_draws(self._open()).epoch)

    @epoch.setter
    def epoch(self, value: int) -> None:
        self._set_draws(epoch=_count("epoch", value, 2**63 - 1))

    @property
    def lr(self) -> float:
        """The learning rate that `train` takes when none is passed."""
        return self._lr

    @lr.setter
    def lr(self, value: float) -> None:
        self._lr = _learning_rate(value)

    @property
    def threads(self) -> int:
        """Threads of one step. The same number gives the same bits."""
        with self._lock:
            return self._library.threads(self._open())

    @threads.setter
    def threads(self, value: int | None) -> None:
        count = _thread_count(value)
        with self._lock:
            self._library.set_threads(self._open(), count)

    def close(self) -> None:
        """Free the step's memory; a second call does nothing."""
        with self._lock:
            handle, self._handle = self._handle, 0
            if handle:
                self.__dict__.pop("_state", None)  # it reads from what is freed now
                self._library.destroy(handle)

    def __enter__(self) -> Step:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        # No lock: nobody else can hold a step that is being collected.
        if getattr(self, "_handle", 0):
            self._library.destroy(self._handle)

    def _count_step(self, loss: float) -> float:
        self._last_loss = loss
        if not math.isfinite(loss) and not self._warned:
            self._warned = True
            names = (name for _, name, _ in self._state.items("parameter"))
            bad = next((name for name in names if not checkpoint.is_finite(self._state.get("parameter", name))), None)
            where = "all parameters are still finite" if bad is None else f"parameter '{bad}' is not finite any more"
            warnings.warn(
                f"train: the loss is {loss} at step {self.steps}, and {where};"
                " load the last checkpoint and train with a smaller lr",
                RuntimeWarning,
                stacklevel=3,
            )
        return loss

    def _set_draws(self, **changes: int) -> None:
        with self._lock:
            draws = self._library.get_draws(self._open())
            for name, value in changes.items():
                setattr(draws, name, value)
            self._library.set_draws(self._handle, draws)

    def _drawn(self) -> list[tuple[int, dict[str, Any]]]:
        """The inputs that are drawn, with their indices."""
        return [(index, spec) for index, spec in enumerate(self.manifest["inputs"]) if spec["role"] == "channels"]

    def _open(self) -> int:
        if not self._handle:
            raise StepError("this step is closed; load the artifact again")
        return self._handle

    def _features(self, call: str) -> dict[str, Any]:
        if "features" not in self.manifest:
            raise StepError(f"{call}: this step was compiled without it; recompile with --cache-prefix")
        return dict(self.manifest["features"])

    def _seed(self, seed: Any) -> int:
        if seed is None:
            return self.steps
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
            raise StepError(f"seed: {seed!r} is no whole number; pass an int")
        return int(seed) & 0xFFFFFFFF

    def _initialise(self, weights: dict[str, Array], constants: dict[str, Array]) -> None:
        for role, name, entry in self._state.items("parameter", "buffer"):
            if name not in weights or not fits(entry, weights[name]):
                raise StepError(f"'{self._folder / WEIGHTS}': has no fitting tensor '{name}'; {AGAIN}")
            self._state.set(role, name, weights[name])
        for role, name, entry in self._state.items("constant"):
            found = constants.get(name)
            if found is None or found.dtype != entry["dtype"] or found.size != math.prod(physical_shape(entry)):
                raise StepError(f"'{self._folder / CONSTANTS}': has no fitting tensor '{name}'; {AGAIN}")
            self._state.set_physical(role, name, found)


def _count(name: str, value: Any, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value <= most:
        raise StepError(f"{name}: {value!r} is not usable; pass a whole number of 0 to {most}")
    return int(value)


def _thread_count(threads: Any) -> int:
    if threads is None:
        return 0
    if isinstance(threads, bool) or not isinstance(threads, (int, np.integer)) or threads < 1:
        raise StepError(f"threads: {threads!r} is no thread count; pass 1 or more, or None for all cores")
    return int(min(threads, 2**31 - 1))


def _learning_rate(value: Any) -> float:
    try:
        rate = float(value)
    except OverflowError:
        rate = math.inf
    except (TypeError, ValueError) as error:
        raise StepError(f"lr: {value!r} is no number; pass a float") from error
    if math.isfinite(rate) and rate > 0 and not checkpoint.is_rate(rate):
        raise StepError(f"lr: {rate} is more than a float32 holds; pass 3.4e38 or less")
    if not checkpoint.is_rate(rate):
        raise StepError(f"lr: {rate} is not usable; pass a finite learning rate of 0 or more")
    return rate


def _renew_locks() -> None:
    """In a forked child: another thread of the parent may have held a lock, and that thread is not here."""
    for step in list(_steps):
        step._lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)
