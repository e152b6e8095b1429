"""Servers, workers, gateways and Redis are killed in turn: no job is lost, no event repeated or missing."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType

from benchmarks.foreign import MIDDLE
from benchmarks.gpu.random_model import write_random_model
from llama_herd import Client
from llama_herd.error_code import ErrorCode
from llama_herd.ops.settings import BUNDLED_MODEL
from tests.chaos.gateway_readers import read_whole
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.patience import need, wait_until
from tests.chaos.harness.verdict import Verdict, Violation
from tests.durable_redis import DurableRedis
from tests.engines.servers import PATIENCE_S as SERVER_S, EngineServer, llama_server, needs, vllm
from tests.foreign_server import ForeignServer, Row, ServerOptions
from tests.killed_gateways import Gateways, gateways
from tests.local.tended_worker import TendedWorker
from tests.stand_in import StandIn

pytestmark = [pytest.mark.fault, pytest.mark.redis, pytest.mark.worker]

PATIENCE_S = 1800.0
#: Streams that are read at a time.
NUM_READERS = 32
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
#: So long that vLLM is asked for several tokens at a time.
FLUSH_MS = 200
#: Two of them work for one server.
NUM_WORKERS = 2
#: It dies, and comes back at its address.
Server = StandIn | EngineServer


@dataclass(frozen=True)
class Load:
    """What is asked, while so many kills come; rows: of each worker."""

    num_jobs: int
    max_tokens: int
    num_kills: int
    rows: int


@dataclass(frozen=True)
class Case:
    """A kind of server, and what it goes through. options: of a stand-in; without, the program itself."""

    engine: str
    load: Load
    options: Mapping[str, object] = field(default_factory=dict)

    def server(self, folder: Path) -> Server:
        """The server, ready when entered. Uncompiled, vLLM is back in half the time."""
        log, rows = folder / "server.log", NUM_WORKERS * self.load.rows
        if self.options:
            return StandIn(BUNDLED_MODEL, log, **self.options)
        return vllm(log, rows, "--enforce-eager") if self.engine == "vllm" else llama_server(log, rows)


SLOW_STEPS = {"step_s": 0.05}
FEW = Load(num_jobs=60, max_tokens=150, num_kills=5, rows=16)
MANY = Load(num_jobs=500, max_tokens=600, num_kills=200, rows=32)


def case(engine: str, load: Load, name: str, *marks: Any, **options: object) -> Any:
    return pytest.param(Case(engine, load, options), id=name, marks=marks)


SLOW = (pytest.mark.slow, pytest.mark.timeout(3600))
CASES = [
    case("vllm", FEW, "as vllm, 5 kills", pytest.mark.timeout(300), **SLOW_STEPS),
    case("llama-server", FEW, "as llama-server, 5 kills", pytest.mark.timeout(300), **SLOW_STEPS),
    case("vllm", MANY, "as vllm, 200 kills", *SLOW, **SLOW_STEPS),
    case("llama-server", MANY, "as llama-server, 200 kills", *SLOW, **SLOW_STEPS),
    case("vllm", Load(500, 200, 20, 16), "vllm itself", *SLOW, needs("vllm")),
    case("llama-server", Load(500, 200, 80, 8), "llama-server itself", *SLOW, needs("llama-server")),
]


class ComputedHere:
    """The outputs of a stand-in, by its own rule. A llama-server is not told that an end is no end."""

    def __init__(self, engine: str) -> None:
        self._server = ForeignServer(ServerOptions(BUNDLED_MODEL, port=0))
        self._changes = {"ignore_eos": False} if engine == "llama-server" else {}

    def ids(self, job_id: str, fields: Mapping[str, Any]) -> tuple[int, ...]:
        prompt_ids = self._server.tokenizer.encode(fields["prompt"])
        asked = {**fields["sampling"], **self._changes}
        row = Row(asked, prompt_ids, asked["max_tokens"], take=lambda *_: None)
        while len(row.ids) < row.max_tokens:
            row.ids.append(self._server.next_id(row))
        return tuple(row.ids)


@dataclass(frozen=True)
class AskedAgain:
    """The outputs of the same jobs when nothing disturbs them: each is asked once more."""

    redis_url: str

    def ids(self, job_id: str, fields: Mapping[str, Any]) -> tuple[int, ...]:
        with Client(self.redis_url, model="tales") as client:
            return tuple(client.result(client.submit(**fields), timeout_s=SERVER_S).ids)


@contextmanager
def herd_before(
    server: Server, redis: DurableRedis, folder: Path, engine: str, **settings: Any
) -> Iterator[Herd]:
    """A server, and what stands before it; its workers are still to come."""
    asked = {"engine": engine, "engine_url": server.url, "deterministic": False}
    own = {**asked, "flush_ms": FLUSH_MS, "lease_ms": 1500, **settings}
    reference = ComputedHere(engine) if isinstance(server, StandIn) else AskedAgain(redis.url)
    with Herd(redis, server.model, folder, reference=reference, **own) as herd:
        yield herd


class Killer:
    """Kills server, worker, gateway, Redis in turn. recovered_s: from the server's death to a token."""

    def __init__(self, server: Server, herd: Herd, found: Gateways, redis: DurableRedis) -> None:
        self._server, self._herd, self._gateways, self._redis = server, herd, found, redis
        self._workers: Iterator[TendedWorker] = cycle(herd.alive)
        self.recovered_s: list[float] = []
        self.num_kills = 0

    def strike(self, num: int) -> None:
        """Kill so many; between two of them jobs go on."""
        faults = cycle((self._kill_server, self._kill_worker, self._gateways.kill, self._kill_redis))
        for fault in [next(faults) for _ in range(num)]:
            need(self._herd.jobs.unfinished(), f"some run after {self.num_kills} kills of {num}")
            fault()
            self.num_kills += 1
            self._wait_for_tokens()

    def _kill_server(self) -> None:
        before, died_s = self._num_starts(), monotonic()
        self._server.kill()
        self._server.start()
        wait_until(lambda: self._num_starts() > before, "a job goes on after the server's death", SERVER_S)
        self._wait_for_tokens()
        self.recovered_s.append(monotonic() - died_s)

    def _kill_worker(self) -> None:
        worker = next(self._workers)
        worker.process.kill()
        worker.process.wait()
        worker.start()

    def _kill_redis(self) -> None:
        with self._redis.away(0.1):
            pass
        self._redis.wait_until_read()
        self._redis.rewrite_log()

    def _num_starts(self) -> int:
        return sum(self._numbers("attempts"))

    def _wait_for_tokens(self) -> None:
        """Wait until something more is recorded, or nothing is left to do."""
        before, jobs = sum(self._numbers("n")), self._herd.jobs
        wait_until(lambda: sum(self._numbers("n")) > before or not jobs.unfinished(), "tokens come", SERVER_S)

    def _numbers(self, name: str) -> list[int]:
        return self._herd.jobs.numbers(list(self._herd.jobs.accepted), name)


