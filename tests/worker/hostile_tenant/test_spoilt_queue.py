"""A queue that is none any more is left out: its tenant is told, the others are served."""

import json
from collections.abc import Callable
from time import monotonic

import pytest
from redis import Redis

from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.protocol.message import queue_name
from llama_herd.tasks.protocol.priority import LANES
from tests.local.processes import WorkerProcess, wait_until
from tests.worker.hostile_tenant.attacks import GLOBEX, QUEUE, Attack
from tests.worker.hostile_tenant.tenant import ACME, Tenant

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]


@pytest.mark.parametrize("lane", [LANES[0]], ids=["urgent"])
def test_a_spoilt_queue_is_left_out_with_one_word_and_taken_back(
    lane: str,
    strike: Callable[[Attack], None],
    worker: WorkerProcess,
    acme: Tenant,
    globex: Tenant,
    root: Redis,
) -> None:
    log_before = len(worker.log.splitlines())
    strike(Attack("", [("SADD", QUEUE + lane, "x")]))
    wait_until(lambda: "queue left out" in "".join(worker.log.splitlines()[log_before:]), "it is left out")
    for _ in range(3):
        acme.answered_s()
    (line,) = (line for line in worker.log.splitlines()[log_before:] if "warning" in line or "error" in line)
    assert json.loads(line)["queue"] == QUEUE
    root.delete(QUEUE + lane)
    globex.answered_s()


def test_a_worker_tells_each_tenant_which_of_its_own_queues_it_leaves_out(
    strike: Callable[[Attack], None], worker: WorkerProcess, acme: Tenant, globex: Tenant, root: Redis
) -> None:
    strike(Attack("", [("SADD", QUEUE + LANES[0], "x")]))
    wait_until(globex.client.workers, "it says anything again")
    wait_until(lambda: globex.worker.left_out, "it says that it leaves the queue out")
    told = globex.worker
    assert (told.state, told.left_out, told.spoilt_key) == ("ready", QUEUE, QUEUE + LANES[0])
    assert told.spoilt_type == "set"
    assert (acme.worker.state, acme.worker.left_out, acme.worker.spoilt_key) == ("ready", "", "")
    root.sadd(queue_name("m", ACME), "x")
    wait_until(lambda: acme.worker.state == "spoilt", "it reads no queue at all")
    root.delete(queue_name("m", ACME), QUEUE + LANES[0])
    wait_until(lambda: {acme.worker.state, globex.worker.state} == {"ready"}, "it is ready again")
    wait_until(lambda: not acme.worker.left_out and not globex.worker.left_out, "it reads both")
    for tenant in (acme, globex):
        tenant.answered_s()


@pytest.mark.fault
def test_a_worker_starts_beside_a_spoilt_tenant_and_stays(
    strike: Callable[[Attack], None], worker: WorkerProcess, acme: Tenant, root: Redis
) -> None:
    """Also when its watchdog would see messages that wait and are not asked for."""
    strike(Attack("", [("LPUSH", f"_kombu.binding{kind}.{QUEUE}", "x") for kind in ("", "_permanent")]))
    strike(Attack("", [("SADD", QUEUE, "x"), ("LPUSH", QUEUE + LANES[0], "x")]))
    worker.kill()
    with Redis.from_url(worker.settings.redis_url) as redis:
        redis.delete(*(Keys(name).key("workers") for name in (ACME, GLOBEX)))
    worker.start().wait_until_ready()
    acme.answered_s()
    until_s = monotonic() + worker.settings.silence_s + 1.5
    while monotonic() < until_s:
        acme.answered_s()
    assert worker.is_alive
