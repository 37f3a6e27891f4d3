"""Optimizer settings: every way to write them means the same, and what makes no sense is refused in one line."""

import json
import math

import pytest
import torch
from torch import nn

import gfcompile
from gfcompile.errors import UserError
from gfcompile.optimizers import SGD, Adam, AdamW, RMSprop, resolve_optimizer, starting_rate
from gfcompile.report.page import optimizer_words
from gfcompile.report.schema import OptimizerPart
from gfcompile.settings.text import split_settings


def text_of(action) -> str:
    with pytest.raises(UserError) as caught:
        action()
    return str(caught.value)


@pytest.mark.parametrize(
    ("spec", "settings", "expected"),
    [
        ("sgd", {}, SGD()),
        ("SGD", {"momentum": 0.9, "weight_decay": None}, SGD(momentum=0.9)),
        ("adamw", {"eps": 1e-6, "clip_norm": 1.0}, AdamW(eps=1e-6, clip_norm=1.0)),
        ({"name": "adam", "betas": [0.8, 0.9], "lr": 0.1}, {}, Adam((0.8, 0.9))),
        ({"momentum": 0.5}, {"nesterov": True}, SGD(0.5, nesterov=True)),
        (RMSprop(centered=True), {}, RMSprop(centered=True)),
        (
            SGD(groups={"head": {"momentum": 0.5}}),
            {"clip_value": 2.0},
            SGD(groups={"head": {"momentum": 0.5}}, clip_value=2.0),
        ),
    ],
)
def test_ways_to_write_one(spec, settings, expected):
    assert resolve_optimizer(spec, settings) == expected


def test_the_package_has_the_classes():
    assert (gfcompile.SGD, gfcompile.Adam, gfcompile.AdamW, gfcompile.RMSprop) == (SGD, Adam, AdamW, RMSprop)


@pytest.mark.parametrize(
    "kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop], ids=lambda k: k.__name__
)
def test_defaults_are_those_of_torch(kind):
    parameter = nn.Parameter(torch.zeros(1))
    ours = resolve_optimizer(kind.__name__)
    assert resolve_optimizer(kind([parameter], lr=0.1), None, [("w", parameter)]) == ours
    assert all(kind([parameter], lr=0.1).defaults[name] == getattr(ours, name) for name in ours.own_settings())


@pytest.mark.parametrize(
    "optimizer",
    [
        SGD(0.9, 0.1, dampening=0.2, maximize=True, clip_norm=3.0),
        AdamW((0.5, 0.6), groups={"*.bias": {"betas": (0.1, 0.2), "lr_factor": 0.5}}, clip_value=1.0),
        RMSprop(0.9, momentum=0.5, centered=True),
    ],
    ids=["sgd", "adamw", "rmsprop"],
)
def test_the_manifest_says_it_all(optimizer):
    assert resolve_optimizer(json.loads(json.dumps(optimizer.as_mapping()))) == optimizer


def test_groups_by_pattern_the_last_match_says():
    optimizer = AdamW(groups={"*.bias": {"weight_decay": 0.0}, "body": {"lr_factor": 0.1, "weight_decay": 0.5}})
    assert optimizer.of("head.weight") == AdamW()
    assert optimizer.of("head.bias") == AdamW(weight_decay=0.0)
    assert optimizer.of("body.0.bias") == AdamW(weight_decay=0.5, lr_factor=0.1)


