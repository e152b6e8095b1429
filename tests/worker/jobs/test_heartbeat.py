"""What a worker reports, and when; and how it hears of cancels."""

from collections.abc import Iterator
from time import monotonic
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from llama_herd.tasks.ledger.answers import Yours
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.pauses import Pauses
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.reports import WORKER_TTL_S, BeatAnswer, Reports
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.message import Envelope, queue_name
from llama_herd.tasks.protocol.worker_status import WorkerStatus
from llama_herd.worker.broker.message_notes import MessageNotes
from llama_herd.worker.engine.interface import JobEngine, SequenceInfo
from llama_herd.worker.jobs import heartbeat
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.event_log import EventLog
from llama_herd.worker.jobs.heartbeat import Heartbeat, Namesakes
from llama_herd.worker.jobs.recorded_outputs import RecordedOutputs
from llama_herd.worker.jobs.suspect_gate import SuspectGate
from llama_herd.worker.jobs.tenancy import Tenancies, Tenancy
from tests.chaos.harness.patience import wait_until
from tests.worker.broker.queue_reader import NOTES, TIMES
from tests.worker.jobs.tenancies import new_tenancy
from tests.worker.jobs.test_watchdog import SilentPoller

pytestmark = pytest.mark.redis

OWNER = "owner-1"
NOTED = MessageNotes.at(NOTES)


class StillEngine:
    """Is never stalled, and notes what is to end."""

    def __init__(self) -> None:
        self.aborted: list[tuple[str, str]] = []

    def is_stalled(self, _: float) -> bool:
        return False

    def abort(self, sequences: list[SequenceInfo], reason: str) -> None:
        self.aborted += [(one.job_id, reason) for one in sequences]


class Worker:
    """A heartbeat, and the state that it reports. `when_asked` is what happens while it reports."""

    def __init__(self, redis: Any, owner: str = OWNER, lease_ms: int = 60_000) -> None:
        self.state = "loading"
        self.when_asked: Iterator[None] = iter(())
        self.engine = StillEngine()
        ledgers = [Ledger(tenant, lease_ms=lease_ms) for tenant in ("acme", "globex")]
        self.tenancies = [new_tenancy(redis, ledger, owner=owner) for ledger in ledgers]
        self.heartbeat = Heartbeat(
            Tenancies(self.tenancies),
            SuspectGate(),
            NOTED,
            engine=cast(JobEngine, self.engine),
            status=self.status,
            stall_s=30.0,
        )

    def status(self, _: str) -> WorkerStatus:
        told = WorkerStatus(name="w", state=self.state, model="m", device="cpu", slots=1)
        next(self.when_asked, None)
        return told

    def become_ready(self) -> Iterator[None]:
        self.state = "ready"
        self.heartbeat.report_soon()
        yield


def take(redis: Any, tenancy: Tenancy, job_id: str) -> Attempt:
    """A job in hand, whose tokens are gathered for a minute."""
    job = GenerationJob(prompt="a tale", model="m", flush_ms=60_000)
    queue = queue_name("m", tenancy.tenant)
    run_call(redis, tenancy.ledger.submit(job_id, job, Envelope.for_job(job_id, queue)))
    claimed = run_call(redis, tenancy.ledger.claim(job_id, OWNER))
    assert isinstance(claimed, Yours)
    stream = EventLog(job_id, claimed, RecordedOutputs.from_events(()), tenancy.author)
    stream.pace.gather_s = 60.0
    attempt = Attempt(stream, [], [SequenceInfo(job_id, tenancy.tenant, num_prompt_tokens=1)])
    tenancy.claims.begin(attempt)
    return attempt


def reports(redis: Any) -> list[WorkerStatus]:
    return run_call(redis, Reports("acme").workers())


def states(redis: Any) -> list[str]:
    return [one.state for one in reports(redis)]


@pytest.mark.long
def test_a_state_that_changes_during_a_report_is_reported_soon(
    redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "IDLE_REPORT_S", 3600.0)
    worker = Worker(redis)
    worker.when_asked = worker.become_ready()
    worker.heartbeat.start()
    try:
        wait_until(lambda: states(redis) == ["ready"], "it reports that it is ready")
    finally:
        worker.heartbeat.stop()


