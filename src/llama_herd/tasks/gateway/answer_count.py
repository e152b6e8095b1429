"""How many answers a gateway has given, and how many are under way."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

#: Of an answer that its client did not wait for, and of one at a path that is not there.
NO_STATUS, NO_ROUTE = 0, ""


@dataclass(frozen=True, slots=True)
class AnswerFigures:
    """Since the start; frozen, so that any thread may read it."""

    num_under_way: int = 0
    num_ended: Mapping[tuple[str, int], int] = field(default_factory=dict)  # by route and status


class AnswerCount:
    """Counts answers."""

    def __init__(self) -> None:
        self.figures = AnswerFigures()

    def begin(self) -> None:
        self.figures = replace(self.figures, num_under_way=self.figures.num_under_way + 1)

    def end(self, route: str, status: int) -> None:
        ended = self.figures.num_ended
        num = ended.get((route, status), 0) + 1
        self.figures = AnswerFigures(self.figures.num_under_way - 1, {**ended, (route, status): num})
