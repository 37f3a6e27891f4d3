"""Runs pytest in forked children of a process that has imported what no fault changes.

torch and TVM take seven seconds of each run, gfcompile and a test's own work often less. The modules are this script's
arguments. One order a line on stdin: the tree, pytest's arguments, what the environment gets in addition, the file for
the output. Answers are the child's number and, when it has ended, its code. A script and no module, so that nothing of
the project is imported before a fault is there.
"""

from __future__ import annotations

import importlib
import json
import os
import sys


def main() -> None:
    sys.dont_write_bytecode = True
    sys.path.pop(0)  # this folder
    for name in sys.argv[1:]:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # saves nothing then
    _stop_at_the_first_example()
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            _obey(**order)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _stop_at_the_first_example() -> None:
    """That an example fails is enough: to find the smallest one takes minutes. Nor is a busy machine a failure.

    The suite's own profile inherits both.
    """
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(
        "faults", phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
    )
    settings.load_profile("faults")


def _obey(tree: str, arguments: list[str], additions: dict[str, str], output: str) -> None:
    os.setsid()  # whatever the tests leave behind ends with this group
    os.chdir(tree)
    os.environ.update(additions)
    sys.path.insert(0, tree)
    for descriptor, path, flags in ((0, os.devnull, os.O_RDONLY), (1, output, os.O_WRONLY | os.O_CREAT)):
        opened = os.open(path, flags)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.dup2(1, 2)
    code = 3
    try:
        import pytest

        code = int(pytest.main(arguments))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
