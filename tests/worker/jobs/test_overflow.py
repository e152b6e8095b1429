"""Jobs that wait in a full worker go to one that idles, and only then."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from redis import Redis

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.answers import Yours
from llama_herd.tasks.ledger.keys import Keys, joint_tenant
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.pauses import Pauses
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.reports import Beat, Reports, beat
from llama_herd.tasks.protocol.events import Started
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.job_fields import SamplingFields
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.tasks.protocol.priority import lists_of, urgency_of
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.worker.engine.interface import SequenceInfo
from llama_herd.worker.jobs import attempt as attempts
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.event_log import EventAuthor, EventLog
from llama_herd.worker.jobs.overflow import Overflow
from llama_herd.worker.jobs.publisher import LeftJob, Publisher
from llama_herd.worker.jobs.recorded_outputs import RecordedOutputs
from llama_herd.worker.jobs.suspect_gate import SuspectGate
from tests.local.processes import PATIENCE_S as PROCESS_PATIENCE_S, WorkerProcess, held, wait_until
from tests.tiny import write_tiny_gguf
from tests.worker.jobs.tenancies import alone, new_tenancy

pytestmark = pytest.mark.redis

SLOTS, NUM_PLACES = 4, 6
FULL, IDLE, OTHER = "owner-full", "idle@test", "other@test"
TENANTS = ("default", "globex")


def status(name: str, **fields: object) -> WorkerStatus:
    plain = {"state": "ready", "model": "m", "device": "cpu", "slots": 4}
    return WorkerStatus.model_validate({"name": name, **plain, **fields})


class FullWorker:
    """A worker with jobs that wait for room, and nothing that runs them."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.ledger = Ledger(lease_ms=60_000)
        self.tenancy = new_tenancy(redis, self.ledger, owner=FULL, slots=SLOTS, grace_s=0.0)
        self.claims = self.tenancy.claims
        self.gate = SuspectGate(patience_s=0.0, clearing_s=0.0)
        self.released: list[str] = []
        self.let_go: list[str] = []
        self.closed: list[bool] = []
        self.overflow = Overflow(alone(self.tenancy), self.gate, cast(Publisher, self), NUM_PLACES)

    def put(self, left: Sequence[LeftJob]) -> None:
        """What the publisher hears."""
        for one in left:
            (self.let_go if one.settle is Attempt.let_go else self.released).append(one.attempt.job_id)

    def claim(self, job_id: str, waited_s: float, priority: int = 0) -> Attempt:
        job = GenerationJob(prompt="hi", priority=priority)
        run_call(self.redis, self.ledger.submit(job_id, job, Envelope.for_job(job_id, "herd.m")))
        claimed = run_call(self.redis, self.ledger.claim(job_id, FULL))
        assert isinstance(claimed, Yours)
        self.redis.delete(*lists_of("herd.m"))  # the message is in this worker's hands
        stream = EventLog(job_id, claimed, RecordedOutputs.from_events([]), EventAuthor("full@test", "m"))
        urgency, claimed_s = urgency_of(claimed.lane), time.monotonic() - waited_s
        attempt = Attempt(stream, [], [SequenceInfo(job_id)], urgency=urgency, claimed_s=claimed_s)
        self.claims.begin(attempt)
        return attempt

    def wait_in_queue(self, priority: int, num: int) -> None:
        for number in range(num):
            job_id, job = f"new-{priority}-{number}", GenerationJob(prompt="hi", priority=priority)
            run_call(self.redis, self.ledger.submit(job_id, job, Envelope.for_job(job_id, "herd.m")))

    def look(self) -> None:
        """As its heartbeat and its sweeper do once a second."""
        (answer,) = run_call(self.redis, beat([Beat(self.ledger, status("full@test", running=4, waiting=1))]))
        self.tenancy.hear(answer)
        self.overflow.shed()
        self.closed.append(not self.tenancy.takes_messages)

    def look_twice(self) -> None:
        self.look()
        assert self.released == []
        self.look()

    def hear(self, *others: WorkerStatus) -> None:
        for other in others:
            run_call(self.redis, Reports().report_worker(other))


@pytest.fixture
def full(redis: Redis) -> FullWorker:
    return FullWorker(redis)


def test_the_newest_go_to_a_worker_that_idles(full: FullWorker) -> None:
    for number in range(5):
        full.claim(f"job-{number}", waited_s=10 - number)
    full.hear(status(IDLE, running=1))
    full.look_twice()
    assert full.released == ["job-3", "job-4"], "half of the three rows that are free, rounded up"
    assert full.redis.llen("herd.m") == 2
    record = run_call(full.redis, full.ledger.record("job-4"))
    assert record is not None
    assert (record.state, record.owner, record.deaths) == ("queued", None, 0)


