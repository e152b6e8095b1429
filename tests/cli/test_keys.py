"""`herd keys` and `herd gateway`, as a person meets them."""

import json
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from tests.cli.herd_command import invoke
from tests.guarded_redis import GuardedRedis, newest_dialect

pytestmark = [pytest.mark.redis, pytest.mark.usefixtures("away")]


def test_a_key_is_shown_once(redis: Redis, redis_url: str) -> None:
    assert "no keys" in invoke("keys", "list", HERD_REDIS_URL=redis_url).stdout
    made = invoke("keys", "create", "billing", "--tenant", "acme", HERD_REDIS_URL=redis_url)
    key = made.stdout.strip()
    assert key.startswith("herd-")
    shown = invoke("keys", "list", HERD_REDIS_URL=redis_url).stdout
    assert all(word in shown for word in ("billing", "acme", "producer"))
    assert key not in shown
    (facts,) = map(json.loads, invoke("keys", "list", "--json", HERD_REDIS_URL=redis_url).stdout.splitlines())
    assert "digest" not in facts
    assert (
        invoke("keys", "revoke", facts["fingerprint"], HERD_REDIS_URL=redis_url).stdout == "revoked billing\n"
    )
    assert not redis.exists("herd:keys")


@pytest.mark.long
def test_of_the_users_that_herd_acl_makes_the_gatekeeper_makes_keys_for_every_tenant(tmp_path: Path) -> None:
    folder, tenants = str(tmp_path / "secrets"), ("--tenant", "acme", "--tenant", "globex")
    assert invoke("acl", folder, "--redis", newest_dialect(), *tenants, "--model", "m").exit_code == 0
    with GuardedRedis(tmp_path / "secrets") as server:
        keeper = {"HERD_REDIS_URL": server.url_of("gatekeeper")}
        for tenant in ("acme", "globex"):
            assert invoke("keys", "create", tenant, "--tenant", tenant, **keeper).stdout.startswith("herd-")
        assert invoke("keys", "revoke", "globex", **keeper).stdout == "revoked globex\n"
        assert "acme" in invoke("keys", "list", **keeper).stdout
        assert "acme" in invoke("keys", "list", HERD_REDIS_URL=server.url_of("acme-gateway")).stdout
        for words in (("create", "billing"), ("revoke", "acme"), ("list",)):
            refused = invoke("keys", *words, HERD_REDIS_URL=server.url_of("acme-operator"))
            assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
            assert "does not let this user do that (NOPERM)" in refused.stderr
            assert refused.stderr.count("Fix:") == refused.stderr.count("redis://gatekeeper@host") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("x y",),
        ("x", "--role", "worker"),
        ("x", "--tenant", "a:b"),
        ("x", "--max-priority", "11"),
        ("x", "--expires", "soon"),
        ("x", "--expires", "3651d"),
        ("x", "--expires", "500ms"),
    ],
)
def test_a_wrong_word_is_one_line(redis_url: str, words: tuple[str, ...]) -> None:
    done = invoke("keys", "create", *words, HERD_REDIS_URL=redis_url)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)


def test_a_key_may_bound_the_priority_of_its_jobs(redis: Redis, redis_url: str) -> None:
    for name, words in (("bulk", ("--max-priority", "-1")), ("any", ())):
        invoke("keys", "create", name, *words, HERD_REDIS_URL=redis_url)
    shown = invoke("keys", "list", HERD_REDIS_URL=redis_url)
    assert "bulk  priority up to -1" in shown.stdout
    assert shown.stdout.count("priority") == 1
    assert not shown.stderr


def test_a_key_may_expire_and_the_list_says_when(redis: Redis, redis_url: str) -> None:
    for name, words in (("guest", ("--expires", "30d")), ("own", ())):
        invoke("keys", "create", name, *words, HERD_REDIS_URL=redis_url)
    lines = invoke("keys", "list", HERD_REDIS_URL=redis_url).stdout.splitlines()
    assert [" expires " in line for line in lines] == ["guest" in line for line in lines]
    shown = invoke("keys", "list", "--json", HERD_REDIS_URL=redis_url).stdout
    facts = {one["name"]: one for one in map(json.loads, shown.splitlines())}
    assert facts["own"]["expires_ms"] is None
    assert facts["guest"]["expires_ms"] - facts["guest"]["created_ms"] == 30 * 86_400_000
    fingerprint = facts["guest"]["fingerprint"]
    redis.hset("herd:keys", fingerprint, let_expire(redis, fingerprint))
    assert "guest  expired 1970-01-01 00:00 UTC" in invoke("keys", "list", HERD_REDIS_URL=redis_url).stdout


def let_expire(redis: Redis, fingerprint: str) -> str:
    """What is stored of a key that has expired."""
    stored: Any = redis.hget("herd:keys", fingerprint)
    return json.dumps({**json.loads(stored), "expires_ms": 1})


def test_an_open_gateway_refuses_other_hosts(redis: Redis, redis_url: str) -> None:
    done = invoke("gateway", "--open", "--host", "0.0.0.0", "--port", "0", HERD_REDIS_URL=redis_url)
    assert done.exit_code == 2
    assert done.stderr.startswith("herd: HERD_GATEWAY_OPEN=")
    assert "HERD_GATEWAY_HOST=0.0.0.0" in done.stderr


def test_a_damaged_key_is_shown_and_revoked(redis: Redis, redis_url: str) -> None:
    redis.hset("herd:keys", "0" * 16, "{}")
    shown = invoke("keys", "list", HERD_REDIS_URL=redis_url)
    assert f"herd keys revoke {'0' * 16}" in shown.stderr
    assert "job" not in shown.stderr
    assert invoke("keys", "create", "billing", HERD_REDIS_URL=redis_url).exit_code == 0
    assert invoke("keys", "revoke", "0" * 16, HERD_REDIS_URL=redis_url).exit_code == 0
    assert redis.hlen("herd:keys") == 1


@pytest.mark.long
def test_a_gateway_without_redis_says_so(tmp_path: Path) -> None:
    done = invoke("gateway", "--port", "0", HERD_REDIS_URL="redis://127.0.0.1:1/0")
    assert done.exit_code == 1
    assert "cannot be reached" in done.stderr
