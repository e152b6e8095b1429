"""What Celery's monitors are told of a job's end, and what becomes of its message."""

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.worker import state
from celery.worker.request import Request
from kombu import Connection
from redis import Redis

from llama_herd.tasks.protocol.events import End, FinishReason
from llama_herd.tasks.protocol.result import Result
from llama_herd.worker.broker.delivery import Delivery
from tests.worker.broker.queue_reader import NOTES, Reader, push
from tests.worker.broker.test_side_task import request_of_celery as request_of_celery, side


@pytest.mark.parametrize(("reason", "told"), [("cancelled", "task-revoked"), ("length", "task-succeeded")])
def test_a_monitor_hears_of_a_cancelled_job_that_it_was_revoked(
    request_of_celery: Request, reason: FinishReason, told: str
) -> None:
    seen: list[str] = []
    eventer: Any = SimpleNamespace(enabled=True, send=lambda kind, **_: seen.append(kind))
    request_of_celery.eventer = eventer
    headers = {"id": request_of_celery.id, "delivery_info": {}}
    delivery = Delivery(
        ("side", request_of_celery.id, headers, b""), request_of_celery, lambda act, *args: act(*args)
    )
    end = End(seq=1, job="job", epoch=1, finish_reason=reason, n=0, attempts=1)
    delivery.settle(Result.from_events([end]))
    assert seen == []
    delivery.close()
    assert seen[-1] == told
    assert "task-succeeded" not in seen[:-1]
    assert request_of_celery.acknowledged


@pytest.mark.redis
@pytest.mark.parametrize("is_let_go", [False, True], ids=["acknowledged", "let go"])
def test_who_is_done_with_a_message_has_its_place_again(
    redis: Redis, connection: Connection, is_let_go: bool
) -> None:
    """One that is let go stays noted as held, and so comes again, to whoever has the job by then."""
    push(redis, "a")
    reader = Reader(connection, prefetch=1)
    reader.read()
    (message,) = reader.messages
    app = Celery(set_as_current=False, backend="cache+memory://")
    app.conf.task_acks_late = True
    app.task(name="side")(side)
    headers = {"id": "a", "task": "side"}
    request = Request(
        message,
        app=app,
        headers=headers,
        body=([], {}, {}),
        decoded=True,
        on_ack=message.ack_log_error,
        task=app.tasks["side"],
    )
    state.task_reserved(request)
    assert not reader.channel.has_room
    delivery = Delivery(("side", "a", headers, b""), request, lambda act, *args: act(*args))
    for _ in range(2):
        delivery.let_go() if is_let_go else delivery.acknowledge()
        assert (reader.channel.has_room, request.acknowledged) == (True, True)
        assert request not in state.reserved_requests
        assert redis.hlen(NOTES) == is_let_go
