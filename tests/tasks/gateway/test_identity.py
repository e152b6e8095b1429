"""Who may come in: keys, tenants and roles; nobody without a key, unless the gateway is open."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.errors import BadInput, RecordUnreadable, SettingsError
from llama_herd.tasks.gateway.app import ROUTES
from llama_herd.tasks.gateway.herd_routes import DENIED
from llama_herd.tasks.gateway.request_log import JsonLogFormatter
from llama_herd.tasks.gateway.routes import OPERATIONS
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.ledger.redis_call import run_call, run_dialogue
from llama_herd.tasks.ledger.script import kept_scripts
from llama_herd.tasks.ledger.stored_api_keys import API_KEYS, all_keys
from llama_herd.tasks.security.acl import Acl, Role
from llama_herd.tasks.security.api_keys import KeyRole, create_key, known_key, revoke_key
from tests.chaos.harness.patience import wait_until
from tests.guarded_redis import GuardedRedis, write_users
from tests.logged import listening
from tests.tasks.gateway.gateway_thread import GatewayThread, events_of
from tests.tasks.gateway.test_http import QUERIES
from tests.tasks.herd import Herd, end, started

pytestmark = pytest.mark.redis

JOB = {"prompt": "the secret prompt"}


def made(redis: Redis, name: str, tenant: str = "default", role: KeyRole = KeyRole.OPERATOR) -> str:
    return run_dialogue(redis, create_key(name, tenant, role))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_a_key_is_kept_as_its_hash(redis: Any) -> None:
    key = made(redis, "one")
    assert key.startswith("herd-")
    assert key.encode() not in b"".join((*redis.hgetall(API_KEYS), *redis.hgetall(API_KEYS).values()))
    found = run_dialogue(redis, known_key(key))
    assert found is not None
    assert (found.name, found.tenant, found.role) == ("one", "default", "operator")
    assert run_dialogue(redis, known_key(key[:-1])) is None


def test_a_stored_key_with_another_s_hash_lets_nobody_in(redis: Any) -> None:
    """The fingerprint only finds a key; what counts is the whole hash."""
    key = made(redis, "one")
    (fingerprint,), (raw,) = redis.hgetall(API_KEYS).keys(), redis.hgetall(API_KEYS).values()
    digest = run_call(redis, all_keys()).keys[0].digest
    redis.hset(API_KEYS, fingerprint, raw.replace(digest.encode(), digest[:-1].encode() + b"!"))
    assert run_dialogue(redis, known_key(key)) is None


def test_a_revoked_key_is_none_and_its_name_is_free(redis: Redis) -> None:
    key = made(redis, "one")
    with pytest.raises(BadInput, match="there is one of this name"):
        made(redis, "one")
    run_dialogue(redis, revoke_key("one"))
    assert run_dialogue(redis, known_key(key)) is None
    with pytest.raises(BadInput, match="there is none"):
        run_dialogue(redis, revoke_key("one"))
    made(redis, "one")


@pytest.mark.parametrize(("name", "tenant"), [("", "default"), ("a b", "default"), ("a", "b:c"), ("a", "")])
def test_a_key_s_names_are_plain(redis: Redis, name: str, tenant: str) -> None:
    with pytest.raises(BadInput):
        made(redis, name, tenant)


@pytest.fixture
def keys(redis: Redis, herd: Herd) -> dict[KeyRole, str]:
    return {role: made(redis, role, role=role) for role in KeyRole}


#: Of every route one request, in no order.
REQUESTS = [
    (method, route.path.format(id="x", model="tales", name="style.css") + QUERIES.get(route.path, ""))
    for route in ROUTES
    for method in sorted(route.methods or ())
    if method != "HEAD"
]
HEALTH = [path for _, path in REQUESTS if path.startswith("/health")]
OPEN = [*HEALTH, "/", "/page/style.css", "/docs", "/openapi.json"]


@pytest.mark.long
def test_with_keys_nothing_but_health_the_page_and_the_description_is_open(
    closed_gateway: GatewayThread, keys: object
) -> None:
    for method, path in REQUESTS:
        found = closed_gateway.ask(method, path, {} if method == "POST" else None)
        if path in OPEN:
            assert found.status == 200, path
        else:
            assert (found.status, found.error["code"]) == (401, "invalid_api_key"), path
            assert found.headers["www-authenticate"] == "Bearer"


def test_what_a_browser_reads_without_a_key_is_of_no_tenant(
    closed_gateway: GatewayThread, redis: Redis, herd: Herd, keys: object
) -> None:
    """The same bytes before and after there is another tenant, with a job."""
    paths = ("/", "/docs", "/openapi.json")
    before = [closed_gateway.ask("GET", path).raw for path in paths]
    shown = bearer(made(redis, "another", "acme"))
    assert closed_gateway.ask("POST", "/v1/jobs", JOB, shown).status == 202
    assert [closed_gateway.ask("GET", path).raw for path in paths] == before
    for text in before:
        assert b"acme" not in text


def test_an_expired_key_opens_nothing_from_that_moment_on_and_is_told_why(
    closed_gateway: GatewayThread, gateway: GatewayThread, redis: Any
) -> None:
    """No gateway remembers a key that it has let in, and an open one takes nobody for its holder either."""
    key = run_dialogue(redis, create_key("guest", "default", KeyRole.OPERATOR, expires_s=3600))
    made(redis, "another")
    for one in (closed_gateway, gateway):
        assert one.ask("GET", "/v1/models", headers=bearer(key)).status == 200
    ((fingerprint, raw),) = [one for one in redis.hgetall(API_KEYS).items() if b"guest" in one[1]]
    redis.hset(API_KEYS, fingerprint, json.dumps({**json.loads(raw), "expires_ms": 1}))
    for one in (closed_gateway, gateway):
        for path in ("/v1/models", "/health"):
            found = one.ask("GET", path, headers=bearer(key))
            assert (found.status, found.error["code"]) == (401, "expired_api_key")
            assert found.error["message"] == "this key expired at 1970-01-01 00:00 UTC"
            assert found.headers["www-authenticate"] == "Bearer"


#: What is no key of ours, in each form in which a client may show it.
NO_KEYS_OF_OURS = [
    "Bearer herd-wrong",
    "Bearer sk-x",
    "Basic d3Jvbmc6d3Jvbmc=",
    "herd-wrong",
    "Bearer \xe4\xff",
]


@pytest.mark.parametrize("shown", NO_KEYS_OF_OURS)
def test_a_wrong_key_opens_nothing_at_all(closed_gateway: GatewayThread, redis: Redis, shown: str) -> None:
    made(redis, "another")
    for method, path in REQUESTS:
        found = closed_gateway.ask(method, path, {} if method == "POST" else None, {"Authorization": shown})
        assert (found.status, found.error["code"]) == (401, "invalid_api_key"), path


@pytest.mark.long
@pytest.mark.parametrize(("shown", "has_keys"), [("Bearer sk-x", False), ("Basic d3Jvbmc6d3Jvbmc=", True)])
def test_to_an_open_gateway_a_key_that_is_not_known_is_none(
    gateway: GatewayThread, herd: Herd, shown: str, has_keys: bool
) -> None:
    """OpenAI's clients show one always. It opens no more than none: by routes, hosts, origins and proxies."""
    if has_keys:
        made(herd.redis, "another")
    sent = {"Authorization": shown}
    for method, path in REQUESTS:
        for others in (
            {},
            {"X-Forwarded-For": "127.0.0.1"},
            {"Host": "evil.example"},
            {"Origin": "http://x"},
        ):
            body: object = {} if method == "POST" else None
            with_key, without = (gateway.ask(method, path, body, others | one) for one in (sent, {}))
            if "X-Forwarded-For" in others and without.status != 503:  # there it is a wrong one
                assert (with_key.status, with_key.error["code"]) == (401, "invalid_api_key"), path
            else:
                assert with_key.status == without.status, (path, others)
            if others and path not in OPEN:
                assert with_key.status in (401, 403, 503), (path, others)


