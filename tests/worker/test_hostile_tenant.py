"""What a tenant does to its own keys costs the other tenants of the same worker no time."""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any

import psutil
import pytest
from redis import Redis

from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.message import Envelope, queue_name
from llama_herd.tasks.priority import LANES
from llama_herd.tasks.security.acl import Acl, Dialect, Role
from llama_herd.tasks.worker_status import WorkerStatus
from llama_herd.worker.process import NUM_LOOK_AHEAD
from tests.guarded_redis import GuardedRedis, write_users
from tests.tiny import write_tiny_gguf
from tests.worker.processes import PATIENCE_S, WorkerProcess, wait_until

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]

ACME, GLOBEX = "acme", "globex"
SLOTS = 4
QUEUE, KEYS = queue_name("m", GLOBEX), Keys(GLOBEX)
#: So much CPU time may worker and Redis take meanwhile, and so many bytes may be read of Redis.
MAX_CPU_S, MAX_READ_BYTES = 2.0, 25_000_000
#: So much more memory may a worker have taken meanwhile.
MAX_MEMORY_MB = 50
#: So much later than undisturbed may a job of the other tenant be answered, where nothing else runs.
MAX_DELAY_S = 2.0
SHORT = {"max_tokens": 8}

Command = tuple[Any, ...]


@dataclass(frozen=True)
class Attack:
    """Commands of a tenant's user, and who that is."""

    name: str
    commands: Iterable[Command]
    role: Role = Role.PRODUCER


