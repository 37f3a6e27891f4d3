"""The table of stages: which passes a program has, in which order, and what `gfcompile passes` says of them."""

from __future__ import annotations

import pytest

from gfcompile.cli import main
from gfcompile.errors import UserError
from gfcompile.optimizers import SGD, AdamW
from gfcompile.passes import pipeline
from gfcompile.passes.append_optimizer import AppendOptimizer
from gfcompile.passes.clip_gradients import ClipGradients
from gfcompile.passes.pipeline import STAGES, When
from gfcompile.passes.winograd import Winograd

LOWERING = ["fold_batchnorm", "fold_frozen", "remove_dead", "channels_last", "winograd", "fold_frozen", "remove_dead"]
FILTERING = [
    "static_moves",
    "canonicalize",
    "select",
    "filter",
    "draw_channels",
    "remove_dead",
    "merge_equal",
    "sink",
    "pack_masks",
    "hoist",
]
PUBLISHED = [name for name in FILTERING if name not in ("merge_equal", "sink", "pack_masks")]


def names(passes: list) -> list[str]:
    return [each.name for each in passes]


def test_every_program_has_its_passes() -> None:
    update = ["clip_gradients", "append_optimizer"]
    plain = [name for name in LOWERING if name != "winograd"]
    assert names(pipeline.training_passes(SGD())) == [stage.rewrite.name for stage in STAGES]
    assert names(pipeline.training_passes(SGD())) == FILTERING + update + LOWERING
    assert names(pipeline.training_passes(SGD(), False, None)) == PUBLISHED + update + plain
    assert names(pipeline.gradient_passes()) == FILTERING + LOWERING
    assert names(pipeline.gradient_passes(False, None)) == PUBLISHED + plain
    assert names(pipeline.prediction_passes()) == ["static_moves", "canonicalize", *LOWERING]
    assert names(pipeline.prediction_passes(None)) == ["static_moves", "canonicalize", *plain]
    assert names(pipeline.filtering_passes(True)) == names(list(pipeline.FILTERING)) == FILTERING
    assert names(pipeline.filtering_passes(False)) == PUBLISHED


def test_options_come_from_the_variant() -> None:
    optimizer = AdamW(clip_norm=2.0, clip_value=0.5)

    def choose(_: object) -> int:
        return 4

    passes = {each.name: each for each in pipeline.training_passes(optimizer, winograd=choose)}
    assert passes["clip_gradients"] == ClipGradients(2.0, 0.5)
    assert passes["append_optimizer"] == AppendOptimizer(optimizer)
    assert passes["winograd"] == Winograd(choose)


def test_a_pass_is_found_by_its_name() -> None:
    for stage in STAGES:
        assert pipeline.find_pass(stage.rewrite.name) == stage.rewrite
    with pytest.raises(UserError) as caught:
        pipeline.find_pass("sinks")
    known = ", ".join([*FILTERING, "clip_gradients", "append_optimizer", "fold_batchnorm", "fold_frozen"])
    assert str(caught.value) == f"pass 'sinks': no such pass; there are: {known}, channels_last, winograd"


def test_the_list_of_passes_is_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["passes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * len(STAGES)
    assert lines[12:14] == [
        "07 merge_equal        Compute equal things of the backward pass once.",
        "                      why here: so that equal statistics are one",
    ]
    assert [line.partition("why here: ")[2] for line in lines[1::2]] == [stage.why for stage in STAGES]
    assert [line.split()[1] for line in lines[::2]] == [stage.rewrite.name for stage in STAGES]


def test_every_condition_is_of_use() -> None:
    assert {stage.when for stage in STAGES} == set(When)
