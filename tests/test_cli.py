"""The command line: what it says, where it says it, and its exit codes."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gfcompile.cli import main
from gfcompile.cli.commands import load_job
from gfcompile.cli.parsers import compile_parser
from gfcompile.cli.screen import Screen
from gfcompile.codegen.link import find_missing
from gfcompile.optimizers import SGD, AdamW, RMSprop
from gfcompile.targets import find_target, list_targets
from tests.lean import lean
from tests.missing import skip_for_want
from tests.models.zoo import INPUTS, ZOO

SMALL = ["--input", "x".join(map(str, INPUTS["plain"]))]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "plain.pt"
    torch.save(ZOO["plain"](), path)
    return str(path)


def error_of(capsys: Capture, *arguments: str) -> str:
    """The one line on stderr of a command that fails for a user's reason."""
    assert main([*arguments, "--quiet"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--r", "0"], "--r 0: the patch edge must be a whole number, 1 or more; --exact trains without filtering"),
        (["--r", "two"], "--r 'two': must be a patch edge, as in 2 or NAME=2"),
        (["--r", "5=x"], "--r '5=x': must be a patch edge, as in 2 or NAME=2"),
        (["--r", "9=2"], "--r 9=2: that is no convolution; name one, or leave it out"),
        (
            ["--layers", "999"],
            "--layers 999: the model has 3 convolutions that count (shortcut projections do not); "
            "use --layers 3 or less",
        ),
        (
            ["--sparse", "half"],
            "--sparse 'half': must be a share, as in 0.1 or NAME=0.1, or auto",
        ),
        (
            ["--sparse", "5=2"],
            "--sparse 5=2.0: must be a share of the input channels, more than 0 and at most 1; 1 updates all of them",
        ),
        (["--sparse", "9=0.5"], "--sparse 9=0.5: that is no convolution; name one, or leave it out"),
        (["--sparse-strategy", "epoch"], "--sparse-strategy epoch: says when channels are drawn; give --sparse too"),
        (
            ["--plan", "plan.toml", "--sparse", "auto", "--memory", "1MB"],
            "--plan: says what is trained; leave out --sparse auto and --memory",
        ),
        (
            ["--sparse", "0.5", "--sparse-strategy", "often"],
            "--sparse-strategy often: is not known; use step, epoch, fixed, norm",
        ),
        (
            ["--sparse", "auto"],
            "--sparse auto: needs a budget; give --memory, as in --memory 256KB",
        ),
        (["--memory", "1MB"], "--memory: is a budget for --sparse auto; give both, or neither"),
        (
            ["--sparse", "auto", "--memory", "much"],
            "--memory much: must be a number of bytes, as in 262144, 256KB or 2MB",
        ),
        (
            ["--sparse", "auto", "--memory", "1MB", "--train", "5"],
            "--train: --sparse auto chooses the layers; leave --train out, or give shares with --sparse",
        ),
        (["--layers", "x"], "--layers 'x': must be a whole number"),
        (["--input", "3xx"], "--input: '3xx' is not a shape; write sizes joined by x, as in 8x3x224x224"),
        (
            ["--input", "2x4x16x16"],
            "--input: '2x4x16x16' has 4 channels but '0' takes 3; use --input 2x3x16x16",
        ),
        (["--batch", "0"], "--batch: '0' is not a batch size; use 1 or more"),
        (
            ["--loss", "foo"],
            "loss: unknown 'foo'; use cross_entropy, bce_with_logits, mse, l1, smooth_l1, huber, or module:callable",
        ),
        (["--loss", "mse:beta=1"], "loss: 'mse' has no setting 'beta'; it has reduction"),
        (["--optimizer", "lion"], "optimizer: 'lion' is not known; use sgd, adam, adamw, rmsprop"),
        (
            ["--optimizer", "adam", "--momentum", "0.9"],
            "optimizer: 'adam' has no setting 'momentum'; it has betas, eps, weight_decay, amsgrad, maximize",
        ),
        (
            ["--optimizer", "adam", "--betas", "0.9"],
            "optimizer: betas '(0.9,)' must be two numbers, each 0 or more and below 1",
        ),
        (["--betas", "high"], "--betas 'high': must be two numbers, as in 0.9,0.999"),
        (["--clip-norm", "0"], "optimizer: clip_norm '0.0' must be a finite number above 0"),
        (["--nesterov"], "optimizer: nesterov needs momentum and no dampening; set momentum=0.9, dampening=0"),
        (
            ["--group", "*.bias"],
            "--group '*.bias': has no settings; write 'PATTERN:key=value', as in '*.bias:weight_decay=0'",
        ),
        (
            ["--group", "*.bias:weight_decay"],
            "--group: 'weight_decay' in '*.bias:weight_decay' is not of the form key=value; "
            "write NAME:key=value,key=value",
        ),
        (
            ["--group", "*.bias:lr=0.1"],
            "optimizer: group '*.bias': 'lr' is an input of the step; write lr_factor, which multiplies it",
        ),
        (
            ["--group", "nothing:weight_decay=0"],
            "optimizer: group 'nothing': no parameter of the model has that name; "
            "names are like '11.bias', patterns like '*.bias'",
        ),
        (["--lr", "-1"], "--lr '-1': must be a finite number, 0 or more"),
        (["--lr", "nan"], "--lr 'nan': must be a finite number, 0 or more"),
        (["--lr", "1e300"], "--lr 1e+300: must be a number of 0 or more that a float32 holds, 3.4e38 at most"),
        (["--momentum", "fast"], "--momentum 'fast': must be a finite number, 0 or more"),
        (["--batchnorm", "off"], "--batchnorm off: is not known; use eval, train, frozen"),
        (["--compat", "old"], "--compat old: is not known; the only one is reference"),
        (["--train", "nothing*"], "--train nothing*: no layer has that name; `gfcompile inspect MODEL` lists them"),
        (
            ["--cache-prefix"],
            "--cache-prefix: nothing to cache: no convolution is frozen before '0', which is trained; "
            "train fewer layers, as in --layers 1",
        ),
        (["--bogus"], "unrecognized arguments: --bogus; see gfcompile --help"),
    ],
)
def test_wrong_options(capsys: Capture, model: str, options: list[str], text: str) -> None:
    before = [] if "--input" in options else SMALL
    assert error_of(capsys, model, "--dry-run", *before, *options) == f"gfcompile: error: {text}"