@dataclass(frozen=True)
class LongStream:
    """Events that look like ours, but for their length, and the record of their job; made anew each time."""

    num_events: int
    state: str

    def __iter__(self) -> Iterator[Command]:
        text = "x" * (STREAM_BYTES // self.num_events)
        for seq in range(1, self.num_events + 1):
            yield _event("f", seq, type="token", i=seq - 1, ids=[1], text=text)
        yield from _forged("f", seq=self.num_events, n=self.num_events, state=self.state)


def _of_another_type() -> Iterator[Attack]:
    """Each key that a producer may write to, as what it is not."""
    lists = [QUEUE + lane for lane in LANES]
    ledger = [KEYS.key(name) for name in ("pending", "delayed", "leases", "waiting")]
    bindings = [f"_kombu.binding{kind}.{QUEUE}" for kind in ("", "_permanent")]
    for key in lists + bindings + ledger:
        yield Attack(f"{key!r} is a stream", [("XADD", key, "*", "x", "x")])
        yield Attack(f"{key!r} is a hash", [("HSET", key, "x", "x")])
    for key in lists + ledger:
        yield Attack(f"{key!r} is a set", [("SADD", key, "x")])
    for key in bindings + ledger:
        yield Attack(f"{key!r} is a list", [("LPUSH", key, "x")])
    for key in lists:
        yield Attack(f"{key!r} is a string", [("SET", key, "x")], Role.WORKER)


def _forged(job_id: str, **fields: Any) -> list[Command]:
    """A job whose record nobody has checked."""
    job = {"v": 1, "prompt": "a", "tenant": GLOBEX, "sampling": SHORT}
    envelope = Envelope.of(job_id, QUEUE)
    record = {
        "state": "queued", "body": json.dumps(job), "queue": QUEUE, "lane": "", "envelope": envelope.text,
        "tokens": 9, "submitted_ms": 1, "due_ms": 1, "epoch": 0, "seq": 0, "n": 0, "lease": 0,
        "attempts": 0, "starts": 0, "pushes": 0, "waits": 0,
    } | fields  # fmt: skip
    pairs = [part for pair in record.items() for part in pair]
    message = envelope.with_tag(f"{job_id}:1:1")
    return [("HSET", KEYS.job_key(job_id), *pairs), ("LPUSH", QUEUE, message)]


#: Messages of one tenant that the worker holds at most: its own places, and those that no tenant owns.
NUM_PLACES = SLOTS + NUM_LOOK_AHEAD
#: More of them than that.
NUM_FORGED = 60


def _forgeries(**fields: Any) -> list[Command]:
    return [command for number in range(NUM_FORGED) for command in _forged(f"f{number}", **fields)]


def _event(job_id: str, seq: int, **fields: Any) -> Command:
    event = {"v": 1, "seq": seq, "job": job_id, "epoch": 1, **fields}
    return ("XADD", KEYS.events_key(job_id), f"{seq}-0", "e", json.dumps(event))


FOREIGN = Attack("jobs of an owner who never ends", _forgeries(state="running", owner="x", lease=9 * 10**15))
FORGERIES = [
    Attack("jobs that no claim can read", _forgeries(due_ms="soon")),
    FOREIGN,
    Attack("a job that has been due for ever", _forged("f", due_ms=-(10**300))),
    Attack("a job of fewer than no tokens", _forged("f", n=-1)),
    Attack("a job of fewer than no starts", _forged("f", starts=-2)),
    Attack(
        "a token that no vocabulary has",
        [
            _event("f", 1, type="token", i=0, ids=[-1], text=""),
            *_forged("f", seq=1, n=1),
        ],
    ),
    Attack(
        "a result of a billion outputs",
        [
            _event("f", 1, type="started", attempt=1, worker="w", model="m", seed=1, n=10**9),
            _event("f", 2, type="end", finish_reason="stop", n=0, attempts=1),
            *_forged("f", seq=2, state="done"),
        ],
    ),
]

#: Bytes of a forged stream; each event of it has as many as one of our own may have, or all.
STREAM_BYTES, EVENT_BYTES = 100_000_000, 1_000_000

#: Of a job that is to be gone on with, and of one whose result is to be stored.
LONG_STREAMS = [
    Attack(f"{num} events are 100 MB of a {state} job", LongStream(num, state))
    for num in (1, STREAM_BYTES // EVENT_BYTES)
    for state in ("queued", "done")
]

FLOODS = [
    Attack("a flood of junk", [("LPUSH", QUEUE, *["x"] * 500)]),
    Attack("messages of megabytes", [("LPUSH", QUEUE, "x" * 4_000_000)] * 5),
    Attack("notices that are none", [("PUBLISH", KEYS.control_channel, "x" * 100_000)] * 50),
    Attack("many names", [("ZADD", KEYS.key("leases"), *[part for n in range(9999) for part in (n, n)])]),
]

ATTACKS = [*_of_another_type(), *FORGERIES, *FLOODS, *LONG_STREAMS]
#: Another draw at another time would not be the same test.
SAMPLE = [*random.Random(7).sample([*_of_another_type()], 8), *FORGERIES, *FLOODS]


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


@pytest.fixture(scope="module", params=[f"{ACME},{GLOBEX}", f"{GLOBEX},{ACME}"])
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


@dataclass(frozen=True)
class Effort:
    """What worker and Redis have done so far. A machine that is busy elsewhere adds little to it."""

    cpu_s: float
    read_bytes: int

    @property
    def is_much(self) -> bool:
        return self.cpu_s > MAX_CPU_S or self.read_bytes > MAX_READ_BYTES

    def __sub__(self, before: "Effort") -> "Effort":
        return Effort(self.cpu_s - before.cpu_s, self.read_bytes - before.read_bytes)


@pytest.fixture(scope="module")
def effort(server: GuardedRedis, worker: WorkerProcess, root: Redis) -> Callable[[], Effort]:
    def so_far() -> Effort:
        times = [psutil.Process(pid).cpu_times() for pid in (server.pid, worker.process.pid)]
        read_bytes = root.info("stats")["total_net_output_bytes"]
        return Effort(sum(time.user + time.system for time in times), read_bytes)

    return so_far


@dataclass(frozen=True)
class Tenant:
    """One whose jobs the worker runs."""

    name: str
    client: Client
    root: Redis

    @property
    def worker(self) -> WorkerStatus:
        """What the one worker says of itself to this tenant."""
        (worker,) = self.client.workers()
        return worker

    def answered_s(self) -> float:
        """How long a short job takes, until Celery has its result."""
        since_s = monotonic()
        job_id = self.client.submit(prompt="a tale", sampling=SHORT)
        assert self.client.result(job_id, timeout_s=PATIENCE_S).finish_reason == "length"
        key = Keys(self.name).result_key(job_id)
        wait_until(lambda: self.root.exists(key), "the result is stored")
        return monotonic() - since_s


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


def clean(root: Redis) -> None:
    """Forget all that is the hostile tenant's."""
    if names := [key for key in root.scan_iter(f"*{GLOBEX}*") if b"+" not in key]:
        root.delete(*names)


@pytest.fixture(scope="module")
def undisturbed_s(worker: WorkerProcess, acme: Tenant) -> float:
    return max(acme.answered_s() for _ in range(5))


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


@pytest.mark.parametrize(
    ("attacks", "max_delay_s"),
    [
        pytest.param(SAMPLE, inf, id="a sample"),
        pytest.param(ATTACKS, MAX_DELAY_S, id="all", marks=[pytest.mark.slow, pytest.mark.timeout(400)]),
    ],
)
def test_whatever_a_tenant_does_to_its_own_keys_the_other_is_answered_in_time(
    attacks: Sequence[Attack],
    max_delay_s: float,
    strike: Callable[[Attack], None],
    worker: WorkerProcess,
    acme: Tenant,
    globex: Tenant,
    root: Redis,
    undisturbed_s: float,
    effort: Callable[[], Effort],
) -> None:
    delays_s, efforts = {}, {}
    for attack in attacks:
        before = effort()
        strike(attack)
        # The first is there before the worker has seen the harm, the second not.
        delays_s[attack.name] = max(acme.answered_s() for _ in range(2)) - undisturbed_s
        assert worker.is_alive, attack.name
        efforts[attack.name] = effort() - before
        clean(root)
    assert {name: delay_s for name, delay_s in delays_s.items() if delay_s > max_delay_s} == {}
    assert {name: effort for name, effort in efforts.items() if effort.is_much} == {}
    globex.answered_s()  # once its keys are as they should be, it is served again
    assert "Connection to broker lost" not in worker.log


def test_jobs_of_an_owner_who_never_ends_hold_a_tenants_places_no_longer_than_they_are_there(
    strike: Callable[[Attack], None], worker: WorkerProcess, globex: Tenant, root: Redis
) -> None:
    strike(FOREIGN)
    wait_until(lambda: root.llen(QUEUE) == NUM_FORGED - NUM_PLACES, "the worker takes as many as it may")
    clean(root)
    globex.answered_s()


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(attack, id=attack.name, marks=[pytest.mark.slow] * is_slow)
        for attack, is_slow in zip(LONG_STREAMS, (False, True, True, False), strict=True)
    ],
)
def test_a_forged_stream_takes_neither_time_nor_memory_of_others(
    attack: Attack,
    strike: Callable[[Attack], None],
    worker: WorkerProcess,
    acme: Tenant,
    root: Redis,
    effort: Callable[[], Effort],
) -> None:
    worker.forget_peak()
    before, before_mb = effort(), worker.peak_mb
    strike(attack)
    for _ in range(3):
        acme.answered_s()
    wait_until(lambda: root.hexists(KEYS.job_key("f"), "settled"), "it is done with")
    assert not (effort() - before).is_much
    assert worker.peak_mb - before_mb < MAX_MEMORY_MB


