"""Every operator that training a CNN needs, forward and backward, compiled and compared with PyTorch."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from gfcompile.ops import gf
from gfcompile.stages import trace
from gfcompile.step import Role, Step
from tests.models.definitions import DEFINITIONS
from tests.models.definitions.census import read_census, training_ops
from tests.operators import OPEN, THEMES
from tests.operators.harness import Bundle, Case, Compiled, compare, explain, job_of, operators
from tests.operators.randoms import RANDOMS
from tests.selection import often
from tests.tolerances import relative_error

ALL = [case for cases in THEMES.values() for case in cases]
ONE_OF_EACH = [cases[len(cases) // 2] for cases in THEMES.values()]
SAMPLES = 2  # libraries of some ten seconds each
DRAWN_OFTEN = (
    "dropout",
    "dropout_in_place",
    "dropout_all",
    "dropout_none",
    "dropout1d",
    "dropout2d",
    "dropout2d_of_image",
    "rand",
    "attention_dropout",
    "rrelu",
    "drop_path",
    "randn",
    "bernoulli",
    "bernoulli_p",
    "dropout_of_image",
)
COVERED = 0.95  # of the definitions' operators; a rare one is seen in its definition, by `make coverage`


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def check(cases: list[Case], folder: Path, subtests: pytest.Subtests) -> None:
    try:
        errors = compare(cases, folder)
    except Exception as error:
        reasons = explain(cases)
        if reasons:
            listing = "\n".join(f"{name}: {reason}" for name, reason in reasons.items())
            pytest.fail(f"cannot be compiled:\n{listing}")
        raise error
    for case in cases:
        with subtests.test(operator=case.name):
            for what, error in errors[case.name].items():
                assert error <= case.tolerance, f"{case.name}: {what}: relative error {error:.1e}"


@pytest.mark.slow
@pytest.mark.parametrize("number", often(range(SAMPLES), [0]))
def test_one_of_every_theme(number: int, tmp_path: Path, subtests: pytest.Subtests) -> None:
    check(ONE_OF_EACH[number::SAMPLES], tmp_path, subtests)


@pytest.mark.coverage
@pytest.mark.parametrize("theme", THEMES)
def test_theme(theme: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    check(THEMES[theme], tmp_path, subtests)


NOT_YET = [pytest.param(case, id=case.name, marks=pytest.mark.xfail(reason=why)) for case, why in OPEN]


@pytest.mark.coverage
@pytest.mark.parametrize("case", NOT_YET)
def test_not_yet(case: Case) -> None:
    reasons = explain([case])
    assert not reasons, reasons[case.name]


def test_names_are_distinct() -> None:
    names = [case.name for case in ALL]
    assert len(set(names)) == len(names), sorted(name for name in set(names) if names.count(name) > 1)


# ---- completeness


@pytest.mark.coverage
def test_the_operators_of_the_definitions_are_covered() -> None:
    known = set().union(*(operators(cases) for cases in THEMES.values()))
    wanted = read_census()
    missing = sorted(wanted - known)
    assert len(missing) <= (1 - COVERED) * len(wanted), f"{len(missing)} of {len(wanted)} have no case: {missing}"


@pytest.mark.coverage
@pytest.mark.parametrize("name", list(DEFINITIONS)[::40])
def test_the_census_is_up_to_date(name: str) -> None:
    missing = training_ops(DEFINITIONS[name]) - read_census()
    assert not missing, "python -m tests.models.definitions.census --write"


# ---- random numbers


@pytest.fixture(scope="module", params=often(["some", "all"], ["some"]))
def drawn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Compiled, Step]:
    """The random operators compiled, and the graph that they were traced as."""
    cases = [case for case in RANDOMS if request.param == "all" or case.name in DRAWN_OFTEN]
    traced = trace(job_of(Bundle(cases).eval(), dropout=True))
    graph = copy.deepcopy(traced.training)
    return Compiled(traced, tmp_path_factory.mktemp("randoms")), graph


@pytest.mark.slow
def test_random_operators_draw_as_their_graph_does(drawn: tuple[Compiled, Step], subtests: pytest.Subtests) -> None:
    compiled, graph = drawn
    target = torch.randn(_target_shape(graph), generator=torch.Generator().manual_seed(2))
    for seed in (0, 7, 2**32 - 1):
        expected, found = _run(graph, target, seed), compiled.gradients(target, seed)
        for name, gradient in expected.items():
            with subtests.test(operator=name, seed=seed):
                assert relative_error(found[name], gradient) <= 1e-5


@pytest.mark.slow
def test_a_seed_names_its_masks(drawn: tuple[Compiled, Step]) -> None:
    compiled, graph = drawn
    ones = torch.ones(_target_shape(graph))
    first, again, other = (compiled.gradients(ones, seed) for seed in (3, 3, 4))
    name = "cases.dropout.x0"
    assert np.array_equal(first[name], again[name])
    assert not np.array_equal(first[name], other[name])
    assert not np.array_equal(first[name], first["cases.dropout_in_place.x0"]), "two layers share a mask"


@pytest.mark.slow
def test_dropouts_keep_what_they_say(drawn: tuple[Compiled, Step]) -> None:
    """A gradient of ones comes back as 1 / 0.7 where a value was kept, and as 0 elsewhere."""
    compiled, graph = drawn
    gradients = compiled.gradients(torch.ones(_target_shape(graph)), seed=11)
    for name, units in (("dropout", (0, 1)), ("dropout1d", (0, 1)), ("dropout2d", (0, 1)), ("drop_path", (0,))):
        gradient = gradients[f"cases.{name}.x0"]
        kept = gradient != 0
        assert np.allclose(gradient[kept], 1 / 0.7, rtol=1e-6)
        others = tuple(axis for axis in range(gradient.ndim) if axis not in units)
        whole = kept.mean(axis=others) if others else kept.astype(float)
        assert set(np.unique(whole)) <= {0.0, 1.0}, f"{name}: a unit is dropped in part"
        _within(whole.mean(), 0.7, math.sqrt(0.7 * 0.3 / whole.size), name)
    assert not gradients["cases.dropout_all.x0"].any()
    assert (gradients["cases.dropout_none.x0"] == 1).all()


def _target_shape(graph: Step) -> torch.Size:
    return graph.placeholder(Role.TARGET, "target").meta["val"].shape


def _run(graph: Step, target: Tensor, seed: int) -> dict[str, Tensor]:
    """The traced joint graph in PyTorch: gradients by name."""
    doors = {Role.TARGET: target, Role.SEED: torch.tensor(seed)}
    arguments = []
    for node, value in zip(graph.placeholders(), graph.inputs, strict=True):
        zeros = torch.zeros(node.meta["val"].shape, dtype=node.meta["val"].dtype)
        arguments.append(doors.get(value.role, graph.tensors.get(value.name, zeros)))
    results = graph.run(*arguments)
    return {v.name: r for v, r in zip(graph.outputs, results, strict=True) if v.role is Role.GRADIENT}


def _within(found: float, expected: float, deviation: float, what: str) -> None:
    assert abs(found - expected) <= 4.5 * deviation, f"{what}: {found:.5f}, not {expected:.5f} +- {deviation:.5f}"


COUNT = 100_000


def uniform(seed: int, stream: int = 0, count: int = COUNT) -> np.ndarray:
    return gf.uniform(torch.tensor(seed), stream, [count]).numpy().astype(np.float64)


SEEDS = [(0, 0), (1, 0), (0, 1), (2**32 - 1, 3), (123456789, 2**16)]


@pytest.mark.parametrize(("seed", "stream"), SEEDS)
def test_numbers_are_uniform(seed: int, stream: int) -> None:
    numbers = uniform(seed, stream)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    _within(numbers.mean(), 1 / 2, math.sqrt(1 / 12 / COUNT), "mean")
    _within(numbers.var(), 1 / 12, math.sqrt(1 / 180 / COUNT), "variance")
    for bins in (10, 256):
        counts = np.bincount((numbers * bins).astype(int), minlength=bins)
        chi = ((counts - COUNT / bins) ** 2 / (COUNT / bins)).sum()
        _within(chi, bins - 1, math.sqrt(2 * (bins - 1)), f"chi-square of {bins} bins")


@pytest.mark.parametrize(("left", "right"), [((0, 0), (1, 0)), ((0, 0), (0, 1)), ((5, 2), (6, 1)), ((0, 1), (1, 0))])
def test_streams_and_seeds_are_independent(left: tuple[int, int], right: tuple[int, int]) -> None:
    a, b = uniform(*left), uniform(*right)
    _within(np.corrcoef(a, b)[0, 1], 0, COUNT**-0.5, "correlation")
    pairs = np.bincount((a * 8).astype(int) * 8 + (b * 8).astype(int), minlength=64)
    _within(((pairs - COUNT / 64) ** 2 / (COUNT / 64)).sum(), 63, math.sqrt(2 * 63), "chi-square of pairs")
    assert (a == b).mean() < 1e-4


@pytest.mark.parametrize("distance", [1, 2, 3, 32, 1000])
def test_neighbours_are_independent(distance: int) -> None:
    numbers = uniform(17, 4)
    _within(np.corrcoef(numbers[:-distance], numbers[distance:])[0, 1], 0, COUNT**-0.5, f"lag {distance}")


def test_a_number_depends_on_its_position_alone() -> None:
    assert np.array_equal(uniform(3, 1)[:100], uniform(3, 1, 100))
    square = gf.uniform(torch.tensor(3), 1, [4, 5])
    assert np.array_equal(square.numpy().reshape(-1), uniform(3, 1, 20))


def test_seeds_count_their_low_32_bits() -> None:
    assert np.array_equal(uniform(5), uniform(5 + 2**32))
    assert not np.array_equal(uniform(0), uniform(-1))
