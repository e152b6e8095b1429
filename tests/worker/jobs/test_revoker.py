"""A revoke ends its tenant's jobs and no other's; floods and nonsense cost no memory and no thread."""

import json
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from redis import ConnectionError, Redis
from structlog.testing import capture_logs

from llama_herd.tasks.app import make_app
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call, run_calls
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope, queue_name
from llama_herd.tasks.settings import Settings
from llama_herd.worker.jobs.revoker import REPLY_TTL_S, Revoker
from tests.chaos.harness.patience import wait_until
from tests.redis_errors import num_errors
from tests.worker.jobs.tenancies import alone, new_tenancy

pytestmark = pytest.mark.redis

MAX_BYTES = 65_536
JOB = GenerationJob(prompt="a tale")
#: In the year 2100.
LATER_MS = 4_102_444_800_000


class Post:
    """A revoker of one tenant, and whether it has had somebody look at what is to be told."""

    def __init__(self, redis: Redis, tenant: str = "default", max_ids: int = 10) -> None:
        self.redis = redis
        self.is_told = False
        self.ledger = Ledger(tenant)
        self.tenancy = new_tenancy(redis, self.ledger, max_ids=max_ids, max_message_bytes=MAX_BYTES)
        self.remembered = self.tenancy.revoked
        self.revoker = Revoker("w@test", alone(self.tenancy), on_end=self.note_end)

    def note_end(self) -> None:
        self.is_told = True

    @property
    def cancelled(self) -> list[str]:
        """The jobs of whose end Celery is to be told at once."""
        due = run_call(self.redis, self.ledger.owed(10, 0))
        return [one.job_id for one in due if self.is_told]

    @property
    def channel(self) -> str:
        return self.revoker.channel_of(self.tenancy)

    def submit(self, redis: Redis, job_id: str, **fields: object) -> None:
        queue = queue_name("m", self.ledger.tenant)
        job = JOB.model_copy(update=fields)
        run_call(redis, self.ledger.submit(job_id, job, Envelope.for_job(job_id, queue)))

    @contextmanager
    def heard(self, redis: Redis) -> Iterator[None]:
        """It listens within the block."""
        self.revoker.start()
        try:
            self.wait_until_it_listens(redis)
            yield
        finally:
            self.revoker.stop()
            self.revoker.join()

    def wait_until_it_listens(self, redis: Redis) -> None:
        channel = self.channel
        wait_until(lambda: redis.pubsub_numsub(channel)[0][1], "it listens")


def app_of(redis_url: str, tenant: str = "default") -> Celery:
    return make_app(Settings(redis_url=redis_url, tenant=tenant))


def revoke(app: Celery, *job_ids: str) -> None:
    """Returns once the revoker is done with it."""
    assert app.control.revoke(list(job_ids), reply=True, timeout=20, limit=1)


def test_a_waiting_job_is_ended_and_one_that_nobody_knows_is_remembered(redis: Redis, redis_url: str) -> None:
    post = Post(redis)
    post.submit(redis, "known")
    with post.heard(redis):
        revoke(app_of(redis_url), "known", "unknown")
    assert post.cancelled == ["known"]
    assert redis.hget(post.ledger.job_key("known"), "state") == b"cancelled"
    assert "unknown" in post.remembered
    assert "known" not in post.remembered
    assert not redis.exists(post.ledger.job_key("unknown"))


@pytest.mark.parametrize(("whose", "others"), [("acme", "default"), ("default", "acme")])
def test_a_tenant_revokes_its_own_jobs_alone(redis: Redis, redis_url: str, whose: str, others: str) -> None:
    """Both have a job of this id, and one worker serves both."""
    own, foreign = Post(redis, whose), Post(redis, others)
    for post in (own, foreign):
        post.submit(redis, "same")
    with own.heard(redis), foreign.heard(redis):
        revoke(app_of(redis_url, whose), "same")
    assert own.cancelled == ["same"]
    assert foreign.cancelled == []
    assert redis.hget(foreign.ledger.job_key("same"), "state") == b"queued"


def test_a_flood_of_unknown_ids_takes_no_more_room_than_there_is(redis: Redis, redis_url: str) -> None:
    post = Post(redis, max_ids=100)
    flood = [f"id-{number}" for number in range(1000)]
    with post.heard(redis):
        revoke(app_of(redis_url), *flood)
        revoke(app_of(redis_url), "id-0", "x}y", "z" * 1000)
    assert sum(one in post.remembered for one in flood) == 100
    assert "id-999" in post.remembered
    assert "id-0" in post.remembered
    assert "id-900" not in post.remembered
    assert not redis.keys("*id-*")


