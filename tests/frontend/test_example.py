"""The example batch: where its shape comes from, and what is refused."""

import pytest
import torch
from torch import nn

from gfcompile.errors import UserError
from gfcompile.frontend.example import example_input
from gfcompile.frontend.load import LoadedModel, from_module, load_model


def small_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def text_of(*args) -> str:
    with pytest.raises(UserError) as caught:
        example_input(*args)
    return str(caught.value)


def test_shape_from_the_user():
    (x,), sentence = example_input(from_module(small_net()), "2x3x17x9", None)
    assert x.shape == (2, 3, 17, 9)
    assert x.dtype == torch.float32
    assert sentence == "input 2x3x17x9: from --input"
    assert example_input(from_module(small_net()), (2, 3, 17, 9), None)[0][0].shape == (2, 3, 17, 9)


def test_shape_from_the_file():
    loaded = LoadedModel(small_net(), "net.pt2", "net", (4, 3, 32, 32), fixed_mode=True)
    (x,), sentence = example_input(loaded, None, None)
    assert x.shape == (4, 3, 32, 32)
    assert sentence == "input 4x3x32x32: from the example in net.pt2"


def test_shape_guessed_from_the_first_conv():
    (x,), sentence = example_input(from_module(small_net()), None, None)
    assert x.shape == (8, 3, 224, 224)
    assert sentence == ("input 8x3x224x224: a guess (channels of '0', 224x224, batch 8); set it with --input NxCxHxW")


def test_batch_overrides():
    loaded = LoadedModel(small_net(), "net.pt2", "net", (4, 3, 32, 32))
    (x,), sentence = example_input(loaded, None, 2)
    assert x.shape == (2, 3, 32, 32)
    assert sentence == "input 2x3x32x32: batch from --batch, the rest from the example in net.pt2"
    assert example_input(from_module(small_net()), "5x3x8x8", 2)[1] == (
        "input 2x3x8x8: batch from --batch, the rest from --input"
    )
    assert example_input(from_module(small_net()), None, 2)[1] == (
        "input 2x3x224x224: batch from --batch, the rest a guess (channels of '0', 224x224);"
        " set it with --input NxCxHxW"
    )


def test_values_are_the_same_every_time():
    torch.manual_seed(1)
    first = example_input(from_module(small_net()), "2x3x8x8", None)[0][0]
    torch.manual_seed(2)
    assert torch.equal(first, example_input(from_module(small_net()), "2x3x8x8", None)[0][0])
    assert first.std() > 0.5


@pytest.mark.parametrize("text", ["", "8", "8x3x", "8,3,224,224", "8x-3x4x4", "8x3.5x4x4", "axb"])
def test_unparsable_shape(text):
    assert text_of(from_module(small_net()), text, None) == (
        f"--input: '{text}' is not a shape; write sizes joined by x, as in 8x3x224x224"
    )


def test_zero_sizes():
    assert text_of(from_module(small_net()), "8x3x0x4", None) == (
        "--input: '8x3x0x4' has a size of zero; every size must be 1 or more"
    )
    assert text_of(from_module(small_net()), "8x3x4x4", 0) == "--batch: '0' is not a batch size; use 1 or more"


def test_no_conv_to_guess_from():
    assert text_of(from_module(nn.Sequential(nn.Linear(3, 3))), None, None) == (
        "Sequential: does not say the shape of its input; give it, as in --input 8x3x224x224"
    )


def test_a_model_without_conv_takes_any_shape():
    assert example_input(from_module(nn.Linear(3, 3)), "7x3", None)[0][0].shape == (7, 3)


def test_channel_mismatch():
    net = small_net()
    assert text_of(from_module(net), "8x1x28x28", None) == (
        "--input: '8x1x28x28' has 1 channels but '0' takes 3; use --input 8x3x28x28"
    )
    assert net[1].num_batches_tracked == 0  # trying the shape left the model as it was


def test_rank_mismatch():
    assert text_of(from_module(small_net()), "8x3", None) == (
        "--input: '8x3' has 2 sizes but '0' is 2-D; write it as NxCxHxW"
    )


def test_a_conv_that_does_not_see_the_input_itself():
    net = nn.Sequential(nn.PixelUnshuffle(2), nn.Conv2d(12, 4, 3), nn.BatchNorm2d(4))
    (x,), _ = example_input(from_module(net), "2x3x16x16", None)
    assert x.shape == (2, 3, 16, 16)
    assert net[2].num_batches_tracked == 0
    assert torch.equal(net[2].running_mean, torch.zeros(4))


def test_channel_mismatch_in_an_exported_program(tmp_path):
    path = str(tmp_path / "net.pt2")
    torch.export.save(torch.export.export(small_net().eval(), (torch.randn(2, 3, 8, 8),)), path)
    assert text_of(load_model(path), "2x1x8x8", None) == (
        "--input: '2x1x8x8' has 1 channels but '0' takes 3; use --input 2x3x8x8"
    )


def test_several_inputs():
    inputs, sentence = example_input(from_module(small_net()), "2x3x8x8,2x5", None)
    assert [tuple(x.shape) for x in inputs] == [(2, 3, 8, 8), (2, 5)]
    assert sentence == "input 2x3x8x8 and 2x5: from --input"
    assert [len(x) for x in example_input(from_module(small_net()), "2x3x8x8,2x5", 7)[0]] == [7, 7]
