"""What `herd doctor` checks of Redis: whether it keeps jobs, and what is wrong or complained of there."""

import re
from collections.abc import Iterator, Mapping
from time import time
from typing import Any
from urllib.parse import urlsplit

from redis import Redis
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    RedisError,
    ResponseError,
)

from llama_herd.cli.doctor.finding import Finding
from llama_herd.errors import HerdError, RedisUnavailable
from llama_herd.extras import missing_modules
from llama_herd.local.redis_server import find_server, is_port_taken, local_port
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.connection.complaint import CLUSTER, READ_ONLY, SENTINEL
from llama_herd.tasks.connection.connect import connect, redis_errors
from llama_herd.tasks.connection.redis_url import masked
from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.ledger.redis_call import redis_time_ms, run_call
from llama_herd.tasks.ledger.replies import text
from llama_herd.tasks.protocol.priority import lists_of
from llama_herd.tasks.protocol.worker_status import fleet_complaints
from llama_herd.worker.settings import WorkerSettings

#: The scripts use commands of this version.
MIN_VERSION = (6, 2)

#: Modes and roles of a Redis that cannot keep jobs.
_UNFIT = {"cluster": CLUSTER, "sentinel": SENTINEL, "replica": READ_ONLY}

#: What gives a full Redis room.
_ROOM = "wait until ended jobs expire, herd purge --all-ended, or raise its maxmemory"

#: Errors that a Redis answers: then nothing is wrong with its port.
_ANSWERS = (ResponseError, AuthenticationError, BusyLoadingError)

#: What is said of what this user may not see, and the fix.
_UNSEEN = ("not seen: this user of Redis may not run INFO", "run it as a worker or an operator of herd acl")

#: A clock that is off by less does no harm. What is judged by a machine's own clock all the same.
MAX_SKEW_S = 10.0
BY_OWN_CLOCK = "what Celery lets expire, times in not_before and the ends of API keys are off by as much"

#: Most keys that are looked through, in steps of so many, and most lists that are named.
MAX_KEYS, STEP, MAX_NAMED = 200_000, 1000, 5

#: How far before its end a message's own routing is searched: kombu writes its properties last.
TAIL_BYTES = 4096

_ROUTED = re.compile(rb'"routing_key": ?"([^"\\]+)"')
_FIX = (
    "leave `sep`, `global_keyprefix` and `priority_steps` beyond 0 to 9 out of the producer's "
    "broker_transport_options, then send these messages anew"
)


def check_redis(url: str) -> list[Finding]:
    """Findings about the Redis at `url`; if none answers, whether one could be started there."""
    try:
        with connect(url, tries=0) as redis, redis_errors(url):
            greeting, info, of_clock = _greeting(redis), _info(redis), _check_clock(redis)
    except HerdError as error:
        has_answered = isinstance(error.__cause__, _ANSWERS)
        return [Finding.told(error, "redis"), *([] if has_answered else _check_port(url))]
    if unfit := _UNFIT.get(greeting["mode"]) or _UNFIT.get(greeting["role"]):
        return [Finding.told(RedisUnavailable(f"Redis at {masked(url)} {unfit}"), "redis")]
    version = _check_version(url, greeting, info)
    if info is None:
        unseen = (Finding(subject, "warn", *_UNSEEN) for subject in ("eviction", "persistence"))
        return [version, *of_clock, *unseen]
    return [version, *of_clock, _check_eviction(url, info), _check_persistence(url, info)]


def check_results(settings: WorkerSettings) -> Iterator[Finding]:
    """Whether a worker can store results in the Redis of HERD_RESULT_URL, if that is another one."""
    if missing_modules("worker") or not settings.keeps_results_elsewhere:
        return
    from llama_herd.worker.broker.result_server import complaint_of, try_to_store

    place = masked(settings.results_url)
    try:
        with connect(settings.results_url, tries=0) as redis:
            for own in settings.by_queue.values():
                try_to_store(redis, Keys(own.tenant).results_prefix)
    except RedisError as error:
        yield Finding.told(f"Redis at {place} {complaint_of(error)}", "results")
    else:
        yield Finding("results", "ok", f"stored at {place}")


def _greeting(redis: Redis) -> Mapping[str, Any]:
    """Redis's answer to HELLO: server, version, mode and role. Every user may ask, whatever its rights."""
    reply: Any = redis.execute_command("HELLO")  # type: ignore[no-untyped-call]
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {text(name): text(value) for name, value in pairs if isinstance(value, bytes)}


def _info(redis: Redis) -> Mapping[str, Any] | None:
    """Redis's own figures, which only some users may see; None: this one may not."""
    try:
        return redis.info()
    except NoPermissionError:
        return None


def _check_clock(redis: Redis) -> list[Finding]:
    """A warning if this machine's clock is far from that of Redis; none where Redis may not be asked."""
    try:
        ahead_s = time() - run_call(redis, redis_time_ms()) / 1000
    except NoPermissionError:
        return []
    if abs(ahead_s) < MAX_SKEW_S:
        return []
    detail = f"{abs(ahead_s):,.0f} s {'ahead of' if ahead_s > 0 else 'behind'} that of Redis"
    return [Finding("clock", "warn", f"{detail}: {BY_OWN_CLOCK}", "set both clocks by NTP")]


