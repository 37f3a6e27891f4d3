"""Bytes in use over the step's time, one curve per variant, as an SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from gfcompile.report.arena_picture import BOTTOM, HEIGHT, LEFT, RIGHT, TICKS, TOP, WIDTH
from gfcompile.report.units import in_bytes

COLOURS = ("#8c8c8c", "#d9822b", "#2f6fa7", "#6aa36f")


@dataclass(frozen=True)
class Curve:
    """Bytes in use at each kernel call, and the call that completes the forward pass."""

    bytes: Sequence[int]
    loss_call: int

    def points(self) -> list[tuple[float, int]]:
        """Time as a fraction: each half of the step takes half of the picture, so that the losses stand together."""
        forward = self.loss_call + 1
        backward = max(len(self.bytes) - forward, 1)
        return [
            (0.5 * call / forward if call < forward else 0.5 + 0.5 * (call - forward) / backward, size)
            for call, size in enumerate(self.bytes)
        ]


def draw_memory(curves: Mapping[str, Curve]) -> str:
    """The whole SVG; the legend gives each curve's peak."""
    peak = max((max(curve.bytes, default=0) for curve in curves.values()), default=0) or 1
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="DejaVu Sans, Arial, sans-serif" font-size="11">',
        "<title>Bytes in use over a training step</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="14" font-weight="bold" fill="#222222">Bytes in use over a training step,'
        " weights aside (counted)</text>",
        *_axes(peak),
    ]
    x = float(LEFT)
    for (name, curve), colour in zip(curves.items(), COLOURS, strict=False):
        points = " ".join(f"{_x(at):.1f},{_y(size, peak):.1f}" for at, size in curve.points())
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        label = f"{name}: peak {in_bytes(max(curve.bytes, default=0))}"
        parts.append(f'<rect x="{x:.0f}" y="34" width="11" height="11" fill="{colour}"/>')
        parts.append(f'<text x="{x + 16:.0f}" y="43.5" fill="#444444">{escape(label)}</text>')
        x += 16 + len(label) * 6.3 + 24
    return "\n".join([*parts, "</svg>"]) + "\n"


def _x(at: float) -> float:
    return LEFT + at * (WIDTH - LEFT - RIGHT)


def _y(size: float, peak: int) -> float:
    return HEIGHT - BOTTOM - size * (HEIGHT - TOP - BOTTOM) / peak


def _axes(peak: int) -> list[str]:
    parts = []
    for tick in range(TICKS + 1):
        size = peak * tick / TICKS
        y = _y(size, peak)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e3e3e3"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#444444">{in_bytes(size)}</text>')
    middle, floor = _x(0.5), HEIGHT - BOTTOM
    parts.append(
        f'<line x1="{middle:.1f}" y1="{TOP}" x2="{middle:.1f}" y2="{floor}" stroke="#222222" stroke-dasharray="4 3"/>'
    )
    for at, word in ((0.25, "forward pass"), (0.5, "loss"), (0.75, "backward pass and update")):
        parts.append(f'<text x="{_x(at):.1f}" y="{floor + 18}" text-anchor="middle" fill="#444444">{word}</text>')
    return parts
