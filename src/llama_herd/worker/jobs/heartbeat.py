"""Says which jobs and messages this worker has, hears of cancels, and reports its status to its tenants."""

import threading
from collections.abc import Callable, Sequence as Rows
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any

import structlog
from redis.client import PubSub
from redis.exceptions import RedisError

from llama_herd.tasks.ledger.answers import Renewal
from llama_herd.tasks.ledger.held_jobs import MAX_ENTRIES, renew
from llama_herd.tasks.ledger.ledger import read_notice
from llama_herd.tasks.ledger.redis_call import keep_loaded, run_call, run_calls
from llama_herd.tasks.ledger.reports import MAX_BEATS, WORKER_TTL_S, Beat, beat
from llama_herd.tasks.ledger.script import kept_scripts
from llama_herd.tasks.protocol.worker_status import NAMESAKE_FIX, WorkerStatus
from llama_herd.worker.broker.message_notes import MessageNotes
from llama_herd.worker.engine.interface import JobEngine
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.suspect_gate import SuspectGate
from llama_herd.worker.jobs.tenancy import Tenancies, Tenancy
from llama_herd.worker.jobs.watchdog import Poller

log = structlog.get_logger(__name__)

INTERVAL_S = 1.0

#: A short lease is renewed more often: so many times until it would end.
BEATS_A_LEASE = 4

#: How often a tenant is told of a worker that has nothing of it in hand.
IDLE_REPORT_S = 3.0
#: How often Redis is asked whether it has the scripts of others, which it forgets when it starts again.
SCRIPTS_S = 3.0

#: How soon a stop or `report_soon` is noticed between two beats.
LISTEN_S = 0.2
#: How soon after a beat there may be another one, since pauses have changed.
NOTICE_S = 0.25

#: An event renews its job's lease. One so young, by seconds and by its part of a lease, makes another renewal
#: superfluous until the next beat. It is more than unwatched jobs let pass between two events.
FRESH_S, FRESH_PART = 0.75, 0.25


class Namesakes:
    """Notices another live worker of the same name: its reports stand in the place of this one's.

    What stood there before this one's first report does not count: it may be of a worker that is gone.
    """

    def __init__(self, process: str, clock: Callable[[], float] = monotonic) -> None:
        """`process`: an id of this one. `clock`: seconds, as of time.monotonic."""
        self._process = process
        self._clock = clock
        self._seen: dict[str, tuple[str, float]] = {}  # by tenant: another one, and when it was seen

    def told(self, tenant: str, status: WorkerStatus) -> WorkerStatus:
        """The status to report to a tenant, with this process, and another one if there is one."""
        other, seen_s = self._seen.get(tenant, ("", -inf))
        is_there = self._clock() - seen_s < WORKER_TTL_S
        namesake = (other or "unknown") if is_there else ""
        return status.model_copy(update={"process": self._process, "namesake": namesake})

    def note(self, tenant: str, author: str | None) -> None:
        """Note who has written the report that this one has just replaced."""
        is_first = tenant not in self._seen
        if is_first:
            self._seen[tenant] = "", -inf
        elif author not in (None, self._process):
            if self._clock() - self._seen[tenant][1] >= WORKER_TTL_S:
                log.warning("another worker has this name", tenant=tenant, fix=NAMESAKE_FIX)
            self._seen[tenant] = author, self._clock()


