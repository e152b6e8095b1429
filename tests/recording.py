"""A recording of a command on a terminal, as an SVG that plays in a browser and ends with the last screen.

    python -m tests.recording docs/demo.svg herd demo

Nothing in it is made up: a pseudo-terminal runs the command, and each row of the picture is a row of its
screen at that time. Where nothing plays, the last screen is shown.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from time import monotonic
from typing import Any

import pyte

from tests.terminal import Terminal

COLUMNS, ROWS = 100, 52
#: Between two pictures of the screen.
FRAME_S = 0.15
FONT_PX, ROW_PX, COLUMN_PX, MARGIN_PX = 14, 19, 8.43, 16
BACKGROUND, FOREGROUND = "#12161c", "#d5dae1"
#: pyte's names of colours.
COLOURS = {
    "default": FOREGROUND,
    "black": "#4b5563",
    "red": "#f47067",
    "green": "#57c785",
    "brown": "#e3b341",
    "blue": "#6cb6ff",
    "magenta": "#dcbdfb",
    "cyan": "#56d4dd",
    "white": "#f0f3f6",
}

#: Browsers join spaces, but not these.
_SPACE = "\N{NO-BREAK SPACE}"

#: A run of characters of one look: text, colour, bold.
Run = tuple[str, str, bool]
Row = tuple[Run, ...]


@dataclass(frozen=True)
class Frame:
    """The screen at a time."""

    at_s: float
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Span:
    """A row of the screen, and how long it looked so; `until_s` None: to the end."""

    number: int
    row: Row
    from_s: float
    until_s: float | None


def record(command: Sequence[str]) -> list[Frame]:
    """Run a command on a terminal and return its screens. Raises CalledProcessError if it fails."""
    with Terminal(COLUMNS, ROWS) as terminal:
        screen, started_s = terminal.screen, monotonic()
        process, frames = terminal.start(command), [Frame(0.0, _rows(screen))]
        while terminal.read():
            at_s = monotonic() - started_s
            if at_s - frames[-1].at_s >= FRAME_S:
                frames.append(Frame(at_s, _rows(screen)))
        frames.append(Frame(monotonic() - started_s, _rows(screen)))
        process.wait()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return frames


def _rows(screen: pyte.Screen) -> tuple[Row, ...]:
    return tuple(tuple(_runs(screen.buffer[number])) for number in range(screen.lines))


def _runs(line: Any) -> Iterator[Run]:
    """The runs of a row, without the spaces at its end."""
    cells = [line[column] for column in range(COLUMNS)]
    while cells and cells[-1].data == " ":
        cells.pop()
    for (colour, is_bold), run in groupby(cells, key=lambda cell: (cell.fg, cell.bold)):
        yield "".join(cell.data for cell in run), _colour(colour), is_bold


def _colour(name: str) -> str:
    is_hex = len(name) == 6 and all(char in "0123456789abcdef" for char in name)
    return f"#{name}" if is_hex else COLOURS.get(name.removeprefix("bright"), FOREGROUND)


def spans(frames: Sequence[Frame]) -> Iterator[Span]:
    """How long each row looked how; rows without text are left out."""
    for number in range(ROWS):
        looks = [(frame.at_s, frame.rows[number]) for frame in frames]
        starts = [(next(group)[0], row) for row, group in groupby(looks, key=lambda look: look[1])]
        ends = [at_s for at_s, _ in starts[1:]] + [None]
        for (from_s, row), until_s in zip(starts, ends, strict=True):
            if row:
                yield Span(number, row, from_s, until_s)


def draw(frames: Sequence[Frame]) -> str:
    """The recording as an SVG."""
    found = list(spans(frames))
    num_rows = 1 + max(span.number for span in found)
    width, height = round(COLUMNS * COLUMN_PX + 2 * MARGIN_PX), num_rows * ROW_PX + 2 * MARGIN_PX
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
            f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>',
            f'<g font-family="ui-monospace,Menlo,Consolas,monospace" font-size="{FONT_PX}">',
            *map(_text, found),
            "</g>",
            "</svg>",
            "",
        ]
    )


def _text(span: Span) -> str:
    """A row that is there in its time only; without an animation the rows of the end are there."""
    parts, column = [], 0
    for text, colour, is_bold in span.row:
        place = f'x="{MARGIN_PX + column * COLUMN_PX:.1f}" textLength="{len(text) * COLUMN_PX:.1f}"'
        weight = ' font-weight="bold"' if is_bold else ""
        if text.strip():
            parts.append(
                f'<tspan {place} fill="{colour}"{weight}>{escape(text).replace(" ", _SPACE)}</tspan>'
            )
        column += len(text)
    y = MARGIN_PX + (span.number + 0.75) * ROW_PX
    return f'<text y="{y:.0f}"{_showing(span)}{"".join(parts)}</text>'


def _showing(span: Span) -> str:
    if span.until_s is not None:
        times = f'begin="{span.from_s:.2f}s" end="{span.until_s:.2f}s"'
        return f' visibility="hidden"><set attributeName="visibility" to="visible" {times}/>'
    if span.from_s > 0:
        return f'><set attributeName="visibility" to="hidden" begin="0s" end="{span.from_s:.2f}s"/>'
    return ">"


def main(path: Path, command: Sequence[str]) -> None:
    picture = draw(record(command))
    path.write_text(picture, encoding="utf-8")
    print(f"{path}: {len(picture) / 1000:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
