"""Derive `data/` from Debian's `dataset-fashion-mnist`: the first images of each class, in their original order.

No random choice is involved, so anybody with the package gets the same bytes:

    apt-get install dataset-fashion-mnist
    python examples/fashion/make_data.py
"""

import argparse
from pathlib import Path

import numpy as np
from idx import read_idx, write_idx

SOURCE = Path("/usr/share/datasets/fashion-mnist")
DATA = Path(__file__).parent / "data"
CLASSES = 10
IMAGES_PER_CLASS = {"train": 480, "t10k": 160}


def first_of_each_class(labels: np.ndarray, count: int) -> np.ndarray:
    """Indices, ascending, of the first `count` images of every class."""
    chosen = np.concatenate([np.flatnonzero(labels == c)[:count] for c in range(CLASSES)])
    return np.sort(chosen)


def derive(source: Path = SOURCE) -> dict[str, np.ndarray]:
    """{file name: array} of everything that `data/` holds."""
    files = {}
    for part, count in IMAGES_PER_CLASS.items():
        images_name, labels_name = f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz"
        labels = read_idx(source / labels_name)
        chosen = first_of_each_class(labels, count)
        files[images_name] = read_idx(source / images_name)[chosen]
        files[labels_name] = labels[chosen]
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, default=SOURCE, help="folder of the full idx files")
    parser.add_argument("--out", type=Path, default=DATA, help="folder to write")
    options = parser.parse_args()
    if not options.source.is_dir():
        parser.error(f"'{options.source}' is missing; install Debian's dataset-fashion-mnist or pass --source")
    options.out.mkdir(parents=True, exist_ok=True)
    for name, array in derive(options.source).items():
        write_idx(options.out / name, array)
        print(f"{name}: {array.shape}, {(options.out / name).stat().st_size} bytes")


if __name__ == "__main__":
    main()