def test_to_an_open_gateway_a_key_that_is_known_is_its_holder(
    gateway: GatewayThread, herd: Herd, keys: dict[KeyRole, str]
) -> None:
    for role in KeyRole:
        assert gateway.ask("GET", "/v1/herd", headers=bearer(keys[role])).json["role"] == role
    other = bearer(made(herd.redis, "other", "acme"))
    assert gateway.ask("GET", "/v1/herd", headers=other).json["tenant"] == "acme"
    assert gateway.ask("GET", "/v1/herd", headers=bearer("sk-x")).json["tenant"] == "default"


def test_to_an_open_gateway_a_key_that_cannot_be_read_is_refused(gateway: GatewayThread, redis: Any) -> None:
    """Its holder must not become somebody else."""
    shown = bearer(made(redis, "one", "acme"))
    (fingerprint,), (raw,) = redis.hkeys(API_KEYS), redis.hvals(API_KEYS)
    for stored in (b"{}", raw.replace(b'"operator"', b'"admiral"')):
        redis.hset(API_KEYS, fingerprint, stored)
        assert gateway.ask("GET", "/v1/herd", headers=shown).status == 401


def test_without_keys_nothing_but_health_is_open(closed_gateway: GatewayThread, herd: Herd) -> None:
    with listening() as logged:
        for method, path in REQUESTS:
            found = closed_gateway.ask(method, path, {} if method == "POST" else None)
            if path in HEALTH:
                assert found.status == 200, path
            else:
                assert (found.status, found.error["code"]) == (503, "no_keys"), path
                assert "herd keys create" in found.error["message"]
                assert found.headers["retry-after"] == "1"
    told = [one.getMessage() for one in logged.records if one.name.endswith("identity")]
    assert len(told) == 1
    assert "herd keys create" in told[0]


