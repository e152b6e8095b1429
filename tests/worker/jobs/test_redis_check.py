"""No worker starts on a Redis that keeps no job whole, takes none, or may throw away what it has accepted."""

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis

from llama_herd.errors import SettingsError
from llama_herd.local.redis_server import EmbeddedRedis, find_server
from llama_herd.tasks.connection.connect import connect
from llama_herd.worker.jobs.redis_check import wait_for_usable_redis
from llama_herd.worker.settings import WorkerSettings
from tests.cli.herd_command import COMMAND, environment, invoke
from tests.local.forked_python import run_forked
from tests.local.processes import PATIENCE_S, wait_until
from tests.tls import Identity, TlsFront, needs_openssl

pytestmark = pytest.mark.redis


@pytest.fixture
def redis(redis: Redis) -> Iterator[Redis]:
    """Set as it was once the test is over."""
    before = redis.config_get("maxmemory*")
    yield redis
    for name in ("maxmemory", "maxmemory-policy"):
        redis.config_set(name, str(before[name]))


@pytest.mark.parametrize(
    ("policy", "max_bytes"), [("noeviction", 1 << 30), ("volatile-lru", 1 << 30), ("allkeys-lru", 0)]
)
def test_a_redis_that_keeps_what_waits_is_good(redis: Redis, policy: str, max_bytes: int) -> None:
    redis.config_set("maxmemory", max_bytes)
    redis.config_set("maxmemory-policy", policy)
    wait_for_usable_redis(redis, WorkerSettings())


def test_a_redis_that_drops_any_key_is_refused_with_the_fix(redis: Redis) -> None:
    redis.config_set("maxmemory", 1 << 30)
    redis.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(
        SettingsError,
        match=r"\(maxmemory-policy allkeys-lru\)\. Fix: redis-cli CONFIG SET maxmemory-policy noeviction",
    ):
        wait_for_usable_redis(redis, WorkerSettings())


KINDS = {
    "cluster": "is a cluster, but all keys of a job must be on one server. Fix: put a single Redis",
    "sentinel": "is a Sentinel, or older than Redis 6.2. Fix: to ask a Sentinel for its Redis, write sentinel://host",
    "replica": "is a read-only replica. Fix: put its primary into HERD_REDIS_URL",
}


@pytest.fixture(params=KINDS)
def unfit(request: pytest.FixtureRequest, tmp_path: Path, redis_server: EmbeddedRedis) -> Iterator[str]:
    """The address of a server that answers, and is of another kind; its kind stands in the path's place."""
    # A cluster listens at a port 10,000 higher, too.
    port = next(port for port in iter(lambda: EmbeddedRedis().port, None) if port < 55_000)
    (tmp_path / "sentinel.conf").write_text(f"port {port}\n")
    plain = ["--port", str(port), "--dir", str(tmp_path), "--save", ""]
    options = {
        "cluster": [*plain, "--cluster-enabled", "yes"],
        "sentinel": [str(tmp_path / "sentinel.conf"), "--sentinel"],
        "replica": [*plain, "--replicaof", "127.0.0.1", str(redis_server.port)],
    }
    server = subprocess.Popen([find_server(), *options[request.param]], stdout=subprocess.DEVNULL)
    url = f"redis://127.0.0.1:{port}/0"
    with connect(url, tries=60) as redis:  # for half a minute
        redis.ping()
        if request.param == "cluster":
            redis.execute_command("CLUSTER", "ADDSLOTS", *range(1 << 14))
            wait_until(lambda: redis.cluster("info")["cluster_state"] == "ok", "a cluster")
        if request.param == "replica":
            wait_until(lambda: redis.info("replication")["master_link_status"] == "up", "a replica")
    yield url
    server.kill()
    server.wait()