class TestTorchInstances:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Linear(2, 2))

    def resolve(self, optimizer, **settings):
        return resolve_optimizer(optimizer, settings, self.model.named_parameters())

    def test_groups_become_names_and_rates_factors_of_the_first(self):
        conv, linear = self.model
        groups = [
            {"params": [conv.weight, linear.weight]},
            {"params": [conv.bias, linear.bias], "weight_decay": 0.0, "lr": 0.125},
        ]
        optimizer = torch.optim.AdamW(groups, lr=0.5, weight_decay=0.3, amsgrad=True)
        found = self.resolve(optimizer, clip_norm=1.0)
        assert found.of("0.weight") == AdamW(weight_decay=0.3, amsgrad=True, clip_norm=1.0)
        assert set(found.groups) == {"0.bias", "1.bias"}
        assert found.of("1.bias") == AdamW(weight_decay=0.0, amsgrad=True, lr_factor=0.25, clip_norm=1.0)
        assert starting_rate(optimizer, found) == 0.5
        assert starting_rate(optimizer, found, 0.25) == 0.25

    def test_every_setting_is_read(self):
        optimizer = torch.optim.SGD(
            self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1, dampening=0.2, maximize=True
        )
        assert self.resolve(optimizer) == SGD(0.9, 0.1, dampening=0.2, maximize=True)
        optimizer = torch.optim.RMSprop(
            self.model.parameters(), lr=0.1, alpha=0.9, eps=0.1, momentum=0.5, centered=True
        )
        assert self.resolve(optimizer) == RMSprop(0.9, eps=0.1, momentum=0.5, centered=True)

    def test_a_parameter_in_no_group_takes_the_first_one_s_settings(self):
        linear = self.model[1]
        groups = [{"params": [linear.bias], "momentum": 0.9}, {"params": [linear.weight], "momentum": 0.0}]
        found = self.resolve(torch.optim.SGD(groups, lr=0.1))
        assert found.of("0.weight") == found.of("1.bias") == SGD(0.9)
        assert found.of("1.weight") == SGD()

    def test_a_shared_parameter_has_all_its_names(self):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        model[1].weight = model[0].weight
        groups = [{"params": [model[0].bias, model[1].bias]}, {"params": [model[0].weight], "momentum": 0.5}]
        found = resolve_optimizer(torch.optim.SGD(groups, lr=0.1), None, model.named_parameters(remove_duplicate=False))
        assert set(found.groups) == {"0.weight", "1.weight"}

    def test_refusals(self):
        other = torch.optim.SGD([nn.Parameter(torch.zeros(3, 2))], lr=0.1)
        assert text_of(lambda: self.resolve(other)) == (
            "optimizer: this torch.optim.SGD holds a parameter of shape [3, 2] that is not the model's; "
            "make it over model.parameters()"
        )
        used = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.model(torch.zeros(1, 1, 4, 4)).sum().backward()
        used.step()
        assert text_of(lambda: self.resolve(used)) == (
            "optimizer: this torch.optim.SGD has taken steps; its state is not carried over, so pass a new one"
        )
        still = [{"params": [self.model[0].weight]}, {"params": [self.model[0].bias], "lr": 0.1}]
        assert text_of(lambda: self.resolve(torch.optim.SGD(still, lr=0.0))) == (
            "optimizer: the first group's lr is 0, and others are factors of it; give it another"
        )
        adam = torch.optim.Adam(self.model.parameters(), decoupled_weight_decay=True)
        assert text_of(lambda: self.resolve(adam)) == (
            "optimizer: torch.optim.Adam with decoupled_weight_decay is AdamW; pass torch.optim.AdamW"
        )
        assert text_of(lambda: self.resolve(torch.optim.Adagrad(self.model.parameters()))) == (
            "optimizer: a 'Adagrad' is not known; "
            "use sgd, adam, adamw, rmsprop, gfcompile.SGD(momentum=0.9), or a torch.optim one of these"
        )
        fresh = torch.optim.SGD(self.model.parameters(), lr=0.1)
        assert text_of(lambda: self.resolve(fresh, momentum=0.9)) == (
            "optimizer: momentum is given twice, by itself and in the optimizer; give it once"
        )


def test_starting_rates():
    assert starting_rate("sgd", SGD()) == 0.01
    assert starting_rate("adam", Adam()) == 0.001
    assert starting_rate({"name": "adam", "lr": 0.5}, Adam()) == 0.5
    assert starting_rate(AdamW(), AdamW(), 0.25) == 0.25
    for rate in (1e300, -1.0, math.nan, math.inf):
        with pytest.raises(UserError) as caught:
            starting_rate("sgd", SGD(), rate)
        assert str(caught.value) == f"lr '{rate}': must be a number of 0 or more that a float32 holds, 3.4e38 at most"
    with pytest.raises(UserError) as caught:
        starting_rate({"name": "sgd", "lr": "fast"}, SGD())
    assert str(caught.value) == "lr 'fast': is no number; give one, as in 0.01"


AMOUNT = "must be a finite number, 0 or more"


