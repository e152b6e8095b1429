"""Sends what the engine says: one script call a step, repeated byte for byte until Redis answers it."""

import threading
from collections.abc import Callable, Sequence as Rows
from contextlib import suppress
from math import inf
from queue import Empty, Full, Queue
from time import monotonic, sleep
from typing import NamedTuple

import structlog
from redis.exceptions import RedisError

from llama_herd.tasks.answers import Emission, Emitted
from llama_herd.tasks.call import run
from llama_herd.tasks.entry import Entry
from llama_herd.tasks.events import Failure
from llama_herd.worker.attempt import Attempt
from llama_herd.worker.output import Output
from llama_herd.worker.owner import Owner

log = structlog.get_logger(__name__)

#: Steps that may wait while Redis is away; then the engine pauses.
MAX_WAITING_STEPS = 1000

#: Pause between two tries of a call that Redis has not answered; a stopping worker tries only for so long.
RETRY_S = 0.2
STOPPING_S = 2.0


class Refusal(NamedTuple):
    """A job that is ended before it reached the engine."""

    attempt: Attempt
    error: Failure


class Released(NamedTuple):
    """A job that was given back before it began; a new message stands for it."""

    attempt: Attempt


#: What other threads hand on.
Said = Output | Refusal | Released


class Publisher(threading.Thread):
    """Owns the streams of the jobs that run here. Others call `open` and `put`; the rest is its thread's.

    `on_end(attempt)` is called once the final event is in the ledger, `on_lost(attempt)` when the job
    turns out to belong to another worker, `on_released(attempt)` when it was given back.
    """

    def __init__(
        self,
        owner: Owner,
        *,
        on_end: Callable[[Attempt], None],
        on_lost: Callable[[Attempt], None],
        on_released: Callable[[Attempt], None],
    ) -> None:
        super().__init__(name="publisher", daemon=True)
        self.attempts: dict[str, Attempt] = {}
        self._owner = owner
        self._on_end = on_end
        self._on_lost = on_lost
        self._on_released = on_released
        self._inbox: Queue[Rows[Said]] = Queue(MAX_WAITING_STEPS)
        self._holding: dict[str, Attempt] = {}
        self._is_stopping = threading.Event()
        self._give_up_s = inf

    def open(self, attempt: Attempt) -> None:
        """Take a claimed job's stream over; call it before anything of the job is put.

        An earlier attempt that this worker still has in hand is lost: others have owned the job since.
        """
        earlier = self.attempts.get(attempt.job_id)
        self.attempts[attempt.job_id] = attempt
        if earlier is not None:
            earlier.is_over = True
            self._on_lost(earlier)

    def put(self, outputs: Rows[Said]) -> None:
        """Hand on what a step brought; blocks while too many steps wait for Redis."""
        if self._inbox.full():
            log.warning("engine pauses until redis answers", waiting_steps=MAX_WAITING_STEPS)
        self._inbox.put(outputs)

    def stop(self) -> None:
        """Send what waits, then stop; a Redis that does not answer is given up after a while."""
        self._give_up_s = monotonic() + STOPPING_S
        self._is_stopping.set()
        with suppress(Full):  # then there is enough to wake up for
            self._inbox.put_nowait([])
        self.join()

    def run(self) -> None:
        while not (self._is_stopping.is_set() and self._inbox.empty()):
            entries = self._entries(self._take())
            while entries:
                entries = self._settle(entries, self._send(entries))

    def _take(self) -> list[Said]:
        """All that waits. Sleeps until something comes or held tokens are due."""
        due_s = min((attempt.stream.due_s for attempt in self._holding.values()), default=inf)
        taken: list[Said] = []
        with suppress(Empty):
            taken += self._inbox.get(timeout=None if due_s == inf else max(0.0, due_s - monotonic()))
            while True:
                taken += self._inbox.get_nowait()
        return taken

    def _entries(self, outputs: Rows[Said]) -> list[Entry]:
        """The events that are due; what one job got in several steps becomes one event."""
        entries: list[Entry] = []
        for output in outputs:
            if isinstance(output, Refusal):
                entries.append(output.attempt.end("error", output.error))
            elif isinstance(output, Released):
                if self.attempts.get(output.attempt.job_id) is output.attempt:
                    self._close(output.attempt, self._on_released)
            else:
                entries += self._record(output)
        now_s = inf if self._is_stopping.is_set() else monotonic()
        for attempt in list(self._holding.values()):
            if attempt.stream.due_s <= now_s:
                entries += attempt.stream.flush()
                del self._holding[attempt.job_id]
        return entries

    def _record(self, output: Output) -> list[Entry]:
        attempt = self.attempts.get(output.sequence.job_id)
        if attempt is None or output.sequence not in attempt.sequences:
            return []
        entries = attempt.record(output)
        if attempt.stream.due_s < inf:
            self._holding[attempt.job_id] = attempt
        return entries

    def _send(self, entries: list[Entry]) -> list[Emitted]:
        """Repeat the call, byte for byte, until it is answered: it may have run though its reply was lost."""
        call = self._owner.ledger.emit(self._owner.id, entries)
        is_first = True
        while True:
            try:
                return run(self._owner.redis, call)
            except RedisError as error:
                if is_first:
                    log.warning("redis does not take events, trying on", error=type(error).__name__)
                is_first = False
                if monotonic() >= self._give_up_s:
                    return []
                sleep(RETRY_S)

    def _settle(self, entries: list[Entry], answers: list[Emitted]) -> list[Entry]:
        """Act on what the ledger said; return what must be sent now, before anything new."""
        again: list[Entry] = []
        settled: set[str] = set()
        if any(answer.is_full for answer in answers):
            log.warning("redis is full, trying on")
            sleep(RETRY_S)
        for entry, answer in zip(entries, answers, strict=False):
            attempt = self.attempts.get(entry.job_id)
            if attempt is None or attempt.stream.epoch != entry.epoch or entry.job_id in settled:
                continue
            if answer.kind in (Emission.OK, Emission.DUPLICATE):
                if entry.kind == "end":
                    self._close(attempt, self._on_end)
                continue
            settled.add(entry.job_id)
            again += self._recover(attempt, answer)
        return again

    def _recover(self, attempt: Attempt, answer: Emitted) -> list[Entry]:
        """What to send after an event was refused; what followed it in the same call was refused alike."""
        if answer.kind is Emission.CANCELLED:
            attempt.stream.rewind(answer.seq, answer.n)
            return [attempt.end("deadline" if answer.reason == "deadline" else "cancelled")]
        if answer.is_full and monotonic() >= self._give_up_s:
            return []
        if answer.is_full or answer.kind is Emission.GAP:
            missing = attempt.stream.after(answer.seq, answer.n)
            if missing is not None:
                log.warning("sending events again", job_id=attempt.job_id, num_events=len(missing))
                return missing
        if answer.kind is Emission.FINISHED:
            self._close(attempt, self._on_end)
            return []
        log.warning("job is lost", job_id=attempt.job_id, answer=answer.kind, reason=answer.reason)
        self._close(attempt, self._on_lost)
        return []

    def _close(self, attempt: Attempt, then: Callable[[Attempt], None]) -> None:
        self._holding.pop(attempt.job_id, None)
        self.attempts.pop(attempt.job_id, None)
        attempt.is_over = True
        then(attempt)