def test_a_message_that_is_too_long_is_not_read(redis: Redis, redis_url: str) -> None:
    post = Post(redis)
    post.submit(redis, "known")
    with capture_logs() as lines, post.heard(redis):
        app_of(redis_url).control.revoke(["known", "x" * MAX_BYTES])
        redis.publish(post.channel, b"\xff not a message")
        revoke(app_of(redis_url), "unknown")
    assert [line["limit"] for line in lines] == [MAX_BYTES]
    assert post.cancelled == []


def test_it_listens_again_after_redis_has_hung_up(redis: Redis, redis_url: str) -> None:
    """As Redis does with a listener that is too slow for a flood."""
    post = Post(redis)
    post.submit(redis, "known")
    with post.heard(redis):
        assert redis.client_kill_filter(_type="pubsub")
        app = app_of(redis_url)
        # redis-py may subscribe by one more connection, and give it up: what Redis counts tells too little.
        wait_until(lambda: app.control.revoke("known") or post.cancelled, "it hears who revokes again")
    assert post.cancelled == ["known"]


def test_it_listens_in_the_database_of_its_jobs(redis_url: str) -> None:
    """Channels are the same in all databases, but for the name that kombu gives them."""
    url = f"{redis_url.rpartition('/')[0]}/1"
    with Redis.from_url(url) as redis:
        post = Post(redis)
        post.submit(redis, "known")
        with post.heard(redis):
            revoke(app_of(url), "known")
        assert post.cancelled == ["known"]


def test_an_answer_that_nobody_fetches_is_forgotten(redis: Redis) -> None:
    post, asker = Post(redis), str(uuid4())
    command = {
        "method": "revoke",
        "arguments": {"task_id": "unknown"},
        "reply_to": {"exchange": "reply.celery.pidbox", "routing_key": asker},
        "ticket": "1",
    }
    body = b64encode(json.dumps(command).encode()).decode()
    with post.heard(redis):
        redis.publish(post.channel, json.dumps({"body": body, "content-type": "application/json"}))
        wait_until(lambda: redis.keys(f"{asker}*"), "it is answered")
    (place,) = redis.keys(f"{asker}*")
    assert 0 < redis.ttl(place) <= REPLY_TTL_S


@pytest.mark.long
def test_a_silent_connection_is_asked_and_kept(redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A revoke that came while it was made anew would be lost."""
    monkeypatch.setattr("llama_herd.worker.jobs.revoker.LISTEN_S", 0.01)
    monkeypatch.setattr("llama_herd.worker.jobs.revoker.SILENCE_S", 0.4)

    def num_calls(command: str) -> int:
        return int(redis.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])

    redis.config_resetstat()
    with Post(redis).heard(redis):
        wait_until(lambda: num_calls("ping") + num_calls("subscribe") > 3, "it has asked often")
        assert num_calls("subscribe") == 1


def test_a_revoke_is_obeyed_once_redis_takes_writes_again(redis: Redis, redis_url: str) -> None:
    """Nobody sends it again."""
    post = Post(redis)
    post.submit(redis, "known")
    redis.config_resetstat()
    with post.heard(redis):
        redis.config_set("min-replicas-to-write", 1)
        try:
            app_of(redis_url).control.revoke("known")
            wait_until(lambda: num_errors(redis, "NOREPLICAS"), "it is refused")
        finally:
            redis.config_set("min-replicas-to-write", 0)
        wait_until(lambda: post.cancelled, "it is obeyed")
    assert post.cancelled == ["known"]
    assert redis.hget(post.ledger.job_key("known"), "state") == b"cancelled"


def test_celery_is_told_of_a_job_whose_end_was_written_but_not_answered(
    redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message of one that is not due yet never comes, so no worker would tell it later."""
    post = Post(redis)
    post.submit(redis, "known", not_before=LATER_MS)
    lost: list[object] = []

    def lose_the_first(*args: Any) -> Any:
        answers = run_calls(*args)
        if not lost:
            lost.append(answers)
            raise ConnectionError("reply lost")
        return answers

    monkeypatch.setattr("llama_herd.worker.jobs.revoker.run_calls", lose_the_first)
    with post.heard(redis):
        revoke(app_of(redis_url), "known", "unknown")
    assert post.cancelled == ["known"]
    assert "unknown" in post.remembered


def test_a_user_who_may_not_listen_is_told_so_once(redis: Redis, redis_url: str) -> None:
    redis.acl_setuser("narrow", enabled=True, nopass=True, commands=["+@all"], reset_channels=True)
    with Redis.from_url(redis_url, username="narrow", password="any") as narrow, capture_logs() as lines:
        Post(narrow).revoker.run()
    redis.acl_deluser("narrow")
    assert [line["channels"] for line in lines] == [["/0.celery.pidbox"]]
    assert "herd acl" in lines[0]["fix"]
