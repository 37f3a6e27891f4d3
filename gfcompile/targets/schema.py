"""What may stand in a target's TOML file, checked before anything is made of it: each error names file and field."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gfcompile.errors import UserError
from gfcompile.targets.gpu import ARCHS

ALIAS = "alias"
OPTION = "option"  # stands for what an option of the command line gives
FIGURES = ("peak_gflops", "bandwidth_gbs", "memory_gib", "watts")


@dataclass(frozen=True)
class Field:
    """One field: `is_right` of its value, and what to write instead if it is not."""

    is_right: Callable[[Any], bool]
    instead: str
    required: bool = True


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")


def _command(*words: str) -> Callable[[Any], bool]:
    """Whether a value is a list of words: the name of a program, then what these patterns say, a newline after each."""
    pattern = re.compile("".join(words))

    def is_right(value: Any) -> bool:
        is_list = isinstance(value, list) and all(_is_text(word) and "\n" not in word for word in value)
        return is_list and pattern.fullmatch("".join(f"{word}\n" for word in value)) is not None

    return is_right


TEXT = Field(_is_text, "a text in quotes")
WHOLE = Field(_is_whole, "a whole number from 1 to 2147483647")
COUNT = Field(lambda value: value == "host" or _is_whole(value), 'a whole number from 1 to 2147483647, or "host"')
# What a target file names is run: no paths, and no options that make a compiler or an emulator load something.
COMPILER = Field(
    _command(r"((zig|ziglang)\ncc|([\w-]+-)?(cc|gcc|clang)(-\d+)?)\n", r"(-target\n\w[\w.-]*\n|-[mO][\w=.,+-]*\n)*"),
    'the name of a C compiler on your PATH and machine options, as in ["cc"] or ["clang", "-mcpu=cortex-a53"]',
)
EMULATOR = Field(
    _command(r"qemu-[\w-]+\n", r"(-cpu\n\w[\w.,+-]*\n)?"),
    'the name of a qemu on your PATH and its -cpu, as in ["qemu-aarch64-static", "-cpu", "cortex-a53"]',
    required=False,
)
TABLE = Field(lambda value: isinstance(value, dict), "a table")


def _optional(field: Field) -> Field:
    return Field(field.is_right, field.instead, required=False)


def _one_of(*values: str, required: bool = False) -> Field:
    return Field(lambda value: value in values, " or ".join(f'"{value}"' for value in values), required)


def _is_version(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"2\.\d+", value) is not None


def _is_triple(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"host|(x86_64|aarch64)-[\w-]+", value) is not None


TARGET = {
    "description": TEXT,
    "kind": _one_of("cpu", "cuda"),
    "lanes": COUNT,
    "registers": COUNT,
    "cores": COUNT,
    "cache_kib": COUNT,
    "in_order": Field(lambda value: isinstance(value, bool), "true or false", required=False),
    "link": COMPILER,
    "glibc": Field(_is_version, 'the oldest version to run on, as in "2.17"', required=False),
    "libc": _one_of("glibc", "musl"),
    "emulator": EMULATOR,
    "tvm": TABLE,
    "gpu": _optional(TABLE),
    "machine": _optional(TABLE),
}
TVM = {
    "kind": _one_of("llvm", required=True),
    "mtriple": Field(_is_triple, 'a triple of x86_64 or aarch64, as in "aarch64-linux-gnu", or "host"'),
    "mcpu": TEXT,
    "mattr": Field(
        lambda value: isinstance(value, list) and all(map(_is_text, value)), 'a list, as in ["+neon"]', required=False
    ),
}
GPU = {"arch": _one_of(*ARCHS, OPTION, required=True), "multiprocessors": WHOLE}
MACHINE = {name: _optional(TABLE) for name in FIGURES}
FIGURE = {"value": Field(_is_positive, "a number above 0"), "source": TEXT}


def read_fields(path: Path) -> dict[str, Any]:
    """The file's content, every field of it known, present where it must be, and of its kind."""
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists without an end
        example = Path(__file__).parent / "rpi4.toml"
        raise UserError(f"{path}: not a valid TOML file ({error}); see {example}") from error
    if ALIAS in fields:
        _check(path, "a target that is an alias", {ALIAS: TEXT}, fields)
        return fields
    _check(path, "a target", TARGET, fields)
    _check(path, "[tvm]", TVM, fields["tvm"], "tvm.")
    machine = fields.get("machine", {})
    _check(path, "[machine]", MACHINE, machine, "machine.")
    for name, figure in machine.items():
        _check(path, f"[machine.{name}]", FIGURE, figure, f"machine.{name}.")
    is_cuda = fields.get("kind", "cpu") == "cuda"
    if is_cuda != ("gpu" in fields):
        wrong = "lacks [gpu]" if is_cuda else 'has [gpu] without kind = "cuda"'
        raise UserError(f"{path}: {wrong}; both belong to a GPU, neither to a CPU")
    if is_cuda:
        _check(path, "[gpu]", GPU, fields["gpu"], "gpu.")
    return fields


def _check(path: Path, what: str, schema: dict[str, Field], fields: dict[str, Any], prefix: str = "") -> None:
    missing = sorted(name for name, field in schema.items() if field.required and name not in fields)
    extra = sorted(fields.keys() - schema.keys())
    if missing or extra:
        wrong = [f"lacks '{prefix}{name}'" for name in missing]
        wrong += [f"has the unknown field '{prefix}{name}'" for name in extra]
        raise UserError(f"{path}: {', '.join(wrong)}; {what} has the fields {', '.join(sorted(schema))}")
    for name, value in fields.items():
        if not schema[name].is_right(value):
            raise UserError(f"{path}: {prefix}{name} is '{value}'; give {schema[name].instead}")
