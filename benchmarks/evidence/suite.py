"""The gradient-filtering paper's protocol on Fashion-MNIST, in about half an hour on two cores: `make evidence`.

    python -m benchmarks.evidence.suite [--only SECTION ...] [--fresh] [--quick] [--data FOLDER] [--out docs]

Writes OUT/evidence.json after every run, then OUT/evidence.md with its plots (`benchmarks.evidence.page` alone does the
latter). An interrupted evidence goes on where it was; a finished one, or --fresh, begins anew. --quick tries everything
on a few images, into build/ unless --out is given: its figures mean nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.evidence.data import SOURCE, require_data
from benchmarks.evidence.jobs import artifact_of, compile_job, finetune_job, pretrain_job, rate_job, time_methods
from benchmarks.evidence.pretrain import weights_file
from benchmarks.evidence.settings import QUICK, Settings, compared_plans, compiled_only, plans_of, runs_of
from benchmarks.machine import describe_machine
from benchmarks.processes import Prepare, ask
from benchmarks.record import Record
from benchmarks.suite import Clock
from gfcompile.errors import UserError

SECTIONS = ("pretrained", "steps", "rates", "runs", "times")
SECONDS = {
    "pretrained": 200,
    "steps": 14,
    "rates": 60,
    "runs": 16,
    "times": 30,
}  # a row, on a quiet core; of times on both
WORK: dict[str, Prepare] = {
    "pretrained": pretrain_job,
    "steps": compile_job,
    "rates": rate_job,
    "runs": finetune_job,
}
AT_ONCE = 2  # processes of one thread each


def main() -> int:
    from benchmarks.evidence import page  # not above: every job's process imports this module, and needs no matplotlib

    arguments = _arguments()
    settings = QUICK if arguments.quick else Settings()
    record = Record(arguments.out / page.JSON)
    try:
        require_data(arguments.data)
        Evidence(record, settings, arguments.data, arguments.work, arguments.quick).run(arguments.only, arguments.fresh)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    page.render(arguments.out)
    print(f"{arguments.out / page.MARKDOWN} is written")
    return 1 if any("failed_row" in row for each in record.sections.values() for row in each["rows"].values()) else 0


class Evidence:
    """All sections in order; each needs what the ones before it found."""

    def __init__(self, record: Record, settings: Settings, data: Path, work: Path, quick: bool) -> None:
        self._record, self._settings, self._quick = record, settings, quick
        self._common: dict[str, Any] = {"settings": settings, "data": data, "work": work}

    def run(self, names: Sequence[str], fresh: bool) -> None:
        resume = not fresh and not self._is_finished(names)
        about = {"machine": describe_machine(), "quick": self._quick, "settings": as_json(self._settings)}
        todo = {name: self._begin(name, about, resume) for name in SECTIONS if name in names}
        total = sum(SECONDS[name] * len(keys) / _at_once(name) for name, keys in todo.items())
        self._clock, self._last_row = Clock(total), time.perf_counter()
        for name, keys in todo.items():
            print(f"{name:10} {len(keys):3} to do", flush=True)
        for name, keys in todo.items():
            if name == "times":
                self._take_times(keys)
            else:
                self._work(name, keys)

    def planned(self, name: str) -> list[str]:
        """The keys of a section's rows."""
        return list(self._jobs(name))

    def _is_finished(self, names: Sequence[str]) -> bool:
        """Every row is there, and none has failed."""
        there = [
            {key for key, row in self._record.sections.get(name, {}).get("rows", {}).items() if "failed_row" not in row}
            for name in names
        ]
        return all(set(self.planned(name)) <= keys for name, keys in zip(names, there, strict=True))

    def _begin(self, name: str, about: Mapping[str, Any], resume: bool) -> list[str]:
        """The keys that are to be done, those included whose files are gone."""
        missing = self._record.begin(name, self.planned(name), dict(about), resume)
        work: Path = self._common["work"]
        lost: set[str] = set()
        if name == "pretrained":
            lost = {network for network in self._settings.networks if not weights_file(work, network).exists()}
        if name == "steps":
            lost = {key for key, job in self._jobs(name).items() if not artifact_of(work, job["plan"]).exists()}
        return [key for key in self.planned(name) if key in {*missing, *lost}]

    def _jobs(self, name: str) -> dict[str, dict[str, Any]]:
        """By key; a run's rate is the one that was chosen, if that is done."""
        if name in ("pretrained", "times"):
            return {network: {"network": network} for network in self._settings.networks}
        if name == "steps":
            return {plan.key: {"plan": plan} for plan in compiled_only(plans_of(self._settings))}
        if name == "rates":
            return {plan.key: {"plan": plan} for plan in compiled_only(compared_plans(self._settings))}
        rates = self._record.sections.get("rates", {}).get("rows", {})
        return {
            key: {"plan": plan, "seed": seed, "rate": rates.get(plan.rated.key, {}).get("chosen")}
            for key, (plan, seed) in runs_of(self._settings).items()
        }

    def _work(self, name: str, keys: Sequence[str]) -> None:
        jobs = self._jobs(name)
        wanted = {key: self._common | jobs[key] for key in keys}
        done = 0

        def finish(key: str, row: Mapping[str, Any]) -> None:
            nonlocal done
            done += 1
            self._keep(name, key, dict(row))
            print(f"[{name} {done}/{len(keys)}] {key}: {_words(row)}; {self._clock}", flush=True)

        for key, reason in ask(WORK[name], wanted, AT_ONCE, finish).failed.items():
            finish(key, {"failed_row": reason})

    def _take_times(self, keys: Sequence[str]) -> None:
        for network in keys:
            row = time_methods(network, **self._common, quick=self._quick)
            self._keep("times", network, row)
            print(f"[times] {network}: {len(row['peers'])} methods in turn; {self._clock}", flush=True)

    def _keep(self, name: str, key: str, row: dict[str, Any]) -> None:
        """Record the row, and what the section has taken so far."""
        now = time.perf_counter()
        section = self._record.sections[name]
        section["seconds"] = round(section.get("seconds", 0.0) + now - self._last_row, 1)
        self._last_row = now
        self._record.add(name, key, row)
        self._clock.finish(SECONDS[name] / _at_once(name))


