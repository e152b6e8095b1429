"""The report as a picture: `plot.py PICTURE < REPORT`, in the environment that `make bench-peers` makes.

There is a panel for each file, and a bar for each contender in each cell, relative to the best one there.
"""

import json
import sys
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot
from matplotlib.patches import Patch


def main() -> None:
    runs = json.load(sys.stdin)["runs"]
    figure, panels = pyplot.subplots(len(runs), 1, figsize=(8, 2.2 * len(runs)), squeeze=False)
    names = dict.fromkeys(one["contender"] for run in runs for one in run["contenders"])
    colours = {name: f"C{number}" for number, name in enumerate(names)}
    for panel, run in zip(panels[:, 0], runs, strict=True):
        _draw(panel, run, colours)
    bars = [Patch(color=colour, label=name) for name, colour in colours.items()]
    figure.legend(handles=bars, fontsize=7, ncols=len(bars), loc="upper center")
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.3 / (2.2 * len(runs))))
    figure.savefig(sys.argv[1], metadata={"Date": None})


def _draw(panel: Any, run: dict[str, Any], colours: dict[str, str]) -> None:
    contenders, names = run["contenders"], list(run["floor_tokens_per_s"])
    best = {name: max(one["tokens_per_s"][name] or 0 for one in contenders) or 1 for name in names}
    width = 0.8 / len(contenders)
    for place, one in enumerate(contenders):
        speeds = [one["tokens_per_s"][name] or 0 for name in names]
        heights = [speed / best[name] for name, speed in zip(names, speeds, strict=True)]
        lefts = [index + place * width for index in range(len(names))]
        bars = panel.bar(lefts, heights, width, color=colours[one["contender"]])
        panel.bar_label(bars, [f"{speed:,.0f}" for speed in speeds], fontsize=6)
    panel.set_xticks([index + 0.4 - width / 2 for index in range(len(names))], names)
    panel.set_yticks([])
    panel.set_title(f"{run['shape']} {run['preset']}: tokens a second", fontsize=9)
    panel.spines[["top", "right", "left"]].set_visible(False)


if __name__ == "__main__":
    main()
