"""The verdict on the jobs of a run: which laws were broken, and by how many jobs."""

from dataclasses import dataclass
from typing import NamedTuple, Self


class Violation(NamedTuple):
    """A broken law; `job_id` is empty if it is not about one job."""

    law: str
    job_id: str
    detail: str

    def __str__(self) -> str:
        return f"{self.law}: {f'job {self.job_id}: ' if self.job_id else ''}{self.detail}"


class BrokenLaw(Exception):
    """Raised by a fault that sees forbidden behaviour; the run goes on and reports it."""

    def __init__(self, law: str, detail: str, job_id: str = "") -> None:
        super().__init__(f"{law}: {detail}")
        self.violation = Violation(law, job_id, detail)


@dataclass(frozen=True)
class Verdict:
    """What the laws say of a run's jobs, all together. A run passes if there are no violations.

    num_resumed: jobs that more than one claim brought to their end.
    num_compared: jobs whose ids were compared with a run without faults.
    num_blamed: innocent jobs that were given up. If no violation names them, that was lawful: their workers
    died of other jobs too often before they came far.
    """

    num_jobs: int
    num_tokens: int
    num_resumed: int
    num_compared: int
    violations: tuple[Violation, ...]
    num_blamed: int = 0

    @classmethod
    def unknown(cls, num_jobs: int) -> Self:
        """The verdict on jobs that were not checked."""
        return cls(num_jobs, 0, 0, 0, (Violation("checked", "", f"{num_jobs} jobs were not checked"),))

    @property
    def num_lost(self) -> int:
        """Jobs without a final event."""
        return self._num_broken("lost")

    @property
    def num_repeated(self) -> int:
        """Jobs with an event or a token twice, missing, or out of order."""
        return self._num_broken("ends once", "dense", "tokens join", "heard as written")

    def _num_broken(self, *laws: str) -> int:
        return len({violation.job_id for violation in self.violations if violation.law in laws})
