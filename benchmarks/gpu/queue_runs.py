"""W3 and W4: a real worker behind Redis and Celery. Without a redis-server W3 goes by the engine alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from time import perf_counter, sleep

from benchmarks.floors import Format
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.measurement import OURS, Measurement
from benchmarks.gpu.scale import Load
from benchmarks.gpu.trace import random_prompts, run_engine, sampling
from llama_herd.errors import RedisUnavailable
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.events import Timings
from llama_herd.tasks.result import Result
from llama_herd.worker.local.redis_server import EmbeddedRedis, find_server
from llama_herd.worker.local.worker_process import starting_worker

FORMAT = Format.BF16

#: Arrival rates of W4, as shares of the rate at which the worker is saturated.
SHARES = (0.5, 0.8)
PERCENTILES = (50, 99)

#: How often a worker is looked for while it loads its model.
POLL_S = 0.05


@dataclass(frozen=True)
class Request:
    """A job that was answered, on the clock of `perf_counter`."""

    submitted_s: float
    result: Result

    @property
    def first_token_s(self) -> float:
        """Seconds from submission to the first token, by the worker's account."""
        return self._known(self._timings.ttft_s)

    @property
    def ended_s(self) -> float:
        return self.submitted_s + self._known(self._timings.total_s)

    @property
    def _timings(self) -> Timings:
        return self.result.timings or Timings()

    def _known(self, seconds: float | None) -> float:
        if seconds is None or self.result.finish_reason != "length":
            raise RuntimeError(f"job {self.result.job} ended by {self.result.finish_reason}")
        return seconds


def measure(bench: Bench, names: set[str], saturation: float | None) -> Iterator[Measurement]:
    """W3, then W4 at rates that follow from it; without W3 from `saturation`, in tokens a second."""
    try:
        find_server()
    except RedisUnavailable as error:
        if "W3" in names:
            yield _saturate_engine(bench)
        if "W4" in names:
            print(f"W4 is left out: {error}")
        return
    with _worker(bench) as client:
        if "W3" in names:
            measured = _saturate_worker(bench, client)
            saturation = measured.value
            yield measured
        if "W4" in names and saturation is None:
            print("W4 is left out: its rates follow from W3. Fix: run W3 first, with the same --results")
        elif "W4" in names and saturation is not None:
            for share in SHARES:
                yield from _arrive(bench, client, share, saturation)


@contextmanager
def _worker(bench: Bench) -> Iterator[Client]:
    """A worker that has answered its first job, and a client of its queue."""
    settings = bench.settings(FORMAT, bench.scale.saturation)
    bench.free_memory()
    with EmbeddedRedis() as server:
        settings = settings.model_copy(update={"redis_url": server.url})
        with (
            starting_worker(settings, "measured") as process,
            Client(server.url, model=settings.served_model) as client,
        ):
            while not any(one.state == "ready" for one in client.workers()):
                process.check()
                sleep(POLL_S)
            warm_up = replace(bench.scale.saturation, num_requests=1)
            _answers(client, _submit(bench, client, warm_up, [0.0], seed=-4))
            yield client


def _saturate_worker(bench: Bench, client: Client) -> Measurement:
    """W3: many requests at once, the whole run."""
    load = bench.scale.saturation
    submitted = _submit(bench, client, load, [0.0] * load.num_requests, seed=0)
    requests = _answers(client, submitted)
    wall_s = max(request.ended_s for request in requests) - requests[0].submitted_s
    rate = sum(len(request.result.ids) for request in requests) / wall_s
    return _saturation(bench, rate, "through embedded Redis, Celery and the token channel")


def _saturate_engine(bench: Bench) -> Measurement:
    settings = bench.settings(FORMAT, bench.scale.saturation)
    trace = run_engine(bench.load(settings), settings, bench.scale.saturation, seed=0)
    return _saturation(bench, trace.tokens_per_s, "engine alone: there is no redis-server here")


def _saturation(bench: Bench, rate: float, note: str) -> Measurement:
    load = bench.scale.saturation
    floor = bench.floors(FORMAT).saturation_tokens_per_s(load.num_rows, load.num_in, load.num_out)
    return Measurement("W3", saturation_case(load), OURS, "tok/s", (rate,), floor, note)


def saturation_case(load: Load) -> str:
    return f"{FORMAT.name}, {load.label}, the whole run"


def _arrive(bench: Bench, client: Client, share: float, saturation: float) -> Iterator[Measurement]:
    """W4: requests at random times, from enqueueing to the first token."""
    scale, floors = bench.scale, bench.floors(FORMAT)
    full, one = scale.saturation, scale.arrivals
    # Shorter outputs saturate it elsewhere, by as much as their floors differ.
    ratio = floors.saturation_tokens_per_s(
        full.num_rows, one.num_in, one.num_out
    ) / floors.saturation_tokens_per_s(full.num_rows, full.num_in, full.num_out)
    rate = share * saturation * ratio / one.num_out
    times = poisson_times(rate, scale.arrivals_s)
    load = replace(one, num_requests=len(times))
    requests = _answers(client, _submit(bench, client, load, times, seed=int(100 * share)))
    firsts = sorted(1000 * request.first_token_s for request in requests)
    for percentile in PERCENTILES:
        yield Measurement(
            "W4",
            f"{FORMAT.name}, {one.num_in} in / {one.num_out} out at {share:.0%} of saturation, "
            f"to the first token, p{percentile}",
            OURS,
            "ms",
            (firsts[min(len(firsts) - 1, len(firsts) * percentile // 100)],),
            1000 * floors.prefill_s(1, one.num_in),
            f"{len(firsts)} requests, {rate:.1f} a second; the floor is the prompt's prefill alone",
        )


def poisson_times(rate: float, duration_s: float) -> list[float]:
    """Times from 0 on at which requests arrive, the same in every run; at least one."""
    chance = Random(0)
    times = [0.0]
    while (time := times[-1] + chance.expovariate(rate)) < duration_s:
        times.append(time)
    return times


def _submit(bench: Bench, client: Client, load: Load, times: list[float], seed: int) -> dict[str, float]:
    """Submit each request at its time; when each was submitted, by its job's id."""
    submitted = {}
    prompts = random_prompts(load, bench.scale.config.vocab_size, seed)
    started = perf_counter()
    for prompt, time in zip(prompts, times, strict=True):
        sleep(max(0.0, started + time - perf_counter()))
        now = perf_counter()
        submitted[client.submit(prompt_ids=prompt, sampling=sampling(load))] = now
    return submitted


def _answers(client: Client, submitted: dict[str, float]) -> list[Request]:
    """Wait for all of them, in the order of their submission."""
    return [Request(submitted_s, client.result(job_id)) for job_id, submitted_s in submitted.items()]
