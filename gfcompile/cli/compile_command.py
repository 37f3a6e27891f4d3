"""The command that compiles a plan just as it was planned: the options that decide its arena, as they were given."""

from __future__ import annotations

import argparse
import shlex

from gfcompile.cli.parsers import compile_parser, plan_parser

DECIDED = {"--layers", "--train", "--r", "--sparse", "--memory"}  # by the plan
ITS_OWN = {"--out", "--json", "--quiet"}


def compile_command(args: argparse.Namespace, shape: str | None) -> str:
    """`args.given` are the words of `gfcompile plan`; `shape` is the input's where it came with the data."""
    left_out = DECIDED | ITS_OWN | ({"--input", "--batch"} if shape is not None else set())
    planned, compiled = plan_parser()._option_string_actions, compile_parser()._option_string_actions
    kept = []
    words = iter(args.given)
    for word in words:
        name, joined, _ = word.partition("=")
        if name not in planned:
            continue  # the model
        option = [word] if joined or planned[name].nargs == 0 else [word, next(words)]
        if name == "--board":
            option[0] = option[0].replace("--board", "--target", 1)
        if name not in left_out and (name in compiled or name == "--board"):
            kept += option
    if shape is not None:
        kept += ["--input", shape]
    return shlex.join(["gfcompile", args.model, "--plan", str(args.out), *kept])
