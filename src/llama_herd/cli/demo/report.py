"""The results of the demo."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from llama_herd.cli.demo.figures import Figures
from llama_herd.cli.demo.progress import Progress


@dataclass
class Phase:
    """A step of the start; detail and time come while it runs."""

    name: str
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Round:
    """The eight jobs, run in one of two ways."""

    jobs: Sequence[Progress]
    figures: Figures


@dataclass(frozen=True)
class Report:
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


def _job(progress: Progress) -> dict[str, Any]:
    return {
        "job": progress.job_id,
        "prompt": progress.prompt,
        "text": progress.text,
        "num_tokens": progress.num_tokens,
        "ttft_s": progress.ttft_s,
        "finish_reason": progress.end.finish_reason if progress.end else None,
    }
