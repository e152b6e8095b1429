"""What is in the outbox arrives: signed, at least once, and past hosts that do not answer."""

import socket
import ssl
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from redis import Redis
from standardwebhooks import WebhookVerificationError

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call, run_calls, run_dialogue
from llama_herd.tasks.ledger.webhook_configs import SENDER, WebhookConfig, store_config
from llama_herd.tasks.protocol.webhook import new_secret
from llama_herd.tasks.webhooks import sender
from llama_herd.tasks.webhooks.setup import OVERLAP_S, remove_webhooks, retry_webhook, store_webhooks
from tests.chaos.harness.patience import PATIENCE_S, wait_until
from tests.tasks.herd import JOB, Herd
from tests.tasks.webhooks.conftest import SECRET, Tenant
from tests.tasks.webhooks.receiver import Receiver, Request, Silence
from tests.tasks.webhooks.sender_thread import SenderThread
from tests.tls import Identity, TlsFront, needs_openssl

pytestmark = pytest.mark.redis


def test_an_end_arrives_signed_and_without_text(tenant: Tenant, redis_url: str) -> None:
    with Receiver() as receiver, SenderThread(redis_url):
        tenant.set(receiver.url)
        tenant.end("a.b")
        (request,) = receiver.wait_for(1)
        tenant.wait_until_delivered()
    message = request.verified(SECRET)
    assert request.path == "/hook?key=1"
    assert request.message == "msg_a~b"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert message.pop("timestamp").endswith("Z")
    data = {"id": "a.b", "state": "cancelled", "finish_reason": "cancelled"}
    assert message == {"type": "job.cancelled", "data": data}
    assert b"secret prompt" not in request.body


def test_of_a_tenant_that_has_gone_the_sender_keeps_nothing(tenant: Tenant, redis_url: str) -> None:
    with Receiver() as receiver, SenderThread(redis_url) as sending:
        tenant.set(receiver.url)
        tenant.end("a")
        tenant.wait_until_delivered()
        assert sending.num_queues == 1
        run_dialogue(tenant.herd.redis, remove_webhooks("default"))
        wait_until(lambda: sending.num_queues == 0, "its queue is forgotten")


def test_while_a_secret_changes_both_sign(tenant: Tenant, redis_url: str) -> None:
    """A receiver that knows either verifies, until the time of the old one is over."""

    def changed(**options: Any) -> WebhookConfig:
        dialogue = store_webhooks("default", receiver.url, (), jobs=True, **options)
        return run_dialogue(tenant.herd.redis, dialogue).config

    def verifies(request: Request, secret: str) -> bool:
        with suppress(WebhookVerificationError):
            return bool(request.verified(secret))
        return False

    with Receiver() as receiver:
        tenant.set(receiver.url)
        steps = [
            changed(secret=None, renews=True),
            changed(secret=None),  # as when the address changes meanwhile: both stay
            changed(secret=None, renews=True),  # the first one is out
            changed(secret=None, renews=True, overlap_s=0),
        ]
        first, _, third, last = (step.secret for step in steps)
        good = [{first, SECRET}, {first, SECRET}, {third, first}, {last}]
        every = {SECRET, *(step.secret for step in steps)}
        for number, (config, secrets) in enumerate(zip(steps, good, strict=True)):
            run_calls(tenant.herd.redis, store_config(config))
            with SenderThread(redis_url):
                tenant.end(f"a{number}")
                request = receiver.wait_for(number + 1)[number]
                tenant.wait_until_delivered()
            assert {one for one in every if verifies(request, one)} == secrets
    both = steps[0]
    assert both.old_until_ms - both.created_ms == 1000 * OVERLAP_S
    assert both.secrets_at(both.old_until_ms - 1) == (both.secret, SECRET)
    assert both.secrets_at(both.old_until_ms) == (both.secret,)


