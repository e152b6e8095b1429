"""One figure of the benchmark, and all it takes to judge it."""

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Self

OURS = "llama-herd"

#: Units of which more is better; of all others less is.
RATES = ("tok/s",)


@dataclass(frozen=True)
class Measurement:
    """What one system did in one case of a workload; `value` is the median of `runs`."""

    workload: str  # W1 to W8, W3s, mixed, kills
    case: str  # what exactly was measured, the same words for every system
    system: str
    unit: str
    runs: tuple[float, ...]
    floor: float | None = None  # in the same unit; of rates a ceiling
    note: str = ""
    part: str = ""  # which of several that stand in one row of the table

    @property
    def value(self) -> float:
        return median(self.runs)

    @property
    def percent_of_floor(self) -> float | None:
        """100 is as fast as the device can be. None without a floor that is above zero."""
        if not self.floor:
            return None
        share = self.value / self.floor if self.unit in RATES else self.floor / self.value
        return 100 * share

    def times_better_than(self, other: Self) -> float:
        """Above 1: this one is the better of two of the same case."""
        return self.value / other.value if self.unit in RATES else other.value / self.value

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"value": self.value}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """What else stands beside it is left out."""
        known = {name: fields[name] for name in cls.__annotations__ if name in fields}
        return cls(**known | {"runs": tuple(fields["runs"])})