@pytest.mark.parametrize("lane", [LANES[0]], ids=["urgent"])
def test_a_spoilt_queue_is_left_out_with_one_word_and_taken_back(
    lane: str,
    strike: Callable[[Attack], None],
    worker: WorkerProcess,
    acme: Tenant,
    globex: Tenant,
    root: Redis,
) -> None:
    log_before = len(worker.log.splitlines())
    strike(Attack("", [("SADD", QUEUE + lane, "x")]))
    wait_until(lambda: "queue left out" in "".join(worker.log.splitlines()[log_before:]), "it is left out")
    for _ in range(3):
        acme.answered_s()
    (line,) = (line for line in worker.log.splitlines()[log_before:] if "warning" in line or "error" in line)
    assert json.loads(line)["queue"] == QUEUE
    root.delete(QUEUE + lane)
    globex.answered_s()


def test_a_worker_tells_each_tenant_which_of_its_own_queues_it_leaves_out(
    strike: Callable[[Attack], None], worker: WorkerProcess, acme: Tenant, globex: Tenant, root: Redis
) -> None:
    strike(Attack("", [("SADD", QUEUE + LANES[0], "x")]))
    wait_until(globex.client.workers, "it says anything again")
    wait_until(lambda: globex.worker.left_out, "it says that it leaves the queue out")
    told = globex.worker
    assert (told.state, told.left_out, told.spoilt_key) == ("ready", QUEUE, QUEUE + LANES[0])
    assert told.spoilt_type == "set"
    assert (acme.worker.state, acme.worker.left_out, acme.worker.spoilt_key) == ("ready", "", "")
    root.sadd(queue_name("m", ACME), "x")
    wait_until(lambda: acme.worker.state == "spoilt", "it reads no queue at all")
    root.delete(queue_name("m", ACME), QUEUE + LANES[0])
    wait_until(lambda: {acme.worker.state, globex.worker.state} == {"ready"}, "it is ready again")
    wait_until(lambda: not acme.worker.left_out and not globex.worker.left_out, "it reads both")
    for tenant in (acme, globex):
        tenant.answered_s()


@pytest.mark.fault
def test_a_worker_starts_beside_a_spoilt_tenant_and_stays(
    strike: Callable[[Attack], None], worker: WorkerProcess, acme: Tenant, root: Redis
) -> None:
    """Also when its watchdog would see messages that wait and are not asked for."""
    strike(Attack("", [("LPUSH", f"_kombu.binding{kind}.{QUEUE}", "x") for kind in ("", "_permanent")]))
    strike(Attack("", [("SADD", QUEUE, "x"), ("LPUSH", QUEUE + LANES[0], "x")]))
    worker.kill()
    with Redis.from_url(worker.settings.redis_url) as redis:
        redis.delete(*(Keys(name).key("workers") for name in (ACME, GLOBEX)))
    worker.start().wait_until_ready()
    acme.answered_s()
    until_s = monotonic() + worker.settings.silence_s + 1.5
    while monotonic() < until_s:
        acme.answered_s()
    assert worker.is_alive
