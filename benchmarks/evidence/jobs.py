"""The work of the evidence, each in a process of its own: pretrain, compile, choose a rate, fine-tune, time a step."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gfcompile
from benchmarks.evidence import finetune, pretrain
from benchmarks.evidence.data import load_task
from benchmarks.evidence.settings import (
    COMPARED_LAYERS,
    METHODS,
    Plan,
    Settings,
    compared_plans,
    compiled_only,
    rate_beyond,
)
from benchmarks.processes import Prepared, Protocol, take_turns

TIME_TURNS = Protocol(most=30, least=5, seconds=20, starting=2)
QUICK_TURNS = Protocol(most=2, least=2, block_seconds=0.02, starting=2)


def _ready(facts: Mapping[str, Any]) -> Prepared:
    return lambda: None, dict(facts)


def pretrain_job(job: dict[str, Any], scratch: Path) -> Prepared:
    """Leaves the weights in the work folder; accuracy on half A, and on half B with a classifier trained alone."""
    torch.set_num_threads(1)
    settings, network = job["settings"], job["network"]
    task = load_task(job["data"], settings)
    model = pretrain.pretrain(network, task, settings)
    accuracy_a = pretrain.accuracy(model, task.test_a)
    pretrain.train_classifier(model, task, settings)
    pretrain.save(model, pretrain.weights_file(job["work"], network))
    return _ready({"accuracy_a": accuracy_a, "accuracy_b": pretrain.accuracy(model, task.test)})


def compile_job(job: dict[str, Any], scratch: Path) -> Prepared:
    """Leaves the artifact in the work folder; what is counted of it."""
    torch.set_num_threads(1)
    plan: Plan = job["plan"]
    out = artifact_of(job["work"], plan)
    model = _start(plan, job)
    finetune.compile_step(model, METHODS[plan.method], plan.layers, job["settings"], out)
    return _ready(finetune.counted(out))


def rate_job(job: dict[str, Any], scratch: Path) -> Prepared:
    """Fine-tunes once with each rate, from a seed that no run has, and judges by the validation images.

    While the best is at an end of the list, the list goes on there.
    """
    settings: Settings = job["settings"]

    def judge(rate: float) -> float:
        return _finetune(job, rate, settings.first_seed, "validation")[0]

    tried = {rate: judge(rate) for rate in settings.rates}
    while len(tried) < len(settings.rates) + settings.further_rates and (further := rate_beyond(tried)) is not None:
        tried[further] = judge(further)
    rates = sorted(tried)
    accuracies = [tried[rate] for rate in rates]
    return _ready({"rates": rates, "accuracies": accuracies, "chosen": rates[int(np.argmax(accuracies))]})


def finetune_job(job: dict[str, Any], scratch: Path) -> Prepared:
    """One run: test accuracy and gradient quality."""
    plan: Plan = job["plan"]
    accuracy, quality = _finetune(job, job["rate"], job["seed"], "test")
    known = [each for each in quality if each is not None]
    return _ready(
        {
            "network": plan.network,
            "method": plan.method,
            "layers": plan.layers if METHODS[plan.method].trains_convolutions else 0,
            "seed": job["seed"],
            "rate": job["rate"],
            "accuracy": accuracy,
            "snr_db": statistics.mean(known) if known else None,
        }
    )


def _finetune(job: dict[str, Any], rate: float, seed: int, judged_by: str) -> tuple[float, list[float | None]]:
    """The accuracy on these images, and the SNR of the gradients at each epoch's beginning."""
    torch.set_num_threads(1)
    settings: Settings = job["settings"]
    task = load_task(job["data"], settings)
    plan: Plan = job["plan"]
    with gfcompile.load(artifact_of(job["work"], plan), threads=1) as step:
        quality = finetune.train(step, _start(plan, job), task, rate, seed, settings, settings.epochs_of(plan.method))
        return finetune.accuracy(step, getattr(task, judged_by), settings), quality


def time_methods(network: str, settings: Settings, data: Path, work: Path, quick: bool) -> dict[str, Any]:
    """Every method's step on all cores, in turn; the classifier's too."""
    plans = [plan for plan in compiled_only(compared_plans(settings)) if plan.network == network]
    peers = {plan.method: {"plan": plan, "settings": settings, "data": data, "work": work} for plan in plans}
    found = take_turns(_timed_step, peers, QUICK_TURNS if quick else TIME_TURNS)
    return {"network": network, "layers": COMPARED_LAYERS, "peers": found.times, "failed": found.failed}


def _timed_step(job: dict[str, Any], scratch: Path) -> Prepared:
    settings: Settings = job["settings"]
    x, y = (each[: settings.batch] for each in load_task(job["data"], settings).pool)
    step = gfcompile.load(artifact_of(job["work"], job["plan"]), threads=os.cpu_count())
    return lambda: step.train(x, y, lr=0.0), {}


def artifact_of(work: Path, plan: Plan) -> Path:
    return work / f"{plan.network}_{plan.layers}_{plan.compiled.method}_step"


def _start(plan: Plan, job: Mapping[str, Any]) -> torch.nn.Module:
    """Where a fine-tuning starts."""
    return pretrain.restore(plan.network, pretrain.weights_file(job["work"], plan.network))
