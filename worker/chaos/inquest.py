"""The end of a run: wait until all is over, then hold every law to all jobs."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from llama_herd.worker.chaos.checker import Checker, Evidence
from llama_herd.worker.chaos.jobs import Jobs
from llama_herd.worker.chaos.patience import wait_until
from llama_herd.worker.chaos.reference import Reference
from llama_herd.worker.chaos.sabotage import VISIBILITY_S
from llama_herd.worker.chaos.verdict import Verdict, Violation
from llama_herd.worker.settings import WorkerSettings

#: Most jobs that are run once more, without faults, to be compared; those with the most claims come first.
MAX_COMPARED = 50


def inquest(jobs: Jobs, settings: WorkerSettings, heard: Mapping[str, Sequence[str]]) -> Verdict:
    """What came of these jobs. A worker must be there to clean up. `heard`: what a subscriber got of each."""
    checker = Checker(jobs.redis, jobs.ledger)
    with suppress(TimeoutError):  # then the checker finds what has not ended
        jobs.results()
    left = _left(jobs, checker)
    found = _evidence(jobs, checker, heard)
    compared = sorted(found, key=lambda evidence: -evidence.num_claims)[:MAX_COMPARED]
    return Verdict(
        num_jobs=len(found),
        num_tokens=sum(len(evidence.ids) for evidence in found),
        num_resumed=sum(evidence.num_claims > 1 for evidence in found),
        num_compared=len(compared),
        violations=(
            *left,
            *(violation for evidence in found for violation in evidence.violations()),
            *_differing(jobs, compared, Reference(settings)),
        ),
    )


def _evidence(jobs: Jobs, checker: Checker, heard: Mapping[str, Sequence[str]]) -> list[Evidence]:
    """All that is known of each job, once Celery's last word is there or patience ends.

    Where Celery ended a job by itself, it is put right a moment after the final event.
    """
    found: dict[str, Evidence] = {}

    def celery_agrees() -> bool:
        for job_id in jobs.accepted:
            if job_id not in found or not found[job_id].is_settled:
                found[job_id] = checker.evidence(job_id, heard.get(job_id, ()))
        return all(evidence.is_settled for evidence in found.values())

    with suppress(TimeoutError):
        wait_until(celery_agrees, "Celery agrees")
    return list(found.values())


def _differing(jobs: Jobs, compared: Sequence[Evidence], reference: Reference) -> list[Violation]:
    """Jobs whose ids are not those of a run without faults; of one that was ended early, of its beginning."""
    differing = []
    for evidence in compared:
        expected = reference.ids(evidence.job_id, jobs.accepted[evidence.job_id])
        if evidence.record.get("state") != "done":
            expected = expected[: len(evidence.ids)]
        if evidence.ids != expected:
            detail = f"{len(evidence.ids)} ids differ from the {len(expected)} of a run without faults"
            differing.append(Violation("undisturbed", evidence.job_id, detail))
    return differing


def _left(jobs: Jobs, checker: Checker) -> list[Violation]:
    """What is left when patience ends."""
    left: list[Violation] = []
    job_ids = list(jobs.accepted)

    def nothing_is_left() -> bool:
        _age_messages(jobs)
        left[:] = checker.leftovers()
        return not left and checker.num_results(job_ids) == len(job_ids)

    with suppress(TimeoutError):
        wait_until(nothing_is_left, "nothing left")
    return left


def _age_messages(jobs: Jobs) -> None:
    """Let messages that nobody has acknowledged look so old that kombu's backstop puts them back."""
    index = f"{jobs.ledger.unacked_key}_index"
    for tag, score in jobs.redis.zrange(index, 0, -1, withscores=True):
        jobs.redis.zadd(index, {tag: score - VISIBILITY_S}, xx=True)
