"""Runs a batch from file to file, until it is done, too many rows fail, or it is interrupted.

Also watches and ends one that runs somewhere else.
"""

import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from time import sleep
from typing import TYPE_CHECKING

from llama_herd.cli.batch.files import BatchFiles
from llama_herd.cli.batch.screen import BatchScreen, Summary, progress_line
from llama_herd.cli.signals import on_signals
from llama_herd.cli.terminal import in_notebook
from llama_herd.counted import counted
from llama_herd.errors import JobNotFound, RedisUnavailable
from llama_herd.tasks.batch.batch_run import BatchLeft, BatchRun
from llama_herd.tasks.client.batch.batch_progress import BatchProgress
from llama_herd.tasks.client.batch.batch_row import BatchItem
from llama_herd.tasks.client.batch.client_batch import ClientBatch
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.batch_status import BatchStatus

if TYPE_CHECKING:
    from llama_herd.local.worker_process import WorkerProcess


class Interruption:
    """The last signal, if there was one, and the number of signals."""

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        self.num_signals = 0

    def listening(self) -> AbstractContextManager[None]:
        """Note each signal to end that comes within the block, in place of what it would do."""
        return on_signals((signal.SIGINT, signal.SIGTERM), self._note)

    def _note(self, number: signal.Signals) -> None:
        self.number = number
        self.num_signals += 1

    @property
    def exit_code(self) -> int:
        return 128 + (self.number or 0)

    def wants_cancel(self, num_under_way: int) -> bool:
        """Ask the person who pressed Ctrl-C. Unless the answer is to cancel, the jobs run on."""
        may_ask = sys.stdin.isatty() and sys.stdout.isatty() and not in_notebook()
        if self.number is not signal.SIGINT or not may_ask:
            return False
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            answer = input(f"{counted(num_under_way, 'job')} under way: leave running, or cancel? [L/c] ")
        except (KeyboardInterrupt, EOFError):
            return False
        finally:
            signal.signal(signal.SIGINT, before)
        return answer.strip().lower().startswith("c")


