"""A worker of two tenants, one of which is hostile: in both orders, of which the other one is slow."""

from collections.abc import Callable, Iterator

import pytest
from redis import Redis

from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.message import queue_name
from llama_herd.tasks.security.acl import Acl, Role
from llama_herd.tasks.security.rights import Dialect
from tests.guarded_redis import GuardedRedis, write_users
from tests.local.processes import WorkerProcess
from tests.tiny import write_tiny_gguf
from tests.worker.hostile_tenant.attacks import GLOBEX, Attack
from tests.worker.hostile_tenant.tenant import ACME, SLOTS, Tenant, clean


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedRedis]:
    """With the rules for Redis 6.2, which allow most of this."""
    folder = tmp_path_factory.mktemp("acl")
    acls = [Acl(tenant, [queue_name("m", tenant)]) for tenant in (ACME, GLOBEX)]
    users = {"worker": Acl.rights_in(acls, Role.WORKER)}
    users |= {f"{GLOBEX}-{role}": acls[1].rights(role) for role in Role}
    write_users(folder, users, Dialect.FLAT)
    with GuardedRedis(folder) as server:
        yield server


@pytest.fixture(scope="module")
def root(server: GuardedRedis) -> Iterator[Redis]:
    with Redis.from_url(server.url) as redis:
        yield redis


@pytest.fixture(
    scope="module",
    params=[f"{GLOBEX},{ACME}", pytest.param(f"{ACME},{GLOBEX}", marks=pytest.mark.slow)],
)
def worker(
    request: pytest.FixtureRequest, server: GuardedRedis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkerProcess]:
    path = write_tiny_gguf(tmp_path_factory.mktemp("model") / "m.gguf", eos=False, context_length=8192)
    with WorkerProcess(
        server.url_of("worker"),
        path,
        "both",
        path.with_name("log"),
        slots=SLOTS,
        grace_s=0.2,
        silence_s=10.0,
        tenants=request.param,
    ) as worker:
        yield worker


@pytest.fixture(scope="module")
def acme(server: GuardedRedis, root: Redis) -> Iterator[Tenant]:
    with Client(server.url, tenant=ACME, model="m") as client:
        yield Tenant(ACME, client, root)


@pytest.fixture(scope="module")
def globex(server: GuardedRedis, root: Redis) -> Iterator[Tenant]:
    with Client(server.url, tenant=GLOBEX, model="m") as client:
        yield Tenant(GLOBEX, client, root)


@pytest.fixture(autouse=True)
def cleaned(root: Redis) -> Iterator[None]:
    yield
    clean(root)


@pytest.fixture(scope="module")
def strike(server: GuardedRedis) -> Iterator[Callable[[Attack], None]]:
    users = {
        role: Redis.from_url(server.url_of(f"{GLOBEX}-{role}"), protocol=2)
        for role in (Role.PRODUCER, Role.WORKER)
    }

    def run(attack: Attack) -> None:
        """What a user may not run, or comes too late, does no harm either."""
        with users[attack.role].pipeline(transaction=False) as pipeline:
            for command in attack.commands:
                pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
            pipeline.execute(raise_on_error=False)

    yield run
    for user in users.values():
        user.close()