def test_one_that_was_released_by_a_call_without_an_answer_leaves_too(full: FullWorker) -> None:
    for number in range(3):
        full.claim(f"job-{number}", waited_s=10 - number)
    newest = full.claims.in_hand()[-1]
    run_call(full.redis, full.tenancy.release(newest, push=True))
    full.hear(status(IDLE, running=3))
    full.look_twice()
    assert full.let_go == ["job-2"]
    full.claims.end(newest)
    full.look()
    assert full.released == ["job-1"]
    assert full.redis.llen("herd.m") == 2


def test_who_gives_away_asks_for_no_messages_before_and_meanwhile(full: FullWorker) -> None:
    full.claim("job", waited_s=10)
    full.look()
    full.hear(status(IDLE))
    full.look()
    assert (full.closed, full.released) == ([False, True], [])
    full.look()
    assert (full.closed, full.released) == ([False, True, True], ["job"])
    for attempt in full.claims.in_hand():
        full.claims.end(attempt)
    full.look()
    assert full.closed[-1] is False


@pytest.mark.parametrize(
    "others",
    [
        [],
        [status(IDLE, running=4)],
        [status(IDLE, waiting=1)],
        [status(IDLE, state="stopping")],
        [status(IDLE, model="another")],
        [status("full@test")],
    ],
    ids=["none", "full", "has some waiting", "stopping", "another model", "itself"],
)
def test_nothing_goes_where_no_worker_of_the_model_idles(
    full: FullWorker, others: list[WorkerStatus]
) -> None:
    full.claim("job", waited_s=10)
    full.hear(*others)
    full.look_twice()
    assert full.released == []
    assert full.redis.llen("herd.m") == 0


def test_of_a_paused_queue_nothing_goes_anywhere(full: FullWorker) -> None:
    """No worker would take it."""
    full.hear(status(IDLE))
    for number in range(NUM_PLACES):
        full.claim(f"low-{number}", waited_s=10, priority=-1)
    full.wait_in_queue(1, 9)
    run_call(full.redis, Pauses("default").pause(full.tenancy.queue))
    full.look()
    full.look_twice()
    assert full.released == []


def test_all_leaves_a_worker_that_is_drained_once_their_time_is_over(full: FullWorker) -> None:
    full.claim("waits", waited_s=10)
    full.claim("runs", waited_s=10).started_s = 1.0
    run_call(full.redis, Pauses("default").drain("full@test"))
    full.tenancy.settings = full.tenancy.settings.model_copy(update={"grace_s": 3600.0})
    full.look_twice()
    assert full.released == []
    full.tenancy.settings = full.tenancy.settings.model_copy(update={"grace_s": 0.0})
    full.look()
    assert full.released == ["waits", "runs"]


def test_all_leaves_a_worker_whose_server_has_been_away_for_too_long(full: FullWorker) -> None:
    longest_s = full.tenancy.settings.engine_away_s
    full.claim("waits", waited_s=10)
    full.claim("runs", waited_s=10).started_s = 1.0
    full.overflow.away_s = lambda: longest_s - 1
    full.look_twice()
    assert full.released == []
    full.overflow.away_s = lambda: longest_s
    full.look()
    assert full.released == ["waits", "runs"]


def test_what_runs_has_just_come_or_must_run_alone_stays(
    full: FullWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "PATIENCE_S", 100.0)
    full.claim("running", waited_s=200).started_s = 1.0
    full.claim("new", waited_s=50)
    full.claim("suspect", waited_s=200).is_last = True
    full.claim("ended", waited_s=200).reasons[0] = "stop"
    full.claim("refused", waited_s=200).has_ended = True
    full.hear(status(IDLE))
    full.look_twice()
    assert full.released == []


def test_what_is_not_prepared_yet_goes_too(full: FullWorker) -> None:
    full.claim("job", waited_s=10).sequences = ()
    full.hear(status(IDLE))
    full.look_twice()
    assert full.released == ["job"]


def test_those_inside_leave_for_one_that_must_run_alone_and_nobody_comes_meanwhile(full: FullWorker) -> None:
    runs, suspect = full.claim("runs", waited_s=10), full.claim("suspect", waited_s=10)
    runs.started_s, suspect.is_last = 1.0, True
    assert full.gate.enter(runs)
    assert not full.gate.enter(suspect)
    full.look()
    assert (full.released, full.closed) == (["runs"], [True])
    assert full.redis.llen("herd.m") == 1
    full.claims.end(runs)
    assert full.gate.enter(suspect)
    full.look()
    assert (full.released, full.closed) == (["runs"], [True, True])
    full.claims.end(suspect)
    full.look()
    assert full.closed[-1] is False


