"""Plans as an SVG: score over the arena, the budget as a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gfcompile.report.arena_picture import BOTTOM, HEIGHT, LEFT, RIGHT, TICKS, TOP, WIDTH
from gfcompile.report.units import in_bytes

PLACED, CHOSEN = "#2f6fa7", "#d9822b"
LEGEND = ((CHOSEN, "chosen"), (PLACED, "other plans that were placed"))


@dataclass(frozen=True)
class Mark:
    """One plan."""

    arena_bytes: int
    score: float
    is_chosen: bool


def draw_plans(marks: Sequence[Mark], memory: int) -> str:
    """The whole SVG."""
    widest = max([memory, *(mark.arena_bytes for mark in marks)]) * 1.05
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="DejaVu Sans, Arial, sans-serif" font-size="11">',
        "<title>Plans: score over memory</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="14" font-weight="bold" fill="#222222">Score over the arena as placed'
        " (1: all layers trained exactly)</text>",
        *_legend(),
        *_axes(widest),
    ]
    x = _x(memory, widest)
    parts.append(
        f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#222222" stroke-dasharray="4 3"/>'
    )
    parts.append(f'<text x="{x - 4:.1f}" y="{TOP + 12}" text-anchor="end" fill="#222222">budget</text>')
    for mark in sorted(marks, key=lambda each: each.is_chosen):
        colour, size = (CHOSEN, 6) if mark.is_chosen else (PLACED, 3.5)
        at = f'cx="{_x(mark.arena_bytes, widest):.1f}" cy="{_y(mark.score):.1f}"'
        parts.append(f'<circle {at} r="{size}" fill="{colour}"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend() -> list[str]:
    parts, x = [], float(LEFT)
    for colour, label in LEGEND:
        parts.append(f'<rect x="{x:.0f}" y="34" width="11" height="11" fill="{colour}"/>')
        parts.append(f'<text x="{x + 16:.0f}" y="43.5" fill="#444444">{label}</text>')
        x += 16 + len(label) * 6.3 + 24
    return parts


def _axes(widest: float) -> list[str]:
    parts = []
    floor = HEIGHT - BOTTOM
    for tick in range(TICKS + 1):
        y, x = _y(tick / TICKS), _x(widest * tick / TICKS, widest)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e3e3e3"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#444444">{tick / TICKS:g}</text>')
        label = in_bytes(widest * tick / TICKS)
        parts.append(f'<text x="{x:.1f}" y="{floor + 18}" text-anchor="middle" fill="#444444">{label}</text>')
    return parts


def _x(size: float, widest: float) -> float:
    return LEFT + size * (WIDTH - LEFT - RIGHT) / widest


def _y(score: float) -> float:
    return HEIGHT - BOTTOM - score * (HEIGHT - TOP - BOTTOM)
