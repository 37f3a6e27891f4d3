"""What "last N layers" means (docs/method.md, section 2), and the text of every error a wish can meet."""

from dataclasses import replace

import pytest

from gfcompile.errors import UserError
from gfcompile.geometry.convolution import ConvGeometry
from gfcompile.plan import Layer, make_plan, matches
from gfcompile.settings.schema import Request

GEOMETRY = ConvGeometry(1, 2, 2, (8, 8), (8, 8), (3, 3), (1, 1), (1, 1), (1, 1), 1)


POINTWISE = replace(GEOMETRY, kernel=(1, 1), padding=(0, 0))


def conv(name, geometry=GEOMETRY, **options):
    return Layer(name, "conv", (f"{name}.weight",), geometry, **options)


def norm(name):
    return Layer(name, "other", (f"{name}.weight", f"{name}.bias"))


def linear(name):
    return Layer(name, "linear", (f"{name}.weight", f"{name}.bias"))


RESNET = [
    conv("conv1"),
    norm("bn1"),
    conv("layer3.0.conv1"),
    norm("layer3.0.bn1"),
    conv("layer3.0.conv2"),
    conv("layer3.0.downsample.0", is_shortcut=True),
    norm("layer3.0.downsample.1"),
    conv("layer4.0.conv1"),
    conv("layer4.0.conv2"),
    linear("fc"),
]
CONV_HEAD = [conv("features.0"), conv("features.1"), conv("classifier", geometry=POINTWISE)]
NO_CONV = [linear("first"), linear("last")]


def trained(model, **request):
    return {layer.name: layer.r for layer in make_plan(model, Request(**request)).trained}


def roles(model, **request):
    return {layer.name: layer.role for layer in make_plan(model, Request(**request)).trained}


def refuses(model, text, **request):
    with pytest.raises(UserError) as caught:
        make_plan(model, Request(**request))
    assert str(caught.value) == text


def test_the_last_convolutions_and_the_head():
    assert trained(RESNET, layers=2) == {"layer4.0.conv1": 2, "layer4.0.conv2": 2, "fc": None}
    assert roles(RESNET, layers=1) == {"layer4.0.conv2": "layer", "fc": "head"}


def test_a_shortcut_projection_is_neither_counted_nor_trained():
    assert list(trained(RESNET, layers=3)) == ["layer3.0.conv2", "layer4.0.conv1", "layer4.0.conv2", "fc"]
    assert "layer3.0.downsample.0" not in trained(RESNET)


def test_a_named_shortcut_is_trained_beside_the_counted():
    plan = trained(RESNET, layers=2, train=["layer3.0.downsample.0"])
    assert plan == {"layer3.0.downsample.0": 2, "layer4.0.conv1": 2, "layer4.0.conv2": 2, "fc": None}


def test_without_a_number_every_counted_convolution():
    assert len(trained(RESNET)) == 6
    assert list(trained(RESNET, layers=5)) == list(trained(RESNET))


def test_every_linear_layer_behind_the_last_convolution_is_head():
    layers = [linear("embed"), conv("conv"), linear("hidden"), linear("out")]
    assert roles(layers, layers=1) == {"conv": "layer", "hidden": "head", "out": "head"}


def test_without_linear_layers_a_last_pointwise_convolution_is_the_head():
    assert trained(CONV_HEAD, layers=1) == {"features.1": 2, "classifier": None}
    assert roles(CONV_HEAD, layers=1)["classifier"] == "head"


def test_whoever_asks_for_every_convolution_gets_the_last_filtered_too():
    assert trained(CONV_HEAD, layers=3) == {"features.0": 2, "features.1": 2, "classifier": 2}
    assert set(roles(CONV_HEAD, layers=3).values()) == {"layer"}


def test_without_a_number_a_conv_head_stays_exact():
    assert trained(CONV_HEAD) == {"features.0": 2, "features.1": 2, "classifier": None}


