"""The shipped Fashion-MNIST subset: well formed, small, and exactly what make_data.py derives from Debian's package."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.missing import skip_for_want

EXAMPLE = Path(__file__).parents[2] / "examples" / "fashion"
DATA = EXAMPLE / "data"
PACKAGE = Path("/usr/share/datasets/fashion-mnist")
FILES = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]


def require_package() -> None:
    if not PACKAGE.is_dir():
        skip_for_want("Debian's dataset-fashion-mnist is not installed, so the shipped data cannot be derived again")


def payload(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes())


def test_shipped_data_is_at_most_4_mb() -> None:
    assert sum(path.stat().st_size for path in DATA.iterdir()) <= 4_000_000


@pytest.mark.parametrize(("part", "per_class"), [("train", 480), ("t10k", 160)])
def test_shipped_data_is_balanced_idx(part: str, per_class: int) -> None:
    images = payload(DATA / f"{part}-images-idx3-ubyte.gz")
    labels = payload(DATA / f"{part}-labels-idx1-ubyte.gz")
    count = 10 * per_class
    assert images[:16] == bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (count, 28, 28))
    assert len(images) == 16 + count * 28 * 28
    assert labels[:8] == bytes([0, 0, 8, 1]) + count.to_bytes(4, "big")
    assert np.bincount(np.frombuffer(labels[8:], np.uint8), minlength=10).tolist() == [per_class] * 10


@pytest.mark.slow
def test_make_data_derives_the_shipped_bytes(tmp_path: Path) -> None:
    require_package()
    command = [sys.executable, str(EXAMPLE / "make_data.py"), "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
    # Compared unpacked: another zlib may pack the same bytes differently.
    for name in FILES:
        assert payload(tmp_path / name) == payload(DATA / name), name


def test_make_data_without_the_package_says_what_to_install(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE / "make_data.py"), "--source", str(tmp_path / "none")]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 2
    assert f"'{tmp_path / 'none'}' is missing; install Debian's dataset-fashion-mnist or pass --source" in result.stderr


def test_the_halves_are_disjoint_and_both_hold_every_class() -> None:
    program = (
        "from data import halves, load\n"
        "import numpy as np\n"
        "for part in ('train', 't10k'):\n"
        "    whole = load(part)\n"
        "    a, b = halves(whole, 0.05)\n"
        "    assert sorted(x.tobytes() for x in whole.x) == sorted(x.tobytes() for x in np.concatenate([a.x, b.x]))\n"
        "    print(np.bincount(a.y).tolist(), np.bincount(b.y).tolist())\n"
    )
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=EXAMPLE)
    assert result.stdout.splitlines() == [
        f"{[456] * 5 + [24] * 5} {[24] * 5 + [456] * 5}",
        f"{[152] * 5 + [8] * 5} {[8] * 5 + [152] * 5}",
    ]
