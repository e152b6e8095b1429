"""A publisher before a real ledger, and connections that do not do as they are told."""

from collections.abc import Sequence
from typing import Any, cast

from redis import Redis
from redis.exceptions import ConnectionError

from llama_herd.tasks.ledger.answers import ClaimAnswer, Yours
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.events import Event, Failure, FinishReason
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.tasks.protocol.result import Result
from llama_herd.worker.broker.delivery import Delivery
from llama_herd.worker.engine.interface import (
    Admitted,
    Finished,
    JobEngine,
    NewTokens,
    SampledToken,
    SequenceInfo,
    StepOutput,
)
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.event_log import EventAuthor, EventLog
from llama_herd.worker.jobs.figures import JobFigures
from llama_herd.worker.jobs.finisher import Finisher
from llama_herd.worker.jobs.publisher import Publisher
from llama_herd.worker.jobs.recorded_outputs import RecordedOutputs
from llama_herd.worker.jobs.retries import Retries
from tests.worker.jobs.tenancies import alone, new_tenancy

OWNER = "owner-1"
WORDS = (b"", b" one", b" two", b" three")


def new_attempt(job_id: str, claimed: Yours, num_choices: int = 1) -> Attempt:
    stream = EventLog(job_id, claimed, RecordedOutputs.from_events([]), EventAuthor("w@test", "m"))
    stream.num_choices = num_choices
    sequences = [
        SequenceInfo(job_id, "default", choice=choice, num_prompt_tokens=1) for choice in range(num_choices)
    ]
    return Attempt(stream, [], sequences)


def new_words(attempt: Attempt, *words: int, choice: int = 0) -> NewTokens:
    """What a step brings that draws these words."""
    text = b"".join(WORDS[word] for word in words).decode()
    return NewTokens(attempt.sequences[choice], tuple(map(SampledToken, words)), text)


def last_token(attempt: Attempt, token_id: int, text: str) -> list[StepOutput]:
    """What a step brings after which nothing follows."""
    sequence = attempt.sequences[0]
    return [NewTokens(sequence, (SampledToken(token_id),), text), Finished(sequence, "stop")]


class HeldMessage:
    """A job's message, which tells the desk what becomes of it."""

    start = None

    def __init__(self, desk: "Desk", job_id: str) -> None:
        self.desk = desk
        self.job_id = job_id

    def accept(self) -> None:
        pass

    def let_go(self) -> None:
        self.desk.lost.append(self.job_id)

    def acknowledge(self) -> None:
        self.desk.released.append(self.job_id)


class Desk:
    """A publisher, its ledger, and what it reports."""

    def __init__(self, redis: Redis, wire: Redis | None = None) -> None:
        self.redis = redis
        self.ledger = Ledger(lease_ms=60_000)
        self.ended: list[str] = []
        self.lost: list[str] = []
        self.released: list[str] = []
        self.started: list[str] = []
        self.tenancy = new_tenancy(wire or redis, self.ledger, owner=OWNER)
        self.claims = self.tenancy.claims
        # The desk stands for the engine and the finisher, too.
        self.publisher = Publisher(alone(self.tenancy), cast(JobEngine, self), cast(Finisher, self))

    def confirm(self, sequences: Sequence[SequenceInfo]) -> None:
        self.started.append(sequences[0].job_id)

    def settle(self, _: object, job_id: str, *__: object) -> None:
        self.ended.append(job_id)

    def open(self, job_id: str, **fields: object) -> Attempt:
        """Submit and claim a job, as the intake does."""
        job = GenerationJob.model_validate({"prompt": "hi", **fields})
        run_call(self.redis, self.ledger.submit(job_id, job, Envelope.for_job(job_id, "herd.m")))
        return self.attempt_at(job_id, run_call(self.redis, self.ledger.claim(job_id, OWNER)), job)

    def attempt_at(self, job_id: str, claimed: ClaimAnswer, job: GenerationJob) -> Attempt:
        """Begin an attempt at a job that was claimed."""
        assert isinstance(claimed, Yours)
        attempt = new_attempt(job_id, claimed, num_choices=job.sampling.n)
        attempt.deliveries.append(cast(Delivery, HeldMessage(self, job_id)))
        attempt.stream.pace.gather_s = (job.flush_ms or 0) / 1000
        attempt.retries = Retries.of(job, claimed.retries)
        self.claims.begin(attempt)
        return attempt

    def say(self, attempt: Attempt, *words: int, choice: int = 0, end: FinishReason | None = None) -> None:
        """Queue what a step would bring."""
        new = [new_words(attempt, *words, choice=choice)] if words else []
        self.publisher.put([*new, *([Finished(attempt.sequences[choice], end)] if end else [])])

    def fail(self, attempt: Attempt, error: Failure, choice: int = 0) -> None:
        """Queue what a step would bring in which an output fails."""
        self.publisher.put([Finished(attempt.sequences[choice], "error", error=error)])

    def start(self, attempt: Attempt) -> None:
        self.publisher.put([Admitted(sequence) for sequence in attempt.sequences])

    def send(self) -> None:
        """One round of the publisher's loop, in this thread."""
        self.publisher._deliver(self.publisher._outgoing(self.publisher._take()))

    @property
    def figures(self) -> JobFigures:
        """Of its calls and of its one tenant's jobs."""
        return self.publisher.figures + self.tenancy.figures

    @property
    def in_hand(self) -> list[Attempt]:
        return self.claims.in_hand()

    def events(self, job_id: str) -> list[Event]:
        return run_call(self.redis, self.ledger.read(job_id))

    def result(self, job_id: str) -> Result:
        return Result.from_events(self.events(job_id))


class LosesReplies:
    """A connection whose calls run, but whose first replies never arrive."""

    def __init__(self, redis: Redis, num_lost: int) -> None:
        self._redis = redis
        self._num_lost = num_lost

    def ping(self) -> bool:
        if self._num_lost:
            raise ConnectionError("reply lost")
        return True

    def pipeline(self, **options: Any) -> Any:
        pipeline = self._redis.pipeline(**options)
        execute = pipeline.execute

        def execute_and_lose(raise_on_error: bool = True) -> list[Any]:
            reply = execute(raise_on_error)
            if self._num_lost:
                self._num_lost -= 1
                raise ConnectionError("reply lost")
            return reply

        pipeline.execute = execute_and_lose  # type: ignore[method-assign]
        return pipeline


class RefusesOneJob:
    """A connection to a Redis that takes no event of one job: all, or those longer than an end."""

    def __init__(self, redis: Redis, job_id: str, longest: int) -> None:
        self._redis = redis
        self._mark = f'"job":"{job_id}"'
        self._longest = longest

    def pipeline(self, **options: Any) -> Any:
        pipeline = self._redis.pipeline(**options)
        execute_command = pipeline.execute_command

        def refuse_or_execute(*parts: Any) -> Any:
            events = [part for part in parts if isinstance(part, str) and self._mark in part]
            if any(len(event) > self._longest for event in events):
                return execute_command("EVAL", "error('no')", 0)  # type: ignore[no-untyped-call]
            return execute_command(*parts)  # type: ignore[no-untyped-call]

        pipeline.execute_command = refuse_or_execute  # type: ignore[method-assign]
        return pipeline