def test_a_job_that_has_another_owner_by_now_is_let_go(full: FullWorker) -> None:
    full.claim("job", waited_s=10)
    full.redis.hset(full.ledger.job_key("job"), "owner", "somebody else")
    full.hear(status(IDLE))
    full.look_twice()
    assert (full.released, full.let_go) == ([], ["job"])
    assert full.redis.llen("herd.m") == 0


@pytest.mark.worker
@pytest.mark.timeout(120)
def test_a_second_worker_gets_jobs_that_the_first_took_but_cannot_run_yet(
    redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    """Also from a worker of several tenants to one of one."""
    model = write_tiny_gguf(tmp_path / "endless.gguf", eos=False, context_length=8192)
    endless: SamplingFields = {"max_tokens": 4096, "seed": 1}
    with (
        Client(redis_server.url, model="endless") as client,
        WorkerProcess(
            redis_server.url,
            model,
            "first",
            tmp_path / "first.log",
            held_by=tmp_path,
            step_s=0.005,
            slots=1,
            tenants=",".join(TENANTS),
            lease_ms=60_000,
        ) as first,
    ):
        with held(tmp_path, num_tokens=1):
            job_ids = [client.submit(prompt="a", sampling=endless, flush_ms=60_000) for _ in range(6)]
            wait_until(lambda: waiting(client, first.name) == 5, "the first holds them all")
        log = tmp_path / "second.log"
        with WorkerProcess(redis_server.url, model, "second", log, slots=2, lease_ms=60_000) as second:
            wait_until(lambda: starts(client, job_ids, second.name), "the second runs one of them")
            for job_id in job_ids:
                client.cancel(job_id)
            results = [client.result(job_id, timeout_s=PROCESS_PATIENCE_S) for job_id in job_ids]
            assert max(result.attempts for result in results) == 1
            wait_until(lambda: not num_unacked(redis_server), "every message acked")


def waiting(client: Client, name: str) -> int:
    return next((worker.waiting for worker in client.workers() if worker.name == name), 0)


def starts(client: Client, job_ids: list[str], name: str) -> int:
    """How many of the jobs this worker runs or has run."""
    owners = [run_call(client._redis, client._core.ledger.read(job_id)) for job_id in job_ids]
    return sum(isinstance(event, Started) and event.worker == name for events in owners for event in events)


def num_unacked(server: EmbeddedRedis) -> int:
    """Messages that neither worker has acknowledged."""
    with Redis.from_url(server.url) as redis:
        return sum(int(redis.hlen(Keys(name).unacked_key)) for name in ("default", joint_tenant(TENANTS)))


@pytest.mark.parametrize(
    ("urgent", "normal", "released"),
    [
        (0, 0, []),
        (0, 9, ["low-1", "low-0"]),
        (1, 0, ["low-1"]),
        (2, 1, ["low-1", "low-0"]),
        (3, 0, ["low-1", "low-0", "normal-0"]),
    ],
)
def test_a_full_worker_hands_back_what_waits_for_each_more_urgent_message(
    full: FullWorker, urgent: int, normal: int, released: list[str]
) -> None:
    """The newest of the least urgent first, and never an equal."""
    waits = {"low-0": -1, "normal-0": 0, "low-1": -1, "urgent-0": 1}
    for number, (job_id, priority) in enumerate(waits.items()):
        full.claim(job_id, waited_s=10 - number, priority=priority)
    for number in range(NUM_PLACES - len(waits)):
        full.claim(f"running-{number}", 10.0, priority=-1).started_s = 1.0
    full.wait_in_queue(1, urgent)
    full.wait_in_queue(0, normal)
    full.look()
    assert full.released == released


def test_a_worker_with_a_free_place_hands_nothing_back(full: FullWorker) -> None:
    full.claim("low", waited_s=10, priority=-1)
    full.wait_in_queue(1, 1)
    full.look()
    assert full.released == []


@pytest.mark.parametrize("running", [0, 1])
def test_nothing_is_handed_back_for_those_that_would_find_no_row_either(
    full: FullWorker, running: int
) -> None:
    """What waits here grows in priority; in the queue it would begin again, however many urgent ones come."""
    for number in range(SLOTS):
        full.claim(f"running-{number}", 10.0, priority=running).started_s = 1.0
    for number in range(NUM_PLACES - SLOTS):
        full.claim(f"low-{number}", 10.0, priority=-1)
    full.wait_in_queue(running, 9)
    full.look()
    assert full.released == []