@pytest.mark.parametrize("option", ["calculus", "winograd"])
def test_what_is_left_out_reaches_the_job(model: str, option: str) -> None:
    for given, wanted in ((f"--no-{option}",), False), ((), True):
        arguments = compile_parser().parse_args([model, *SMALL, *given])
        job, _, _ = load_job(arguments, Screen(quiet=True, json=False))
        assert getattr(job, option) is wanted


def test_the_prefix_cache_reaches_the_job(model: str) -> None:
    for given, wanted in (["--cache-prefix"], True), ([], False):
        job, _, _ = load_job(compile_parser().parse_args([model, *SMALL, *given]), Screen(quiet=True, json=False))
        assert job.cache_prefix is wanted
        assert job.skeleton is None


def test_optimizer_and_loss_options_reach_the_job(model: str) -> None:
    options = "--optimizer adamw --betas 0.8,0.99 --eps 1e-6 --weight-decay 0.1 --amsgrad --maximize --clip-norm 1"
    options += " --clip-value 2 --group *.bias:weight_decay=0,lr_factor=0.1 --group 11:betas=0.5/0.6"
    options += " --loss cross_entropy:label_smoothing=0.1,ignore_index=255,weight=1/2/3/4/5"
    job, _, _ = load_job(compile_parser().parse_args([model, *SMALL, *options.split()]), Screen(quiet=True, json=False))
    groups = {"*.bias": {"weight_decay": 0, "lr_factor": 0.1}, "11": {"betas": (0.5, 0.6)}}
    assert job.optimizer == AdamW(
        (0.8, 0.99), 1e-6, 0.1, amsgrad=True, maximize=True, clip_norm=1.0, clip_value=2.0, groups=groups
    )
    assert job.lr == 0.001
    assert job.loss.settings == {"label_smoothing": 0.1, "ignore_index": 255, "weight": [1.0, 2.0, 3.0, 4.0, 5.0]}
    others = "--optimizer rmsprop --alpha 0.9 --centered --momentum 0.5 --lr 0.5"
    job, _, _ = load_job(compile_parser().parse_args([model, *SMALL, *others.split()]), Screen(quiet=True, json=False))
    assert (job.optimizer, job.lr) == (RMSprop(0.9, centered=True, momentum=0.5), 0.5)
    others = "--momentum 0.9 --dampening 0.1"
    job, _, _ = load_job(compile_parser().parse_args([model, *SMALL, *others.split()]), Screen(quiet=True, json=False))
    assert (job.optimizer, job.lr) == (SGD(0.9, dampening=0.1), 0.01)


