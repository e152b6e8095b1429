"""The Redis that the settings name: whether it answers, and whether it keeps data."""

from collections.abc import Mapping
from typing import Any

from redis import Redis
from redis.exceptions import NoPermissionError

from llama_herd.cli.doctor.finding import Finding
from llama_herd.errors import HerdError, RedisUnavailable
from llama_herd.local.own_redis import is_port_taken, local_port
from llama_herd.local.redis_server import find_server
from llama_herd.tasks.complaint import CLUSTER, READ_ONLY, SENTINEL
from llama_herd.tasks.connection import connect, redis_errors
from llama_herd.tasks.ledger.replies import text
from llama_herd.tasks.redis_url import masked

#: The scripts use commands of this version.
MIN_VERSION = (6, 2)

#: Modes and roles of a Redis that cannot keep jobs.
_UNFIT = {"cluster": CLUSTER, "sentinel": SENTINEL, "replica": READ_ONLY}

#: What is said of what this user may not see, and the fix.
_UNSEEN = ("not seen: this user of Redis may not run INFO", "run it as a worker or an operator of herd acl")


def check_redis(url: str) -> list[Finding]:
    """Findings about the Redis at `url`; if none answers, whether one could be started there."""
    try:
        with connect(url, tries=0) as redis, redis_errors(url):
            greeting = _greeting(redis)
            info = _info(redis)
    except HerdError as error:
        return [Finding.from_error(error, "redis"), *_check_port(url)]
    if unfit := _UNFIT.get(greeting["mode"]) or _UNFIT.get(greeting["role"]):
        return [Finding.from_error(RedisUnavailable(f"Redis at {masked(url)} {unfit}"), "redis")]
    return [_check_version(url, greeting, info), _check_eviction(info), _check_persistence(info)]


def _greeting(redis: Redis) -> Mapping[str, Any]:
    """Redis's answer to HELLO: server, version, mode and role. Every user may ask, whatever its rights."""
    reply: Any = redis.execute_command("HELLO")  # type: ignore[no-untyped-call]
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {text(name): text(value) for name, value in pairs if isinstance(value, bytes)}


def _info(redis: Redis) -> Mapping[str, Any] | None:
    """Redis's own figures, which only some users may see; None for the others."""
    try:
        return redis.info()
    except NoPermissionError:
        return None


def _check_version(url: str, greeting: Mapping[str, Any], info: Mapping[str, Any] | None) -> Finding:
    """The finding about the version. Valkey may greet as the Redis that it replaces; that version counts."""
    version, needed = greeting["version"], ".".join(map(str, MIN_VERSION))
    if tuple(map(int, version.split(".")[:2])) >= MIN_VERSION:
        valkey = info.get("valkey_version") if info else version * (greeting["server"] == "valkey")
        return Finding("redis", "ok", f"{f'Valkey {valkey}' if valkey else version} at {masked(url)}")
    return Finding("redis", "fail", f"{version} at {masked(url)}", f"take Redis {needed} or newer, or Valkey")


def _check_eviction(info: Mapping[str, Any] | None) -> Finding:
    if info is None:
        return Finding("eviction", "warn", *_UNSEEN)
    policy, max_bytes = info.get("maxmemory_policy", "unknown"), info.get("maxmemory", 0)
    limit = f"maxmemory {max_bytes:,} bytes" if max_bytes else "no maxmemory"
    if policy == "noeviction":
        return Finding("eviction", "ok", f"none, {limit}")
    detail = f"policy {policy}, {limit}: a full Redis drops accepted jobs and streams"
    return Finding(
        "eviction",
        "fail" if max_bytes else "warn",
        detail,
        "redis-cli CONFIG SET maxmemory-policy noeviction",
    )


def _check_persistence(info: Mapping[str, Any] | None) -> Finding:
    if info is None:
        return Finding("persistence", "warn", *_UNSEEN)
    if info.get("aof_enabled"):
        return Finding("persistence", "ok", "append-only file")
    detail = "no append-only file: accepted jobs are lost when Redis ends"
    return Finding("persistence", "warn", detail, "redis-cli CONFIG SET appendonly yes")


def _check_port(url: str) -> list[Finding]:
    """Whether `herd redis` could start one where none answers."""
    port = local_port(url)
    if port is None:
        return []
    if is_port_taken(port):
        detail = f"{port} is in use, but no usable Redis answers there"
        return [Finding("port", "fail", detail, "set HERD_REDIS_URL to another port")]
    try:
        find_server()
    except HerdError as error:
        return [Finding.from_error(error, "port", "warn")]
    return [Finding("port", "ok", f"{port} is free: herd redis starts a Redis there")]