def test_a_secret_that_is_brought_takes_the_place_of_the_one_before(tenant: Tenant) -> None:
    def stored(secret: str) -> WebhookConfig:
        dialogue = store_webhooks("default", "https://example.com/", (), jobs=True, secret=secret)
        return run_dialogue(tenant.herd.redis, dialogue).config

    other = new_secret()
    assert stored(SECRET).secrets_at(0) == (SECRET,)
    assert stored(SECRET).secrets_at(0) == (SECRET,)
    assert stored(other).secrets_at(0) == (other, SECRET)
    assert stored(other).secrets_at(0) == (other, SECRET)


def test_one_that_still_signs_beside_another_is_ended_at_once(tenant: Tenant) -> None:
    """Somebody has found out after the change that others know it."""

    def changed(**options: Any) -> WebhookConfig:
        dialogue = store_webhooks("default", "https://example.com/", (), jobs=True, secret=None, **options)
        return run_dialogue(tenant.herd.redis, dialogue).config

    first, second = changed(), changed(renews=True)
    assert second.secrets_at(0) == (second.secret, first.secret)
    assert changed(overlap_s=0).secrets_at(0) == (second.secret,)


def test_what_ended_before_anybody_sends_arrives(tenant: Tenant, redis_url: str) -> None:
    with Receiver() as receiver:
        tenant.set(receiver.url)
        ids = [f"a{number}" for number in range(300)]
        tenant.end(*ids)
        with SenderThread(redis_url):
            receiver.wait_for(len(ids))
            tenant.wait_until_delivered()
    assert sorted(receiver.ids) == sorted(ids)


def test_what_no_worker_ends_is_ended_and_told(tenant: Tenant, redis_url: str) -> None:
    with Receiver() as receiver, SenderThread(redis_url):
        tenant.set(receiver.url)
        tenant.herd.submit("a", JOB.model_copy(update={"deadline_ms": 1}))
        (request,) = receiver.wait_for(1)
        tenant.wait_until_delivered()
    data = {"id": "a", "state": "failed", "finish_reason": "deadline"}
    assert request.verified(SECRET)["data"] == data


def test_a_failure_is_tried_again_with_the_same_id(tenant: Tenant, redis_url: str) -> None:
    with Receiver(lambda request, number: 500 if number < 3 else 200) as receiver, SenderThread(redis_url):
        tenant.set(receiver.url)
        tenant.end("a")
        for num in (1, 2):
            failed = tenant.wait_for_tries("a", num)
            assert failed.entry.error == "HTTP 500"
            assert not failed.is_dead
            tenant.hurry("a")
        tenant.wait_until_delivered()
    assert [request.message for request in receiver.requests] == ["msg_a"] * 3
    assert len({request.body for request in receiver.requests}) == 1
    assert all(request.verified(SECRET) for request in receiver.requests)


def test_who_is_gone_is_not_asked_again_before_a_person_says_so(tenant: Tenant, redis_url: str) -> None:
    with Receiver(lambda request, number: 410 if number == 1 else 200) as receiver, SenderThread(redis_url):
        tenant.set(receiver.url)
        tenant.end("a")
        dead = tenant.wait_for_dead("a")
        assert (dead.entry.error, dead.entry.tries) == ("HTTP 410", 1)
        run_dialogue(tenant.herd.redis, retry_webhook("default", "a"))
        tenant.wait_until_delivered()
    assert len(receiver.requests) == 2


@pytest.mark.long
def test_after_the_last_try_it_is_given_up(tenant: Tenant, redis_url: str) -> None:
    with Receiver(lambda request, number: 503) as receiver, SenderThread(redis_url):
        tenant.set(receiver.url)
        tenant.end("a")
        for num in range(1, 13):
            tenant.wait_for_tries("a", num)
            tenant.hurry("a")
        assert tenant.wait_for_dead("a").entry.error == "HTTP 503"
    assert len(receiver.requests) == 13


def test_a_redirect_is_not_followed(tenant: Tenant, redis_url: str) -> None:
    with Receiver() as other, Receiver(lambda request, number: 302) as receiver, SenderThread(redis_url):
        receiver.location = other.url
        tenant.set(receiver.url)
        tenant.end("a")
        assert tenant.wait_for_tries("a", 1).entry.error == "HTTP 302"
    assert not other.requests