def test_a_last_convolution_that_is_not_pointwise_is_no_head():
    assert roles([conv("a"), conv("b")], layers=1) == {"b": "layer"}


def test_an_only_convolution_is_no_head():
    assert roles([conv("only", geometry=POINTWISE)], layers=1) == {"only": "layer"}


def test_a_linear_layer_before_the_last_convolution_is_no_head():
    assert roles([linear("gate"), conv("a"), conv("b")], layers=1) == {"b": "layer"}


def test_a_model_without_convolutions_trains_its_last_linear():
    assert trained(NO_CONV) == {"last": None}


def test_names_alone_train_just_these():
    assert roles(RESNET, train=["layer3.0.conv1"]) == {"layer3.0.conv1": "named"}


@pytest.mark.parametrize(
    ("pattern", "name", "answer"),
    [
        ("layer3", "layer3.0.conv1", True),
        ("layer3.0", "layer3.0.conv1", True),
        ("layer3.*", "layer3.0.conv1", True),
        ("*.conv2", "layer4.0.conv2", True),
        ("layer?.0.conv1", "layer4.0.conv1", True),
        ("fc", "fc", True),
        ("layer", "layer3.0.conv1", False),
        ("layer3", "layer30.conv1", False),
        ("Layer3", "layer3.0.conv1", False),
        ("conv1", "layer3.0.conv1", False),
    ],
)
def test_patterns(pattern, name, answer):
    assert matches(name, pattern) is answer


def test_a_prefix_takes_norms_and_shortcuts_along():
    named = roles(RESNET, layers=1, train=["layer3.0"])
    assert [name for name, role in named.items() if role == "named"] == [
        "layer3.0.conv1",
        "layer3.0.bn1",
        "layer3.0.conv2",
        "layer3.0.downsample.0",
        "layer3.0.downsample.1",
    ]


def test_norms_are_trained_where_named_only():
    assert "bn1.weight" not in make_plan(RESNET, Request()).trained_parameters
    assert {"bn1.weight", "bn1.bias"} <= make_plan(RESNET, Request(train=["bn1"])).trained_parameters


def test_parameters_are_those_of_the_trained_layers():
    plan = make_plan(RESNET, Request(layers=1))
    assert plan.trained_parameters == {"layer4.0.conv2.weight", "fc.weight", "fc.bias"}


def test_patch_for_one_layer():
    assert trained(RESNET, layers=2, r={"*": 4, "layer4.0.conv2": 7}) == {
        "layer4.0.conv1": 4,
        "layer4.0.conv2": 7,
        "fc": None,
    }


def test_patch_without_a_default_leaves_the_others_at_two():
    assert trained(RESNET, layers=2, r={"layer4.0.conv2": 7})["layer4.0.conv1"] == 2


def test_the_later_pattern_wins():
    patches = {"layer4": 3, "layer4.0.conv1": 5}
    assert trained(RESNET, layers=2, r=patches) == {"layer4.0.conv1": 5, "layer4.0.conv2": 3, "fc": None}


def test_a_conv_head_is_filtered_where_named_only():
    assert trained(CONV_HEAD, layers=1, r={"*": 2, "classifier": 3})["classifier"] == 3


def test_exact_trains_the_same_layers_without_patches():
    filtered, exact = trained(RESNET, layers=3), trained(RESNET, layers=3, exact=True)
    assert filtered.keys() == exact.keys()
    assert set(exact.values()) == {None}


def test_an_unfilterable_layer_is_refused_with_its_reason_and_trained_exactly():
    layers = [conv("a"), conv("b", unfilterable="it is odd"), linear("fc")]
    plan = make_plan(layers, Request(layers=1))
    assert plan.refused == (("b", "it is odd"),)
    assert plan.patch_of("b") is None
    assert "b.weight" in plan.trained_parameters
    assert make_plan(layers, Request(layers=1, exact=True)).refused == ()