def test_keys_that_vanish_let_nobody_in(closed_gateway: GatewayThread, redis: Redis, herd: Herd) -> None:
    """As when Redis comes back without its data, or the last key is revoked."""
    shown = bearer(made(redis, "one"))
    assert closed_gateway.ask("GET", "/v1/herd", headers=shown).status == 200
    redis.flushall()
    assert closed_gateway.ask("GET", "/v1/herd").error["code"] == "no_keys"
    found = closed_gateway.ask("GET", "/v1/herd", headers=shown)
    assert (found.status, found.error["code"]) == (503, "no_keys")
    assert closed_gateway.ask("POST", "/v1/jobs", JOB, {"X-Forwarded-For": "1.2.3.4"}).status == 503


@pytest.mark.parametrize(
    "header", ["X-Forwarded-For", "X-Forwarded-Host", "x-forwarded-proto", "Forwarded", "X-Real-IP", "Via"]
)
def test_what_a_proxy_sends_on_is_of_another_machine(
    gateway: GatewayThread, redis: Redis, herd: Herd, header: str
) -> None:
    assert gateway.ask("POST", "/v1/jobs", JOB).status == 202
    assert gateway.ask("POST", "/v1/jobs", JOB, {header: "127.0.0.1"}).error["code"] == "no_keys"
    shown = bearer(made(redis, "one"))
    assert gateway.ask("POST", "/v1/jobs", JOB, {header: "127.0.0.1"}).error["code"] == "invalid_api_key"
    assert gateway.ask("POST", "/v1/jobs", JOB, {**shown, header: "127.0.0.1"}).status == 202


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "gateway.example"])
def test_a_gateway_is_not_open_where_others_call(host: str) -> None:
    with pytest.raises(
        SettingsError, match=rf"HERD_GATEWAY_HOST={host}, .*Fix: HERD_GATEWAY_HOST=127\.0\.0\.1"
    ):
        GatewaySettings.read(gateway_host=host, gateway_open=True)
    assert not GatewaySettings.read(gateway_host=host).gateway_open


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_a_gateway_may_be_open_to_its_machine(host: str) -> None:
    assert GatewaySettings.read(gateway_host=host, gateway_open=True).gateway_open


