"""Reading a forward graph: order, geometry, shortcut projections, and why a convolution cannot be filtered."""

import pytest
import torch
from torch import Tensor, nn

from gfcompile.frontend.survey import survey
from gfcompile.frontend.trace import trace_forward
from gfcompile.plan import make_plan
from gfcompile.settings.schema import Request
from tests.models.mobilenet import mobilenet_v2
from tests.models.resnet import resnet18
from tests.models.zoo import INPUTS, ZOO


def surveyed(model: nn.Module, *shape: int):
    model.eval()
    return survey(trace_forward(model, (torch.zeros(shape),)), model)


def shortcuts(model: nn.Module, *shape: int) -> list[str]:
    return [layer.name for layer in surveyed(model, *shape) if layer.is_shortcut]


@pytest.mark.slow
def test_resnet_projections_are_shortcuts():
    layers = surveyed(resnet18(10, 8), 1, 3, 32, 32)
    assert [layer.name for layer in layers if layer.is_shortcut] == [f"layer{i}.0.downsample.0" for i in (2, 3, 4)]
    assert sum(layer.kind == "conv" for layer in layers) == 20
    assert layers[-1].name == "fc"
    assert layers[-1].kind == "linear"


@pytest.mark.slow
def test_mobilenet_has_no_projections():
    assert shortcuts(mobilenet_v2(10, 0.25), 1, 3, 32, 32) == []


@pytest.mark.slow
def test_mobilenet_convolutions():
    layers = surveyed(mobilenet_v2(10, 0.25), 1, 3, 32, 32)
    convs = [layer for layer in layers if layer.kind == "conv"]
    assert len(convs) == 52
    assert sum(layer.geometry.is_depthwise for layer in convs) == 17


class Block(nn.Module):
    """A bottleneck with a projection of the caller's."""

    def __init__(self, projection: nn.Module, norm=nn.BatchNorm2d) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.reduce, self.expand = nn.Conv2d(4, 2, 1), nn.Conv2d(2, 8, 3, stride=2, padding=1)
        self.norm, self.projection = norm(8), projection

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        return self.norm(self.expand(self.reduce(x).relu())) + self.projection(x)


def test_a_projection_without_norm():
    assert shortcuts(Block(nn.Conv2d(4, 8, 1, stride=2)), 1, 3, 8, 8) == ["projection"]


def test_a_projection_behind_pooling():
    projection = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(4, 8, 1))
    assert shortcuts(Block(projection), 1, 3, 8, 8) == ["projection.1"]


def test_a_projection_with_group_norm():
    projection = nn.Sequential(nn.Conv2d(4, 8, 1, stride=2), nn.GroupNorm(2, 8))
    assert shortcuts(Block(projection, lambda n: nn.GroupNorm(2, n)), 1, 3, 8, 8) == ["projection.0"]


def test_a_branch_of_two_convolutions_is_no_projection():
    projection = nn.Sequential(nn.Conv2d(4, 8, 1, stride=2), nn.Conv2d(8, 8, 1))
    assert shortcuts(Block(projection), 1, 3, 8, 8) == []


def test_parallel_single_convolutions_are_no_projections():
    class Parallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.wide, self.narrow = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return self.wide(x) + self.narrow(x)

    assert shortcuts(Parallel(), 1, 3, 8, 8) == []


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_lateral_convolutions_of_a_pyramid_are_no_projections(mode):
    class Pyramid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.low = nn.Conv2d(3, 4, 3, padding=1)
            self.middle = nn.Conv2d(4, 6, 3, stride=2, padding=1)
            self.high = nn.Conv2d(6, 8, 3, stride=2, padding=1)
            self.lateral_high, self.lateral_low = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            low = self.low(x).relu()
            high = self.high(self.middle(low).relu()).relu()
            upper = nn.functional.interpolate(self.lateral_high(high), size=low.shape[2:], mode=mode)
            return self.lateral_low(low) + upper

    assert shortcuts(Pyramid(), 1, 3, 8, 8) == []


