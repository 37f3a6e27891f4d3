"""What the suite runs: its sections, the rows of each, and how long a row is expected to take.

Expected seconds are those of a quiet machine with two cores on which torch.compile's cache is still empty: mostly the
time until peers are ready, since turns are ended by the protocol's own limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import backward, kernels, memory, step_time
from benchmarks.processes import Protocol, ask
from benchmarks.step_time import FORWARD_PEERS, PEERS, Setting

Run = Callable[[], dict[str, Any]]
PATCHES = (2, 4)
BATCHES = (1, 8, 32)
MODELS = ("resnet18", "mobilenet_v2", "resnet34", "mcunet", "deeplabv3")
GOAL_MODELS = ("resnet18", "mobilenet_v2")  # the goals are about these: every batch and every peer
OTHER_BATCHES = (1, 8)  # of the others, unless everything is asked for: another batch takes about two minutes
COMPILED_PEERS = ("torch_compile", "published_compile")  # ready after half a minute, the others at once
PLAIN_PEERS = tuple(name for name in PEERS if name not in COMPILED_PEERS)
GROWTH_PEERS = tuple(name for name in PLAIN_PEERS if name != "gfcompile_exact")
GROWTH_BASE = Setting("resnet18", batch=8, size=224, layers=4, r=2)
GROWTH = {"batch": (1, 4, 8, 32), "size": (128, 176, 224, 288), "r": (2, 4, 7), "layers": (1, 4, 8, 16)}
COMPILE = {"resnet18": 18, "resnet34": 27, "mobilenet_v2": 25, "mcunet": 25, "deeplabv3": 22}  # two at once, seconds
TORCH_COMPILE = 30  # the same, two of torch.compile's

SHAPE_TURNS = Protocol(most=7, least=2, seconds=10, starting=2)  # an exact run of the large shapes takes seconds
STEP_TURNS = Protocol(most=9, least=3, seconds=10, starting=2)
GROWTH_TURNS = Protocol(most=5, least=3, seconds=4, starting=2)
QUICK_TURNS = Protocol(most=2, least=2, block_seconds=0.02, starting=2)


@dataclass(frozen=True)
class Options:
    """`artifacts` is a folder in which what was compiled is found again by later rows; `full` leaves nothing out."""

    artifacts: Path
    quick: bool = False
    full: bool = False


@dataclass(frozen=True)
class Job:
    """One row."""

    key: str
    seconds: float  # expected
    run: Run
    setting: Setting | None = None


@dataclass(frozen=True)
class Section:
    """`before` does what several rows have in common, for those that are to be run."""

    jobs: Callable[[Options], list[Job]]
    before: Callable[[Sequence[Job], Options], None] = lambda *_: None
    before_seconds: float = 0  # a row


def _shape_jobs(options: Options) -> list[Job]:
    turns = QUICK_TURNS if options.quick else SHAPE_TURNS
    batch, shapes = (2, ((16, 9, 11),)) if options.quick else (32, backward.SHAPES)

    def job(shape: backward.Shape) -> Job:
        channels, high, wide = shape
        large = channels * channels * high * wide > 10**8
        return Job(
            f"{channels}@{high}x{wide}",
            35 if large else 18,
            lambda: backward.measure(shape, batch, PATCHES, turns),
        )

    return [job(shape) for shape in shapes]


def _step_jobs(options: Options) -> list[Job]:
    if options.quick:
        settings = [Setting("mcunet", 1, 32)]
    else:
        settings = [Setting(model, batch) for model in MODELS for batch in BATCHES]
    return [_step_job(setting, peers_of(setting, options), options) for setting in settings if is_run(setting, options)]


def is_run(setting: Setting, options: Options) -> bool:
    return options.full or setting.batch in OTHER_BATCHES or setting.model in GOAL_MODELS


def peers_of(setting: Setting, options: Options) -> tuple[str, ...]:
    """Where the time forces a choice, peers that take long to start are left out of rows that no goal is about."""
    if options.quick:
        return ("eager", "eager_channels_last", "published_channels_last", "gfcompile", "gfcompile_exact")
    everyone = options.full or setting.batch == 8 or setting.model in GOAL_MODELS
    return tuple(PEERS) if everyone else PLAIN_PEERS


def _step_job(setting: Setting, peers: tuple[str, ...], options: Options) -> Job:
    expected = 6 + COMPILE[setting.model] + (TORCH_COMPILE if set(peers) & set(COMPILED_PEERS) else 0)
    expected += 45 if setting.batch == 32 else 12
    turns = QUICK_TURNS if options.quick else STEP_TURNS
    return Job(
        f"{setting.model}, batch {setting.batch}",
        expected,
        lambda: step_time.measure(setting, turns, peers, options.artifacts),
        setting,
    )


def growth_settings(options: Options) -> dict[str, Setting]:
    """Every point of every curve once, by its key."""
    base, axes = GROWTH_BASE, GROWTH
    if options.quick:
        base, axes = Setting("mcunet", 1, 32), {"batch": (1, 2), "size": (32,), "r": (2,), "layers": (4,)}
    points = [Setting(**{**asdict(base), axis: value}) for axis, values in axes.items() for value in values]
    return {f"batch {p.batch}, {p.size}x{p.size}, {p.layers} layers, r={p.r}": p for p in points}


def _growth_jobs(options: Options) -> list[Job]:
    turns = QUICK_TURNS if options.quick else GROWTH_TURNS

    def job(key: str, setting: Setting) -> Job:
        return Job(
            key,
            10 if setting.batch < 32 else 25,
            lambda: step_time.measure(setting, turns, GROWTH_PEERS, options.artifacts),
            setting,
        )

    return [job(key, setting) for key, setting in growth_settings(options).items()]


def _build_ahead(jobs: Sequence[Job], options: Options) -> None:
    """Compile two at a time: one compilation uses one core."""
    settings = {job.key: job.setting for job in jobs if job.setting is not None}
    ask(
        step_time.prepare,
        {key: step_time.settings_of("gfcompile", each, options.artifacts) for key, each in settings.items()},
        starting=2,
    )


def _forward_jobs(options: Options) -> list[Job]:
    turns = QUICK_TURNS if options.quick else STEP_TURNS
    settings = [Setting(model, batch, forward=True) for model in GOAL_MODELS for batch in (8, 1)]
    if options.quick:
        settings = [Setting("mcunet", 1, 32, forward=True)]

    def job(setting: Setting) -> Job:
        plain = tuple(name for name in FORWARD_PEERS if name not in COMPILED_PEERS)
        peers = FORWARD_PEERS if options.full else plain
        return Job(
            f"{setting.model}, batch {setting.batch}",
            13 + (TORCH_COMPILE if "torch_compile" in peers else 0),
            lambda: step_time.measure(setting, turns, peers, options.artifacts),
            setting,
        )

    return [job(setting) for setting in settings]


def _memory_jobs(options: Options) -> list[Job]:
    cases = [memory.Case(model, False, 8, 224, layers=4) for model in GOAL_MODELS]
    if options.quick:
        cases = [memory.Case("resnet18", True, 2, 64, layers=4)]
    return [
        Job(f"{case.model}, batch {case.batch}", 35, lambda case=case: memory.peak_row(case))  # type: ignore[misc]
        for case in cases
    ]


def _kernel_jobs(options: Options) -> list[Job]:
    settings = [Setting(model, 8) for model in (*GOAL_MODELS, "mcunet")]
    if options.quick:
        settings = [Setting("mcunet", 1, 32)]

    def profile(setting: Setting) -> dict[str, Any]:
        found = ask(kernels.prepare, {"step": {"setting": setting}})
        return found.facts.get("step") or {"setting": asdict(setting), "failed_row": found.failed["step"]}

    return [
        Job(f"{each.model}, batch {each.batch}", 10 + COMPILE[each.model], lambda each=each: profile(each))  # type: ignore[misc]
        for each in settings
    ]


SECTIONS = {  # in the order in which they run
    "shapes": Section(_shape_jobs),
    "steps": Section(_step_jobs),
    "forward": Section(_forward_jobs),
    "growth": Section(_growth_jobs, _build_ahead, before_seconds=10),
    "memory": Section(_memory_jobs),
    "kernels": Section(_kernel_jobs),
}