class Heartbeat(threading.Thread):
    """Renews the leases of claimed jobs about once a second while the engine moves; else it listens.

    Each event of a running job renews its lease anyway; this is for jobs that wait or prefill. A stalled
    engine loses its jobs to other workers, since nothing renews their leases then.
    """

    def __init__(
        self,
        tenancies: Tenancies,
        gate: SuspectGate,
        notes: MessageNotes,
        *,
        engine: JobEngine,
        status: Callable[[str], WorkerStatus],
        stall_s: float,
    ) -> None:
        """Make a heartbeat. `status(queue)` is the status that users of that queue may see."""
        super().__init__(name="heartbeat", daemon=True)
        self._redis, self._owner = tenancies.redis, tenancies.owner
        self._tenancies, self._gate, self._notes = tenancies, gate, notes
        self._poller: Poller | None = None
        self._by_channel = {one.ledger.notices_to(self._owner).encode(): one for one in tenancies}
        self._by_channel_of_all = {one.ledger.notices_to_all.encode(): one for one in tenancies}
        self._engine = engine
        self._status = status
        self._stall_s = stall_s
        self._is_stopping = threading.Event()
        self._is_stale = threading.Event()
        self._interval_s = min(INTERVAL_S, tenancies.first.ledger.lease_ms / 1000 / BEATS_A_LEASE)
        self._last_beat_s = self._next_beat_s = 0.0
        self._next_scripts_s = 0.0
        self._reported_s = dict[str, float]()  # by tenant
        self._heard_s = monotonic()
        self._namesakes = Namesakes(self._owner)

    @property
    def unheard_s(self) -> float:
        """How long Redis has taken no report, of any tenant."""
        return monotonic() - self._heard_s

    def watch(self, poller: Poller) -> None:
        """Note from now on what this poller holds; there is a new one after each lost connection."""
        self._poller = poller

    def report_soon(self) -> None:
        """Beat soon, since the worker's last reports are no longer true; any thread may ask."""
        self._is_stale.set()

    def stop(self) -> None:
        """Stop the thread, then report the worker as stopping: others release no jobs to one that is gone."""
        self._is_stopping.set()
        self.join()
        with suppress(RedisError):
            self._gate.leave_room()
            self._report(list(self._tenancies))

    def run(self) -> None:
        while not self._is_stopping.is_set():
            try:
                self._listen()
            except RedisError:
                self._is_stopping.wait(INTERVAL_S)

    def _listen(self) -> None:
        """Beat; between two beats act on cancel notices at once."""
        with self._redis.pubsub(ignore_subscribe_messages=True) as pubsub:  # type: ignore[no-untyped-call]
            pubsub.subscribe(*self._by_channel, *self._by_channel_of_all)
            self.report_soon()
            while not self._is_stopping.is_set():
                if self._is_stale.is_set() or monotonic() >= self._next_beat_s:
                    self._last_beat_s = monotonic()
                    self._next_beat_s = self._last_beat_s + self._interval_s
                    self._beat()
                self._hear(pubsub)

    def _hear(self, pubsub: PubSub) -> None:
        rest_s = self._next_beat_s - monotonic()
        message: Any = pubsub.get_message(timeout=max(0.0, min(LISTEN_S, rest_s)))
        if message and message["channel"] in self._by_channel_of_all:
            self._ask_soon(self._by_channel_of_all[message["channel"]])
            return
        notice = read_notice(message["data"]) if message else None
        if notice is not None:
            self._cancel(self._by_channel[message["channel"]].claims.get(notice.job), notice.cancel)

    def _ask_soon(self, tenancy: Tenancy) -> None:
        """Report to a tenant soon, since what is paused has changed, or may have. A flood makes no storm."""
        self._reported_s.pop(tenancy.tenant, None)
        self._next_beat_s = min(self._next_beat_s, self._last_beat_s + NOTICE_S)

    def _beat(self) -> None:
        """Renew leases and notes, then report: jobs and messages depend on these."""
        if self._engine.is_stalled(self._stall_s):
            log.error("engine stalled, other workers will take its jobs", stall_s=self._stall_s)
        else:
            self._renew()
        self._hold()
        self._gate.keep_room()
        if self._is_stale.is_set():
            self._is_stale.clear()  # first: what changes during the reports is reported again
            self._reported_s.clear()
        self._report([one for one in self._tenancies if self._is_due(one)])
        if monotonic() >= self._next_scripts_s:
            keep_loaded(self._redis, kept_scripts())
            self._next_scripts_s = monotonic() + SCRIPTS_S

    def _renew(self) -> None:
        terms = self._tenancies.first.ledger
        fresh_s = monotonic() - min(FRESH_S, FRESH_PART * terms.lease_ms / 1000)
        silent = [one for one in self._tenancies.in_hand() if one.emitted_s < fresh_s]
        for start in range(0, len(silent), MAX_ENTRIES):
            lot = silent[start : start + MAX_ENTRIES]
            held = [self._tenancies.for_attempt(one).held(one) for one in lot]
            answers = run_call(self._redis, renew(self._owner, held, terms))
            for attempt, answer in zip(lot, answers, strict=True):
                if answer.kind is Renewal.CANCELLED:
                    self._cancel(attempt, answer.reason)

    def _hold(self) -> None:
        """Note that the messages in hand are: other workers put back those of which nobody says so."""
        if tags := self._poller.tags_held if self._poller else []:
            run_calls(self._redis, self._notes.hold(tags))

    def _is_due(self, tenancy: Tenancy) -> bool:
        """Whether to tell a tenant now: each second while it has jobs here or is paused, and seldom else."""
        is_active = bool(tenancy.claims) or tenancy.recent.tokens_per_s > 0 or tenancy.is_held
        interval_s = INTERVAL_S / 2 if is_active else IDLE_REPORT_S - INTERVAL_S / 2
        return monotonic() - self._reported_s.get(tenancy.tenant, -inf) >= interval_s

    def _report(self, tenancies: Rows[Tenancy]) -> None:
        for start in range(0, len(tenancies), MAX_BEATS):
            lot = tenancies[start : start + MAX_BEATS]
            beats = [
                Beat(one.ledger, self._namesakes.told(one.tenant, self._status(one.queue)), one.kept_limit)
                for one in lot
            ]
            answers = run_call(self._redis, beat(beats))
            self._heard_s = monotonic()
            for one, answer in zip(lot, answers, strict=True):
                self._namesakes.note(one.tenant, answer.author)
                self._reported_s[one.tenant] = monotonic()
                if one.hear(answer):
                    self._ask_soon(one)  # to tell what it is now

    def _cancel(self, attempt: Attempt | None, reason: str) -> None:
        if attempt is None:
            return
        attempt.abort = attempt.abort or ("deadline" if reason == "deadline" else "cancelled")
        self._engine.abort(attempt.sequences, attempt.abort)