@pytest.mark.parametrize("name", ["Host", "Origin"])
@pytest.mark.parametrize("value", ["[", "http://[", "[::1", "http://]["])
def test_an_odd_name_is_somebody_else_s(gateway: GatewayThread, herd: Herd, name: str, value: str) -> None:
    assert gateway.ask("POST", "/v1/jobs", JOB, {name: value}).status == 403


@pytest.mark.parametrize("raw", ["{}", "x", "[]", '{"v": 1, "digest": "d", "name": 5}', "[" * 9000])
def test_a_damaged_key_is_named_and_harms_no_other(
    closed_gateway: GatewayThread, redis: Any, herd: Herd, raw: str
) -> None:
    shown = made(redis, "one")
    (fingerprint,) = (field.decode() for field in redis.hkeys(API_KEYS))
    redis.hset(API_KEYS, fingerprint, raw)
    other = bearer(made(redis, "other"))
    with pytest.raises(RecordUnreadable, match=rf"{fingerprint}.*Fix: herd keys revoke {fingerprint}"):
        run_dialogue(redis, known_key(shown))
    found = closed_gateway.ask("GET", "/v1/herd", headers=bearer(shown))
    assert (found.status, found.error["code"]) == (401, "invalid_api_key")
    assert "job" not in found.error["message"]
    assert closed_gateway.ask("GET", "/v1/herd", headers=other).status == 200
    assert closed_gateway.ask("GET", "/health/ready").status == 200
    assert run_dialogue(redis, revoke_key(fingerprint)) == fingerprint
    assert run_call(redis, all_keys()).unreadable == ()


def test_a_role_does_what_it_may(gateway: GatewayThread, keys: dict[KeyRole, str]) -> None:
    subscriber, producer, operator = (bearer(keys[role]) for role in KeyRole)
    assert gateway.ask("POST", "/v1/jobs", JOB, subscriber).error["code"] == "forbidden"
    place = "/v1/jobs/" + gateway.ask("POST", "/v1/jobs", JOB, producer).json["id"]
    assert gateway.ask("GET", place, headers=subscriber).json["state"] == "queued"
    assert gateway.ask("DELETE", place, headers=subscriber).status == 403
    assert gateway.ask("DELETE", place, headers=producer).status == 202
    assert gateway.ask("POST", f"{place}/purge", headers=producer).status == 403
    assert gateway.ask("POST", f"{place}/purge", headers=operator).status == 204


def test_each_route_refuses_every_smaller_role(gateway: GatewayThread, keys: dict[KeyRole, str]) -> None:
    refused = [(one, role) for one in OPERATIONS if one.role for role in KeyRole if not role.may(one.role)]
    assert refused
    for one, role in refused:
        path = one.path.format(id="x", model="tales", name="1-1")
        found = gateway.ask(
            one.method.upper(), path, {} if one.method == "post" else None, bearer(keys[role])
        )
        assert (found.status, found.error["code"]) == (403, "forbidden"), (one.method, path, role)


@pytest.mark.parametrize(
    "job",
    [
        JOB,
        {
            "messages": [{"role": "user", "content": "a secret"}],
            "chat_template_kwargs": {"about": "a secret"},
            "structured_outputs": {"choice": ["a secret"]},
        },
        {"kind": "embed", "texts": ["a secret"]},
        {"kind": "embed", "text_ids": [[1234567]]},
        {"kind": "rank", "query": "a secret", "documents": ["1234567"]},
    ],
)
def test_only_an_operator_sees_what_a_job_asks_and_which_jobs_there_are(
    gateway: GatewayThread, keys: dict[KeyRole, str], job: dict[str, Any]
) -> None:
    subscriber, producer, operator = (bearer(keys[role]) for role in KeyRole)
    asked = job | {"metadata": {"order": "secret 7"}, "webhook": "https://example.com/secret"}
    place = "/v1/jobs/" + gateway.ask("POST", "/v1/jobs", asked, producer).json["id"]
    assert gateway.ask("DELETE", place, headers=producer).status == 202
    for headers in (subscriber, producer):
        seen = gateway.ask("GET", place, headers=headers)
        assert (seen.status, seen.json["job"]["priority"]) == (200, 0)
        assert not any(word in seen.raw.decode() for word in ("secret", "1234567", JOB["prompt"]))
        assert gateway.ask("GET", "/v1/jobs", headers=headers).error["code"] == "forbidden"
    seen = gateway.ask("GET", place, headers=operator).json["job"]
    assert {name: seen[name] for name in asked} == asked
    assert len(gateway.ask("GET", "/v1/jobs", headers=operator).json["data"]) == 1


