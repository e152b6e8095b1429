"""GrammarFigures: counts and times of the forms that jobs ask for. No grammar is loaded for it."""

from dataclasses import dataclass

from llama_herd.ops.histogram import Histogram

BUILDS = Histogram.over(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


@dataclass(frozen=True, slots=True)
class GrammarFigures:
    """Figures of the forms that jobs have asked for: one frozen value, which any thread may read.

    `build_s`: of each form that was new, judging included.
    """

    num_asked: int = 0
    num_refused: int = 0
    build_s: Histogram = BUILDS
