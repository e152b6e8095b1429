"""Figures of the forms that jobs have asked for: one frozen value, which any thread may read."""

from dataclasses import dataclass, replace

from llama_herd.ops.histogram import Histogram

BUILDS = Histogram.over(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


@dataclass(frozen=True, slots=True)
class GrammarFigures:
    """`build_s`: of each form that was new, judging included."""

    num_asked: int = 0
    num_refused: int = 0
    build_s: Histogram = BUILDS

    def asked(self) -> "GrammarFigures":
        return replace(self, num_asked=self.num_asked + 1)

    def refused(self) -> "GrammarFigures":
        return replace(self, num_refused=self.num_refused + 1)

    def built(self, seconds: float) -> "GrammarFigures":
        return replace(self, build_s=self.build_s.plus(seconds))