def _at_once(name: str) -> int:
    return 1 if name == "times" else AT_ONCE


def as_json(settings: Settings) -> dict[str, Any]:
    """Without the methods: another one more leaves the figures of the others as they are."""
    named = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(settings).items()}
    return {name: value for name, value in named.items() if name != "methods"}


def _words(row: Mapping[str, Any]) -> str:
    if "failed_row" in row:
        return f"failed: {row['failed_row']}"
    if "chosen" in row:
        each = ", ".join(f"{rate:g} {found:.1f} %" for rate, found in zip(row["rates"], row["accuracies"], strict=True))
        return f"rate {row['chosen']:g} ({each} of validation images)"
    if "accuracy_a" in row:
        return f"{row['accuracy_a']:.1f} % of half A, {row['accuracy_b']:.1f} % of half B"
    if "flops" in row:
        return f"{row['saved_bytes'] / 1024:.0f} KB saved"
    return f"{row['accuracy']:.2f} %"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="these sections alone")
    parser.add_argument("--fresh", action="store_true", help="begin anew even where a run was interrupted")
    parser.add_argument("--quick", action="store_true", help="a few images, to see that everything runs")
    parser.add_argument("--data", type=Path, default=SOURCE, help="folder of Fashion-MNIST's four idx files")
    parser.add_argument("--work", type=Path, help="folder of pretrained weights; default: build/evidence")
    parser.add_argument("--out", type=Path, help="folder of the page; default: docs, or build/evidence with --quick")
    arguments = parser.parse_args()
    arguments.work = arguments.work or Path("build/evidence/quick" if arguments.quick else "build/evidence/weights")
    arguments.out = arguments.out or Path("build/evidence" if arguments.quick else "docs")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
