"""Jobs that want to hear of their prompt, through a worker without Celery."""

from typing import Any

import pytest
from redis import Redis

from llama_herd.tasks.ledger.held_jobs import EmitEntry
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.events import Event, Started
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.tasks.protocol.result import Result
from llama_herd.tasks.settings import Settings
from llama_herd.worker.jobs.service import Service
from tests.tasks.herd import Herd
from tests.worker.jobs.sent_message import SentMessage
from tests.worker.jobs.short_job import the_end

pytestmark = pytest.mark.redis

TELLS: dict[str, Any] = {"prompt": "a tale", "echo": True, "model": "tiny"}


def submit(redis: Redis, **sampling: Any) -> None:
    job = GenerationJob.parse({**TELLS, "sampling": {"ignore_eos": True, **sampling}}, Settings())
    run_call(redis, Ledger().submit("job", job, Envelope.for_job("job", "herd.tiny")))


def events_of(redis: Redis) -> list[Event]:
    the_end(redis, "job")
    return run_call(redis, Ledger().read("job"))


def test_a_job_without_output_starts_and_ends(redis: Redis, service: Service) -> None:
    submit(redis, max_tokens=0)
    service.take(SentMessage("job"))
    events = events_of(redis)
    assert [event.type for event in events] == ["started", "end"]
    result = Result.from_events(events)
    assert (result.prompt_text, result.finish_reason, result.attempts) == ("a tale", "length", 1)
    assert redis.hget(Ledger().job_key("job"), "state") == b"done"


@pytest.mark.parametrize(
    "sampling", [{"max_tokens": 3}, {"max_tokens": 0}, {"max_tokens": 0, "prompt_logprobs": 1}]
)
def test_the_prompt_is_told_once_however_often_the_job_is_begun(
    redis: Redis, service: Service, sampling: dict[str, Any]
) -> None:
    submit(redis, **sampling)
    herd = Herd(redis, Ledger(lease_ms=60_000, worker="w"))
    epoch = herd.claimed("job", "dead").epoch
    told = {
        "prompt_ids": (1, 9),
        "prompt_text": "a tale",
        "context_tokens": 64,
        "pieces": {1: "", 9: "a tale"},
    }
    start = Started(
        at_ms=1, seq=1, job="job", epoch=epoch, attempt=1, worker="w", model="tiny", seed=7, **told
    )
    herd.emit("dead", EmitEntry.from_event(start, 0))
    herd.pass_lease("job")
    service.take(SentMessage("job"))
    events = events_of(redis)
    starts = [event for event in events if isinstance(event, Started)]
    assert [one.prompt_ids for one in starts] == [(1, 9), *[None] * (len(starts) - 1)]
    result = Result.from_events(events)
    assert (result.prompt_ids, result.finish_reason, len(result.ids)) == (
        (1, 9),
        "length",
        sampling["max_tokens"],
    )
    assert (result.prompt_logprobs is None) == ("prompt_logprobs" not in sampling)