@dataclass(eq=False)
class BatchRunner:
    """Owns a run from file to file, and shows it; `run` returns the exit code.

    command: it continues this run. own: the worker that was started for it, if any.
    """

    files: BatchFiles
    batch: ClientBatch
    client: Client
    screen: BatchScreen
    command: str
    max_errors: int | None = None
    own: "WorkerProcess | None" = None
    flush_s: float = 0.0
    _hits_before: Mapping[str, int] = field(init=False, default_factory=dict)
    _interruption: Interruption = field(init=False, default_factory=Interruption)
    _num_heeded: int = field(init=False, default=0)
    _is_away: bool = field(init=False, default=False)
    _has_told_refusal: bool = field(init=False, default=False)
    _named: set[str] = field(init=False, default_factory=set)
    _is_ended_elsewhere: bool = field(init=False, default=False)
    _is_cancelled: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        is_strict = self.max_errors is None
        self._hint = ". Fix: mend that; or give --max-errors, and the other rows run" if is_strict else ""
        files, run = self.files, self.files.run
        progress = BatchProgress(run.run_id, run.input_name, files.num_rows, files.done)
        has_own = self.own is not None
        self._run = BatchRun(self.client, self.batch, progress, self, self.max_errors, has_own_worker=has_own)

    def run(self) -> int:
        """Run the batch; return the exit code.

        Raises CannotWrite, WorkerDied, and RedisUnavailable when Redis is not there at the start.
        """
        self._hits_before = {one.name: one.prefix_cache_hits for one in self.client.workers()}
        with self._interruption.listening(), self.screen:
            run_id, num_before = self.files.run.run_id, len(self.files.done)
            how = f"continues, {counted(num_before, 'row')} done" if num_before else "begins"
            where = "" if self.own is None else f"HERD_REDIS_URL={self.own.settings.redis_url} "
            # On a line of its own the command fits into 80 columns, and can be copied whole.
            self.screen.say(
                f"run {run_id} {how}; to watch it from elsewhere:\n  {where}herd batch --watch {run_id}"
            )
            for name in self.files.renamed:
                self.screen.say(name)
            try:
                state = self._run.run()
            except BatchLeft:
                state = "cancelled" if self._is_cancelled else "left"
                self._run.report(state)
            return self._end(state) if state in ("done", "stopped") else self._end_early(state)

    def attend(self, run: BatchRun) -> None:
        """Heed signals, and who ends the batch from elsewhere. Raises BatchLeft, WorkerDied."""
        if self.own is not None:
            self.own.check()
        self._tell_outage(run.outage)
        self._tell_refusal(run.window.refusal)
        if self._interruption.num_signals > self._num_heeded:
            self._num_heeded = self._interruption.num_signals
            self._heed_signal()
        elif run.is_asked_to_end and not self._is_cancelled:
            self.screen.pause()
            self._is_ended_elsewhere = self._is_cancelled = True
        if self._is_cancelled:
            run.cancel()

    def _heed_signal(self) -> None:
        """Let the batch be cancelled, or leave it, even if it waits for jobs that were cancelled."""
        self.screen.pause()
        may_cancel = self.own is None and not self._is_cancelled
        if not (may_cancel and self._interruption.wants_cancel(self._run.window.num_under_way)):
            raise BatchLeft
        self._is_cancelled = True

    def _tell_outage(self, outage: RedisUnavailable | None) -> None:
        """Say once that Redis is away, and once that it is back."""
        if outage is not None and not self._is_away:
            self.screen.say(f"{outage}. Retrying; nothing is lost")
        elif outage is None and self._is_away:
            self.screen.say("Redis is back")
        self._is_away = outage is not None

    def _tell_refusal(self, refusal: str) -> None:
        """Say once why rows wait though Redis is there."""
        if refusal and not self._has_told_refusal:
            self.screen.say(f"{refusal}. Retrying; nothing is lost")
            self._has_told_refusal = True

    def write(self, items: Sequence[BatchItem]) -> None:
        """Raises CannotWrite."""
        self.files.write(items)

    def show(self, status: BatchStatus) -> None:
        self.screen.show(status)
        if status.unserved and status.is_running:
            self._name_unserved()

    def _name_unserved(self) -> None:
        """Warn once per model: a file made for another service may name one that no worker has."""
        unserved = self._run.window.unserved
        for model in sorted(unserved.keys() - self._named):
            meant = unserved[model] or "."
            self.screen.say(
                f"no worker serves {model}: its rows wait{meant} Fix: start one, or set --model for all rows"
            )
            self._named.add(model)

    def _end_early(self, state: str) -> int:
        """Say what becomes of the rows that are left, whose jobs were left or cancelled."""
        if state == "cancelled":
            where = " from elsewhere" if self._is_ended_elsewhere else ""
            self.screen.say(f"cancelled{where}; the same command runs the remaining rows")
        else:
            how = "continue on the workers" if self.own is None else "end with this run, and begin again"
            jobs = counted(self._run.window.num_under_way, "job")
            self.screen.say(f"{jobs} will {how}. To continue: {self.command}")
        return 1 if self._is_ended_elsewhere else self._interruption.exit_code

    def _end(self, state: str) -> int:
        progress, stop_reason = self._run.progress, self._run.stop_reason
        if stop_reason:
            self.screen.say(f"stopped: {stop_reason}{self._hint}")
        if table := self.files.write_table(is_whole=state == "done"):
            self.screen.say(table)
        hits = self._prefix_cache_hits()
        self.screen.show_summary(Summary(self._run.status(state), progress.ttft, hits, self._failures()))
        return int(progress.num_failed > 0)

    def _failures(self) -> str:
        """Where the failed rows are, and why most of this start failed; empty if none has."""
        progress = self._run.progress
        if not progress.num_failed:
            return ""
        why = progress.commonest_failure
        return f"in {self.files.plan.errors}" + (f", {why}" if why else "")

    def _prefix_cache_hits(self) -> int | None:
        """Hits since the start, of all jobs that the workers ran meanwhile."""
        with suppress(RedisUnavailable):
            models = self._run.window.models
            workers = [one for one in self.client.workers() if one.model in models]
            hits = [one.prefix_cache_hits - self._hits_before.get(one.name, 0) for one in workers]
            return sum(max(0, num) for num in hits) if hits else None
        return None


def watch_batch(client: Client, run_id: str, screen: BatchScreen) -> BatchStatus:
    """Show a batch until it ends, and return its last status. Raises JobNotFound if it does not report."""
    with screen:
        while True:
            status = next((one for one in client.batches() if one.run_id == run_id), None)
            if status is None:
                raise JobNotFound(
                    f"no batch {run_id}: it never ran, ended over an hour ago, or was killed. Fix if it was "
                    "killed: run the same command again"
                )
            screen.show(status)
            if not status.is_running:
                screen.say(f"{status.state}: {progress_line(status)}")
                return status
            sleep(1.0)  # as often as it reports


def end_batch(client: Client, run_id: str) -> str:
    """Let a batch's command end, then cancel the jobs that it left or that a killed one has left.

    Returns what was done, for a person. Raises JobNotFound if nothing of the batch is left.
    """
    was_running = client.end_batch(run_id)
    while was_running and any(one.run_id == run_id and one.is_running for one in client.batches()):
        sleep(0.2)  # the report of a killed command expires, so this ends
    num_left = client.cancel_jobs(run_id=run_id)
    if not was_running and not num_left:
        raise JobNotFound(f"no batch {run_id} runs, and no job of it waits or runs")
    ended = f"batch {run_id} has ended; the same command runs its other rows" if was_running else ""
    left = f"{counted(num_left, 'job')} cancelled" if num_left else ""
    return "; ".join(filter(None, (ended, left)))