def allowed(case: Case, verdict: Verdict) -> Sequence[Violation]:
    """Jobs whose ids are others than those of a run without kills: a real server may do that."""
    if case.options:
        return []
    return [one for one in verdict.violations if one.law == "undisturbed"]


@pytest.mark.parametrize("case", CASES)
def test_kills_of_all_that_can_die_lose_no_job_and_repeat_no_event(
    case: Case, tmp_path: Path, figures: list[str]
) -> None:
    load, settings = case.load, {"slots": case.load.rows, "max_deaths": 1000}
    with ExitStack() as stack:
        redis = stack.enter_context(DurableRedis())
        server = case.server(tmp_path)
        stack.enter_context(server)
        herd = stack.enter_context(herd_before(server, redis, tmp_path, case.engine, **settings))
        herd.start_workers(NUM_WORKERS)
        found = stack.enter_context(gateways(redis.url, tmp_path))
        pool = stack.enter_context(ThreadPoolExecutor(NUM_READERS))
        is_over = threading.Event()
        stack.callback(is_over.set)
        job_ids = herd.jobs.submit(load.num_jobs, {**GREEDY, "max_tokens": load.max_tokens})
        read = partial(read_whole, lambda: found.url, is_over=is_over, patience_s=PATIENCE_S)
        readers = {job_id: pool.submit(read, job_id) for job_id in job_ids}
        killer = Killer(server, herd, found, redis)
        killer.strike(load.num_kills)
        for job_id, reader in readers.items():
            assert reader.result(PATIENCE_S) == herd.jobs.events(job_id), job_id
        verdict = herd.verdict()
        others = allowed(case, verdict)
        assert [one for one in verdict.violations if one not in others] == []
        assert {len(result.ids) for result in herd.jobs.results(job_ids)} == {load.max_tokens}
    equal = f"{verdict.num_compared - len(others)} of {verdict.num_compared} as in a run without kills"
    what = f"{case.engine}{', a stand-in' if case.options else ''}"
    figures.append(
        f"{what}: {killer.num_kills} kills, {len(job_ids)} jobs, "
        f"{verdict.num_resumed} resumed, {equal}; the server's death to the next token: "
        f"p50 {median(killer.recovered_s):.1f} s, max {max(killer.recovered_s):.1f} s"
    )