def test_geometry_of_a_convolution():
    conv = nn.Conv2d(4, 6, (3, 5), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2)
    (layer,) = surveyed(conv, 2, 4, 9, 12)
    geometry = layer.geometry
    assert (geometry.batch, geometry.in_channels, geometry.out_channels, geometry.groups) == (2, 4, 6, 2)
    assert (geometry.in_size, geometry.out_size) == ((9, 12), (5, 8))
    assert (geometry.kernel, geometry.stride) == ((3, 5), (2, 1))
    assert (geometry.padding, geometry.dilation) == ((1, 2), (1, 2))


def test_settings_given_as_one_number_are_pairs():
    (layer,) = surveyed(nn.Conv2d(2, 2, 3, stride=2, padding="valid"), 1, 2, 7, 7)
    assert (layer.geometry.stride, layer.geometry.padding) == ((2, 2), (0, 0))


@pytest.mark.parametrize(
    ("model", "shape", "reason"),
    [
        (
            nn.ConvTranspose2d(2, 2, 3),
            (1, 2, 4, 4),
            "it is a transposed convolution; gradient filtering is defined for ordinary ones",
        ),
        (nn.Conv1d(2, 2, 3), (1, 2, 8), "it is a 1-D convolution; gradient filtering is defined for 2-D"),
        (nn.Conv3d(2, 2, 3), (1, 2, 4, 4, 4), "it is a 3-D convolution; gradient filtering is defined for 2-D"),
    ],
    ids=["transposed", "1-D", "3-D"],
)
def test_why_not(model, shape, reason):
    (layer,) = surveyed(model, *shape)
    assert (layer.kind, layer.unfilterable, layer.geometry) == ("conv", reason, None)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_groups_are_no_reason(groups):
    (layer,) = surveyed(nn.Conv2d(4, 8, 3, groups=groups), 1, 4, 5, 5)
    assert layer.unfilterable is None
    assert layer.geometry.is_depthwise is False


def test_order_is_that_of_execution_and_every_parameter_has_one_layer():
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.norm, self.first = nn.Linear(2, 2), nn.BatchNorm2d(2), nn.Conv2d(1, 2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.norm(self.first(x)).mean((2, 3)))

    layers = surveyed(Backwards(), 1, 1, 5, 5)
    assert [(layer.name, layer.kind) for layer in layers] == [("first", "conv"), ("norm", "other"), ("last", "linear")]
    assert layers[1].parameters == ("norm.weight", "norm.bias")