def test_an_answer_that_is_no_http_is_a_failure(tenant: Tenant, redis_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, SenderThread(redis_url):
        tenant.set(f"http://127.0.0.1:{server.getsockname()[1]}/")
        tenant.end("a")
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"x\r\n\r\n")
            assert tenant.wait_for_tries("a", 1).entry.error == "the answer is no HTTP"


def test_an_answer_without_an_end_is_not_waited_for(tenant: Tenant, redis_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, SenderThread(redis_url):
        tenant.set(f"http://127.0.0.1:{server.getsockname()[1]}/")
        tenant.end("a")
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            tenant.wait_until_delivered()


def test_a_closed_port_is_a_failure(tenant: Tenant, redis_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with SenderThread(redis_url):
        tenant.set(f"http://127.0.0.1:{port}/")
        tenant.end("a")
        assert str(tenant.wait_for_tries("a", 1).entry.error).startswith("no connection")


def test_a_dead_host_beside_holds_up_no_other(
    tenant: Tenant, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "DEPTH", 64)
    with Silence() as dead, Receiver() as receiver, SenderThread(redis_url, timeout_s=60.0):
        tenant.set(receiver.url, "localhost")
        tenant.end(*(f"d{number}" for number in range(200)), webhook=f"http://localhost:{dead.port}/")
        tenant.end(*(f"a{number}" for number in range(100)))
        receiver.wait_for(100)
        assert {job_id[0] for job_id in receiver.ids} == {"a"}
        assert sum(one.entry.id[0] == "d" for one in tenant.outbox()) == 200


def test_a_tenant_whose_port_is_dead_holds_up_no_other_at_the_same_host(
    tenant: Tenant, redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "DEPTH", 64)
    other = Tenant(Herd(redis, Ledger("acme", lease_ms=60_000)))
    with Silence() as dead, Receiver() as receiver, SenderThread(redis_url, timeout_s=60.0):
        other.set(f"http://127.0.0.1:{dead.port}/")
        tenant.set(receiver.url)
        other.end(*(f"d{number}" for number in range(200)))
        ended_ms = 1000 * (1 + redis.time()[0])
        wait_until(lambda: not redis.zcount("herd:acme:outbox", 0, ended_ms), "all are taken, or put off")
        tenant.end("a")
        receiver.wait_for(1)
        assert len(other.outbox()) == 200


def test_names_that_nobody_resolves_hold_up_no_other(
    tenant: Tenant, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lookup takes a thread until the name server answers, if it ever does: one for each host."""
    may_answer, resolve, slow = Event(), socket.getaddrinfo, ("a.invalid", "b.invalid", "c.invalid")

    def lookup(host: str, *others: Any, **options: Any) -> Any:
        if host in slow:
            may_answer.wait(PATIENCE_S)
        return resolve(host, *others, **options)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    with Receiver() as receiver, SenderThread(redis_url):
        tenant.set(f"http://localhost:{receiver.port}/", *slow)
        for host in slow:
            tenant.end(*(f"{host[0]}{number}" for number in range(20)), webhook=f"http://{host}/")
        tenant.end("x")
        receiver.wait_for(1)
        may_answer.set()


def test_a_host_that_does_not_answer_gets_one_try_at_a_time(tenant: Tenant, redis_url: str) -> None:
    with Silence() as dead, SenderThread(redis_url, timeout_s=0.2):
        tenant.set(f"http://127.0.0.1:{dead.port}/")
        tenant.end(*(f"d{number}" for number in range(100)))
        wait_until(lambda: any(one.entry.tries for one in tenant.outbox()), "some have failed")
        assert {one.entry.error for one in tenant.outbox()} == {None, "no answer within 0.2 s"}


def test_an_address_of_a_job_needs_a_host_that_the_tenant_allows(tenant: Tenant, redis_url: str) -> None:
    with Receiver() as receiver, SenderThread(redis_url):
        tenant.set("https://example.com/", "localhost", jobs=False)
        tenant.end("a", webhook=f"http://localhost:{receiver.port}/own")
        assert receiver.wait_for(1)[0].path == "/own"
        tenant.end("b", webhook=receiver.url)
        dead = tenant.wait_for_dead("b")
    assert "--host 127.0.0.1" in str(dead.entry.error)
    assert len(receiver.requests) == 1


def test_an_address_of_a_job_may_have_a_secret_of_its_own(tenant: Tenant, redis_url: str) -> None:
    own = "whsec_" + 32 * "A"
    with Receiver(lambda request, number: 500 if number == 1 else 204) as receiver:
        tenant.set("https://example.com/", "127.0.0.1", jobs=False)
        tenant.end("a", webhook=receiver.url, secret=own)
        tenant.herd.redis.delete(tenant.herd.ledger.job_key("a"))
        with SenderThread(redis_url):
            tenant.wait_until_delivered(hurries="a")
            tenant.end("b", webhook=receiver.url)
            tenant.wait_until_delivered()
    first, again, other = receiver.requests
    assert first.verified(own) == again.verified(own)
    assert other.verified(SECRET)["data"]["id"] == "b"


def test_any_text_of_a_producer_is_refused_by_name(tenant: Tenant, redis_url: str) -> None:
    tenant.set("https://example.com/")
    for number, text in enumerate(("ftp://example.com/", "https://example.com:x/", "\x00", "https://[")):
        tenant.herd.submit(f"a{number}")
        tenant.herd.redis.hset(tenant.herd.ledger.job_key(f"a{number}"), "webhook", text)
        tenant.end(f"a{number}")
    with SenderThread(redis_url):
        errors = [str(tenant.wait_for_dead(f"a{number}").entry.error) for number in range(4)]
    assert all(error.startswith("the job's address must ") for error in errors)


def test_any_text_as_a_secret_is_refused_by_name_and_not_shown(tenant: Tenant, redis_url: str) -> None:
    tenant.set("https://example.com/")
    for number, text in enumerate(("canary", "whsec_canary", "whsec_\x00", "whsec_")):
        tenant.herd.submit(f"a{number}", JOB.model_copy(update={"webhook": "https://example.com/"}))
        tenant.herd.redis.hset(tenant.herd.ledger.job_key(f"a{number}"), "webhook_secret", text)
        run_call(tenant.herd.redis, tenant.herd.ledger.cancel(f"a{number}"))
    with SenderThread(redis_url):
        errors = [str(tenant.wait_for_dead(f"a{number}").entry.error) for number in range(4)]
    assert all(error.startswith("the job's secret must ") and "canary" not in error for error in errors)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_private_address_is_refused_when_connecting(
    tenant: Tenant, redis_url: str, host: str, scheme: str
) -> None:
    with Receiver() as receiver, SenderThread(redis_url, allows_private=False):
        tenant.set(f"{scheme}://{host}:{receiver.port}/")
        tenant.end("a")
        dead = tenant.wait_for_dead("a")
    assert "HERD_GATEWAY_WEBHOOK_PRIVATE" in str(dead.entry.error)
    assert not receiver.requests


@needs_openssl
def test_the_certificate_is_that_of_the_name(tenant: Tenant, redis_url: str, tmp_path: Path) -> None:
    right, wrong = (Identity.make(tmp_path, name) for name in ("localhost", "example.com"))
    tls = ssl.create_default_context(cadata=right.file.read_text() + wrong.file.read_text())
    with (
        Receiver() as receiver,
        TlsFront(receiver.port, right) as good,
        TlsFront(receiver.port, wrong) as bad,
        SenderThread(redis_url, tls=tls),
    ):
        tenant.set(f"https://localhost:{bad.port}/")
        tenant.end("a")
        assert "certificate" in str(tenant.wait_for_tries("a", 1).entry.error)
        assert not receiver.requests
        tenant.set(f"https://localhost:{good.port}/")
        tenant.wait_until_delivered(hurries="a")
        assert len(receiver.requests) == 1


@pytest.mark.long
def test_an_outage_of_redis_is_waited_out() -> None:
    with EmbeddedRedis() as server, Receiver() as receiver, SenderThread(server.url):
        for job_id in ("a", "b"):
            with Redis.from_url(server.url) as redis:
                tenant = Tenant(Herd(redis, Ledger(lease_ms=60_000, worker="w")))
                tenant.set(receiver.url)
                tenant.end(job_id)
                tenant.wait_until_delivered()
            server.stop()
            server.start()
    assert receiver.ids == ["a", "b"]


def test_one_of_two_sends_and_the_other_when_that_one_stands_still(
    tenant: Tenant, redis: Redis, redis_url: str
) -> None:
    with Receiver() as receiver, SenderThread(redis_url, lease_s=60.0) as first:
        tenant.set(receiver.url)
        wait_until(lambda: redis.exists(SENDER), "the first has the role")
        holder = redis.hget(SENDER, "holder")
        with SenderThread(redis_url, lease_s=60.0) as second:
            tenant.end("a")
            receiver.wait_for(1)
            tenant.wait_until_delivered()
            assert redis.hget(SENDER, "holder") == holder
            first.freeze()
            redis.hset(SENDER, "until_ms", 1)  # its lease is over
            second.ask_for_the_role()
            tenant.end("b")
            receiver.wait_for(2)
            assert redis.hget(SENDER, "holder") != holder
            tenant.wait_until_delivered()
    assert receiver.ids == ["a", "b"]


def test_as_long_as_nobody_has_webhooks_nothing_is_written(redis: Redis, redis_url: str) -> None:
    def num_looks() -> int:
        return int(redis.info("commandstats").get("cmdstat_hgetall", {"calls": 0})["calls"])

    redis.config_resetstat()
    with SenderThread(redis_url):
        wait_until(lambda: num_looks() >= 2, "it has looked twice")
        assert redis.keys("*") == []


@pytest.fixture
def no_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that ends has time to say so, however slow Redis is."""
    monkeypatch.setattr(sender, "STOP_S", PATIENCE_S)


@pytest.mark.usefixtures("no_haste")
def test_who_ends_in_order_leaves_the_role_and_what_was_under_way(
    tenant: Tenant, redis: Redis, redis_url: str
) -> None:
    with Silence() as dead:
        tenant.set(f"http://127.0.0.1:{dead.port}/")
        tenant.end("a")
        with SenderThread(redis_url):
            wait_until(
                lambda: tenant.outbox()[0].at_ms > tenant.outbox()[0].entry.ended_ms, "it is under way"
            )
        assert not redis.exists(SENDER)
        (left,) = tenant.outbox()
        assert left.at_ms <= 1000 * (redis.time()[0] + 1)


@pytest.mark.usefixtures("no_haste")
def test_who_ends_amid_a_round_leaves_what_that_has_taken(
    tenant: Tenant, redis: Redis, redis_url: str
) -> None:
    with Silence() as dead:
        tenant.set(f"http://127.0.0.1:{dead.port}/")
        for turn in range(20):  # most ends are not amid one
            redis.delete("herd:default:outbox")
            tenant.end(*(f"a{turn}-{number}" for number in range(40)))
            soon_ms = 1000 * (redis.time()[0] + 30)
            with SenderThread(redis_url):
                while not redis.zcount("herd:default:outbox", soon_ms, "+inf"):
                    pass
            assert not redis.zcount("herd:default:outbox", soon_ms, "+inf")


def test_after_the_removal_nothing_is_sent(tenant: Tenant, redis: Redis, redis_url: str) -> None:
    with Receiver() as receiver:
        tenant.set(receiver.url)
        tenant.end("a")
        assert run_dialogue(redis, remove_webhooks("default")) == 1
        assert not redis.keys("herd:default:outbox*")
        tenant.set(receiver.url)
        with SenderThread(redis_url):
            tenant.end("b")
            receiver.wait_for(1)
    assert receiver.ids == ["b"]


def test_a_spoilt_outbox_of_a_tenant_holds_up_no_other(tenant: Tenant, redis: Redis, redis_url: str) -> None:
    with Receiver() as receiver:
        run_dialogue(redis, store_webhooks("acme", receiver.url, (), jobs=True, secret=SECRET))
        tenant.set(receiver.url)
        redis.set("herd:acme:outbox", "x")
        redis.hset("herd:webhooks", "other", "{}")
        with SenderThread(redis_url):
            tenant.end("a")
            receiver.wait_for(1)
