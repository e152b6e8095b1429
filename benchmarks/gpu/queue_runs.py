"""W3s, W3 and W4: a real worker behind Redis and Celery."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from socket import gethostname
from time import perf_counter, sleep

from benchmarks.floors import Floors, Format
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.engine_runs import saturation_case
from benchmarks.gpu.measurement import Measurement
from benchmarks.gpu.scale import Load
from benchmarks.gpu.trace import requests
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.events import Timings
from llama_herd.tasks.protocol.result import Result
from tests.local.tended_worker import TendedWorker

FORMAT = Format.BF16
#: Bytes and operations a second of an H200, for what depends on their ratio only.
NOMINAL = (4.3e12, 788e12)
ROOT = Path(__file__).resolve().parent.parent.parent

#: What of a workload's figures came this way, beside those of the engine alone.
QUEUED = "through the queue"
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


def saturation(bench: Bench) -> Iterator[Measurement]:
    """W3s and W3: many requests at once, the whole run."""
    with _worker(bench) as client:
        for workload in bench.saturating(FORMAT):
            yield _saturate(bench, client, workload)


def arrivals(bench: Bench, saturation: float | None) -> Iterator[Measurement]:
    """W4: at rates that follow from W3, which is measured first where no rate in tokens a second is given."""
    with _worker(bench) as client:
        if saturation is None:
            measured = _saturate(bench, client, "W3")
            yield measured
            saturation = measured.value
        for share in SHARES:
            yield from _arrive(bench, client, share, saturation)


@contextmanager
def _worker(bench: Bench) -> Iterator[Client]:
    """A worker that has answered its first jobs, and a client of its queue."""
    load = bench.saturating(FORMAT)["W3s"]
    settings = bench.settings(bench.hollow_model(FORMAT), load)
    command = ["benchmarks.gpu.worker", str(bench.device), "worker", "--name", "measured"]
    with tempfile.TemporaryDirectory(prefix="herd-worker-") as folder, EmbeddedRedis() as server:
        settings = settings.model_copy(update={"redis_url": server.url})
        name, log = f"measured@{gethostname()}", Path(folder) / "worker.log"
        process = TendedWorker(settings, name, log, command=command, cwd=ROOT)
        with Client(server.url, model=settings.served_model) as client:
            process.start()
            started = perf_counter()
            try:
                while not any(one.state == "ready" for one in client.workers()):
                    process.check()
                    sleep(POLL_S)
                print(f"the worker is ready after {perf_counter() - started:.1f} s", flush=True)
                # As many as there are rows, so that every shape of a step has been seen.
                num_out = min(16, load.num_out)
                first = replace(load, num_requests=load.num_rows, num_out=num_out, spread=0)
                _answers(client, _submit(bench, client, first, [0.0] * first.num_requests, seed=-4))
                print(f"it has answered its first jobs after {perf_counter() - started:.1f} s", flush=True)
                yield client
            finally:
                print(process.log[:3_000])
                process.kill()


def _saturate(bench: Bench, client: Client, workload: str) -> Measurement:
    load = bench.saturating(FORMAT)[workload]
    submitted = _submit(bench, client, load, [0.0] * load.num_requests, seed=0)
    answers = _answers(client, submitted)
    wall_s = max(one.ended_s for one in answers) - answers[0].submitted_s
    rate = sum(len(one.result.ids) for one in answers) / wall_s
    case, note = saturation_case(load), "through embedded Redis, Celery and the token channel"
    floor = bench.saturation_floor(FORMAT, load)
    return bench.measurement(workload, FORMAT, case, "tok/s", [rate], floor, note, QUEUED)


def _arrive(bench: Bench, client: Client, share: float, saturation: float) -> Iterator[Measurement]:
    """Requests at random times, from enqueueing to the first token."""
    scale, one = bench.scale, bench.scale.arrivals
    full = scale.saturation
    # Shorter outputs saturate it elsewhere, by as much as their floors differ.
    floors = Floors(scale.config, FORMAT, *NOMINAL)
    ratio = floors.saturation_tokens_per_s(
        full.num_rows, one.num_in, one.num_out
    ) / floors.saturation_tokens_per_s(full.num_rows, full.num_in, full.num_out)
    rate = share * saturation * ratio / one.num_out
    times = poisson_times(rate, scale.arrivals_s)
    load = replace(one, num_requests=len(times))
    answers = _answers(client, _submit(bench, client, load, times, seed=int(100 * share)))
    firsts = sorted(1000 * one.first_token_s for one in answers)
    floor = bench.floor(FORMAT, lambda floors: 1000 * floors.prefill_s(1, one.num_in))
    case = f"{one.num_in} in / {one.num_out} out, to the first token, by the share of saturation"
    note = f"{len(firsts)} requests, {rate:.1f} a second; the floor is the prompt's prefill alone"
    for percentile in PERCENTILES:
        milliseconds = firsts[min(len(firsts) - 1, len(firsts) * percentile // 100)]
        part = f"{share:.0%} p{percentile}"
        yield bench.measurement("W4", FORMAT, case, "ms", [milliseconds], floor, note, part)


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
    asked = list(requests(load, bench.scale.config.vocab_size, seed))
    started = perf_counter()
    for (prompt, sampling), time in zip(asked, times, strict=True):
        sleep(max(0.0, started + time - perf_counter()))
        now = perf_counter()
        submitted[client.submit(prompt_ids=prompt, sampling=sampling)] = now
    return submitted


def _answers(client: Client, submitted: dict[str, float]) -> list[Request]:
    """Wait for all of them, in the order of their submission."""
    return [Request(submitted_s, client.result(job_id)) for job_id, submitted_s in submitted.items()]
