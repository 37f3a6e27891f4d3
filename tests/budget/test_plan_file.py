"""plan.toml: what is written is read back, and every bad edit is told with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gfcompile.budget.choices import FROZEN, TRAINED
from gfcompile.budget.planfile import FORMAT, apply_plan, write_plan
from gfcompile.errors import UserError
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job
from gfcompile.settings.planning import EXACT, FILTER, Choice
from gfcompile.settings.schema import Request
from tests.budget.nets import small

HEAD = f'format = "{FORMAT}"\n[layers]\n'


@pytest.fixture(scope="module")
def job() -> Job:
    model, x, _ = small()
    return Job(model, (x,), resolve_loss("cross_entropy"), Request(batchnorm="frozen"))


def test_written_and_read_back(job: Job, tmp_path: Path) -> None:
    choices = {
        "0": FROZEN,
        "2": Choice(FILTER, 4),
        "4": Choice(EXACT, None, 0.25),
        "6": Choice(FILTER, 2, 0.5),
        "10": TRAINED,
    }
    write_plan(tmp_path / "plan.toml", choices, ["found for 2 MB"], {"2": "about 1 KB kept"})
    text = (tmp_path / "plan.toml").read_text()
    assert "# found for 2 MB" in text
    assert '"2"  = { do = "filter", r = 4 }  # about 1 KB kept' in text
    request = apply_plan(job, tmp_path / "plan.toml").request
    assert request.train == ("2", "4", "6", "10")
    assert request.patches == {"*": None, "2": 4, "6": 2}
    assert request.sparse == {"4": 0.25, "6": 0.5}
    assert request.batchnorm == "frozen"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            '[layers]\n"2" = { do = "exact" }',
            f": 'format': must be format = \"{FORMAT}\"; `gfcompile plan` writes such files",
        ),
        (HEAD, ': line 2: \'[layers]\': lists no layer; write a line such as "conv1" = { do = "exact" }'),
        (
            HEAD + '"2" = { do = "freeze" }',
            ': line 2: \'[layers]\': trains nothing; give a layer do = "exact" or do = "filter"',
        ),
        (HEAD + '"2" = { do = "filtr" }', ": line 3: '2': do = 'filtr': is not known; use freeze, exact, filter"),
        (HEAD + '"2" = { r = 2 }', ": line 3: '2': says not what to do; write do = \"exact\""),
        (HEAD + '"2" = 4', ": line 3: '2': is not a table; write { do = \"exact\" }"),
        (
            HEAD + '"2" = { do = "filter" }',
            ": line 3: '2': says not over which patches; write r = 2",
        ),
        (
            HEAD + '"4" = { do = "exact" }\n"2" = { do = "filter", r = 0 }',
            ": line 4: '2': r = 0: the patch edge must be a whole number from 1 to 2147483647, as in r = 2",
        ),
        (
            HEAD + '"2" = { do = "exact", r = 2 }',
            ": line 3: '2': r = 2 is for do = \"filter\"; remove it, or filter the layer",
        ),
        (
            HEAD + '"2" = { do = "exact", sparse = 2 }',
            ": line 3: '2': sparse = 2: must be a share of the input channels, more than 0 and at most 1",
        ),
        (
            HEAD + '"2" = { do = "freeze", sparse = 0.5 }',
            ": line 3: '2': sparse = 0.5 is for trained convolutions; remove it",
        ),
        (
            HEAD + '"10" = { do = "filter", r = 2 }',
            ': line 3: \'10\': is not a convolution and cannot be filtered; use do = "exact" or "freeze"',
        ),
        (
            HEAD + '"2" = { do = "exact", patch = 2 }',
            ": line 3: '2': 'patch' is not known; a layer has do, r, sparse",
        ),
        (
            HEAD + '"conv9" = { do = "exact" }',
            ": line 3: 'conv9': the model has no such layer; `gfcompile inspect MODEL` lists them",
        ),
        (
            "budget = 3\n" + HEAD + '"2" = { do = "exact" }',
            ": line 1: 'budget': is not known; a plan has format and [layers]",
        ),
    ],
)
def test_bad_edits(job: Job, tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        apply_plan(job, path)
    assert str(caught.value) == f"{path}{error}"


def test_broken_files(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    with pytest.raises(UserError) as caught:
        apply_plan(job, path)
    assert str(caught.value) == (
        f"--plan {path}: No such file or directory; `gfcompile plan MODEL --memory 2MB` writes one"
    )
    path.write_text(HEAD + '"2" = { do = exact }')
    with pytest.raises(UserError) as caught:
        apply_plan(job, path)
    assert str(caught.value).startswith(f"{path}: is not TOML: ")
    assert "line 3" in str(caught.value)
    assert str(caught.value).endswith("; mend that line")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError) as caught:
        apply_plan(job, path)
    assert str(caught.value) == f"--plan {path}: is not text; `gfcompile plan MODEL --memory 2MB` writes one"


def test_a_strategy_for_a_plan_that_draws_nothing(job: Job, tmp_path: Path) -> None:
    path, wishes = tmp_path / "plan.toml", Request(sparse_strategy="epoch")
    path.write_text(HEAD + '"2" = { do = "exact" }')
    with pytest.raises(UserError) as caught:
        apply_plan(Job(job.module, job.example, job.loss, wishes), path)
    assert str(caught.value) == (
        "--sparse-strategy epoch: the plan draws no channels; give a layer of it sparse = 0.25, or leave"
        " --sparse-strategy out"
    )
    path.write_text(HEAD + '"2" = { do = "exact", sparse = 0.5 }')
    assert apply_plan(Job(job.module, job.example, job.loss, wishes), path).request.sparse_strategy == "epoch"


def test_not_beside_other_wishes(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(HEAD + '"2" = { do = "exact" }')
    with pytest.raises(UserError) as caught:
        apply_plan(Job(job.module, job.example, job.loss, Request(layers=2)), path)
    assert str(caught.value) == "--plan: says what is trained; leave out --layers, --train, --exact and --sparse"