def _check_version(url: str, greeting: Mapping[str, Any], info: Mapping[str, Any] | None) -> Finding:
    """The finding about the version. Valkey may greet as the Redis that it replaces; that version counts."""
    version, needed = greeting["version"], ".".join(map(str, MIN_VERSION))
    if tuple(map(int, version.split(".")[:2])) >= MIN_VERSION:
        valkey = info.get("valkey_version") if info else version * (greeting["server"] == "valkey")
        return Finding("redis", "ok", f"{f'Valkey {valkey}' if valkey else version} at {masked(url)}")
    return Finding("redis", "fail", f"{version} at {masked(url)}", f"take Redis {needed} or newer, or Valkey")


def to_set(url: str, setting: str) -> str:
    """The command that changes a setting of this Redis: redis-cli has to be told which one is meant."""
    parts = urlsplit(url)
    if not parts.scheme.startswith("redis"):  # Sentinels know it
        return f"redis-cli CONFIG SET {setting}, at the primary"
    host = f"-h {parts.hostname} " if parts.hostname and local_port(url) is None else ""
    port = f"-p {parts.port} " if parts.port not in (None, 6379) else ""
    return f"redis-cli {'--tls ' * (parts.scheme == 'rediss')}{host}{port}CONFIG SET {setting}"


def _check_eviction(url: str, info: Mapping[str, Any]) -> Finding:
    policy, max_bytes = str(info.get("maxmemory_policy", "unknown")), info.get("maxmemory", 0)
    limit = f"maxmemory {max_bytes:,} bytes" if max_bytes else "no maxmemory"
    if policy == "noeviction":
        if max_bytes and info.get("used_memory", 0) > max_bytes:
            return Finding("eviction", "fail", f"none, {limit}, all in use: no job is accepted", _ROOM)
        return Finding("eviction", "ok", f"none, {limit}")
    # What waits or runs has no lifetime.
    lost = (
        "streams and results of ended jobs" if policy.startswith("volatile") else "accepted jobs and streams"
    )
    detail = f"policy {policy}, {limit}: a full Redis drops {lost}"
    fix = to_set(url, "maxmemory-policy noeviction")
    return Finding("eviction", "fail" if max_bytes else "warn", detail, fix)


def _check_persistence(url: str, info: Mapping[str, Any]) -> Finding:
    if info.get("aof_enabled"):
        return Finding("persistence", "ok", "append-only file")
    detail = "no append-only file: accepted jobs are lost when Redis ends"
    fix = to_set(url, "appendonly yes")
    if local_port(url) is not None:  # that of `herd redis` keeps nothing beyond its own end, whatever is set
        fix = f"start it by herd redis --dir FOLDER; or, if it is none of herd redis, {fix}"
    return Finding("persistence", "warn", detail, fix)


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
        return [Finding.told(error, "port", "warn")]
    return [Finding("port", "ok", f"{port} is free: herd redis starts a Redis there")]


def check_queue_lists(url: str) -> Iterator[Finding]:
    """Name the lists that hold messages for a model's queue under a name that no worker asks."""
    try:
        with connect(url, tries=0) as redis, redis_errors(url):
            unread = _unread_lists(redis)
    except (HerdError, RedisError):  # another check has told, or this user may not see the keys
        return
    if unread:
        named = ", ".join(f"{name!r} ({num:,})" for name, num in unread[:MAX_NAMED])
        more = f" and {len(unread) - MAX_NAMED} more" if len(unread) > MAX_NAMED else ""
        detail = f"messages lie in lists that no worker reads: {named}{more}"
        yield Finding("queues", "warn", detail, _FIX)


def _unread_lists(redis: Redis) -> list[tuple[str, int]]:
    """Such lists and their lengths, of the first MAX_KEYS keys."""
    found: list[tuple[str, int]] = []
    reply: Any = (0, ())
    for _ in range(MAX_KEYS // STEP):
        reply = redis.scan(reply[0], match="*herd.*", count=STEP, _type="list")
        for key in reply[1]:
            try:
                message, num = redis.lindex(key, -1), redis.llen(key)
            except ResponseError:  # it was replaced, or is another tenant's
                continue
            routed = _ROUTED.findall(message[-TAIL_BYTES:] if isinstance(message, bytes) else b"")
            queue = text(routed[-1]) if routed else ""
            if queue.startswith("herd.") and text(key) not in lists_of(queue):
                found.append((text(key), num))
        if not reply[0]:
            break
    return found


def check_workers(settings: WorkerSettings) -> Iterator[Finding]:
    """Say what the workers of these tenants complain of."""
    complaints: list[str] = []
    for own in settings.by_queue.values():
        try:
            with Client(settings=own) as client:
                complaints += fleet_complaints(client.workers())
        except (HerdError, RedisError):  # another check has told, or this user may not see the reports
            continue
    for complaint in dict.fromkeys(complaints):
        yield Finding.told(complaint, "workers", "warn")