def test_of_repeated_patterns_the_last_counts(model: str) -> None:
    """Where it stands, too: a pattern given again comes after those that were given in between."""
    options = "--sparse 5=0.5 --sparse 5*=0.1 --sparse 5=0.25 --r 5=3 --r 5*=4 --r 5=2"
    options += " --batchnorm 5=train --batchnorm 5*=eval --batchnorm 5=frozen"
    options += " --group 5:lr_factor=2 --group 5*:lr_factor=3 --group 5:lr_factor=4"
    job, _, _ = load_job(compile_parser().parse_args([model, *SMALL, *options.split()]), Screen(quiet=True, json=False))
    assert list((job.request.sparse or {}).items()) == [("5*", 0.1), ("5", 0.25)]
    assert list((job.request.patches or {}).items()) == [("*", 2), ("5*", 4), ("5", 2)]
    assert list(job.request.norms.items()) == [("*", "eval"), ("5*", "eval"), ("5", "frozen")]
    assert job.optimizer.of("5.weight").lr_factor == 4


def test_an_unknown_target_lists_the_known(capsys: Capture, model: str) -> None:
    line = error_of(capsys, model, "--target", "moon")
    assert line.startswith("gfcompile: error: unknown target 'moon'; use one of: cuda, jetson, ")


def test_a_missing_file(capsys: Capture) -> None:
    assert error_of(capsys, "gone.pt") == "gfcompile: error: gone.pt: no such file; check the path"


def test_an_unwritable_output_folder(capsys: Capture, model: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "plain_step"
    line = error_of(capsys, model, "--out", str(out))
    assert line.startswith(f"gfcompile: error: --out {out}: cannot write there (")
    assert line.endswith("); choose another folder")


def test_an_output_folder_with_other_things_in_it(capsys: Capture, model: str, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / "thesis.tex").write_text("")
    line = error_of(capsys, model, "--out", str(out))
    assert line == f"gfcompile: error: --out {out}: exists and is not an artifact; choose another folder or remove it"
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]


def test_inspecting_a_folder_that_is_no_artifact(capsys: Capture, tmp_path: Path) -> None:
    expected = f"{tmp_path}: no report.json there; give a model, or a folder that gfcompile wrote"
    assert error_of(capsys, "inspect", str(tmp_path)) == f"gfcompile: error: {expected}"