def test_another_tenant_s_job_is_not_there(gateway: GatewayThread, redis: Redis, herd: Herd) -> None:
    own, other = bearer(made(redis, "own")), bearer(made(redis, "other", "acme"))
    place = "/v1/jobs/" + gateway.ask("POST", "/v1/jobs", JOB, own).json["id"]
    assert gateway.ask("GET", place, headers=own).status == 200
    for method, path in (("GET", ""), ("GET", "/events"), ("DELETE", ""), ("POST", "/purge")):
        assert gateway.ask(method, place + path, headers=other).status == 404
    assert gateway.ask("GET", "/v1/models", headers=other).json["data"] == []


def test_to_an_open_gateway_a_site_s_page_is_somebody_else(gateway: GatewayThread, herd: Herd) -> None:
    """A page elsewhere may make a browser here send requests, also to a name of its own for this machine."""
    foreign = {"Origin": "https://evil.example"}
    assert gateway.ask("POST", "/v1/jobs", JOB, foreign).error["code"] == "foreign_origin"
    own = {"Origin": gateway.url}
    assert gateway.ask("POST", "/v1/jobs", JOB, own).status == 202
    assert gateway.ask("POST", "/v1/jobs", JOB, {"Host": "evil.example"}).error["code"] == "foreign_host"


def test_a_named_origin_may_call(redis_url: str, herd: Herd) -> None:
    origin = {"Origin": "https://app.example"}
    with GatewayThread(redis_url, origins="https://app.example") as gateway:
        found = gateway.ask("GET", "/v1/models", headers=origin)
    assert (found.status, found.headers["access-control-allow-origin"]) == (200, "https://app.example")


def test_a_page_elsewhere_is_let_in_by_its_name_only(redis_url: str, herd: Herd) -> None:
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    with GatewayThread(redis_url, origins="https://app.example") as gateway:
        found = gateway.ask("OPTIONS", "/v1/jobs", headers={"Origin": "https://app.example", **asks})
        assert (found.status, found.headers["access-control-allow-headers"]) == (200, "authorization")
        assert "access-control-allow-credentials" not in found.headers
        for origin in ("https://evil.example", "https://app.example.evil.example", "null"):
            found = gateway.ask("OPTIONS", "/v1/jobs", headers={"Origin": origin, **asks})
            assert (found.status, found.headers.get("access-control-allow-origin")) == (400, None)
            assert found.error["code"] == "foreign_origin"
            assert found.headers["vary"].startswith("Origin")
            assert gateway.ask("POST", "/v1/jobs", JOB, {"Origin": origin}).status == 403


def test_two_tenants_may_give_the_same_name_to_their_jobs(
    gateway: GatewayThread, redis: Redis, herd: Herd
) -> None:
    name = {"Idempotency-Key": "order 7"}
    own, other = ({**bearer(made(redis, tenant, tenant)), **name} for tenant in ("default", "acme"))
    first, second = (gateway.ask("POST", "/v1/jobs", JOB, headers) for headers in (own, other))
    assert first.status == second.status == 202
    assert first.json["id"] != second.json["id"]
    assert gateway.ask("GET", f"/v1/jobs/{first.json['id']}", headers=other).status == 404


