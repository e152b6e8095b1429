"""Runs the rows of a batch through the queue, and writes their answers."""

from contextlib import suppress
from threading import Event as Flag
from time import monotonic

from llama_herd.errors import RedisUnavailable
from llama_herd.tasks.batch.batch_run import BatchRun
from llama_herd.tasks.client.batch.batch_row import BatchItem
from llama_herd.tasks.client.batch.client_batch import ClientBatch
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.feeder.answer_parts import AnswerParts
from llama_herd.tasks.feeder.batch_count import BatchCount
from llama_herd.tasks.feeder.batch_lease import BatchLease

#: Pause before Redis is tried again.
RETRY_S = 0.5
#: How long the jobs of a batch that ends early may take to end.
DRAIN_S = 30.0
#: How often a batch is reported to `herd status`.
REPORT_S = 1.0
#: After so long without an answer feeders that die are no longer taken to die of the batch: it only waits.
HARMLESS_S = 30.0
#: Most items that wait to be written.
MAX_UNWRITTEN = 4096

_NEVER = float("inf")


class LeftToOthers(Exception):
    """The batch is left to another feeder: this process ends, or another batch gets the turn."""


class RowRunner:
    """Runs the rows until all are answered, or until the batch is to end early.

    Answers are safe before the round after them, which lets Redis forget their jobs. So a kill at any moment
    loses nothing and repeats nothing.
    """

    def __init__(
        self,
        batch: ClientBatch,
        run: BatchRun,
        parts: AnswerParts,
        lease: BatchLease,
        client: Client,
        *,
        flush_s: float,
        leaving: Flag,
        stalled: Flag,
        count: BatchCount,
    ) -> None:
        self._batch = batch
        self._run = run
        self._parts = parts
        self._lease = lease
        self._client = client
        self._flush_s = flush_s
        self._leaving = leaving
        self._stalled = stalled
        self._count = count
        self._unwritten: list[BatchItem] = []
        self._flushed_s = self._begun_s = monotonic()
        self._give_up_s = _NEVER
        self._report_at_s = 0.0

    def run(self) -> None:
        """Run the rows. Raises Fenced, LeftToOthers, and what writing raises. Waits for a Redis that is away.

        A job that does not end in time is given up. The lines of the others are written before.
        """
        while not self._batch.window.is_over and monotonic() < self._give_up_s:
            if self._leaving.is_set():
                raise LeftToOthers
            try:
                self._run_round()
            except RedisUnavailable:
                self._leaving.wait(RETRY_S)
        self._flush()

    def _run_round(self) -> None:
        """Renew the lease, take the answers of ended jobs, and write them when it is time."""
        if self._parts.has_own_lines or monotonic() - self._begun_s >= HARMLESS_S:
            self._lease.get_on()
        self._lease.renew_if_due(num_done=self._parts.num_done, num_failed=self._parts.num_failed)
        if self._lease.is_to_end and self._give_up_s == _NEVER:
            self._batch.cancel()
            self._give_up_s = monotonic() + DRAIN_S
        self._lease.unserved = self._batch.window.without_worker
        (self._stalled.set if self._batch.window.is_stalled else self._stalled.clear)()
        items = self._batch.poll(forgets=not self._unwritten)
        self._unwritten += self._run.answers(items)
        if len(self._unwritten) >= MAX_UNWRITTEN or monotonic() - self._flushed_s >= self._flush_s:
            self._flush()
        self.report("running")

    def _flush(self) -> None:
        self._parts.write(self._unwritten)
        num_failed = sum(one.failure is not None for one in self._unwritten)
        self._count.rows(len(self._unwritten) - num_failed, num_failed)
        self._unwritten = []
        self._flushed_s = monotonic()

    def report(self, state: str) -> None:
        """Report the batch's progress for `herd status`; if its end was asked for there, cancel it."""
        if state == "running" and monotonic() < self._report_at_s:
            return
        self._report_at_s = monotonic() + REPORT_S
        with suppress(RedisUnavailable):
            if self._client.report_batch(self._run.status(state)):
                self._lease.cancel()
