"""The end of a run: wait until all jobs have ended, then check every law for each of them."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from llama_herd.worker.jobs.lost_messages import SILENT_S
from tests.chaos.harness.checker import Checker, Evidence
from tests.chaos.harness.jobs import Jobs
from tests.chaos.harness.listener import EventListener
from tests.chaos.harness.patience import wait_until
from tests.chaos.harness.reference import ReferenceOutputs
from tests.chaos.harness.text_models import TextModels, undisturbed_vectors
from tests.chaos.harness.verdict import Verdict, Violation

#: Most jobs that are run again without faults, to compare them; those with the most claims come first.
MAX_COMPARED = 50


@dataclass(frozen=True)
class JobFinding:
    """The part of a job's evidence that is kept: all of it would not fit into memory in a long run."""

    job_id: str
    num_tokens: int
    num_claims: int
    is_settled: bool
    is_blamed: bool
    violations: tuple[Violation, ...]

    @classmethod
    def from_evidence(cls, evidence: Evidence) -> Self:
        return cls(
            job_id=evidence.job_id,
            num_tokens=len(evidence.ids),
            num_claims=evidence.num_claims,
            is_settled=evidence.is_settled,
            is_blamed=evidence.is_blamed,
            violations=tuple(evidence.violations()),
        )


def inquest(
    jobs: Jobs,
    reference: ReferenceOutputs,
    listener: EventListener,
    text_models: TextModels,
    max_compared: int = MAX_COMPARED,
) -> Verdict:
    """Check these jobs, and what the listener has heard of them. A worker must be up to clean up."""
    checker = Checker(jobs.redis, jobs.ledger)
    with suppress(TimeoutError):  # the checker then finds the jobs that have not ended
        jobs.results(jobs.unfinished())
    left = _leftovers(jobs, checker)
    found = _findings(jobs, checker, listener)
    compared = sorted(found, key=lambda finding: -finding.num_claims)[:max_compared]
    evidence = [checker.evidence(one.job_id) for one in compared]
    return Verdict(
        num_jobs=len(found),
        num_tokens=sum(finding.num_tokens for finding in found),
        num_resumed=sum(finding.num_claims > 1 for finding in found),
        num_compared=len(compared),
        num_blamed=sum(finding.is_blamed for finding in found),
        violations=(
            *left,
            *(violation for finding in found for violation in finding.violations),
            *_differing(jobs, evidence, reference, text_models),
        ),
    )


def _findings(jobs: Jobs, checker: Checker, listener: EventListener) -> list[JobFinding]:
    """The findings on each job, once Celery's state agrees or patience ends.

    If Celery has ended a job by itself, its state is corrected a moment after the final event.
    """
    found: dict[str, JobFinding] = {}

    def look_at(job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            found[job_id] = JobFinding.from_evidence(checker.evidence(job_id, listener.heard(job_id)))

    def celery_agrees() -> bool:
        unsettled = [job_id for job_id, finding in found.items() if not finding.is_settled]
        look_at(unsettled)
        return all(found[job_id].is_settled for job_id in unsettled)

    look_at(jobs.accepted)
    with suppress(TimeoutError):
        wait_until(celery_agrees, "Celery agrees")
    return list(found.values())


def _differing(
    jobs: Jobs, compared: Sequence[Evidence], reference: ReferenceOutputs, text_models: TextModels
) -> list[Violation]:
    """Jobs whose outputs differ from those of a run without faults."""
    differing = []
    for evidence in compared:
        fields = jobs.accepted[evidence.job_id]
        if "kind" in fields:
            what = _other_vectors(evidence, undisturbed_vectors(text_models, fields))
        else:
            what = _other_ids(evidence, reference.ids(evidence.job_id, fields))
        if what:
            differing.append(Violation("undisturbed", evidence.job_id, f"{what} a run without faults"))
    return differing


def _other_vectors(evidence: Evidence, expected: Sequence[str]) -> str:
    wrong = [number for number, vector in evidence.vectors.items() if vector != expected[number]]
    return f"the vectors of texts {wrong} are not those of" if wrong else ""


def _other_ids(evidence: Evidence, expected: tuple[int, ...]) -> str:
    """How ids differ from what they must be; those of a job that was ended early, from their beginning."""
    if evidence.record.get("state") != "done":
        expected = expected[: len(evidence.ids)]
    return "" if evidence.ids == expected else f"{len(evidence.ids)} ids differ from the {len(expected)} of"


def _leftovers(jobs: Jobs, checker: Checker) -> list[Violation]:
    """Violations by what is left in Redis when patience ends; none if all goes away before."""
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
    """Make unacknowledged messages look as if nobody held them, so that workers put them back."""
    index = f"{jobs.ledger.unacked_key}_index"
    for tag, score in jobs.redis.zrange(index, 0, -1, withscores=True):
        jobs.redis.zadd(index, {tag: score - SILENT_S}, xx=True)