def test_a_key_that_is_revoked_opens_nothing_more_and_breaks_nothing_off(
    closed_gateway: GatewayThread, redis: Redis, herd: Herd
) -> None:
    made(redis, "another")
    shown = bearer(made(redis, "one"))
    place = "/v1/jobs/" + closed_gateway.ask("POST", "/v1/jobs", JOB, shown).json["id"]
    job_id = place.rpartition("/")[2]
    herd.claimed(job_id)
    herd.emit("one", started(job_id))
    with closed_gateway.send("GET", f"{place}/events", headers=shown) as answer:
        events = events_of(answer)
        assert next(events).name == "started"
        run_dialogue(redis, revoke_key("one"))
        assert closed_gateway.ask("GET", place, headers=shown).status == 401
        herd.emit("one", end(job_id, 2, 0))
        assert [event.name for event in events] == ["end"]


def test_no_key_and_no_prompt_is_logged(telling_gateway: GatewayThread, keys: dict[KeyRole, str]) -> None:
    shown = bearer(keys[KeyRole.PRODUCER])
    with listening(logging.DEBUG) as logged:
        logged.setFormatter(JsonLogFormatter())
        for body in (JOB, {**JOB, "nonsense": 1}, {"prompt": 5}):
            telling_gateway.ask("POST", "/v1/jobs", body, shown)
            foreign = {**shown, "Origin": "http://x"}
            telling_gateway.ask("POST", "/v1/completions", {"model": "tales", **body}, foreign)
        telling_gateway.ask("GET", "/v1/models", headers=bearer("herd-wrong-secret"))
    assert "invalid_job" in logged.text
    assert "secret" not in logged.text
    assert keys[KeyRole.PRODUCER] not in logged.text


def test_a_bug_s_words_are_not_logged(
    telling_gateway: GatewayThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be a prompt's. Its place is."""

    async def stumble(*_: object) -> None:
        raise ValueError("the secret prompt")

    monkeypatch.setattr("llama_herd.tasks.gateway.call.read_body", stumble)
    with listening() as logged:
        logged.setFormatter(JsonLogFormatter())
        found = telling_gateway.ask("POST", "/v1/jobs", JOB)
        assert (found.status, found.error["code"]) == (500, "internal_error")
        wait_until(lambda: not telling_gateway.num_requests, "the request is over")
    assert "ValueError at" in logged.text
    assert "secret" not in logged.text


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedRedis]:
    """A Redis whose gateway may serve one model of one tenant, and a worker for both tenants."""
    folder = tmp_path_factory.mktemp("acl")
    write_users(folder, {"door": Acl("default", ["herd.tales"]).rights(Role.GATEWAY)})
    with GuardedRedis(folder) as server, Redis.from_url(server.url) as root:
        for script in kept_scripts():
            root.script_load(script.source)
        yield server


@pytest.mark.long
def test_a_right_that_the_gateway_lacks_is_named(guarded: GuardedRedis) -> None:
    """It is the operator who must act: to come again later is of no use."""
    with (
        Redis.from_url(guarded.url) as root,
        GatewayThread(guarded.url_of("door"), models="tales,other") as gateway,
    ):
        assert gateway.ask("POST", "/v1/jobs", {**JOB, "model": "tales"}).status == 202
        for path in ("/v1/jobs", "/v1/completions"):
            found = gateway.ask("POST", path, {**JOB, "model": "other"})
            assert (found.status, found.error["code"], found.error["param"]) == (
                403,
                "not_permitted",
                "model",
            )
            assert "the model other of the tenant default" in found.error["message"]
            assert "retry-after" not in found.headers
        shown = bearer(made(root, "acme", "acme"))
        for path in ("/v1/herd", "/v1/models", "/v1/jobs/x", "/v1/jobs/x/events"):
            found = gateway.ask("GET", path, headers=shown)
            assert (found.status, found.error["code"]) == (403, "not_permitted")
            assert "the tenant acme" in found.error["message"]
        found = gateway.ask("GET", "/health/ready")  # which anybody may ask
        assert (found.status, found.json["reason"]) == (503, DENIED)
        gateway.forget()
        with StandIn(guarded.url):
            assert gateway.ask("GET", "/health/ready").status == 200
        root.delete(API_KEYS)
