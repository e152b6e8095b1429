"""A tenant that wants to be told, and what happens to its jobs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.outbox import ListedWebhook
from llama_herd.tasks.ledger.redis_call import run_call, run_dialogue
from llama_herd.tasks.webhooks.setup import list_outbox, store_webhooks
from tests.chaos.harness.patience import wait_until
from tests.tasks.herd import JOB, Herd

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@dataclass(frozen=True)
class Tenant:
    """Ends jobs, and looks at its outbox."""

    herd: Herd

    def set(self, url: str, *hosts: str, jobs: bool = True) -> None:
        dialogue = store_webhooks(self.herd.ledger.tenant, url, hosts, jobs=jobs, secret=SECRET)
        run_dialogue(self.herd.redis, dialogue)

    def end(self, *job_ids: str, webhook: str | None = None, secret: str | None = None) -> None:
        """Jobs that are cancelled at once."""
        job = JOB.model_copy(update={"webhook": webhook, "webhook_secret": secret})
        for job_id in job_ids:
            self.herd.submit(job_id, job)
            run_call(self.herd.redis, self.herd.ledger.cancel(job_id))

    def outbox(self) -> list[ListedWebhook]:
        return run_dialogue(self.herd.redis, list_outbox(self.herd.ledger.tenant, 10_000))

    def wait_for_dead(self, job_id: str) -> ListedWebhook:
        """The message of a job, once it was given up."""
        found: list[ListedWebhook] = []

        def is_dead() -> Any:
            found[:] = [one for one in self.outbox() if one.is_dead and one.entry.id == job_id]
            return found

        wait_until(is_dead, f"the webhook of {job_id} is given up")
        return found[0]

    def wait_for_tries(self, job_id: str, num: int) -> ListedWebhook:
        """The message of a job, once it has failed so often, or more often by now."""
        found: list[ListedWebhook] = []

        def has_failed() -> Any:
            found[:] = [one for one in self.outbox() if one.entry.id == job_id and one.entry.tries >= num]
            return found

        wait_until(has_failed, f"the webhook of {job_id} has failed")
        return found[0]

    def wait_until_delivered(self, hurries: str = "") -> None:
        """`hurries`: a job of which they try again and again."""

        def is_delivered() -> bool:
            self.hurry(hurries)
            return not self.outbox()

        wait_until(is_delivered, "everything is delivered")

    def hurry(self, job_id: str) -> None:
        """Let a message be due now."""
        self.herd.redis.zadd("herd:default:outbox", {f"msg_{job_id}": 1}, xx=True)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedRedis]:
    """One without gateways of other tests, which would send what is due here."""
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def tenant(redis: Redis) -> Tenant:
    return Tenant(Herd(redis, Ledger(lease_ms=60_000, worker="w")))
