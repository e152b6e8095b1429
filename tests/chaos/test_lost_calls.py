"""Whichever call of a worker is lost with its connection, or its reply: jobs end as if it were not."""

import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from celery.result import AsyncResult

from llama_herd.tasks.ledger.dead_letters import MAX_LETTERS, DeadLetters
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.script import all_scripts
from llama_herd.tasks.protocol.message import TASK_NAME
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.malformed import celery_message
from tests.chaos.harness.patience import wait_until
from tests.chaos.harness.sabotage import Sabotage

pytestmark = [pytest.mark.fault, pytest.mark.timeout(400)]

SAMPLING = {"max_tokens": 6, "temperature": 0.8, "seed": 11}
JOB: dict[str, Any] = {"prompt": "a tale", "sampling": SAMPLING}
ENDLESS = {**JOB, "sampling": {**SAMPLING, "max_tokens": 4000}}

#: So soon a message comes again that Redis has given to nobody.
SILENT_S = 3.0

#: The limit of a worker that is sent longer messages, in bytes.
MAX_BYTES = 65_536


class Sender:
    """Sends jobs of all kinds, and loses a call of their worker, or its reply, meanwhile."""

    def __init__(self, herd: Herd) -> None:
        self.herd = herd
        #: Bare messages, each with a link.
        self.bare: list[str] = []
        #: The calls that were lost, or whose replies were.
        self.lost: list[bytes] = []

    def send(self, task_id: str, **options: Any) -> None:
        app = self.herd.jobs.celery
        link = app.signature("shop.next", queue="shop", task_id=f"after-{task_id}")
        app.send_task(TASK_NAME, kwargs=JOB, queue=self.herd.queue, task_id=task_id, link=link, **options)
        self.herd.jobs.adopt(task_id, JOB)

    def are_told(self, *job_ids: str) -> bool:
        return all(AsyncResult(one, app=self.herd.jobs.celery).ready() for one in job_ids)

    def lose(self, number: int, *, is_reply: bool) -> bool:
        """Send jobs, and wait until Celery is told of those due. Whether they took so many calls."""
        jobs, proxy = self.herd.jobs, self.herd.proxy
        proxy.lose(number, is_reply=is_reply)
        now, later = f"now-{number}-{is_reply}", f"later-{number}-{is_reply}"
        self.bare += now, later
        self.send(now)
        self.send(later, countdown=0.5)  # it meets what is lost after that
        cancelled, submitted = jobs.accept(ENDLESS), jobs.accept(JOB)
        wait_until(lambda: jobs.number(cancelled, "n"), f"{cancelled} runs")
        jobs.client.cancel(cancelled)
        told = (now, cancelled, submitted)
        wait_until(lambda: self.are_told(*told), f"{told} told")
        self.lost.append(proxy.spare())
        return bool(proxy.lost)


def lose_each(sender: "Sender | OddSender") -> None:
    """Lose one call after the other, and its reply, until a round takes fewer."""
    for number in count(1):
        if not any([sender.lose(number, is_reply=False), sender.lose(number, is_reply=True)]):
            break


@pytest.mark.parametrize("tenants", ["", pytest.param("default,acme", marks=pytest.mark.slow)])
def test_each_call_of_a_worker_and_each_reply_may_be_lost(herd: Herd, tenants: str) -> None:
    """One after the other, from when jobs come until Celery is told of them."""
    sabotage = Sabotage(silent_s=SILENT_S)
    herd.start_workers(1, is_behind_proxy=True, sabotage=sabotage, tenants=tenants)
    sender = Sender(herd)
    lose_each(sender)
    wait_until(lambda: sender.are_told(*sender.bare), "all are told")
    met = {one.name for one in all_scripts() if any(one.sha.encode() in call for call in sender.lost)}
    assert met >= {"claim", "prepare", "emit", "settling", "settle"}
    assert len({one.text for one in herd.jobs.results() if one.finish_reason != "cancelled"}) == 1
    sent = Counter(json.loads(one)["headers"]["id"] for one in herd.jobs.redis.lrange("shop", 0, -1))
    assert sent.keys() == {f"after-{one}" for one in sender.bare}
    assert sent.total() - len(sent) <= sum(b"shop" in call for call in sender.lost)


class OddSender:
    """Sends what never runs, and loses a call of the worker that is to say so, or its reply, meanwhile."""

    def __init__(self, herd: Herd) -> None:
        self.herd = herd
        self.proxy, self.redis = herd.proxy, herd.jobs.redis

    def send(self, name: str) -> None:
        """Send one of each kind under the name."""
        app, queue = self.herd.jobs.celery, self.herd.queue
        long = celery_message([[], {"prompt": "x" * MAX_BYTES}, {}], id=f"long-{name}")
        self.redis.lpush(queue, b'{"headers": {"id": "junk-%s"}}' % name.encode(), long)
        app.send_task("nobody.has", queue=queue, task_id=f"foreign-{name}")
        app.send_task(TASK_NAME, kwargs=JOB, queue=queue, task_id=f"bad id {name}")
        late = datetime.now(UTC) - timedelta(seconds=1)
        app.send_task(TASK_NAME, kwargs=JOB, queue=queue, task_id=f"expired-{name}", expires=late)
        app.control.revoke(f"revoked-{name}")
        app.send_task(TASK_NAME, kwargs=JOB, queue=queue, task_id=f"revoked-{name}")

    def untold(self, name: str) -> Sequence[str]:
        """What of a name Celery is not told, and what is not among the dead letters."""
        told = [f"{kind}{name}" for kind in ("long-", "foreign-", "bad id ", "expired-", "revoked-")]
        buried = {one.task_id for one in run_call(self.redis, DeadLetters().letters(MAX_LETTERS))}
        missing = {f"junk-{name}", *told[:2]} - buried
        return [one for one in told if not AsyncResult(one, app=self.herd.jobs.celery).ready()] + [*missing]

    def lose(self, number: int, *, is_reply: bool) -> bool:
        """Send all kinds, and wait until nothing is missing. Whether they took so many calls."""
        name = f"{number}-{is_reply}"
        self.proxy.lose(number, is_reply=is_reply)
        self.send(name)
        wait_until(lambda: not self.untold(name), f"{name} told")
        self.proxy.spare()
        return bool(self.proxy.lost)


def test_what_never_runs_is_told_and_kept_whichever_call_is_lost(herd: Herd) -> None:
    """Dead letters are written; Celery is told of what is too long, unknown, misnamed, late or revoked."""
    sabotage = Sabotage(silent_s=SILENT_S)
    herd.start_workers(1, is_behind_proxy=True, sabotage=sabotage, max_message_bytes=MAX_BYTES)
    sender = OddSender(herd)
    lose_each(sender)