def test_inspecting_a_damaged_report(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("{")
    expected = f"{tmp_path / 'report.json'}: is damaged; compile again"
    assert error_of(capsys, "inspect", str(tmp_path)) == f"gfcompile: error: {expected}"


def test_verify_wants_an_artifact(capsys: Capture, model: str, tmp_path: Path) -> None:
    assert main(["verify", model, str(tmp_path), "--quiet"]) == 2
    expected = f"'{tmp_path}': no manifest.json there; pass the folder that gfcompile wrote"
    assert capsys.readouterr().err == f"gfcompile: error: {expected}\n"


def test_help_teaches_and_imports_nothing_heavy() -> None:
    program = (
        "import sys; from gfcompile.cli import main; code = main(['--help']); "
        "heavy = {'torch', 'tvm', 'numpy'} & set(sys.modules); sys.exit(f'{code} {heavy}' if code or heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for word in ("examples:", "exit codes:", "--layers N", "--dry-run", "--debug", "gfcompile verify MODEL [ARTIFACT]"):
        assert word in done.stdout


@pytest.mark.slow
def test_after_the_imports_the_collector_works_and_a_model_may_import_anything() -> None:
    program = (
        "import gc, sys; from gfcompile.cli.imports import import_compiler; {first}; import_compiler(); "
        "names = 'tvm', 'torch.distributed.tensor'; "
        "print(gc.isenabled(), gc.get_freeze_count() > 0, *(name in sys.modules for name in names)); {then}"
    )
    for first, then, expected in (
        ("pass", "import torch.distributed.tensor, torch.distributed.fsdp", "True True True False"),
        ("sys.modules['torch'] = gc", "pass", "True False False False"),
    ):
        words = [sys.executable, "-c", program.format(first=first, then=then)]
        assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == expected


@pytest.mark.slow
def test_what_imports_were_spared_is_there_afterwards() -> None:
    program = (
        "import inspect; asked = inspect.getframeinfo; from gfcompile.cli.imports import import_compiler; "
        "import_compiler(); import torch; print(inspect.getframeinfo is asked, torch.distributed.is_available())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


@pytest.mark.parametrize(("words", "code", "said"), [(["targets"], 0, "rpi4"), (["passes", "sunk"], 2, "sunk")])
def test_a_process_ends_at_once_with_all_that_it_had_to_say(words: list[str], code: int, said: str) -> None:
    """Python would write what is buffered, and call what asked for that, on its way out."""
    program = (
        f"import atexit, sys; sys.argv = ['gfcompile', *{words}]; atexit.register(print, 'the last word'); "
        "from gfcompile.cli import run; run()"
    )
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=buffered, check=False)
    assert done.returncode == code
    assert said in done.stdout + done.stderr
    assert done.stdout.endswith("the last word\n")


def test_a_process_without_its_streams_ends_well() -> None:
    command = f"exec '{sys.executable}' -m gfcompile.cli targets 2>&- >/dev/null"
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 0


@pytest.mark.parametrize("command", ["inspect", "verify", "passes", "targets", "graphs", "diff", "run-pass"])
def test_each_command_has_help(capsys: Capture, command: str) -> None:
    assert main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: gfcompile {command} ")


def test_no_arguments_show_the_help(capsys: Capture) -> None:
    assert main([]) == 2
    assert "usage: gfcompile MODEL" in capsys.readouterr().err


def test_targets(capsys: Capture) -> None:
    assert main(["targets"]) == 0
    assert "native           the machine the compiler runs on" in capsys.readouterr().out.splitlines()
    assert main(["targets", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows["native"] == {
        "description": "the machine the compiler runs on",
        "link": "cc: present",
        "test": "this machine",
    }
    assert set(rows) == set(list_targets())


def test_targets_say_what_is_missing(capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("gfcompile.codegen.cuda.packages._locate", lambda file: None)
    assert main(["targets", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows["rpi4"]["link"] == "ziglang: pip install ziglang"
    assert rows["rpi4"]["test"] == "qemu-aarch64-static: not found; apt install qemu-user-static"
    assert rows["jetson"]["link"] == "ziglang: pip install ziglang, NVRTC and ptxas: pip install 'gfcompile[cuda]'"
    assert rows["x86-64-v3"]["link"] == "cc: install a C compiler"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            ["--target", "rpi4", "--arch", "sm_72"],
            "--arch sm_72: target 'rpi4' has its own; --arch is for --target cuda",
        ),
        (["--target", "rpi4", "--linker", "ld"], "--linker ld: is not known; use zig or gcc"),
        (["--target", "jetson", "--libc", "musl"], "--libc musl: target 'jetson-nano' loads the CUDA driver, which a"),
    ],
)
def test_options_of_a_target(capsys: Capture, model: str, options: list[str], text: str) -> None:
    assert error_of(capsys, model, *options, *SMALL).startswith(f"gfcompile: error: {text}")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the board's own machine can run what is verified")
def test_verify_needs_a_target_that_runs_here(capsys: Capture, model: str) -> None:
    assert error_of(capsys, "verify", model, "--target", "rpi4", *SMALL) == (
        "gfcompile: error: --target rpi4: it is for aarch64, this machine is x86_64; what is verified must run here"
    )


@pytest.mark.slow
def test_the_first_lines_for_a_board(capsys: Capture, model: str) -> None:
    """What was assumed, what was filtered, what it costs: counted, and estimated by name."""
    assert main([model, "--dry-run", "--layers", "1", "--target", "rpi4", *SMALL]) == 0
    assumed, filtered, costs, estimate, *_ = capsys.readouterr().out.splitlines()
    assert assumed == "input 4x3x16x16: from --input"
    assert filtered == "filtered: 5; trained exactly: 9, 11"
    assert costs.startswith("costs, counted: ")
    assert " of memory in a training step, " in costs
    assert estimate.startswith("estimate (roofline, no measurement): about ")


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="on a board there is nothing to copy")
def test_what_to_copy_to_the_board(capsys: Capture, model: str, tmp_path: Path) -> None:
    missing = find_missing(find_target("rpi4"))
    if missing is not None:
        skip_for_want(f"the linker of target rpi4 is not installed; {missing}")
    out = tmp_path / "pi_step"
    with lean():
        assert main([model, "--layers", "1", "--target", "rpi4", "--out", str(out), *SMALL]) == 0
    text = capsys.readouterr().out
    assert re.search(rf"\ncopy to the board: {out}/ \(.*B\); it needs glibc 2.17 or newer\n", text)
    assert f"\n    scp -r {out} user@board:\n" in text
    assert text.endswith(f"artifact: {out}/  (report: {out}/report.md); it does not run on this machine\n")


def test_passes_have_reasons(capsys: Capture) -> None:
    assert main(["passes", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows][:4] == ["static_moves", "canonicalize", "select", "filter"]
    assert all(row["what"] and row["why_here"] for row in rows)
    assert main(["passes"]) == 0
    assert "03 select" in capsys.readouterr().out


def test_the_first_line_is_the_input_and_where_it_comes_from(capsys: Capture, model: str) -> None:
    assert main(["inspect", model, "--quick", *SMALL]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "input 4x3x16x16: from --input"


def test_inspect_quick_as_json(capsys: Capture, model: str) -> None:
    assert main(["inspect", model, "--quick", "--json", "--layers", "1", "--r", "4", "--r", "5=2", *SMALL]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert "input 4x3x16x16: from --input" in captured.err.splitlines()
    assert report["plan"]["filtered"] == ["5"]
    assert report["memory"]["conv_inputs"] == {
        "numbers_are": "counted",
        "exact_bytes": 4 * 8 * 8 * 8 * 4,
        "filtered_bytes": 4 * 8 * 4 * 4 * 4,
    }


@pytest.mark.slow
def test_dry_run_writes_only_the_dump(
    capsys: Capture, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([model, "--dry-run", "--layers", "1", "--dump", "graphs", *SMALL]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("input 4x3x16x16: from --input\n")
    assert "3 layers trained, 1 filtered, 0 refused" in captured.out  # the classifier is two linear layers
    assert (
        "\nfrozen prefix: 70 % of the step's multiply-adds, counted; its features are 2.00 KB as float32 or 1.00 KB as"
        " float16 per sample; --cache-prefix compiles a step that can keep them\n"
    ) in captured.out
    assert "dry run: no code was generated" in captured.out
    assert "tracing the forward pass" in captured.err
    assert [path.name for path in tmp_path.iterdir()] == ["graphs"]
    assert {"train", "predict", "report.md", "report.json", "arena.svg"} <= {
        path.name for path in (tmp_path / "graphs").iterdir()
    }
    assert (tmp_path / "graphs" / "train" / "04_filter.onnx").is_file()
    assert main(["diff", "graphs", "03", "04"]) == 0
    assert "+++ train/04_filter.txt" in capsys.readouterr().out


def test_a_bug_is_70_with_its_command(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(args: Any) -> int:
        raise RuntimeError("boom")

    monkeypatch.setattr("gfcompile.cli.commands.compile", broken)
    assert main(["a model.pt", "--r", "2"]) == 70
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == (
        "gfcompile: error: RuntimeError: boom; a bug of ours; the command was: gfcompile 'a model.pt' --r 2"
    )


def test_interruption_is_130(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(args: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("gfcompile.cli.commands.compile", interrupted)
    assert main(["model.pt"]) == 130
    assert capsys.readouterr().err == "gfcompile: interrupted; no artifact was left half-written\n"


def test_progress_elsewhere_is_a_line_a_stage(capsys: Capture) -> None:
    screen = Screen(quiet=False, json=False)
    for text in ("compiling kernel 1/3 conv", "compiling kernel 2/3 add", "linking"):
        screen.progress(text)
    screen.progress("loading", transient=True)
    assert [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()] == ["compiling kernel", "linking"]


# ---- with code generation


@pytest.fixture(scope="module")
def artifact(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "plain_step"
    with lean():
        assert main([model, "--layers", "2", "--r", "2", "--out", str(out), "--quiet", *SMALL]) == 0
    return out


@pytest.mark.slow
def test_the_artifact_has_its_report(capsys: Capture, artifact: Path) -> None:
    assert {"report.json", "report.md", "arena.svg", "graphs"} <= {path.name for path in artifact.iterdir()}
    assert main(["inspect", str(artifact), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["filtered"] == ["2", "5"]


@pytest.mark.slow
def test_compiling_ends_with_how_to_use_it(capsys: Capture, model: str, tmp_path: Path) -> None:
    out = tmp_path / "again_step"
    with lean():
        assert main([model, "--layers", "1", "--out", str(out), *SMALL]) == 0
    assert "import again_step\n    step = again_step.load()\n" in capsys.readouterr().out


@pytest.mark.coverage
def test_a_debug_build_passes_verify(capsys: Capture, model: str, tmp_path: Path) -> None:
    """Its guards hold, and what it computes is right."""
    out = tmp_path / "watched_step"
    with lean():
        assert main([model, "--layers", "1", "--debug", "--out", str(out), "--quiet", *SMALL]) == 0
    assert json.loads((out / "manifest.json").read_text())["debug"] is True
    assert main(["verify", model, str(out), "--quiet"]) == 0
    assert "PASS: " in capsys.readouterr().out


@pytest.mark.slow
def test_verify_passes_on_random_and_own_data(capsys: Capture, model: str, artifact: Path, tmp_path: Path) -> None:
    assert main(["verify", model, str(artifact)]) == 0
    assert "PASS: " in capsys.readouterr().out
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "b.npz", x=rng.normal(size=(9, 3, 16, 16)).astype("float32"), y=rng.integers(0, 5, 9))
    assert main(["verify", model, str(artifact), "--data", str(tmp_path / "b.npz"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["passed"]
    assert {"predict", "loss", "gradient 5.weight", "update of 5.weight"} <= {row["what"] for row in found["checks"]}


@pytest.mark.coverage
def test_verify_passes_where_a_gradient_vanishes(capsys: Capture, tmp_path: Path) -> None:
    """A bias before a batch norm in training mode has no gradient: what is left of it is rounding on both sides."""
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.SiLU(), torch.nn.Conv2d(8, 5, 1)]
    torch.save(torch.nn.Sequential(*layers), tmp_path / "biased.pt")
    options = ["--input", "4x3x16x16", "--layers", "2", "--batchnorm", "train", "--quiet"]
    with lean():
        assert main(["verify", str(tmp_path / "biased.pt"), *options]) == 0
    assert "gradient 0.bias" in capsys.readouterr().out


@pytest.mark.slow
def test_verify_fails_with_1_when_a_gradient_is_wrong(
    capsys: Capture, model: str, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gfcompile.runtime.step import Step

    right = Step.gradients

    def wrong(self: Step, *batch: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        return {name: gradient * 1.001 for name, gradient in right(self, *batch, seed=seed).items()}

    monkeypatch.setattr(Step, "gradients", wrong)
    assert main(["verify", model, str(artifact)]) == 1
    assert "FAIL: " in capsys.readouterr().out


@pytest.mark.slow
def test_verify_refuses_other_weights(capsys: Capture, artifact: Path, tmp_path: Path) -> None:
    other = ZOO["plain"]()
    with torch.no_grad():
        next(iter(other.parameters())).add_(1)
    torch.save(other, tmp_path / "other.pt")
    assert main(["verify", str(tmp_path / "other.pt"), str(artifact), "--quiet"]) == 2
    expected = f"{artifact}: was compiled from other weights: '0.weight' is not the model's; compile again"
    assert capsys.readouterr().err == f"gfcompile: error: {expected}\n"


@pytest.mark.slow
def test_check_says_that_it_compiles(capsys: Capture, model: str) -> None:
    assert main(["check", model, "--layers", "2", *SMALL, "--quiet"]) == 0
    assert capsys.readouterr().out == "it compiles: 4 layers trained, 2 of them filtered\n"


UNUSUAL = """\
import torch
from torch import nn

class Unusual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.conv = nn.Conv2d(4, 4, 3)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = torch.special.i0e(self.stem(x))
        x = torch.digamma(self.conv(x).abs() + 1)
        return self.head(x.mean((2, 3)))
"""


@pytest.mark.slow
def test_check_names_everything_that_stands_in_the_way(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unusual_nets.py").write_text(UNUSUAL)
    monkeypatch.chdir(tmp_path)
    command = ["check", "unusual_nets:Unusual", "--layers", "1", "--input", "2x3x8x8", "--quiet"]
    assert main([*command, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["compiles"]
    found = {row["operator"]: row for row in report["unsupported"]}
    assert set(found) == {"aten.special_i0e", "aten.digamma", "aten.polygamma"}
    assert found["aten.special_i0e"]["layers"] == ["stem"]
    assert found["aten.digamma"]["line"] == "unusual_nets.py:13"
    assert [found[name]["only_backward"] for name in ("aten.digamma", "aten.polygamma")] == [False, True]
    assert main(command) == 1
    text = capsys.readouterr().out
    assert "replace it in the model" in text
    assert "freeze what is before it" in text
    assert "3 operators have no translation" in text
