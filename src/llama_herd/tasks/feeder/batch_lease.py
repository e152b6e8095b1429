"""The right to run a batch, as long as it is renewed in time."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from threading import Event as Flag
from time import monotonic, sleep
from typing import TypeVar

from redis import Redis

from llama_herd.errors import HerdError
from llama_herd.tasks.batch.batch_run import BatchLeft
from llama_herd.tasks.connection.connect import redis_errors
from llama_herd.tasks.ledger.batch_records import BatchRecords, BatchState, ClaimedBatch
from llama_herd.tasks.ledger.redis_call import Argument, Dialogue, run_dialogue
from llama_herd.tasks.ledger.stored_files import NewFile, Quota, QuotaExceeded

T = TypeVar("T")

#: Most models that a record names as unserved.
MAX_UNSERVED = 20
#: How often a lease is renewed at least, and with it what is known of the batch's progress.
RENEW_S = 1.0
#: How long work goes on without a pause. The pause itself takes 50 microseconds.
TURN_S = 0.002


@dataclass(frozen=True)
class FeederLimits:
    """The most that the feeder of a process takes on.

    max_batches: at a time. max_rows: of a batch. rows: under way in all batches. lease_s: how long a lease
    lasts. storage_lost_s: after so long a storage that no gateway reaches counts as lost.
    """

    max_batches: int
    max_rows: int
    rows: Quota
    lease_s: float
    storage_lost_s: float


class Fenced(HerdError):
    """Another feeder has the batch, or it is over."""


@dataclass(eq=False)
class BatchLease:
    """The record as it was claimed, and all that its holder may do with it. Calls raise RedisUnavailable.

    state: the batch's. A client may have set it to `cancelling` since the last call.
    unserved: models of its rows that no worker has; each renewal notes them.
    waits: whether no row of it can run now, for want of workers.
    leaving: set, by another thread, when the batch is to be left to another feeder.
    """

    redis: Redis
    url: str
    records: BatchRecords
    claimed: ClaimedBatch
    lease_s: float
    waits: bool = False
    leaving: Flag = field(default_factory=Flag)

    def __post_init__(self) -> None:
        record = self.record = self.claimed.record
        self.state: BatchState = record.state
        self.num_rows = record.num_rows
        self.unserved: Collection[str] = record.unserved
        self._has_got_on = self._is_on_record = False
        self._lease_ms = int(1000 * self.lease_s)
        self._renew_s = min(RENEW_S, self.lease_s / 3)
        self._renewed_s = self._paused_s = monotonic()
        self._expires_s = monotonic() + (record.expires_ms - self.claimed.now_ms) / 1000

    @property
    def is_expired(self) -> bool:
        """Whether the batch has had the time that it may take."""
        return monotonic() >= self._expires_s

    @property
    def has_started(self) -> bool:
        """Whether the input is known to be valid, and its rows run or have run."""
        return self.num_rows > 0

    @property
    def is_to_end(self) -> bool:
        """Whether the batch is to take no more rows."""
        return self.is_expired or self.state == "cancelling"

    def is_stalled(self, live: Collection[str]) -> bool:
        """Whether no row can run as long as workers have these models alone."""
        may_wait = self.record.is_stalled and self.state == "in_progress" and not self.is_expired
        is_known = len(self.record.unserved) < MAX_UNSERVED
        return may_wait and is_known and not set(live) & set(self.record.unserved)

    def renew_if_due(self, **fields: Argument) -> None:
        """Renew the lease when it is time, and note these fields. Raises Fenced."""
        if monotonic() - self._renewed_s >= self._renew_s:
            self.renew(None, **fields)

    def yield_turn(self) -> None:
        """Call it often: it lets other threads run, and renews the lease. Raises Fenced, BatchLeft."""
        if monotonic() - self._paused_s < TURN_S:
            return
        sleep(0)
        self.renew_if_due()
        if self.leaving.is_set():
            raise BatchLeft
        self._paused_s = monotonic()

    def renew(self, enters: BatchState | None = None, **fields: Argument) -> None:
        """Renew the lease, and note fields of the record. Raises Fenced."""
        self._note(self._lease_ms, enters, fields)

    def get_on(self) -> None:
        """Tell, with the next renewal, that the batch has got further in these hands."""
        self._has_got_on = True

    def give_back(self, delay_s: float = 0.0, *, in_vain: bool = False, is_stalled: bool = False) -> None:
        """Let another feeder have the batch, after a while.

        in_vain: since it cannot be run here. is_stalled: since none of its rows can run anywhere.
        """
        if not in_vain:
            self.survive()
        self._note(int(1000 * delay_s), None, {"stalled": int(is_stalled)})

    def survive(self) -> None:
        """Tell that the batch has not stopped this process, if nobody could know yet."""
        if not self._is_on_record:
            self.run(self.records.survive(self.record.id))

    def _note(self, lease_ms: int, enters: BatchState | None, fields: dict[str, Argument]) -> None:
        record = self.record
        asked_s = monotonic()
        unserved = json.dumps(sorted(self.unserved)[:MAX_UNSERVED])
        known: dict[str, Argument] = {"unserved": unserved, **fields}
        if self._has_got_on:
            known["vain_claims"] = 0
        state = self.run(self.records.note(record.id, record.epoch, lease_ms, enters, **known))
        if state is None:
            raise Fenced
        self._is_on_record = self._has_got_on
        self.state, self._renewed_s = state, asked_s

    def start(self, num_rows: int, model: str, rows: Quota) -> QuotaExceeded | None:
        """Let the rows run, unless the tenant or the key has too many of them. Raises Fenced."""
        answer = self.run(self.records.start(self.record, self._lease_ms, num_rows, model, rows))
        if answer is None:
            raise Fenced
        if isinstance(answer, QuotaExceeded):
            return answer
        self.state, self.num_rows = answer, num_rows
        self.get_on()
        return None

    def end(self, final: BatchState, files: Sequence[NewFile] = (), **fields: Argument) -> None:
        """End the batch, and record its files. Raises Fenced."""
        if not self.run(self.records.end(self.record, final, files, **fields)):
            raise Fenced
        self.state = final

    def run(self, dialogue: Dialogue[T]) -> T:
        """Make the calls of a dialogue."""
        with redis_errors(self.url):
            return run_dialogue(self.redis, dialogue)