def test_a_module_at_two_places_is_one_layer():
    conv = nn.Conv2d(2, 2, 3, padding=1)
    assert len(surveyed(nn.Sequential(conv, nn.ReLU(), conv), 1, 2, 5, 5)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_every_parameter_of_the_zoo_belongs_to_one_layer(name):
    model = ZOO[name]()
    found = [parameter for layer in surveyed(model, *INPUTS[name]) for parameter in layer.parameters]
    assert sorted(found) == sorted(name for name, _ in model.named_parameters())


class ComputedWeights(nn.Module):
    """Convolutions whose kernels are computed: standardised, re-parametrized, shared by two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.standardised = nn.Conv2d(3, 4, 3)
        self.gain = nn.Parameter(torch.ones(4, 1, 1, 1))
        self.normed = nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 3))
        self.near, self.far = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=2, dilation=2)
        self.far.weight = self.near.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.standardised.weight
        weight = (weight - weight.mean((1, 2, 3), keepdim=True)) * self.gain
        x = self.normed(nn.functional.conv2d(x, weight, self.standardised.bias))
        return self.near(x) + self.far(x)


def test_convolutions_with_computed_weights_are_convolutions():
    layers = {layer.name: layer for layer in surveyed(ComputedWeights(), 1, 3, 12, 12)}
    assert [name for name, layer in layers.items() if layer.kind == "conv"] == ["standardised", "normed", "far", "near"]
    assert layers["standardised"].geometry.kernel == (3, 3)
    assert set(layers["normed"].parameters) == {
        "normed.bias",
        "normed.parametrizations.weight.original0",
        "normed.parametrizations.weight.original1",
    }
    assert layers["near"].parameters == ("far.weight", "near.bias")


class Kernels(nn.Module):
    """Convolutions by function: of one module two kernels, a constant one, a scaled output."""

    def __init__(self) -> None:
        super().__init__()
        self.pair, self.blur, self.scaled = (nn.Module() for _ in range(3))
        self.pair.first = nn.Parameter(torch.randn(4, 16, 3, 3))
        self.pair.second = nn.Parameter(torch.randn(16, 4, 3, 3))
        self.blur.register_buffer("kernel", torch.ones(16, 1, 3, 3))
        self.blur.bias = nn.Parameter(torch.zeros(16))
        self.scaled.gain = nn.Parameter(torch.ones(1, 8, 1, 1))
        self.scaled.weight = nn.Parameter(torch.randn(8, 16, 1, 1))
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        conv = nn.functional.conv2d
        x = conv(conv(x, self.pair.first, padding=1).relu(), self.pair.second, padding=1).relu()
        x = conv(x, self.blur.kernel, self.blur.bias, groups=16)
        return self.last((conv(x, self.scaled.weight) * self.scaled.gain).mean((2, 3)))


def test_a_kernel_is_known_by_its_name():
    layers = {layer.name: layer for layer in surveyed(Kernels(), 1, 16, 6, 6)}
    assert {name: layer.kernel for name, layer in layers.items()} == {
        "pair": "pair.first",
        "blur": None,
        "scaled": "scaled.weight",
        "last": None,
    }
    assert {name: layer.weights for name, layer in layers.items()} == {
        "pair": 1152,
        "blur": 0,
        "scaled": 128,
        "last": 0,
    }


UNDRAWN = {
    "several kernels": (
        Kernels(),
        (1, 16, 6, 6),
        {
            "pair": "its module has several kernels, each with an input of its own",
            "blur": "its kernel is no parameter of its own module",
        },
    ),
    "computed and shared": (
        ComputedWeights(),
        (1, 3, 12, 12),
        {
            "standardised": "its kernel is computed from parameters: their gradients reach all channels",
            "normed": "its kernel is computed from parameters: their gradients reach all channels",
            "far": "its kernel is read in several places, each with an input of its own",
            "near": "its kernel is read in several places, each with an input of its own",
        },
    ),
    "transposed": (
        nn.Sequential(nn.ConvTranspose2d(2, 2, 3), nn.Conv2d(2, 2, 3)),
        (1, 2, 4, 4),
        {"0": "it is a transposed convolution; channels are drawn of ordinary 2-D ones"},
    ),
    "1-D": (
        nn.Sequential(nn.Conv1d(2, 2, 3), nn.Flatten(), nn.Linear(12, 2)),
        (1, 2, 8),
        {"0": "it is a 1-D convolution; channels are drawn of ordinary 2-D ones"},
    ),
}


@pytest.mark.parametrize("case", UNDRAWN)
def test_what_is_updated_whole_and_why(case):
    model, shape, reasons = UNDRAWN[case]
    plan = make_plan(surveyed(model, *shape), Request(sparse={"*": 0.5}))
    assert dict(plan.undrawn) == reasons
    assert not {layer.name for layer in plan.sparse} & reasons.keys()


def test_layers_that_the_read_output_does_not_need_are_idle():
    class Twins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.main, self.aside = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1), nn.Conv2d(4, 2, 1)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            x = self.stem(x)
            return {"out": self.main(x), "aux": self.aside(x)}

    model = Twins().eval()
    program = trace_forward(model, (torch.zeros(1, 3, 4, 4),))
    assert [layer.name for layer in survey(program, model, read_output=0) if layer.idle] == ["aside"]
    assert not [layer.name for layer in survey(program, model) if layer.idle]
