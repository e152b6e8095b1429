"""Gauges of waiting and dead jobs, from the ledger. Every worker tells the same: take the maximum."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from time import monotonic
from typing import NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from redis import Redis
from redis.exceptions import RedisError

from llama_herd.ops.families import gauge
from llama_herd.ops.settings import ServedSettings
from llama_herd.tasks.ledger.overview import Overview, TenantCounts
from llama_herd.tasks.ledger.redis_call import RedisCall, run_calls
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.message import model_of, queue_name
from llama_herd.tasks.protocol.worker_status import WorkerStatus

#: Figures of this age are served again: a second scraper costs Redis nothing.
FRESH_S = 5.0
#: Older figures are not served: they would hide that Redis is away.
STALE_S = 60.0
#: How long a scrape waits for Redis. What comes later is for the next scrape.
WAIT_S = 0.5

#: Most queues of a tenant that are asked for: anybody who submits can name a new one.
MAX_QUEUES = 32

#: Most tenants and most models that have names of their own: those with the most messages. The others
#: together are called `other`, so the number of series is bounded, whatever names people submit to.
MAX_NAMES = 20
OTHER = "other"


class LedgerReading(NamedTuple):
    """The ledger's counts and the workers' statuses, and when they were read, by time.monotonic."""

    at_s: float
    loads: tuple[TenantCounts, ...]
    workers: tuple[WorkerStatus, ...]

    @property
    def age_s(self) -> float:
        return monotonic() - self.at_s


class LedgerReader:
    """Reads on a thread of its own, so that nobody waits for a Redis that does not answer."""

    def __init__(self, redis: Redis, settings: ServedSettings) -> None:
        self._redis = redis
        self._calls: list[RedisCall[TenantCounts]] = [
            Overview(own.tenant).counts(
                queue,
                *(queue_name(model, own.tenant) for model in own.standing_models),  # may have no worker
                max_queues=MAX_QUEUES,
                max_looks=0,
            )
            for queue, own in settings.by_queue.items()
        ]
        self._reports = [Reports(own.tenant).workers() for own in settings.by_queue.values()]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger-metrics")
        self._under_way: Future[LedgerReading] | None = None
        self._last: LedgerReading | None = None

    def read(self) -> LedgerReading | None:
        """The latest reading, at most STALE_S old; returns after WAIT_S. None: Redis does not answer."""
        if self._last is None or self._last.age_s > FRESH_S:
            asked = self._under_way = self._under_way or self._thread.submit(self._ask)
            wait([asked], WAIT_S)
            if asked.done():
                self._under_way = None
                if asked.exception() is None:
                    self._last = asked.result()
        return self._last if self._last is not None and self._last.age_s <= STALE_S else None

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _ask(self) -> LedgerReading:
        """Read the ledger. Raises RedisError. A tenant whose keys are spoilt is left out."""
        at_s = monotonic()
        loads = run_calls(self._redis, self._calls)
        reports = run_calls(self._redis, self._reports)
        return LedgerReading(
            at_s,
            tuple(one for one in loads if not isinstance(one, RedisError)),
            tuple({one.name: one for of in reports if not isinstance(of, RedisError) for one in of}.values()),
        )


def _series_names(sizes: Counter[str], always: Iterable[str] = ()) -> Mapping[str, str]:
    """What each of these names is called: the busiest ones keep theirs, as do those in `always`."""
    kept = {name for name, _ in sizes.most_common(MAX_NAMES)} | {*always}
    return {name: name if name in kept else OTHER for name in sizes}


def _tenant_names(loads: Iterable[TenantCounts]) -> Mapping[str, str]:
    return _series_names(Counter({load.tenant: load.num_messages for load in loads}))


class LedgerCollector(Collector):
    """The gauges of all tenants that this worker serves."""

    def __init__(self, reader: LedgerReader, settings: ServedSettings) -> None:
        self._reader = reader
        self._settings = settings

    def collect(self) -> Iterator[Metric]:
        reading = self._reader.read()
        yield gauge("ledger_up", "Whether Redis has lately told what waits.", (), {(): reading is not None})
        if reading is not None:
            yield from self._queue_gauges(reading)
            yield from _ended_gauges(reading.loads)
            yield self._workers(reading.workers)

    def _queue_gauges(self, reading: LedgerReading) -> Iterator[Metric]:
        """What waits, by model and tenant; of a queue's lanes also its depth and its age."""
        loads, served = reading.loads, (one.model for one in reading.workers)
        sizes = Counter[str]()
        for load in loads:
            for one in load.queues:
                sizes[model_of(one.queue, load.tenant)] += one.num_messages
        tenants = _tenant_names(loads)
        own = (self._settings.served_model, *self._settings.standing_models)
        models = _series_names(sizes, (*own, *served))
        depths, oldest_s = Counter[tuple[str, ...]](), dict[tuple[str, ...], float]()
        due, due_tokens, tokens, delayed, paused = (Counter[tuple[str, ...]]() for _ in range(5))
        for load in loads:
            for one in load.queues:
                place = (models[model_of(one.queue, load.tenant)], tenants[load.tenant])
                due[place] += one.num_due
                due_tokens[place] += one.num_due_tokens
                tokens[place] += max(0, one.num_tokens)
                delayed[place] += max(0, one.num_delayed)
                paused[place] += one.pause_ends_ms > 0
                for lane in one.lanes:
                    depths[*place, lane.name] += lane.num_messages
                    waited_s = (load.now_ms - lane.oldest_ms) / 1000 if lane.oldest_ms else 0
                    oldest_s[*place, lane.name] = max(oldest_s.get((*place, lane.name), 0), waited_s)
        labels = ("model_name", "tenant")
        yield gauge("queue_jobs", "Messages that wait in a queue.", (*labels, "lane"), depths)
        yield gauge(
            "queue_oldest_seconds",
            "How long the job that is taken next has waited; 0 if nothing waits.",
            (*labels, "lane"),
            oldest_s,
        )
        yield gauge("queue_due_jobs", "Jobs and bare messages that wait and may run now.", labels, due)
        yield gauge("queue_due_tokens", "Estimated tokens of what waits and may run now.", labels, due_tokens)
        yield gauge("queue_tokens", "Estimated tokens of the jobs that wait.", labels, tokens)
        yield gauge("queue_delayed_jobs", "Jobs whose time has not come.", labels, delayed)
        yield gauge("queue_paused", "Whether the queue is paused; of `other`: how many are.", labels, paused)

    def _workers(self, workers: tuple[WorkerStatus, ...]) -> Metric:
        counts = Counter((one.model, one.state) for one in workers)
        counts.setdefault((self._settings.served_model, "ready"), 0)
        kept = {*counts.most_common(4 * MAX_NAMES)}
        return gauge("workers", "Workers that report themselves.", ("model_name", "state"), dict(kept))


def _ended_gauges(loads: tuple[TenantCounts, ...]) -> Iterator[Metric]:
    tenants = _tenant_names(loads)
    letters, poisoned, owed, kept, limits = (Counter[tuple[str, ...]]() for _ in range(5))
    for load in loads:
        letters[tenants[load.tenant],] += load.num_dead_letters
        poisoned[tenants[load.tenant],] += load.num_poisoned
        owed[tenants[load.tenant],] += load.num_owed
        kept[tenants[load.tenant],] += load.kept_bytes
        limits[tenants[load.tenant],] += load.kept_limit_bytes
    yield gauge("dead_letters", "Messages that could not be read, and are kept.", ("tenant",), letters)
    yield gauge("poisoned_jobs", "Jobs given up after too many deaths of workers.", ("tenant",), poisoned)
    yield gauge("owed_results", "Results that wait for the Redis of HERD_RESULT_URL.", ("tenant",), owed)
    yield gauge("kept_bytes", "What ended jobs keep of Redis.", ("tenant",), kept)
    yield gauge("kept_limit_bytes", "How much they may keep; 0: no limit.", ("tenant",), limits)
