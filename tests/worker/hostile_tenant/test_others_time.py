"""What a tenant does to its own keys costs the other tenants of the same worker no time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import psutil
import pytest
from redis import Redis

from llama_herd.worker.broker.consumer import UNBOUNDED
from llama_herd.worker.settings import NUM_LOOK_AHEAD
from tests.guarded_redis import GuardedRedis
from tests.local.processes import WorkerProcess, wait_until
from tests.worker.hostile_tenant.attacks import (
    ATTACKS,
    FOREIGN,
    KEYS,
    LONG_STREAMS,
    NESTED,
    NUM_FORGED,
    QUEUE,
    SAMPLE,
    Attack,
    task_message,
)
from tests.worker.hostile_tenant.tenant import SLOTS, Tenant, clean

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]

#: So much CPU time may worker and Redis take meanwhile, and so many bytes may be read of Redis.
MAX_CPU_S, MAX_READ_BYTES = 2.0, 35_000_000
#: So much more memory may a worker have taken meanwhile.
MAX_MEMORY_MB = 50
#: So much later than undisturbed may a job of the other tenant be answered, where nothing else runs.
MAX_DELAY_S = 2.0
#: Messages of one tenant that the worker holds at most: its own places, and those that no tenant owns.
NUM_PLACES = SLOTS + NUM_LOOK_AHEAD


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


@pytest.fixture(scope="module")
def undisturbed_s(worker: WorkerProcess, acme: Tenant) -> float:
    return max(acme.answered_s() for _ in range(5))


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
    wait_until(lambda: root.llen(QUEUE) <= NUM_FORGED - NUM_PLACES, "the worker takes as many as it may")
    clean(root)
    globex.answered_s()


def test_a_sweep_goes_on_whatever_it_finds(
    strike: Callable[[Attack], None], worker: WorkerProcess, acme: Tenant, root: Redis
) -> None:
    told = "job put back into the queue"
    num_before = worker.log.count(told)
    strike(NESTED)
    wait_until(lambda: worker.log.count(told) > num_before or not worker.is_alive, "a sweep has found it")
    assert worker.is_alive
    acme.answered_s()


@pytest.mark.parametrize("name", sorted(UNBOUNDED))
def test_a_task_that_runs_as_many_tasks_as_it_is_told_is_not_run_here(
    name: str, strike: Callable[[Attack], None], worker: WorkerProcess, root: Redis
) -> None:
    strike(Attack(name, [("LPUSH", QUEUE, task_message(name, "t"))]))
    wait_until(lambda: root.exists(KEYS.result_key("t")), "whoever waits is told")
    told: Any = root.get(KEYS.result_key("t"))
    assert f"unknown task, {name}." in told.decode()


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
