"""From a claim to the engine: what is held meanwhile, and what becomes of a job that cannot be made ready."""

import threading
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

from llama_herd.tasks.answers import Yours
from llama_herd.tasks.call import run
from llama_herd.tasks.events import End
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.ledger import Ledger
from llama_herd.tasks.message import Envelope
from llama_herd.worker import boot
from llama_herd.worker.chaos.patience import wait_until
from llama_herd.worker.delivery import Delivery
from llama_herd.worker.draw import Drawn
from llama_herd.worker.loaded_model import LoadedModel
from llama_herd.worker.output import Output
from llama_herd.worker.service import Service
from llama_herd.worker.settings import WorkerSettings
from llama_herd.worker.stream import Author, Recorded, Stream

pytestmark = pytest.mark.redis

JOB = GenerationJob.model_validate({"prompt": "a tale", "sampling": {"max_tokens": 3, "ignore_eos": True}})
OTHER = "owner-of-a-larger-vocabulary"


@pytest.fixture
def service(
    redis_url: str, tiny_settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Service]:
    """All of a worker but Celery."""
    monkeypatch.setattr(boot, "device", lambda: "cpu")
    service = Service.start(tiny_settings.model_copy(update={"redis_url": redis_url}), "worker@test")
    yield service
    service.drain(0.0, lambda: None)


def delivery(job_id: str, body: bytes = b"[[], {}, {}]") -> Delivery:
    """A message of our client unless it has arguments; nobody waits for its acknowledgement."""
    request: Any = SimpleNamespace(
        id=job_id, _already_revoked=False, delivery_info={"routing_key": "herd.tiny"}
    )
    headers = {"id": job_id, "properties": {"delivery_tag": f"{job_id}:1:0"}}
    return Delivery(lambda *_: (0, None, 0.0), ("herd.generate", job_id, headers, body), request, ignore)


def ignore(*_: object) -> None:
    """Nobody listens."""


def record_id_of_another_vocabulary(redis: Redis, ledger: Ledger, model: LoadedModel, job_id: str) -> None:
    """What a worker leaves behind that served another model by the same name."""
    claimed = run(redis, ledger.claim(job_id, OTHER))
    assert isinstance(claimed, Yours)
    stream = Stream(job_id, claimed, Recorded.of([]), Author("other@test", "tiny"))
    started = stream.start(1, 3)
    [sequence] = model.sequences(job_id, JOB, now_ms=0)
    stream.add(Output(sequence, (Drawn(10**6),), "x"))
    run(redis, ledger.emit(OTHER, [started, *stream.flush()]))
    run(redis, ledger.release(job_id, OTHER, claimed.epoch))


def test_what_is_claimed_together_is_held_while_the_first_is_made_ready(
    redis: Redis, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long prompt takes a while to read, and a lease that nobody renews is over by then."""
    job_ids = ["first", "second", "third"]
    held: list[set[str]] = []
    have_come = threading.Event()
    sequences = LoadedModel.sequences

    def slow(*args: Any) -> Any:
        claims = service.tenancies["default"]._claims
        held.append({attempt.job_id for attempt in claims.in_hand()})
        have_come.wait()
        return sequences(*args)

    monkeypatch.setattr(LoadedModel, "sequences", slow)
    for job_id in job_ids:
        run(redis, Ledger().submit(job_id, JOB, Envelope.of(job_id, "herd.tiny")))
    service.take(delivery("first"))
    wait_until(lambda: held, "the first job's turn")
    for job_id in job_ids[1:]:
        service.take(delivery(job_id))
    have_come.set()
    for job_id in job_ids:
        wait_until(partial(end_of, redis, Ledger(), job_id), f"the end of {job_id}")
    assert {"second", "third"} <= held[1]


def end_of(redis: Redis, ledger: Ledger, job_id: str) -> End | None:
    events = run(redis, ledger.read(job_id))
    return events[-1] if events and isinstance(events[-1], End) else None


def test_a_job_on_its_last_attempt_waits_until_it_is_alone(
    redis: Redis, service: Service, tiny_settings: WorkerSettings
) -> None:
    """If it ends its worker again, it takes no other job with it."""
    ledger = Ledger()
    sampling = {"max_tokens": 200, "ignore_eos": True}
    mate = GenerationJob.model_validate({"prompt": "a long tale", "sampling": sampling})
    for job_id, job in (("mate", mate), ("suspect", JOB)):
        run(redis, ledger.submit(job_id, job, Envelope.of(job_id, "herd.tiny")))
    redis.hset(ledger.job_key("suspect"), "attempts", str(tiny_settings.max_attempts - 1))
    service.take(delivery("mate"))
    wait_until(lambda: run(redis, ledger.read("mate")), "the mate runs")
    service.take(delivery("suspect"))
    wait_until(partial(end_of, redis, ledger, "suspect"), "the end of the suspect")
    assert end_of(redis, ledger, "mate") is not None


def test_a_job_on_record_is_run_whatever_another_message_of_its_id_asks_for(
    redis: Redis, service: Service
) -> None:
    run(redis, Ledger().submit("job", JOB, Envelope.of("job", "herd.tiny")))
    service.take(delivery("job", b'[[], {"colour": "blue"}, {}]'))
    wait_until(partial(end_of, redis, Ledger(), "job"), "the end")
    end = end_of(redis, Ledger(), "job")
    assert end is not None
    assert end.finish_reason == "length"


def test_a_job_that_cannot_be_made_ready_ends_alone(
    redis: Redis, service: Service, model: LoadedModel
) -> None:
    ledger = Ledger()
    for job_id in ("broken", "sound"):
        run(redis, ledger.submit(job_id, JOB, Envelope.of(job_id, "herd.tiny")))
    record_id_of_another_vocabulary(redis, ledger, model, "broken")
    for job_id in ("broken", "sound"):
        service.take(delivery(job_id))
        wait_until(partial(end_of, redis, ledger, job_id), f"the end of {job_id}")
    broken, sound = end_of(redis, ledger, "broken"), end_of(redis, ledger, "sound")
    assert broken is not None
    assert broken.error is not None
    assert broken.error.code == "model_error"
    assert sound is not None
    assert sound.finish_reason == "length"
