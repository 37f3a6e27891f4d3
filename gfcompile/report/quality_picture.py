"""Signal-to-noise ratio of every layer, one curve per patch edge, as an SVG: its own noise above, all noise below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from gfcompile.report.arena_picture import WIDTH
from gfcompile.report.memory_picture import COLOURS

LEFT, RIGHT, TOP, GAP, PANEL, BOTTOM = 64, 20, 62, 40, 170, 150
HEIGHT = TOP + 2 * PANEL + GAP + BOTTOM
SHOWN_DB = 40.0  # above this a gradient is exact for every purpose; curves are cut off here
LEAST_DB = -10.0
STEP_DB = 10


@dataclass(frozen=True)
class Panel:
    """`curves[name][i]` is the SNR of layer i in dB; None leaves a gap."""

    title: str
    curves: Mapping[str, Sequence[float | None]]


def draw_quality(layers: Sequence[str], panels: tuple[Panel, Panel]) -> str:
    """The whole SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="DejaVu Sans, Arial, sans-serif" font-size="11">',
        "<title>Filtered gradients against exact ones</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="14" font-weight="bold" fill="#222222">Filtered against exact gradients,'
        " SNR in dB (measured on the given batch)</text>",
        *_legend(list(panels[0].curves)),
    ]
    for index, panel in enumerate(panels):
        parts += _panel(panel, len(layers), TOP + index * (PANEL + GAP))
    floor = TOP + 2 * PANEL + GAP
    for index, layer in enumerate(layers):
        x = _x(index, len(layers))
        parts.append(
            f'<text x="{x:.1f}" y="{floor + 14}" text-anchor="end" fill="#444444"'
            f' transform="rotate(-45 {x:.1f} {floor + 14})">{escape(layer)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend(names: Sequence[str]) -> list[str]:
    parts, x = [], float(LEFT)
    for index, name in enumerate(names):
        parts.append(f'<rect x="{x:.0f}" y="34" width="11" height="11" fill="{_colour(index)}"/>')
        parts.append(f'<text x="{x + 16:.0f}" y="43.5" fill="#444444">{escape(name)}</text>')
        x += 16 + len(name) * 6.3 + 24
    return parts


def _panel(panel: Panel, layers: int, top: float) -> list[str]:
    parts = [f'<text x="{LEFT}" y="{top - 5:.1f}" fill="#222222">{escape(panel.title)}</text>']
    for level in range(int(LEAST_DB), int(SHOWN_DB) + 1, STEP_DB):
        y = _y(level, top)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e3e3e3"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#444444">{level}</text>')
    for index, values in enumerate(panel.curves.values()):
        points = [(_x(at, layers), _y(value, top)) for at, value in enumerate(values) if value is not None]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{_colour(index)}" stroke-width="1.8"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{_colour(index)}"/>' for x, y in points]
    return parts


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _x(index: int, layers: int) -> float:
    return LEFT + (index + 0.5) * (WIDTH - LEFT - RIGHT) / max(layers, 1)


def _y(level: float, top: float) -> float:
    shown = min(max(level, LEAST_DB), SHOWN_DB)
    return top + (SHOWN_DB - shown) * PANEL / (SHOWN_DB - LEAST_DB)
