"""What Celery's monitors are told of a job's end."""

from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker.request import Request

from llama_herd.tasks.protocol.events import End, FinishReason
from llama_herd.tasks.protocol.result import Result
from llama_herd.worker.broker.delivery import Delivery
from tests.worker.broker.test_side_task import request_of_celery as request_of_celery


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
