"""The arena over the calls of a step, as an SVG: every buffer a rectangle, its life across, its address upwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from gfcompile.report.units import in_bytes

WIDTH, HEIGHT = 960, 480
LEFT, RIGHT, TOP, BOTTOM = 84, 20, 56, 52
COLOURS = {"forward": "#5b8db8", "saved": "#d9822b", "backward": "#6aa36f"}
MEANING = {
    "forward": "dies in the forward pass",
    "saved": "saved: crosses to the backward pass",
    "backward": "born in the backward pass",
}
TICKS = 4
MIN_LABEL_WIDTH, MIN_LABEL_HEIGHT, CHARACTER_WIDTH = 60, 14, 5.6


@dataclass(frozen=True)
class Box:
    """A buffer: alive in calls [start, stop), at [offset, offset + bytes) of the arena."""

    start: int
    stop: int
    offset: int
    bytes: int
    phase: str
    label: str


def draw_arena(boxes: Sequence[Box], calls: int, program: str) -> str:
    """The whole SVG. Saved buffers are drawn last, so that thin ones stay visible."""
    peak = max((box.offset + box.bytes for box in boxes), default=0)
    frame = _Frame(max(calls, 1), max(peak, 1))
    born_in_forward = [box.start for box in boxes if box.phase != "backward"]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="DejaVu Sans, Arial, sans-serif" font-size="11">',
        f"<title>Arena of the {escape(program)} program</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="14" font-weight="bold" fill="#222222">Arena of the {escape(program)} '
        f"program: {in_bytes(peak)}, {calls} kernel calls</text>",
        *_legend(),
        *_axes(frame, peak, calls),
    ]
    order = {"forward": 0, "backward": 1, "saved": 2}
    for box in sorted(boxes, key=lambda box: (order[box.phase], -box.bytes)):
        parts.append(frame.draw(box))
    if born_in_forward:
        x = frame.x(max(born_in_forward) + 1)
        ends = f'x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}"'
        parts.append(f'<line {ends} stroke="#222222" stroke-dasharray="4 3"/>')
        parts.append(f'<text x="{x + 4:.1f}" y="{TOP + 11}" fill="#222222">loss</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Frame:
    """From calls and bytes to pixels; address 0 is at the bottom."""

    def __init__(self, calls: int, peak: int) -> None:
        self.per_call = (WIDTH - LEFT - RIGHT) / calls
        self.per_byte = (HEIGHT - TOP - BOTTOM) / peak

    def x(self, call: int) -> float:
        return LEFT + call * self.per_call

    def y(self, address: float) -> float:
        return HEIGHT - BOTTOM - address * self.per_byte

    def draw(self, box: Box) -> str:
        width = max((box.stop - box.start) * self.per_call, 0.8)
        height = max(box.bytes * self.per_byte, 0.8)
        x, y = self.x(box.start), self.y(box.offset) - height
        label = escape(f"{box.label}: {in_bytes(box.bytes)}, calls {box.start} to {box.stop - 1}")
        # an outline on a thin rectangle would hide its colour
        stroke = ' stroke="#ffffff" stroke-width="0.6"' if min(width, height) > 3 else ""
        drawn = (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{COLOURS[box.phase]}"'
            f"{stroke}><title>{label}</title></rect>"
        )
        if width < MIN_LABEL_WIDTH or height < MIN_LABEL_HEIGHT:
            return drawn
        room = int((width - 8) / CHARACTER_WIDTH)
        name = box.label.split(" (")[0]
        text = name if len(name) <= room else name[: max(room - 1, 1)] + "…"
        middle = y + height / 2 + 3.5
        return drawn + f'<text x="{x + 4:.1f}" y="{middle:.1f}" font-size="10" fill="#ffffff">{escape(text)}</text>'


def _legend() -> list[str]:
    parts, x = [], LEFT
    for phase, colour in COLOURS.items():
        text = MEANING[phase]
        parts.append(f'<rect x="{x}" y="34" width="11" height="11" fill="{colour}"/>')
        parts.append(f'<text x="{x + 16}" y="43.5" fill="#444444">{escape(text)}</text>')
        x += 16 + int(len(text) * 6.3) + 24
    return parts


def _axes(frame: _Frame, peak: int, calls: int) -> list[str]:
    floor = HEIGHT - BOTTOM
    parts = []
    for tick in range(TICKS + 1):
        address = peak * tick / TICKS
        y = frame.y(address)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e3e3e3"/>')
        place = f'x="{LEFT - 8}" y="{y + 4:.1f}"'
        parts.append(f'<text {place} text-anchor="end" fill="#444444">{in_bytes(address)}</text>')
    for tick in range(TICKS + 1):
        call = round(calls * tick / TICKS)
        x = frame.x(call)
        parts.append(f'<line x1="{x:.1f}" y1="{floor}" x2="{x:.1f}" y2="{floor + 5}" stroke="#444444"/>')
        parts.append(f'<text x="{x:.1f}" y="{floor + 18}" text-anchor="middle" fill="#444444">{call}</text>')
    parts.append(f'<line x1="{LEFT}" y1="{floor}" x2="{WIDTH - RIGHT}" y2="{floor}" stroke="#444444"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle" fill="#444444">kernel call</text>')
    return parts
