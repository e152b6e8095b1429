"""The results of the demo: the phases of its start, and the figures of both rounds."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from llama_herd.cli.demo.demo_job import DemoJob
from llama_herd.tasks.batch.batch_progress import Percentiles


@dataclass
class Phase:
    """A step of the start; detail and time come while it runs."""

    name: str
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class RoundFigures:
    """Speed and latencies of a round, from its first submission to its last end."""

    num_tokens: int
    seconds: float
    tokens_per_s: float
    ttft: Percentiles
    itl: Percentiles

    @classmethod
    def from_jobs(cls, jobs: Sequence[DemoJob], seconds: float) -> Self:
        """The figures of jobs that took so long together."""
        num_tokens = sum(job.num_tokens for job in jobs)
        return cls(
            num_tokens=num_tokens,
            seconds=seconds,
            tokens_per_s=num_tokens / seconds,
            ttft=Percentiles.from_seconds([job.ttft_s for job in jobs if job.ttft_s is not None]),
            itl=Percentiles.from_seconds([gap_s for job in jobs for gap_s in job.gaps_s]),
        )


@dataclass(frozen=True)
class Round:
    """The eight jobs, run in one of two ways."""

    jobs: Sequence[DemoJob]
    figures: RoundFigures


@dataclass(frozen=True)
class DemoReport:
    """The phases of the start, then the same jobs together and one at a time."""

    phases: Sequence[Phase]
    together: Round
    one_by_one: Round

    @property
    def speedup(self) -> float:
        """Tokens per second together, divided by those one at a time: the gain of continuous batching."""
        return self.together.figures.tokens_per_s / self.one_by_one.figures.tokens_per_s

    @property
    def exit_code(self) -> int:
        """1 if any job did not end by itself, else 0."""
        jobs = (*self.together.jobs, *self.one_by_one.jobs)
        return int(any(job.state != "done" for job in jobs))

    def to_dict(self) -> dict[str, Any]:
        """The report for programs; the jobs are those that ran together."""
        return {
            "phases": [asdict(phase) for phase in self.phases],
            "jobs": [_job(progress) for progress in self.together.jobs],
            "together": asdict(self.together.figures),
            "one_by_one": asdict(self.one_by_one.figures),
            "speedup": self.speedup,
        }


def _job(progress: DemoJob) -> dict[str, Any]:
    return {
        "job": progress.job_id,
        "prompt": progress.prompt,
        "text": progress.text,
        "num_tokens": progress.num_tokens,
        "ttft_s": progress.ttft_s,
        "finish_reason": progress.end.finish_reason if progress.end else None,
    }
