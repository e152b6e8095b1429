"""How long the jobs that a fault has hit stand still."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from tests.chaos.harness.jobs import Jobs
from tests.chaos.harness.patience import wait_until

#: A job without an event for so long is stuck. A suspect waits half a minute for jobs that pass it, and again
#: if another suspect goes first.
STUCK_S = 150.0


@dataclass(frozen=True)
class Recovery:
    """Seconds until each job's next event or end; jobs that had none are `stuck`."""

    seconds: tuple[float, ...]
    stuck: tuple[str, ...]


def recovery(jobs: Jobs, met: Sequence[str]) -> Recovery:
    """Wait for the next event of each of these jobs."""
    started_s, before = monotonic(), {job_id: jobs.number(job_id, "seq") for job_id in met}
    seconds: dict[str, float] = {}

    def all_go_on() -> bool:
        for job_id in before.keys() - seconds.keys():
            if jobs.number(job_id, "seq") > before[job_id] or jobs.has_ended(job_id):
                seconds[job_id] = monotonic() - started_s
        return len(seconds) == len(before)

    with suppress(TimeoutError):
        wait_until(all_go_on, "the jobs that the fault has met go on", STUCK_S)
    return Recovery(tuple(seconds.values()), tuple(before.keys() - seconds.keys()))
