"""The report of a run of chaos: its strikes, what they did to jobs and resources, and the broken laws."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from llama_herd.tasks.client.batch.batch_progress import nearest_rank
from tests.chaos.harness.verdict import Verdict, Violation


@dataclass(frozen=True)
class Blow:
    """One strike: which fault, when, and how long each job that it hit stood still."""

    fault: str
    at_s: float
    num_met: int
    recovery_s: tuple[float, ...]


@dataclass(frozen=True)
class ResourceSample:
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
    """The change of one resource over a run."""

    what: str
    first: float
    median: float
    last: float
    most: float

    @classmethod
    def from_values(cls, what: str, values: Sequence[float]) -> "Trend":
        return cls(what, values[0], median(values), values[-1], max(values))


#: Most samples in the report, enough for a plot; the trends use all samples.
MAX_SAMPLES = 100

#: The resources' names for people.
RESOURCE_NAMES = {
    "worker_mib": "largest worker: MiB",
    "worker_fds": "largest worker: open files",
    "worker_threads": "largest worker: threads",
    "redis_mib": "Redis: MiB",
    "redis_clients": "Redis: connections",
    "redis_keys": "Redis: keys a job",
}


@dataclass(frozen=True)
class FaultSummary:
    """All strikes of one fault; recovery in seconds, None if it hit no running job."""

    fault: str
    strikes: int
    met: int
    p50_s: float | None
    p99_s: float | None
    max_s: float | None

    @classmethod
    def from_strikes(cls, fault: str, blows: Sequence[Blow]) -> "FaultSummary":
        seconds = [round(second, 2) for blow in blows for second in blow.recovery_s]
        ranks = [nearest_rank(seconds, share) for share in (0.50, 0.99, 1.0)]
        return cls(fault, len(blows), sum(blow.num_met for blow in blows), *ranks)


@dataclass(frozen=True)
class ChaosReport:
    """The report of a run. misconduct: violations found during it; the verdict has those found at its end.

    cut_short: why the run has not done all of its plan; empty if it has.
    """

    seconds: float
    blows: Sequence[Blow]
    samples: Sequence[ResourceSample]
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
    def fault_summaries(self) -> list[FaultSummary]:
        """One for each fault."""
        faults = dict.fromkeys(blow.fault for blow in self.blows)
        return [
            FaultSummary.from_strikes(name, [blow for blow in self.blows if blow.fault == name])
            for name in faults
        ]

    @property
    def trends(self) -> list[Trend]:
        """One for each resource; none if nothing was sampled."""
        names = RESOURCE_NAMES.items() if self.samples else ()
        return [
            Trend.from_values(what, [getattr(sample, name) for sample in self.samples])
            for name, what in names
        ]

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
            "faults": [vars(one) for one in self.fault_summaries],
            "trends": [vars(trend) for trend in self.trends],
            "held": [vars(sample) for sample in evenly_spread(self.samples, MAX_SAMPLES)],
        }


def evenly_spread(samples: Sequence[ResourceSample], most: int) -> list[ResourceSample]:
    """At most `most` samples, evenly spread, including the first and the last."""
    if len(samples) <= most:
        return list(samples)
    return [samples[round(n * (len(samples) - 1) / (most - 1))] for n in range(most)]
