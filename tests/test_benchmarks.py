"""The benchmarks: their peers compute what they claim, their measures measure, and they print their tables."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks import backward, profile, step_time
from benchmarks.allocations import kept_bytes, peak_bytes
from benchmarks.machine import Limits
from benchmarks.memory_peers import FilteredConv2d, Task, filter_convolutions, measure, why_not
from benchmarks.processes import Protocol
from gfcompile.frontend.losses import resolve_loss
from gfcompile.frontend.survey import survey
from gfcompile.frontend.trace import trace_forward, trace_training
from gfcompile.geometry.convolution import output_windows
from gfcompile.geometry.layouts import WeightLayout
from gfcompile.job import Job
from gfcompile.ops import gf
from gfcompile.passes import pipeline
from gfcompile.plan import make_plan
from gfcompile.settings.schema import Request
from gfcompile.stages import analyse
from gfcompile.step import Role
from tests.models import initialise, randomise_statistics
from tests.oracles import filtered_conv_gradients
from tests.tolerances import GRAPH_FLOAT64, assert_near

ROOT = Path(__file__).resolve().parents[1]
FLOAT = 4  # bytes
SCALARS = 64  # bytes: a loss, its gradient
KERNELS = [(1, 1), (3, 3), (5, 3)]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """What `measure` sets for its own process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("r", [2, 3, 4])
@pytest.mark.parametrize("stride", [(2, 1), (2, 2)])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("size", [(1, 1), (7, 13), (8, 6)])
def test_plain_filter_equals_the_oracle(size: tuple[int, int], groups: int, stride: tuple[int, int], r: int) -> None:
    for kernel in KERNELS:
        padding = (kernel[0] // 2, kernel[1] // 2)
        conv = nn.Conv2d(4, 4 if groups == 4 else 6, kernel, stride, padding, groups=groups).double()
        x = torch.randn(2, 4, *size, dtype=torch.float64, requires_grad=True)
        y = FilteredConv2d(conv, r)(x)
        gy = torch.randn_like(y)
        y.backward(gy)
        geometry = {"stride": conv.stride, "padding": padding, "dilation": (1, 1), "groups": groups}
        arrays = (x.detach().numpy(), conv.weight.detach().numpy(), gy.numpy())
        expected = filtered_conv_gradients(*arrays, r=r, mode="unbiased", **geometry)
        for name, found, wanted in zip("xwb", (x, conv.weight, conv.bias), expected, strict=True):
            assert_near(found.grad, wanted, GRAPH_FLOAT64, f"g{name} of a {kernel} kernel")


class Tail(nn.Module):
    """What the benchmark's networks are made of: a projection, a strided, a depthwise and a pointwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.strided = nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.depthwise = nn.Conv2d(6, 6, 5, padding=2, groups=6)
        self.pointwise = nn.Conv2d(6, 6, 1)
        self.projection = nn.Conv2d(4, 6, 1, stride=2)
        self.head = nn.Linear(6, 3)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        inner = torch.relu_(self.norm(self.strided(x)))
        inner = self.pointwise(torch.relu_(self.depthwise(inner)))
        inner += self.projection(x)
        return self.head(torch.relu_(inner).mean((2, 3)))


@pytest.mark.slow
def test_plain_filter_trains_like_gfcompile() -> None:
    """Every gradient of a network, against the filtered graph run in float64."""
    torch.manual_seed(0)
    model = randomise_statistics(Tail(), 0).eval()
    x, labels = torch.randn(2, 3, 13, 14), torch.tensor([0, 2])
    layers = survey(trace_forward(model, (x,)), model)
    named = [layer.name for layer in layers if layer.kind != "other" and layer.name != "stem"]
    plan = make_plan(layers, Request(train=named))
    step = pipeline.run(trace_training(model, (x,), labels, resolve_loss("cross_entropy"), plan), pipeline.FILTERING)
    batch = {Role.INPUT: x.double(), Role.TARGET: labels, Role.SAMPLE_WEIGHT: torch.ones(2, dtype=torch.float64)}
    given = [batch[v.role] if v.role in batch else step.tensors[v.name].double() for v in step.inputs]
    results = zip(step.outputs, step.run(*given), strict=True)
    expected = {value.name: result for value, result in results if value.role is Role.GRADIENT}
    assert set(expected) == plan.trained_parameters

    filter_convolutions(model, {layer.name: layer.r for layer in plan.trained if layer.r is not None})
    nn.functional.cross_entropy(model.double()(x.double()), labels).backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    for name, wanted in expected.items():
        assert_near(found[name], wanted, GRAPH_FLOAT64, name)


@pytest.mark.parametrize(
    ("conv", "r", "reason"),
    [
        (nn.Conv2d(4, 4, 3, padding=1, groups=2), 2, "groups that are neither 1 nor depthwise"),
        (nn.Conv2d(4, 4, 3, padding=2, dilation=2), 2, "taps that land in different patches"),
        (nn.Conv2d(4, 4, 3, padding=1), 1, "taps that land in different patches"),
        (nn.Conv2d(4, 4, 3), 2, "padding other than half of an odd kernel"),
        (nn.Conv2d(4, 4, 2, padding=1), 2, "padding other than half of an odd kernel"),
    ],
)
def test_plain_filter_refuses(conv: nn.Conv2d, r: int, reason: str) -> None:
    assert why_not(conv, r) == reason
    with pytest.raises(ValueError, match=reason):
        FilteredConv2d(conv, r)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_peak_of_plain_allocations() -> None:
    before = [torch.empty(1000)]

    def run() -> None:
        before.clear()  # allocated earlier: its release must not make room
        first, second = torch.empty(100), torch.empty(200)
        del first
        third = torch.empty(50)
        del second, third

    assert peak_bytes(run) == 300 * FLOAT


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_peak_of_a_backward_pass() -> None:
    """x.exp().exp(): both results are saved; the first gradient joins them, the second takes the place of the last."""
    n = 10_000
    x = torch.zeros(n, requires_grad=True)

    def run() -> None:
        x.exp().exp().sum().backward()
        x.grad = None

    run()
    peak = peak_bytes(run)
    assert 3 * n * FLOAT <= peak <= 3 * n * FLOAT + SCALARS


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore:TF32")
def test_peak_sees_the_workspaces_of_convolutions() -> None:
    """Without oneDNN, a 3x3 kernel unfolds its input: nine maps that no module ever sees, and the result."""
    conv, x = nn.Conv2d(16, 16, 3, padding=1), torch.randn(1, 16, 32, 32)
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        assert peak_bytes(lambda: conv(x)) == (9 + 1) * 16 * 32 * 32 * FLOAT


def test_kept_counts_a_storage_once_and_no_parameter() -> None:
    """A linear layer keeps its input and its weight, ReLU its result; the sum of squares keeps that result again."""
    linear, x = nn.Linear(8, 16), torch.randn(4, 8)

    def forward() -> Tensor:
        return torch.relu_(linear(x)).square().sum()

    assert kept_bytes(forward, [x, *linear.parameters()]) == 4 * 16 * FLOAT
    assert kept_bytes(forward, linear.parameters()) == (4 * 16 + 4 * 8) * FLOAT


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_peers_keep_what_their_formulas_need() -> None:
    """Of the narrow ResNet's last convolution, r=2: 64 channels, 4x4; batch norm and ReLU keep one map each."""
    names = ("layer4.0.conv2.weight", "fc.weight", "fc.bias")
    task = Task("resnet18", True, 2, 128, names, "eval", {})
    one_map, one_grid = 64 * 4 * 4 * FLOAT, 64 * 2 * 2 * FLOAT
    head = (64 + 10) * FLOAT  # the pooled features, the logarithms of the probabilities
    exact, filtered = measure(task), measure(Task(**{**vars(task), "patches": {"layer4.0.conv2": 2}}))
    assert exact.kept_bytes == pytest.approx(2 * (3 * one_map + head), abs=SCALARS)
    assert filtered.kept_bytes == pytest.approx(2 * (2 * one_map + one_grid + head), abs=SCALARS)
    assert exact.loss == filtered.loss
    assert exact.peak_bytes > exact.kept_bytes


@pytest.mark.coverage
def test_quick_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.memory", "--quick", "--json", str(tmp_path / "report.json")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    (peaks,), (kept,) = report["peaks"], report["kept"]
    best = min(peer["peak_bytes"] for peer in peaks["measured"].values())
    assert peaks["measured"][peaks["bar"]["of"]]["peak_bytes"] == best
    assert peaks["ratios"][peaks["bar"]["of"]] == pytest.approx(peaks["counted"]["arena_bytes"] / best)
    assert peaks["measured"]["exact"]["loss"] == pytest.approx(peaks["measured"]["filter"]["loss"])
    exact = kept["measured"]["exact"]["kept_bytes"]
    assert 0 < kept["counted"]["r=4"] < kept["counted"]["r=2"] < exact
    assert kept["ratios"]["r=2"] == pytest.approx(kept["counted"]["r=2"] / exact)
    for words in (
        "Peak of one training step",
        "Kept from forward to backward",
        "counted",
        "measured",
        "bar: arena <= 0.7",
    ):
        assert words in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("r", [2, 4])
def test_backward_of_one_layer_is_the_filtered_one(r: int, tmp_path: Path) -> None:
    """What is timed is the method's gradient of the input, spread, and of the weights, one value for all taps."""
    graph = backward.compile_backward((16, 9, 11), batch=2, r=r, spread=True, folder=tmp_path)
    graph.run()
    gy, x_tilde, w = (torch.from_numpy(array).double() for array in graph.inputs)
    weight = WeightLayout.for_conv([16, 16, 3, 3], 1).unpack(w)
    image = torch.zeros(2, 16, 9, 11, dtype=torch.float64)
    geometry = ([1, 1], [1, 1], [1, 1], 1, r, False)
    gx, _, _ = gf.filtered_convolution_backward(gy.permute(0, 3, 1, 2).contiguous(), image, weight, *geometry)
    assert_near(torch.from_numpy(graph.outputs[0]), gx.permute(0, 2, 3, 1), 1e-5, "gx")
    grid = [output_windows(size, r).as_list() for size in (9, 11)]
    gw = torch.einsum("npqo,npqi->io", gf.patch_mean(gy, *grid, channels_last=True), x_tilde)
    assert_near(torch.from_numpy(graph.outputs[1]).reshape(16, 16), gw, 1e-5, "gw")


@pytest.mark.slow
def test_profile_accounts_for_every_call() -> None:
    model, x, labels = Tail(), torch.randn(2, 3, 13, 14), torch.tensor([0, 2])
    analysis = analyse(Job(model, (x,), resolve_loss("cross_entropy"), Request(layers=2)))
    rows = profile.profile(analysis, x.numpy(), labels.numpy())
    calls = analysis.programs["train"].program.calls
    assert [row.kernel for row in rows] == [call.kernel for call in calls]
    assert all(row.seconds > 0 and row.bytes > 0 for row in rows)
    stem = next(row for row in rows if "conv2d" in row.kernel)
    assert stem.flops >= 2 * 2 * 4 * 13 * 14 * 3 * 9
    assert f"{len(rows)} kernel calls" in profile.table(rows, Limits(1e11, 1e10), top=3)


@pytest.mark.coverage
@pytest.mark.parametrize(
    ("model", "failed"),
    [("mcunet", {}), ("deeplabv3", {"published_channels_last": "ValueError: the published filter has no dilation"})],
)
def test_step_time_of_a_small_setting(model: str, failed: dict[str, str]) -> None:
    """Peers start from the same loss; who cannot take part is said, and the table has a line for each."""
    peers = ("eager", "published_channels_last", "gfcompile")
    report = step_time.measure(step_time.Setting(model, batch=2, size=32), Protocol(2, 2), peers)
    assert report["failed"] == failed
    assert not report["differs"]
    assert report["peers"].keys() == set(peers) - failed.keys()
    assert all(step_time.PEERS[name] in step_time.table(report) for name in peers)
