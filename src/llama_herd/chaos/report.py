"""The report of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from llama_herd.chaos.verdict import Verdict, Violation
from llama_herd.percentiles import nearest_rank


@dataclass(frozen=True)
class Blow:
    """One strike: which fault, when, and how long each job that it hit stood still."""

    fault: str
    at_s: float
    num_met: int
    recovery_s: tuple[float, ...]


@dataclass(frozen=True)
class Held:
    """A sample of resources: those of the largest worker, and of Redis. Redis keys are counted per job."""

    at_s: float
    worker_mib: float
    worker_fds: int
    worker_threads: int
    redis_mib: float
    redis_clients: int
    redis_keys: float


@dataclass(frozen=True)
class Trend:
    """The change of one of these values over a run."""

    what: str
    first: float
    median: float
    last: float
    most: float

    @classmethod
    def of(cls, what: str, values: Sequence[float]) -> "Trend":
        return cls(what, values[0], median(values), values[-1], max(values))


#: Most samples in the report, enough for a plot; the trends use all samples.
MAX_HELD = 100

#: The samples' names for people.
SHOWN = {
    "worker_mib": "largest worker: MiB",
    "worker_fds": "largest worker: open files",
    "worker_threads": "largest worker: threads",
    "redis_mib": "Redis: MiB",
    "redis_clients": "Redis: connections",
    "redis_keys": "Redis: keys a job",
}


@dataclass(frozen=True)
class Line:
    """A line of the report: all strikes of one fault; recovery in seconds, None if it hit no running job."""

    fault: str
    strikes: int
    met: int
    p50_s: float | None
    p99_s: float | None
    max_s: float | None

    @classmethod
    def of(cls, fault: str, blows: Sequence[Blow]) -> "Line":
        seconds = [round(second, 2) for blow in blows for second in blow.recovery_s]
        ranks = [nearest_rank(seconds, share) for share in (0.50, 0.99, 1.0)]
        return cls(fault, len(blows), sum(blow.num_met for blow in blows), *ranks)


@dataclass(frozen=True)
class Report:
    """The report of a run. misconduct: violations found during it; the verdict has those found at its end.

    cut_short: why the run has not done all of its plan; empty if it has.
    """

    seconds: float
    blows: Sequence[Blow]
    held: Sequence[Held]
    misconduct: Sequence[Violation]
    verdict: Verdict
    cut_short: str = ""

    @property
    def violations(self) -> list[Violation]:
        return [*self.misconduct, *self.verdict.violations]

    @property
    def exit_code(self) -> int:
        """1 if any law was broken, or the run was cut short, else 0."""
        return int(bool(self.violations or self.cut_short))

    @property
    def bound(self) -> float:
        """The share of strikes that may break a law, at most, with 95 % confidence, if none of N did: 3/N."""
        return min(1.0, 3 / max(1, len(self.blows)))

    @property
    def lines(self) -> list[Line]:
        """One line per fault."""
        faults = dict.fromkeys(blow.fault for blow in self.blows)
        return [Line.of(name, [blow for blow in self.blows if blow.fault == name]) for name in faults]

    @property
    def trends(self) -> list[Trend]:
        """One trend per value; none if nothing was sampled."""
        shown = SHOWN.items() if self.held else ()
        return [Trend.of(what, [getattr(held, name) for held in self.held]) for name, what in shown]

    def to_dict(self) -> dict[str, Any]:
        """The report for programs."""
        verdict = self.verdict
        return {
            "seconds": round(self.seconds, 1),
            "cut_short": self.cut_short,
            "strikes": len(self.blows),
            "jobs": verdict.num_jobs,
            "tokens": verdict.num_tokens,
            "resumed": verdict.num_resumed,
            "compared": verdict.num_compared,
            "lost": verdict.num_lost,
            "duplicate": verdict.num_repeated,
            "blamed": verdict.num_blamed,
            "violations": [str(violation) for violation in self.violations],
            "bound": None if self.violations else round(self.bound, 4),
            "faults": [vars(line) for line in self.lines],
            "trends": [vars(trend) for trend in self.trends],
            "held": [vars(held) for held in spread(self.held, MAX_HELD)],
        }


def spread(held: Sequence[Held], most: int) -> list[Held]:
    """At most `most` samples, evenly spread, including the first and the last."""
    if len(held) <= most:
        return list(held)
    return [held[round(n * (len(held) - 1) / (most - 1))] for n in range(most)]
