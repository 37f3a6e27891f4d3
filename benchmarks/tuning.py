"""Tune the benchmark models, then time whole steps tuned and untuned against each other, and each kernel in its step.

    python -m benchmarks.tuning [--models resnet18 mobilenet_v2] [--minutes 8] [--batch 8] [--target native] --db FILE

Trials go to FILE, which `gfcompile tune --show FILE` prints. The two steps are processes of their own that take turns;
then each tuned kernel's times inside its step, by drivers with a clock around every call.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gfcompile
from benchmarks.machine import describe_machine, machine_line
from benchmarks.models import MODELS, choose, make_task
from benchmarks.peers import LEARNING_RATE, MOMENTUM, WEIGHT_DECAY, Task
from benchmarks.processes import Prepared, Protocol, take_turns
from benchmarks.rounds import mean_ratio, paired_ratio
from benchmarks.step_time import Setting
from gfcompile.codegen.tuned.algorithms import choose_by
from gfcompile.codegen.tuned.database import Database, Databases
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job, Lowered
from gfcompile.settings.schema import Request
from gfcompile.stages import lower_job, place
from gfcompile.targets import Target, find_target
from gfcompile.tuning.in_step import compare_in_step
from gfcompile.tuning.local import LocalRunner
from gfcompile.tuning.messages import summary_text
from gfcompile.tuning.procedure import Procedure
from gfcompile.tuning.status import Budget

_ROUNDS = 24


@dataclass(frozen=True)
class Subject:
    """A step to be tuned."""

    setting: Setting
    target: Target
    db: Path


def make_its_task(setting: Setting) -> Task:
    chosen = choose(setting.model, setting.size, setting.layers, setting.r)
    return make_task(setting.model, setting.batch, setting.size, setting.r, chosen)


def make_job(task: Task, setting: Setting) -> Job:
    request = Request(layers=setting.layers, r={"*": setting.r})
    optimizer = gfcompile.SGD(MOMENTUM, WEIGHT_DECAY)
    return Job(task.model, (task.x,), resolve_loss("cross_entropy"), request, optimizer, LEARNING_RATE)


def tune(subject: Subject, lowered: Lowered, minutes: float) -> Procedure:
    target, runner = subject.target, LocalRunner(subject.target)
    tasks, workers = place(lowered, target).tasks, os.cpu_count() or 1
    procedure = Procedure(tasks, target, Database.open(subject.db), runner, workers, lowered)
    procedure.run(Budget(seconds=60 * minutes))
    return procedure


def prepare(settings: dict[str, Any], scratch: Path) -> Prepared:
    """The step of one peer, compiled with or without the database."""
    subject: Subject = settings["subject"]
    setting = subject.setting
    task = make_its_task(setting)
    start = time.perf_counter()
    step = gfcompile.compile(
        task.model,
        (task.x,),
        layers=setting.layers,
        r=setting.r,
        target=subject.target.name,
        optimizer=gfcompile.SGD(MOMENTUM, WEIGHT_DECAY),
        lr=LEARNING_RATE,
        tuning=subject.db if settings["tuned"] else False,
        out=scratch / "timed_step",
        threads=os.cpu_count(),
    )
    facts = {"compile_seconds": time.perf_counter() - start}
    x, labels = task.x.numpy(), task.labels.numpy()
    return lambda: step.train(x, labels), facts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["resnet18", "mobilenet_v2"])
    parser.add_argument("--minutes", type=float, default=8.0, help="of tuning, for each model; 0: use what is in --db")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--target", default="native")
    parser.add_argument("--db", type=Path, required=True)
    arguments = parser.parse_args()
    print(machine_line(describe_machine()))
    ratios = []
    for model in arguments.models:
        subject = Subject(Setting(model, arguments.batch), find_target(arguments.target), arguments.db)
        task = make_its_task(subject.setting)
        lowered = lower_job(make_job(task, subject.setting))
        if arguments.minutes:
            start = time.perf_counter()
            procedure = tune(subject, lowered, arguments.minutes)
            minutes = (time.perf_counter() - start) / 60
            rate = 60 * procedure.status.trials / procedure.status.seconds
            print(f"{model}: tuned in {minutes:.1f} min, {rate:.0f} trials of kernels a minute")
            print(summary_text(procedure, subject.db), flush=True)
        peers = {name: {"subject": subject, "tuned": name == "tuned"} for name in ("untuned", "tuned")}
        found = take_turns(prepare, peers, Protocol(_ROUNDS, warm_up=2, block_seconds=0.5))
        faster = paired_ratio(found.times["untuned"], found.times["tuned"])
        ratios.append(faster.value)
        compiled = {name: facts["compile_seconds"] for name, facts in found.facts.items()}
        rounds = f"{faster.low:.3f}..{faster.high:.3f}"
        print(f"{model}, batch {arguments.batch}: the whole step {faster.value:.3f}x ({rounds})")
        print(f"  compiled in {compiled['untuned']:.0f} s untuned, {compiled['tuned']:.0f} s with the database")
        known = Databases((Database.open(subject.db),))
        decided = lower_job(lowered.job, algorithms=choose_by(known, subject.target))
        for kernel, (_, times) in compare_in_step(decided, subject.target, known).items():
            print(f"  {times.value:6.2f}x ({times.low:.2f}..{times.high:.2f})  {kernel[:90]}", flush=True)
    print(f"geometric mean {mean_ratio(ratios):.3f}x, measured")
    return 0


if __name__ == "__main__":
    sys.exit(main())
