"""The ledger's gauges: bounded in names and in time."""

import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

import pytest
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.ops import ledger_collector
from llama_herd.ops.ledger_collector import (
    MAX_NAMES,
    OTHER,
    LedgerCollector,
    LedgerReader,
    LedgerReading,
)
from llama_herd.tasks.connection.connect import connect
from llama_herd.tasks.ledger.overview import LaneCounts, QueueCounts, TenantCounts
from llama_herd.tasks.protocol.message import queue_name
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.worker.settings import WorkerSettings
from tests.chaos.harness.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.redis

SETTINGS = WorkerSettings(model_name="served", models="asleep")
NOW_MS = 10**12


@pytest.fixture
def reader(server: EmbeddedRedis) -> Iterator[LedgerReader]:
    with Redis.from_url(server.url, socket_timeout=60) as redis:
        reader = LedgerReader(redis, SETTINGS)
        yield reader
        reader.close()


def load(tenant: str, num_messages: int, model: str = "served") -> TenantCounts:
    """So many messages, the oldest of which has waited for as many seconds."""
    lanes = (LaneCounts("normal", num_messages, NOW_MS - 1000 * num_messages),)
    numbers: dict[str, Any] = {field.name: 0 for field in fields(QueueCounts) if field.type is int}
    queue = QueueCounts(queue_name(model, tenant), **numbers, lanes=lanes)
    return TenantCounts(tenant, NOW_MS, 1, 0, 0, 500, 1000, (queue,))


class Told(LedgerReader):
    """What a ledger might tell."""

    def __init__(self, *loads: TenantCounts, served: Iterable[str]) -> None:
        statuses = (WorkerStatus(name=one, state="ready", model=one, device="", slots=1) for one in served)
        self._told = LedgerReading(0.0, loads, tuple(statuses))

    def read(self) -> LedgerReading:
        return self._told


def samples(*loads: TenantCounts, served: Iterable[str] = ()) -> dict[str, dict[tuple[str, ...], float]]:
    return {
        family.name: {tuple(sample.labels.values()): sample.value for sample in family.samples}
        for family in LedgerCollector(Told(*loads, served=served), SETTINGS).collect()
    }


def test_the_busiest_tenants_have_names_and_the_others_are_one() -> None:
    found = samples(*(load(f"t{number}", number) for number in range(MAX_NAMES + 5)))
    jobs = {tenant: value for (_, tenant, _), value in found["herd_queue_jobs"].items()}
    assert set(jobs) == {*(f"t{number}" for number in range(5, MAX_NAMES + 5)), OTHER}
    assert jobs[OTHER] == sum(range(5))
    assert found["herd_dead_letters"][OTHER,] == 5
    ages = {tenant: value for (_, tenant, _), value in found["herd_queue_oldest_seconds"].items()}
    assert ages[OTHER] == 4


def test_models_that_anybody_may_name_are_bounded_too() -> None:
    """The worker's own, and those that may have no worker, keep their names: somebody scales by them."""
    strangers = (load("default", number, f"m{number}") for number in range(MAX_NAMES + 5))
    own = (load("default", 0), load("default", 0, "asleep"))
    models = {model for model, _, _ in samples(*strangers, *own)["herd_queue_jobs"]}
    assert len(models) == MAX_NAMES + 3
    assert {"served", "asleep", OTHER} <= models


def test_models_that_workers_serve_keep_their_names() -> None:
    """Under another name they would have no worker, and an alert would say that nobody serves them."""
    names = [f"m{number}" for number in range(MAX_NAMES + 5)]
    found = samples(*(load("default", 1, name) for name in names), served=names)
    assert {model for model, _ in found["herd_queue_due_jobs"]} == set(names)
    assert {model for model, _ in found["herd_workers"]} >= set(names)


@pytest.mark.long
def test_a_scrape_does_not_wait_for_a_redis_that_stands_still(
    server: EmbeddedRedis, reader: LedgerReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patient:
        patient.setattr(ledger_collector, "WAIT_S", PATIENCE_S)
        first = reader.read()
    assert first is not None
    monkeypatch.setattr(ledger_collector, "FRESH_S", 0.0)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        assert reader.read() is first
        assert reader._under_way is not None
        assert not reader._under_way.done()
        monkeypatch.setattr(ledger_collector, "STALE_S", 0.0)
        assert reader.read() is None
    finally:
        os.kill(server.pid, signal.SIGCONT)
    monkeypatch.setattr(ledger_collector, "STALE_S", 60.0)
    wait_until(lambda: reader.read() is not first, "Redis has answered")


def test_a_second_scraper_costs_redis_nothing(
    server: EmbeddedRedis, reader: LedgerReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WAIT_S", "FRESH_S"):
        monkeypatch.setattr(ledger_collector, name, PATIENCE_S)
    first = reader.read()
    assert first is not None
    assert reader.read() is first


def test_without_redis_it_says_so() -> None:
    with connect("redis://127.0.0.1:1", tries=0) as nowhere:
        collector = LedgerCollector(LedgerReader(nowhere, SETTINGS), SETTINGS)
        (up,) = collector.collect()
    assert [sample.value for sample in up.samples] == [0]
