"""Cases by theme: every operator that a CNN's training step may need, over shapes and options."""

from tests.operators import choices, convolutions, indexing, norms_and_losses, pointwise, reductions, shapes, windows
from tests.operators.harness import Case

THEMES: dict[str, list[Case]] = {
    name: cases
    for part in (pointwise, choices, reductions, shapes, indexing, convolutions, windows, norms_and_losses)
    for name, cases in part.THEMES.items()
}
