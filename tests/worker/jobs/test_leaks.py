"""Whatever becomes of jobs, and when: nothing of them stays behind in the worker, and each has one end."""

import re
from functools import partial
from itertools import groupby
from random import Random
from typing import Any

import pytest
from redis import Redis

from llama_herd.tasks.ledger.answers import Release
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.events import Event
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.publisher import LeftJob
from llama_herd.worker.jobs.service import Service
from llama_herd.worker.jobs.tenancy import ClaimedJobs
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.loading.sequence_maker import SequenceMaker
from tests.chaos.harness.patience import wait_until
from tests.model.page_laws import check_prefixes
from tests.worker.jobs.sent_message import SentMessage

pytestmark = [pytest.mark.redis, pytest.mark.long, pytest.mark.usefixtures("restless")]

LOT = 12
THIEF = "another worker"

#: What is still there so long after the last message would be there for ever.
PATIENCE_S = 60.0


class Crowd:
    """Jobs that are sent to a worker, and are cancelled, taken away and given back at random."""

    def __init__(self, service: Service, redis: Redis, seed: int, num_jobs: int) -> None:
        self.seed, self.rng = seed, Random(seed)
        self.redis = redis
        self.ledger = Ledger()
        self.service = service
        self.tenancy = service.tenancies["default"]
        self.messages: list[SentMessage] = []
        self.disturbed = set[str]()
        self.job_ids = [f"{seed}-{number}" for number in range(num_jobs)]
        self._prompt_ids = self.rng.choices(range(5, 90), k=200)

    def __str__(self) -> str:
        return f"seed {self.seed}:"

    def pass_through(self) -> None:
        """Send all jobs, a lot at a time: what one leaves behind nothing later wakes up."""
        for lot in (self.job_ids[first : first + LOT] for first in range(0, len(self.job_ids), LOT)):
            for job_id in lot:
                run_call(
                    self.redis, self.ledger.submit(job_id, self.job(), Envelope.for_job(job_id, "herd.tiny"))
                )
                for _ in range(self.rng.choice([1, 1, 1, 2])):
                    self.take(job_id)
                self.disturb(job_id if self.rng.random() < 0.5 else self.rng.choice(lot))
            wait_until(lambda: not self.tenancy.claims, f"{self} no job of {lot} is in hand", PATIENCE_S)

    def disturb(self, job_id: str) -> None:
        """Leave most jobs alone, and all that are not in hand."""
        attempt = self.tenancy.claims.get(job_id)
        if attempt is not None and self.rng.random() < 0.25:
            self.disturbed.add(job_id)
            self.rng.choice([self.cancel, self.steal, self.release])(attempt)

    def job(self) -> GenerationJob:
        prompt_ids = self._prompt_ids[: self.rng.randint(1, len(self._prompt_ids))]
        sampling = SamplingParams(n=self.rng.randint(1, 3), max_tokens=self.rng.randint(1, 12))
        return GenerationJob(prompt_ids=tuple(prompt_ids), sampling=sampling)

    def take(self, job_id: str) -> None:
        self.messages.append(SentMessage(job_id))
        self.service.take(self.messages[-1])

    def cancel(self, attempt: Attempt) -> None:
        run_call(self.redis, self.ledger.cancel(attempt.job_id))

    def steal(self, attempt: Attempt) -> None:
        """From now on the worker's writes are fenced."""
        self.redis.hset(self.ledger.job_key(attempt.job_id), "owner", THIEF)

    def release(self, attempt: Attempt) -> None:
        """Give a job back, which is at once delivered here again; sometimes the worker is not told."""
        release = self.ledger.release(attempt.job_id, self.tenancy.owner, attempt.stream.epoch)
        if run_call(self.redis, release) is Release.RELEASED:
            if self.rng.random() < 0.5:
                self.service._publisher.put([LeftJob(attempt, Attempt.acknowledge)])
            self.take(attempt.job_id)

    def is_stolen(self, job_id: str) -> bool:
        """Whether another one owns a job that has not ended."""
        state, owner = self.redis.hmget(self.ledger.job_key(job_id), "state", "owner")
        return state == b"running" and owner == THIEF.encode()

    def is_done(self, message: SentMessage) -> bool:
        return bool(message.num_done) or self.is_stolen(message.job_id)


@pytest.fixture(params=[(0, 60), *(pytest.param((seed, 120), marks=pytest.mark.slow) for seed in (0, 1))])
def crowd(
    redis: Redis, service: Service, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Crowd:
    """It strikes also between a claim and its note that a job is made ready, and while that is done."""
    crowd = Crowd(service, redis, *request.param)
    begin, sequences = ClaimedJobs.begin, SequenceMaker.sequences

    def begin_and_disturb(claims: ClaimedJobs, attempt: Attempt) -> None:
        begin(claims, attempt)
        crowd.disturb(attempt.job_id)

    def disturb_and_read(maker: SequenceMaker, job_id: str, *args: Any) -> list[Sequence]:
        crowd.disturb(job_id)
        return sequences(maker, job_id, *args)

    monkeypatch.setattr(ClaimedJobs, "begin", begin_and_disturb)
    monkeypatch.setattr(SequenceMaker, "sequences", disturb_and_read)
    return crowd


def test_of_jobs_that_end_and_go_at_any_moment_nothing_stays(
    redis: Redis, service: Service, crowd: Crowd
) -> None:
    crowd.pass_through()
    model, engine, done = service._model, service._engine, partial(wait_until, patience_s=PATIENCE_S)
    assert isinstance(model, LoadedModel)
    cache = model.cache
    done(lambda: all(map(crowd.is_done, crowd.messages)), f"{crowd} every message is done with")
    done(lambda: not (engine.stats.num_running or engine.num_waiting), f"{crowd} the engine is empty")
    check_prefixes(cache.prefixes)
    assert cache.pages.num_held == 0
    assert max(message.num_done for message in crowd.messages) == 1
    for job_id in crowd.job_ids:
        events = run_call(redis, crowd.ledger.read(job_id))
        check_stream(events, has_end=not crowd.is_stolen(job_id))
        if job_id not in crowd.disturbed:
            assert Result.from_events(events).finish_reason in ("stop", "length")


def check_stream(events: list[Event], *, has_end: bool) -> None:
    """Each attempt starts once, before its first token; there is one end, and it is the last event."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    attempts = [
        "".join(event.type[0] for event in attempt)
        for _, attempt in groupby(events, lambda event: event.epoch)
    ]
    assert all(re.fullmatch("st*e?|e", attempt) for attempt in attempts), attempts
    assert "".join(attempts).count("e") == has_end
    assert not has_end or attempts[-1].endswith("e")