@pytest.mark.parametrize(
    ("spec", "settings", "text"),
    [
        ("lion", {}, "optimizer: 'lion' is not known; use sgd, adam, adamw, rmsprop"),
        ("sgd", {"momentum": -1.0}, f"optimizer: momentum '-1.0' {AMOUNT}"),
        ("sgd", {"weight_decay": float("nan")}, f"optimizer: weight_decay 'nan' {AMOUNT}"),
        ("sgd", {"dampening": float("inf")}, "optimizer: dampening 'inf' must be a finite number"),
        ("sgd", {"nesterov": 1}, "optimizer: nesterov '1' must be true or false"),
        (
            "sgd",
            {"nesterov": True, "momentum": 0.9, "dampening": 0.1},
            "optimizer: nesterov needs momentum and no dampening; set momentum=0.9, dampening=0",
        ),
        ("adam", {"eps": "small"}, f"optimizer: eps 'small' {AMOUNT}"),
        (
            "adam",
            {"betas": (0.9, 1.0)},
            "optimizer: betas '(0.9, 1.0)' must be two numbers, each 0 or more and below 1",
        ),
        ("rmsprop", {"alpha": 1.5}, "optimizer: alpha '1.5' must be a number from 0 to 1"),
        (
            "rmsprop",
            {"betas": (0.9, 0.9)},
            "optimizer: 'rmsprop' has no setting 'betas'; "
            "it has alpha, eps, weight_decay, momentum, centered, maximize",
        ),
        ("sgd", {"clip_norm": 0}, "optimizer: clip_norm '0' must be a finite number above 0"),
        ("sgd", {"clip_value": -1.0}, "optimizer: clip_value '-1.0' must be a finite number above 0"),
        (
            "adam",
            {"groups": {"*.bias": {"momentum": 0.9}}},
            "optimizer: group '*.bias': 'adam' has no setting 'momentum'; "
            "it has betas, eps, weight_decay, amsgrad, maximize, lr_factor",
        ),
        ("sgd", {"groups": {"head": {"momentum": -1}}}, f"optimizer: group 'head': momentum '-1' {AMOUNT}"),
        (
            "sgd",
            {"groups": {"head": {"lr": 0.1}}},
            "optimizer: group 'head': 'lr' is an input of the step; write lr_factor, which multiplies it",
        ),
        (
            "sgd",
            {"groups": {"head": {"clip_norm": 0.1}}},
            "optimizer: group 'head': 'sgd' has no setting 'clip_norm'; "
            "it has momentum, weight_decay, dampening, nesterov, maximize, lr_factor",
        ),
        (
            {"momentum": 0.9},
            {"momentum": 0.9},
            "optimizer: momentum is given twice, by itself and in the optimizer; give it once",
        ),
        (
            SGD(clip_norm=1.0),
            {"clip_norm": 2.0},
            "optimizer: clip_norm is given twice, by itself and in the optimizer; give it once",
        ),
        (
            3,
            {},
            "optimizer: a 'int' is not known; "
            "use sgd, adam, adamw, rmsprop, gfcompile.SGD(momentum=0.9), or a torch.optim one of these",
        ),
    ],
)
def test_refusals(spec, settings, text):
    assert text_of(lambda: resolve_optimizer(spec, settings)) == text


def test_a_group_of_nothing_is_refused():
    optimizer = SGD(groups={"haed": {"momentum": 0.9}})
    assert text_of(lambda: optimizer.check_groups(["conv.weight", "head.bias"])) == (
        "optimizer: group 'haed': no parameter of the model has that name; "
        "names are like 'head.bias', patterns like '*.bias'"
    )
    SGD(groups={"head": {"momentum": 0.9}}).check_groups(["conv.weight", "head.bias"])


def test_settings_as_text():
    assert split_settings("--group", "*.bias:weight_decay=0,lr_factor=0.1,betas=0.9/0.99,nesterov=True") == (
        "*.bias",
        {"weight_decay": 0, "lr_factor": 0.1, "betas": (0.9, 0.99), "nesterov": True},
    )
    assert split_settings("loss", "mse") == ("mse", {})
    assert split_settings("loss", "cross_entropy:weight=a/b.npy") == ("cross_entropy", {"weight": "a/b.npy"})
    assert text_of(lambda: split_settings("--group", "head:eps=1,eps=2")) == (
        "--group: 'eps' stands twice in 'head:eps=1,eps=2'; give it once"
    )
    assert text_of(lambda: split_settings("--group", "head:eps=")) == (
        "--group: 'eps=' in 'head:eps=' is not of the form key=value; write NAME:key=value,key=value"
    )


def test_the_report_names_what_is_on():
    optimizer = AdamW(amsgrad=True, clip_norm=1.0, groups={"*.bias": {"weight_decay": 0.0, "maximize": False}})
    assert optimizer_words(OptimizerPart(optimizer, 0.001)) == (
        "adamw (betas 0.9 and 0.999, eps 1e-08, weight_decay 0.01, amsgrad, clip_norm 1.0, lr 0.001); "
        "*.bias: weight_decay 0.0"
    )
