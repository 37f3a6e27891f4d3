"""docs/evidence.json as a page: docs/evidence.md and the plots beside it.

    python -m benchmarks.evidence.page [--out docs]

Measures nothing. Rows that are not recorded are named, with the command that measures them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import page_command
from benchmarks.evidence import pictures, prose, tables
from benchmarks.evidence.networks import NAMES
from benchmarks.evidence.settings import COMPARED_LAYERS, LONGER, SHARE, Plan
from benchmarks.evidence.summary import compared, summarise
from benchmarks.evidence.verdicts import judge
from benchmarks.goals import Verdict
from benchmarks.machine import machine_lines
from benchmarks.record import Record
from benchmarks.tables import verdicts

JSON, MARKDOWN, PLOTS = "evidence.json", "evidence.md", "evidence"
Sections = Mapping[str, Mapping[str, Any]]
COST = ("cost.svg", "curves: accuracy over counted MFLOPs, by method and number of trained convolutions")
SHOWN = 4  # of the rows that are missing
README, BEGIN, END = "README.md", "<!-- evidence: verdicts -->\n", "<!-- end -->\n"
SNR = ("snr.svg", "dots: accuracy over the SNR of the weight gradients, by method")
NEW_CLASSIFIER = Path(__file__).parent / "new_classifier.json"  # the first complete run; see prose.NEW_CLASSIFIER


def render(out: Path) -> None:
    """Write the page and its plots from the JSON in `out`; if that is the project's, the README's verdicts too."""
    sections = Record(out / JSON).sections
    lines = ["# Evidence", "", *_head(sections)]
    if {"steps", "runs"} <= sections.keys():
        lines += _body(sections, out)
    (out / MARKDOWN).write_text("\n".join(lines) + "\n", encoding="utf-8")
    readme = out.parent / README
    if out.name == "docs" and readme.exists() and BEGIN in readme.read_text(encoding="utf-8"):
        write_readme(readme, sections)


def write_readme(readme: Path, sections: Sections) -> None:
    """Put the verdicts between the README's two marks, so that it cannot say anything else."""
    text = readme.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    lines = "\n".join(verdicts(judge_record(sections)))
    readme.write_text(f"{before}{BEGIN}\n{lines}\n\n{END}{after}", encoding="utf-8")


def judge_record(sections: Sections) -> list[Verdict]:
    settings = sections["runs"]["settings"]
    return judge(sections["runs"]["rows"], sections["steps"]["rows"], settings["networks"], settings["seeds"])


def _head(sections: Sections) -> list[str]:
    lines = [f"* {words}" for words in machine_lines(sections)] or ["* Nothing is recorded yet."]
    if any(section.get("quick") for section in sections.values()):
        lines.append("* **A quick run on a few images: its figures mean nothing.**")
    return [
        *lines,
        "* Again: `make evidence` (half an hour on two quiet cores; an interrupted one goes on where it was);"
        " this page alone: `python -m benchmarks.evidence.page`.",
        f"* Every figure behind it: [{JSON}]({JSON}).",
        *_duration(sections),
        *_missing(sections),
    ]


def _duration(sections: Sections) -> list[str]:
    minutes = {name: section["seconds"] / 60 for name, section in sections.items() if "seconds" in section}
    if not minutes:
        return []
    each = ", ".join(f"{name} {value:.1f}" for name, value in minutes.items())
    return [f"* It took {sum(minutes.values()):.0f} minutes: {each}."]


def _missing(sections: Sections) -> list[str]:
    lines = []
    for name, section in sections.items():
        missing = [key for key in section["planned"] if key not in section["rows"]]
        if missing:
            more = f"; and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
            lines.append(f"* Not measured yet, of {name}: {'; '.join(missing[:SHOWN])}{more}.")
        failed = [f"{key}: {row['failed_row']}" for key, row in section["rows"].items() if "failed_row" in row]
        lines += [f"* Failed, of {name}: {words}." for words in failed]
    return lines


def _body(sections: Sections, out: Path) -> list[str]:
    settings, steps = sections["runs"]["settings"], sections["steps"]["rows"]
    words = {**settings, "test": settings["test"] or "5000", "share": SHARE, "layers": COMPARED_LAYERS}
    words["seed_count"] = len(settings["seeds"])
    words["steps"] = settings["epochs"] * -(-settings["images"] // settings["batch"])
    words["longer"] = LONGER
    words["visits"] = _visits(settings["networks"], steps, words["steps"])
    summaries = summarise(sections["runs"]["rows"], steps)
    times = sections.get("times", {}).get("rows", {})
    lines = ["", "## What it was to show", "", *verdicts(judge_record(sections))]
    lines += ["", "## Protocol", "", prose.PROTOCOL.format(**words)]
    lines += ["", *tables.pretrained(sections.get("pretrained", {}).get("rows", {}))]
    lines += ["", "## Methods", "", prose.METHODS.format(**words)]
    for network in settings["networks"]:
        found = compared(summaries, network)
        lines += ["", f"### {NAMES[network]}", "", *tables.methods(network, steps, found, times)]
    if summaries:
        lines += _pictures(summaries, words, out)
    lines += ["", "## How the settings were chosen", "", prose.CHOSEN.format(**words)]
    lines += ["", *tables.rates(sections.get("rates", {}).get("rows", {}))]
    lines += ["", "## The same with a new classifier", "", prose.NEW_CLASSIFIER]
    return [*lines, "", *tables.accuracies(json.loads(NEW_CLASSIFIER.read_text(encoding="utf-8")))]


def _visits(networks: Sequence[str], steps: Mapping[str, Any], count: int) -> str:
    """How often a channel is drawn in so many steps, of each network."""
    shares = {name: steps.get(Plan(name, "dynamic", COMPARED_LAYERS).key, {}).get("drawn_share") for name in networks}
    return " and ".join(f"{count * share:.0f} ({NAMES[name]})" for name, share in shares.items() if share)


def _pictures(summaries: pictures.Summaries, words: Mapping[str, Any], out: Path) -> list[str]:
    lines = ["", "## Accuracy against cost", "", prose.COST]
    for network in words["networks"]:
        lines += ["", f"{NAMES[network]}:", "", *tables.depths(summaries, network)]
    pictures.draw_cost(summaries, out / PLOTS / COST[0])
    lines += ["", f"![{COST[1]}]({PLOTS}/{COST[0]})"]
    lines += ["", "## Accuracy against noise", "", prose.SNR.format(**words)]
    pictures.draw_snr(summaries, out / PLOTS / SNR[0])
    return [*lines, "", f"![{SNR[1]}]({PLOTS}/{SNR[0]})"]


if __name__ == "__main__":
    page_command.run(__doc__, render, MARKDOWN)
