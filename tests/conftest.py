"""One hypothesis profile for all tests: the same draws on every run, no deadline on a shared machine.

What the user has tuned changes no test: their database is one that does not exist, in child processes too.

Compiling makes millions of objects that live on, and Python's collector looks at all of them again and again: it comes
less often here, which saves an eighth of a compile's time.

The networks are tiny, and a worker runs on every core: more threads of PyTorch would only wait for each other, busily,
and more processes of a compile would take each other's time.

Who starts the suite in the background has Ctrl-C ignored, and tests that send it would wait for nothing.
"""

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from tests.store import Store

settings.register_profile("gfcompile", derandomize=True, deadline=None, database=None, print_blob=True)
settings.load_profile("gfcompile")
HERE = Path(__file__).parent
os.environ["GFCOMPILE_TUNING"] = str(HERE / "nothing_tuned.jsonl")
os.environ.setdefault("GFCOMPILE_JOBS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is loaded, by child processes too
gc.set_threshold(200_000, 20, 100)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Files that take a minute and more (docs/suite.md): they begin, so that no worker is left with one at the end.
LONGEST = (
    "cuda/test_steps.py",
    "boards/test_steps.py",
    "end_to_end/test_sparse.py",
    "end_to_end/test_memory_contract.py",
    "boards/test_checks.py",
    "end_to_end/test_zoo.py",
    "end_to_end/test_gradients.py",
    "end_to_end/test_coverage.py",
    "end_to_end/test_calculus.py",
    "end_to_end/test_training.py",
    "end_to_end/test_optimizers.py",
    "end_to_end/test_depth.py",
    "cuda/test_schedules.py",
    "tuning/test_algorithms.py",
    "tuning/test_tune_command.py",
    "tuning/test_rpc.py",
    "report/test_memory_plan.py",
    "budget/test_fit_memory.py",
    "budget/test_planner.py",
    "budget/test_search.py",
    "budget/test_flops.py",
    "codegen/test_operators.py",
    "codegen/test_kernels.py",
    "fuzz/test_models.py",
    "passes/test_contract.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; the order within a file, and of the others, is as written."""
    places = {HERE / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """What is made once for all workers."""
    base = tmp_path_factory.getbasetemp()
    return Store((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "store")