@pytest.mark.long
def test_a_cancel_is_heard_between_two_beats_however_seldom_the_job_has_events(
    redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same id may be another tenant's job, which goes on."""
    monkeypatch.setattr(heartbeat, "INTERVAL_S", 3600.0)
    worker = Worker(redis)
    worker.heartbeat._interval_s = 3600.0
    acme, globex = worker.tenancies
    attempts = [take(redis, tenancy, "same") for tenancy in (acme, globex)]
    worker.heartbeat.start()
    try:
        wait_until(lambda: states(redis) == ["loading"], "it has beaten")
        run_call(redis, globex.ledger.cancel("same"))
        wait_until(lambda: worker.engine.aborted == [("same", "cancelled")], "the engine ends it")
        assert [one.abort for one in attempts] == [None, "cancelled"]
    finally:
        worker.heartbeat.stop()


def test_a_cancel_that_was_not_heard_is_found_when_the_lease_is_renewed(redis: Any) -> None:
    worker = Worker(redis)
    attempt = take(redis, worker.tenancies[0], "a")
    run_call(redis, worker.tenancies[0].ledger.cancel("a"))
    worker.heartbeat.start()
    try:
        wait_until(lambda: worker.engine.aborted == [("a", "cancelled")], "the engine ends it")
    finally:
        worker.heartbeat.stop()
    assert attempt.abort == "cancelled"


@pytest.mark.parametrize("lease_ms", [400, 1_000, 2_500, 60_000])
def test_a_lease_is_renewed_in_time_however_short_it_is(redis: Any, lease_ms: int) -> None:
    """Two beats may be late, and an event that is hardly young makes no renewal superfluous."""
    worker = Worker(redis, lease_ms=lease_ms)
    assert worker.heartbeat._interval_s <= min(1.0, lease_ms / 1000 / 3)
    attempt, key = take(redis, worker.tenancies[0], "a"), worker.tenancies[0].ledger.job_key("a")
    attempt.emitted_s = monotonic() - 0.3 * lease_ms / 1000
    before = redis.hincrby(key, "lease", -100)
    worker.heartbeat._renew()
    assert int(redis.hget(key, "lease")) > before


def test_two_workers_of_one_name_are_told(redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once each in its log, and in the reports, with the fix."""
    monkeypatch.setattr(heartbeat, "IDLE_REPORT_S", 0.0)
    one, other = Worker(redis, "one"), Worker(redis, "other")
    seen = set[tuple[str, str]]()

    def both_tell() -> bool:
        seen.update((told.process, told.namesake) for told in reports(redis))
        return {("one", "other"), ("other", "one")} <= seen

    with capture_logs() as logged:
        for worker in (one, other):
            worker.heartbeat._interval_s = 0.02
            worker.heartbeat.start()
        try:
            wait_until(both_tell, "each tells of the other")
        finally:
            for worker in (one, other):
                worker.heartbeat.stop()
    warnings = [line for line in logged if line["event"] == "another worker has this name"]
    assert sorted(line["tenant"] for line in warnings) == ["acme", "acme", "globex", "globex"]
    assert "--name" in warnings[0]["fix"]
    (told,) = reports(redis)
    (complaint,) = told.complaints
    assert complaint.startswith("two workers are called w, ")


def test_a_report_of_a_worker_that_is_gone_is_no_namesake_s(redis: Any) -> None:
    gone = WorkerStatus(name="w", state="ready", model="m", device="cpu", slots=1, process="before")
    run_call(redis, Reports("acme").report_worker(gone))
    worker = Worker(redis)
    for _ in range(2):
        worker.heartbeat._report(worker.tenancies)
    assert [(told.process, told.namesake) for told in reports(redis)] == [(OWNER, "")]


def test_how_long_redis_has_taken_no_report_counts_from_the_last_that_it_took(
    redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("llama_herd.worker.jobs.heartbeat.monotonic", lambda: now_s)
    heartbeat = (worker := Worker(redis)).heartbeat
    now_s += 5
    assert heartbeat.unheard_s == 5
    heartbeat._report(worker.tenancies)
    assert heartbeat.unheard_s == 0
    now_s += 7
    assert heartbeat.unheard_s == 7


def test_a_tenant_is_told_each_second_while_it_is_paused_and_seldom_while_it_has_nothing_here(
    redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer says that the pause is over, if the notice of that is lost."""
    now_s = 1000.0
    monkeypatch.setattr("llama_herd.worker.jobs.heartbeat.monotonic", lambda: now_s)
    worker = Worker(redis)
    run_call(redis, Pauses("acme").pause(worker.tenancies[0].queue))
    for _ in range(2):  # what is new is told once more at once
        worker.heartbeat._report(worker.tenancies)
    due = []
    for _ in range(3):
        now_s += heartbeat.INTERVAL_S
        due.append([one.tenant for one in worker.tenancies if worker.heartbeat._is_due(one)])
    assert due == [["acme"], ["acme"], ["acme", "globex"]]


def test_each_change_of_what_is_paused_is_told_once(redis: Any) -> None:
    plain = BeatAnswer(num_free=0, is_paused=False, is_drained=False)
    paused, drained = plain._replace(is_paused=True), plain._replace(is_drained=True)
    tenancy = new_tenancy(redis)
    with capture_logs() as lines:
        heard = [tenancy.hear(one) for one in (plain, paused, paused, plain, drained, drained, plain)]
    assert heard == [False, True, False, True, True, False, True]
    assert [line["event"] for line in lines] == [
        "queue paused",
        "queue resumed",
        "worker drained: it takes no jobs",
        "drain undone: it takes jobs again",
    ]


def test_a_namesake_that_has_gone_is_forgotten(redis: Any) -> None:
    now_s, status = 0.0, WorkerStatus(name="w", state="ready", model="m", device="cpu", slots=1)
    namesakes = Namesakes("one", lambda: now_s)
    for author in (None, "other", "one", None):
        namesakes.note("acme", author)
    assert namesakes.told("acme", status).namesake == "other"
    assert namesakes.told("globex", status).namesake == ""
    now_s = float(WORKER_TTL_S)
    assert namesakes.told("acme", status).namesake == ""
    namesakes.note("acme", "")
    assert namesakes.told("acme", status).namesake == "unknown"  # one that loads


def test_a_notice_of_pauses_asks_for_its_tenant_soon_and_a_flood_of_them_makes_no_storm(
    redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one tenant could have a worker beat all the time, and the others' cancels wait."""
    monkeypatch.setattr(heartbeat, "INTERVAL_S", 60.0)
    monkeypatch.setattr(heartbeat, "IDLE_REPORT_S", 120.0)
    worker = Worker(redis)
    worker.heartbeat._interval_s = 60.0
    acme, globex = worker.tenancies
    asked = list[str]()
    told = worker.heartbeat._status
    worker.heartbeat._status = lambda queue: asked.append(queue) or told(queue)  # type: ignore[func-returns-value]
    assert not any(one.takes_messages for one in worker.tenancies), "nobody knows yet what is paused"
    worker.heartbeat.start()
    try:
        wait_until(lambda: not (acme.is_held or globex.is_held), "both have answered")
        assert acme.takes_messages
        run_call(redis, Pauses("acme").pause(acme.queue))
        wait_until(lambda: not acme.takes_messages, "the pause is heard of")
        assert globex.takes_messages
        began_s, num_before = monotonic(), len(asked)
        for _ in range(2000):
            redis.publish(Ledger("acme").notices_to_all, b"")
        attempt = take(redis, globex, "job")
        run_call(redis, globex.ledger.cancel("job"))
        wait_until(lambda: attempt.abort, "another tenant's cancel is heard of")
        most = 2 + (monotonic() - began_s) / heartbeat.NOTICE_S
        assert len(asked) - num_before <= most
        assert asked[num_before:].count(globex.queue) <= 1, "who has jobs here is told now and then"
        run_call(redis, Pauses("acme").resume(acme.queue))
        wait_until(lambda: acme.takes_messages, "its end is heard of")
    finally:
        worker.heartbeat.stop()


def test_messages_in_hand_are_noted_again_while_the_worker_lives_and_also_while_it_stops(redis: Any) -> None:
    redis.zadd(TIMES, {"held": 1, "another's": 1})
    worker, poller = Worker(redis), SilentPoller()
    poller.tags_held = ("held",)
    worker.heartbeat._interval_s = 0.02
    worker.heartbeat.watch(poller)
    worker.heartbeat.start()
    try:
        for state in ("loading", "stopping"):
            worker.state = state
            redis.zadd(TIMES, {"held": 1})
            wait_until(lambda: run_call(redis, NOTED.unheld(60)) == [b"another's"], "it is noted again")
    finally:
        worker.heartbeat.stop()