def test_modes_are_handed_on():
    plan = make_plan(RESNET, Request(layers=1, batchnorm="train", compat="reference"))
    assert (plan.batchnorm, plan.reference) == ("train", True)
    assert make_plan(RESNET, Request(layers=1)).reference is False


def test_too_many_layers():
    refuses(
        RESNET,
        "--layers 999: the model has 5 convolutions that count (shortcut projections do not); use --layers 5 or less",
        layers=999,
    )


def test_layers_of_a_model_with_nothing_to_count():
    with pytest.raises(UserError) as caught:
        make_plan(NO_CONV, Request(layers=1))
    assert str(caught.value) == ("--layers 1: the model has no convolutions that count; name layers with --train")


@pytest.mark.parametrize("layers", [0, -3])
def test_too_few_layers(layers):
    refuses(RESNET, f"--layers {layers}: must be 1 or more", layers=layers)


@pytest.mark.parametrize("r", [0, -1, 2.5, True])
def test_patch_edges(r):
    rest = "the patch edge must be a whole number, 1 or more; --exact trains without filtering"
    refuses(RESNET, f"--r {r}: {rest}", r={"*": r})
    refuses(RESNET, f"--r layer4={r}: {rest}", r={"layer4": r})


def test_unknown_batchnorm():
    refuses(RESNET, "--batchnorm off: is not known; use eval, train, frozen", batchnorm="off")
    refuses(RESNET, "--batchnorm layer4.*=off: is not known; use eval, train, frozen", batchnorm={"layer4.*": "off"})


def test_batch_norm_modes_by_pattern():
    modes = {"layer3.*": "train", "layer3.0.downsample.1": "eval"}
    plan = make_plan(RESNET, Request(layers=1, batchnorm=modes))
    names = ("bn1", "layer3.0.bn1", "layer3.0.downsample.1")
    assert [plan.batchnorm_of(name) for name in names] == ["eval", "train", "eval"]
    assert plan.batchnorm == "train"


def test_a_pattern_that_names_no_batch_norm():
    refuses(
        RESNET,
        "--batchnorm zzz=train: no batch norm has that name; `gfcompile inspect MODEL` lists them",
        batchnorm={"zzz": "train"},
    )


def test_a_frozen_batch_norm_is_not_trained_even_if_named():
    free = make_plan(RESNET, Request(layers=2, train=("layer3.*",)))
    frozen = make_plan(RESNET, Request(layers=2, train=("layer3.*",), batchnorm={"layer3.0.bn1": "frozen"}))
    norms = {name for name in free.trained_parameters if ".bn" in name}
    assert norms
    assert frozen.trained_parameters == free.trained_parameters - norms


def test_a_layer_is_trained_with_the_one_it_shares_with():
    tied = [replace(layer, parameters=RESNET[-1].parameters) if layer.name == "conv1" else layer for layer in RESNET]
    assert roles(tied, layers=1)["conv1"] == "head"


def test_layers_that_the_loss_does_not_read_do_not_count():
    aside = [*RESNET, conv("aux.conv"), replace(conv("aux.last"), idle=True)]
    idle = [replace(layer, idle=layer.name.startswith("aux")) for layer in aside]
    assert trained(idle, layers=2) == trained(RESNET, layers=2)
    refuses(
        idle,
        "--train aux.*: the loss does not depend on that; name layers before the output it reads",
        train=["aux.*"],
    )


def test_unknown_compat():
    refuses(RESNET, "--compat paper: is not known; the only one is reference", compat="paper")


def test_unknown_name_to_train():
    refuses(
        RESNET,
        "--train layer4.0.conv3: no layer has that name; did you mean 'layer4.0.conv2'?",
        train=["layer4.0.conv3"],
    )
    refuses(RESNET, "--train zzz: no layer has that name; `gfcompile inspect MODEL` lists them", train=["zzz"])