@pytest.mark.program
def test_a_server_of_another_kind_is_named_and_ends_a_worker(
    unfit: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    words = f"Redis at {unfit} {KINDS[request.node.callspec.params['unfit']]}"
    with connect(unfit) as redis, pytest.raises(SettingsError, match=f"^{words}"):
        wait_for_usable_redis(redis, WorkerSettings(redis_url=unfit), promotion_s=0)
    found = json.loads(invoke("doctor", "--json", HERD_REDIS_URL=unfit).stdout)["findings"]
    (finding,) = (one for one in found if one["subject"] == "redis")
    assert finding["state"] == "fail"
    assert f"{finding['detail']}. Fix: {finding['fix']}".startswith(words)
    sent = invoke("generate", "hi", HERD_REDIS_URL=unfit)
    assert (sent.exit_code, sent.stderr.startswith(f"herd: {words}")) == (2, True)
    if request.node.callspec.params["unfit"] != "cluster":
        return  # a worker says what the check says; a replica it gives time
    done = run_forked([COMMAND[-1], "worker"], environment(HERD_REDIS_URL=unfit), tmp_path)
    assert done.returncode == 2
    complaints = [line for line in done.output.splitlines() if not line.startswith("{")]
    assert complaints[0].startswith(f"herd worker: {words}")
    assert len(complaints) == 1


@pytest.mark.long
def test_a_redis_that_is_away_or_is_promoted_is_waited_for(redis: Redis, redis_server: EmbeddedRedis) -> None:
    redis.replicaof("127.0.0.1", "1")
    with ThreadPoolExecutor() as pool, EmbeddedRedis() as server, connect(server.url, tries=0) as other:
        server.stop()
        check = pool.submit(wait_for_usable_redis, redis, WorkerSettings(redis_url=redis_server.url), 60.0)
        other_check = pool.submit(wait_for_usable_redis, other, WorkerSettings(redis_url=server.url))
        assert wait([check, other_check], timeout=0.7).done == set()
        redis.replicaof("NO", "ONE")
        server.start()
        for done in (check, other_check):
            done.result(PATIENCE_S)


@pytest.mark.long
def test_a_redis_that_lacks_replicas_for_a_while_is_waited_for(
    redis: Redis, redis_server: EmbeddedRedis
) -> None:
    redis.config_set("min-replicas-to-write", 1)
    with ThreadPoolExecutor() as pool, connect(redis_server.url) as own:
        try:
            check = pool.submit(wait_for_usable_redis, own, WorkerSettings(redis_url=redis_server.url))
            assert wait([check], timeout=0.7).done == set()
        finally:
            redis.config_set("min-replicas-to-write", 0)
        check.result(PATIENCE_S)


@contextmanager
def user(redis: Redis, url: str, *rules: str, keys: str = "*") -> Iterator[str]:
    """The address for a user with these rights."""
    redis.acl_setuser("poor", enabled=True, passwords="+x", keys=[keys], commands=["+ping", *rules])
    try:
        yield url.replace("redis://", "redis://poor:x@")
    finally:
        redis.acl_deluser("poor")


def complaint(url: str) -> str:
    """Why no worker starts there."""
    with connect(url) as redis, pytest.raises(SettingsError) as caught:
        wait_for_usable_redis(redis, WorkerSettings(redis_url=url))
    return str(caught.value)


@pytest.mark.long
def test_a_wrong_password_ends_a_worker(redis: Redis, redis_url: str) -> None:
    with user(redis, redis_url) as url:
        assert "rejects the user or the password (WRONGPASS). Fix: " in complaint(url.replace(":x@", ":y@"))


def test_a_user_who_may_not_look_is_passed_over(redis: Redis, redis_url: str) -> None:
    with user(redis, redis_url, "+@all", "-info") as url, connect(url) as own:
        wait_for_usable_redis(own, WorkerSettings(redis_url=url))


@pytest.mark.parametrize(
    ("rules", "keys", "what"),
    [
        (["+@all", "-del"], "*", "write the records of jobs"),
        (["+@all", "-evalsha"], "*", "run scripts"),
        (["+@all"], "herd:*", "read the queue herd.tales"),
        (["+@all", "-exists"], "*", "read the queue herd.tales"),
    ],
)
def test_a_user_who_may_not_run_jobs_is_told_what_is_missing(
    redis: Redis, redis_url: str, rules: list[str], keys: str, what: str
) -> None:
    with user(redis, redis_url, *rules, keys=keys) as url:
        said = complaint(url)
    assert f"does not let this user {what} (NOPERM): " in said
    assert "Fix: give it the role that it needs (herd acl)" in said


@needs_openssl
@pytest.mark.long
def test_a_certificate_that_is_not_trusted_ends_a_worker(redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    with TlsFront(redis_server.port, Identity.make(tmp_path, "127.0.0.1")) as front:
        assert "shows a certificate that is not trusted" in complaint(front.url)
