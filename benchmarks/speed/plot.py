"""The report as a picture: `plot.py PICTURE < REPORT`, in the environment that `make bench-peers` makes.

There is a panel for each file, and a bar for each contender in each cell, relative to the best one there.
"""

import json
import sys
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot
from matplotlib.patches import Patch

#: What is no speed, and no contender.
FACTS = ("first token s", "peak GB", "note")
STANDING = ("percent of the floor", "times the best peer")


def main() -> None:
    tables = [one for one in json.load(sys.stdin)["tables"] if one["title"] == "Tokens a second"]
    figure, panels = pyplot.subplots(len(tables), 1, figsize=(8, 2.2 * len(tables)), squeeze=False)
    colours: dict[str, str] = {}
    for panel, table in zip(panels[:, 0], tables, strict=True):
        _draw(panel, table["rows"], colours)
    bars = [Patch(color=colour, label=name) for name, colour in colours.items()]
    figure.legend(handles=bars, fontsize=7, ncols=len(bars), loc="upper center")
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.3 / (2.2 * len(tables))))
    figure.savefig(sys.argv[1], metadata={"Date": None})


def _draw(panel: Any, rows: list[dict[str, Any]], colours: dict[str, str]) -> None:
    file, *cells = (head for head in rows[0] if head not in FACTS)
    speeds = {row[file]: [_speed(row[cell]) for cell in cells] for row in rows if row[file] not in STANDING}
    best = [max(column) or 1 for column in zip(*speeds.values(), strict=True)]
    width = 0.8 / len(speeds)
    for place, (name, reached) in enumerate(speeds.items()):
        heights = [speed / most for speed, most in zip(reached, best, strict=True)]
        lefts = [index + place * width for index in range(len(cells))]
        colour = colours.setdefault(name, f"C{len(colours)}")
        bars = panel.bar(lefts, heights, width, color=colour)
        panel.bar_label(bars, [f"{speed:,.0f}" for speed in reached], fontsize=6)
    panel.set_xticks([index + 0.4 - width / 2 for index in range(len(cells))], cells)
    panel.set_yticks([])
    panel.set_title(f"{file}: tokens a second", fontsize=9)
    panel.spines[["top", "right", "left"]].set_visible(False)


def _speed(cell: Any) -> float:
    if isinstance(cell, str):
        return 0.0
    return float(median(cell) if isinstance(cell, list) else cell)


if __name__ == "__main__":
    main()