def test_unknown_name_for_a_patch():
    refuses(
        RESNET,
        "--r layer4.0.konv2=3: no layer has that name; did you mean 'layer4.0.conv2'?",
        r={"layer4.0.konv2": 3},
    )


def test_patch_for_a_layer_that_is_not_trained():
    text = "--r {0}=3: that layer is not a trained convolution; train it with --train {0}"
    refuses(RESNET, text.format("conv1"), layers=1, r={"conv1": 3})


def test_nothing_to_train():
    refuses([norm("bn")], "the plan trains nothing: use --layers or --train")


def channels(model, **request):
    return {layer.name: layer.channels for layer in make_plan(model, Request(**request)).trained}


WIDE = [
    conv("first", replace(GEOMETRY, in_channels=10)),
    conv("depthwise", replace(GEOMETRY, in_channels=20, out_channels=20, groups=20)),
    conv("last", replace(GEOMETRY, in_channels=40)),
    linear("fc"),
]


def test_a_ratio_is_a_number_of_input_channels_and_the_head_stays_dense():
    assert channels(WIDE, sparse={"*": 0.1}) == {"first": 1, "depthwise": 2, "last": 4, "fc": None}
    assert channels(WIDE) == dict.fromkeys(("first", "depthwise", "last", "fc"))
    assert channels(CONV_HEAD, sparse={"*": 0.5}) == {"features.0": 1, "features.1": 1, "classifier": None}
    assert channels(CONV_HEAD, sparse={"classifier": 0.5})["classifier"] == 1


def test_the_last_pattern_that_names_a_layer_gives_its_ratio():
    assert channels(WIDE, sparse={"*": 0.1, "la*": 0.5, "last": 0.25}) == {
        "first": 1,
        "depthwise": 2,
        "last": 10,
        "fc": None,
    }


def test_a_ratio_that_is_all_channels_is_the_dense_layer():
    assert channels(WIDE, sparse={"*": 1.0}) == channels(WIDE)
    assert channels(WIDE, sparse={"*": 0.99})["first"] is None


def test_a_layer_whose_channels_cannot_be_drawn_stays_dense_with_its_reason():
    plan = make_plan([conv("a", undrawable="because"), linear("fc")], Request(sparse={"*": 0.5}))
    assert plan.undrawn == (("a", "because"),)
    assert not plan.sparse
    assert make_plan([conv("a", undrawable="because"), linear("fc")], Request(sparse={"*": 1.0})).undrawn == ()


@pytest.mark.parametrize("ratio", [0, -0.1, 1.5, True, "x"])
def test_bad_ratios(ratio):
    refuses(
        RESNET,
        f"--sparse {ratio}: must be a share of the input channels, more than 0 and at most 1; 1 updates all of them",
        sparse={"*": ratio},
    )
    refuses(
        RESNET,
        f"--sparse conv1={ratio}: must be a share of the input channels, more than 0 and at most 1;"
        " 1 updates all of them",
        sparse={"conv1": ratio},
    )


def test_a_ratio_for_what_is_not_trained():
    refuses(
        RESNET,
        "--sparse block9=0.5: no layer has that name; `gfcompile inspect MODEL` lists them",
        sparse={"block9": 0.5},
    )
    refuses(
        RESNET,
        "--sparse conv1=0.5: that layer is not a trained convolution; train it with --train conv1",
        layers=1,
        sparse={"conv1": 0.5},
    )


@pytest.mark.parametrize("name", ["fc", "bn1"])
def test_a_ratio_for_what_is_no_convolution(name):
    refuses(RESNET, f"--sparse {name}=0.5: that is no convolution; name one, or leave it out", sparse={name: 0.5})
    refuses(RESNET, f"--r {name}=4: that is no convolution; name one, or leave it out", r={name: 4})


def test_an_unknown_strategy():
    refuses(
        RESNET,
        "--sparse-strategy often: is not known; use step, epoch, fixed, norm",
        sparse={"*": 0.5},
        sparse_strategy="often",
    )