def slow_server(case: Case, folder: Path) -> Server:
    """One that is dead before it has drawn the tokens that make an attempt sound."""
    if case.options or case.engine == "vllm":
        return case.server(folder)
    model = write_random_model(folder / "slow.gguf", MIDDLE, GGMLQuantizationType.F16, torch.device("cpu"))
    return llama_server(folder / "server.log", NUM_WORKERS * case.load.rows, model=model)


#: Less than make an attempt sound, in all tries together.
FEW_TOKENS = 8
LASTING = Load(num_jobs=5, max_tokens=60, num_kills=3, rows=8)


@pytest.mark.parametrize(
    "case",
    [
        case("vllm", LASTING, "as vllm", **SLOW_STEPS),
        case("llama-server", LASTING, "as llama-server", *SLOW, **SLOW_STEPS),
        case("vllm", LASTING, "vllm itself", *SLOW, needs("vllm")),
        case("llama-server", LASTING, "llama-server itself", *SLOW, needs("llama-server")),
    ],
)
def test_a_job_whose_server_dies_three_times_is_given_up_and_no_other_of_any_worker(
    case: Case, tmp_path: Path
) -> None:
    with (
        DurableRedis() as redis,
        slow_server(case, tmp_path) as server,
        herd_before(server, redis, tmp_path, case.engine, slots=case.load.rows) as herd,
    ):
        herd.start_workers(NUM_WORKERS)
        asked = {**GREEDY, "max_tokens": case.load.max_tokens}
        (poison,) = herd.jobs.submit(1, asked, prefix="poison", flush_ms=0)
        mates = herd.jobs.submit(case.load.num_jobs, asked)
        for number in range(1, herd.settings.max_deaths + 1):
            wait_until(lambda: herd.jobs.number(poison, "attempts") == number, "it starts", SERVER_S)  # noqa: B023
            enough = herd.jobs.number(poison, "n") + FEW_TOKENS  # by then others have begun that may
            wait_until(lambda: herd.jobs.number(poison, "n") >= enough, "it goes on", SERVER_S)  # noqa: B023
            server.kill()
            server.start()
        ends = [herd.jobs.client.result(job_id, timeout_s=SERVER_S) for job_id in (poison, *mates)]
        assert ends[0].error is not None
        assert ends[0].error.code == ErrorCode.POISONED
        assert [end.finish_reason for end in ends[1:]] == ["length"] * len(mates)
