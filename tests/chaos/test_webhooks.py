"""Webhooks while gateways and Redis are killed: each end arrives, under one id, and nothing else does."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from llama_herd.errors import RedisUnavailable
from llama_herd.tasks import Client
from llama_herd.tasks.connection.connect import connect
from llama_herd.tasks.ledger.outbox import Outbox, webhook_message_id
from llama_herd.tasks.ledger.redis_call import run_call, run_dialogue
from llama_herd.tasks.webhooks.setup import store_webhooks
from tests.chaos.harness.fragile_redis import FragileRedis
from tests.chaos.harness.patience import wait_until
from tests.cli.gateway_process import GatewayProcess
from tests.durable_redis import DurableRedis
from tests.tasks.webhooks.conftest import SECRET
from tests.tasks.webhooks.receiver import Receiver, Silence

pytestmark = [pytest.mark.fault, pytest.mark.redis, pytest.mark.timeout(180)]

NUM_JOBS = 400
#: The longest time until another gateway sends.
TAKEOVER_S = 30.0


def end(client: Client, job_id: str, webhook: str | None) -> None:
    """A job that is cancelled at once, though Redis may be away. Repeating it is the same job."""

    def is_over() -> bool:
        try:
            client.submit(job_id=job_id, prompt="x", model="tales", webhook=webhook)
            client.cancel(job_id)
        except RedisUnavailable:
            return False
        return True

    wait_until(is_over, f"{job_id} has ended")


def hurry(redis: Any) -> None:
    """Let what a dead gateway has taken be due now, and not in a minute."""
    key = "herd:default:outbox"
    for message in redis.zrangebyscore(key, "-inf", "+inf"):
        redis.zadd(key, {message: 1}, xx=True)


def sender(redis: FragileRedis, folder: Path, stack: ExitStack) -> GatewayProcess:
    log = folder / f"{len(list(folder.glob('*.log')))}.log"
    return stack.enter_context(GatewayProcess(redis.url, log, HERD_GATEWAY_WEBHOOK_PRIVATE="true"))


def test_kills_of_gateways_and_redis_lose_no_webhook(tmp_path: Path, figures: list[str]) -> None:
    jobs = [f"j{number}" for number in range(NUM_JOBS)]
    with (
        DurableRedis() as server,
        Receiver() as receiver,
        Silence() as dead,
        ExitStack() as stack,
        Client(server.url) as client,
        connect(server.url) as redis,
    ):
        run_dialogue(redis, store_webhooks("default", receiver.url, ("localhost",), jobs=True, secret=SECRET))
        gateways = [sender(server, tmp_path, stack) for _ in range(2)]
        for number, job_id in enumerate(jobs):
            end(client, job_id, f"http://localhost:{dead.port}/" if number % 4 == 3 else None)
            if number % 100 == 50:
                with server.away(0.1):
                    pass
            if number % 150 == 75:
                gateways.pop(0).kill()
                gateways.append(sender(server, tmp_path, stack))
        told = {job_id for number, job_id in enumerate(jobs) if number % 4 != 3}

        def has_arrived() -> bool:
            hurry(redis)
            return {*receiver.ids} >= told

        wait_until(has_arrived, "each end has arrived", TAKEOVER_S)
        wait_until(
            lambda: run_call(redis, Outbox().count("waiting")) == NUM_JOBS - len(told), "the rest waits"
        )
    assert {*receiver.ids} == told
    pairs = {(request.message, request.verified(SECRET)["data"]["id"]) for request in receiver.requests}
    assert pairs == {(webhook_message_id(job_id), job_id) for job_id in told}
    figures.append(f"webhooks: 7 kills, {len(told)} ends, {len(receiver.requests)} deliveries, none missing")
