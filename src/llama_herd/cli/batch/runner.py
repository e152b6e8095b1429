"""Runs a batch from file to file, until it is done, too many rows fail, or it is interrupted."""

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from time import monotonic, sleep
from typing import TYPE_CHECKING

from llama_herd.cli.batch.files import BatchFiles
from llama_herd.cli.batch.screen import BatchScreen
from llama_herd.cli.batch.summary import Summary
from llama_herd.cli.signals import on_signals
from llama_herd.errors import RedisUnavailable
from llama_herd.tasks.batch.batch_progress import BatchProgress
from llama_herd.tasks.batch.batch_run import BatchRun
from llama_herd.tasks.client.batch.batch_row import BatchItem
from llama_herd.tasks.client.batch.client_batch import ClientBatch
from llama_herd.tasks.client.client import Client


class Wish(Enum):
    """The wish of the person who interrupts: let the jobs under way run on, or cancel them."""

    LEAVE = "leave"
    CANCEL = "cancel"


class Interruption:
    """The last signal, if there was one, and the number of signals."""

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        self.num_signals = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        def note(number: signal.Signals) -> None:
            self.number = number
            self.num_signals += 1

        with (
            on_signals((signal.SIGINT,), lambda: note(signal.SIGINT)),
            on_signals((signal.SIGTERM,), lambda: note(signal.SIGTERM)),
        ):
            yield

    @property
    def exit_code(self) -> int:
        return 128 + (self.number or 0)

    def wish(self, num_under_way: int) -> Wish:
        """Ask the person who pressed Ctrl-C. Unless the answer is to cancel, the jobs run on."""
        if self.number is not signal.SIGINT or not (sys.stdin.isatty() and sys.stdout.isatty()):
            return Wish.LEAVE
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            answer = input(f"{num_under_way} jobs are under way: leave them running, or cancel them? [L/c] ")
        except (KeyboardInterrupt, EOFError):
            return Wish.LEAVE
        finally:
            signal.signal(signal.SIGINT, before)
        return Wish.CANCEL if answer.strip().lower().startswith("c") else Wish.LEAVE


if TYPE_CHECKING:
    from llama_herd.local.own_herd import OwnHerd

#: How often the status is reported.
REPORT_S = 1.0
#: Pause before Redis is tried again.
RETRY_S = 0.5
#: What is said besides when a batch stops though nobody set how many rows may fail.
HINT = ". Fix: mend that; or give --max-errors, and the other rows run"


class BatchRunner:
    """Writes the answers of a batch, and reports its progress; `run` returns the exit code.

    Answers are on disk before the batch is polled again, which lets Redis forget their jobs. So a kill at any
    byte loses nothing and repeats nothing.
    """

    def __init__(
        self,
        files: BatchFiles,
        batch: ClientBatch,
        client: Client,
        screen: BatchScreen,
        *,
        command: str,
        max_errors: int | None = None,
        own: "OwnHerd | None" = None,
    ) -> None:
        """`command` continues this run; `own` is the herd that was started for it, if any."""
        self._files = files
        self._batch = batch
        self._client = client
        self._screen = screen
        self._command = command
        self._own = own
        self._hits_before: Mapping[str, int] = {}
        self._hint = HINT if max_errors is None else ""
        self._interruption = Interruption()
        self._is_away = False
        self._named: set[str] = set()
        self._report_at_s = 0.0
        self._is_asked_to_end = False
        known = files.run
        figures = BatchProgress(
            known.run_id, known.input_name, files.num_rows(), files.num_done, files.num_failed
        )
        self._run = BatchRun(batch.window, figures, max_errors=max_errors)

    def run(self) -> int:
        """Run the batch; return the exit code.

        Raises CannotWrite, WorkerDied, and RedisUnavailable when Redis is not there at the start.
        """
        self._hits_before = {one.name: one.prefix_cache_hits for one in self._client.workers()}
        with self._interruption.listening(), self._screen:
            self._begin()
            while not self._batch.window.is_over:
                self._advance()
                if self._own is not None:
                    self._own.worker.check()
                if self._interruption.number is not None:
                    return self._interrupted()
                self._report()
                if self._is_asked_to_end:
                    return self._cancelled_from_elsewhere()
            return self._end()

    def _begin(self) -> None:
        run_id, num_before = self._files.run.run_id, self._files.num_done + self._files.num_failed
        how = f"continues, {num_before:,} rows are done" if num_before else "begins"
        where = "" if self._own is None else f"HERD_REDIS_URL={self._own.settings.redis_url} "
        # On a line of its own the command fits into 80 columns, and can be copied whole.
        self._screen.say(
            f"run {run_id} {how}; to watch it from elsewhere:\n  {where}herd batch --watch {run_id}"
        )

    def _advance(self) -> None:
        """One round; its answers are on disk before the next one."""
        self._files.write(self._run.answers(self._poll()))

    def _poll(self) -> list[BatchItem]:
        """Poll the batch; while Redis is away nothing comes, and one line says so."""
        try:
            items = self._batch.poll()
        except RedisUnavailable as error:
            if not self._is_away:
                self._screen.say(f"{error}. Retrying; nothing is lost")
            self._is_away = True
            sleep(RETRY_S)
            return []
        if self._is_away:
            self._screen.say("Redis is back")
        self._is_away = False
        return items

    def _report(self) -> None:
        if monotonic() < self._report_at_s:
            return
        self._report_at_s = monotonic() + REPORT_S
        self._tell("running")
        if self._own is None:
            self._name_unserved()

    def _name_unserved(self) -> None:
        """Warn once per model: a file made for another service may name one that no worker has."""
        unserved = self._batch.window.unserved
        for model in sorted(unserved.keys() - self._named):
            meant = unserved[model] or "."
            self._screen.say(
                f"no worker serves {model}: its rows wait{meant} Fix: start one, or set --model for all rows"
            )
            self._named.add(model)

    def _tell(self, state: str) -> None:
        status = self._run.status(state)
        self._screen.show(status)
        if not self._is_away:
            with suppress(RedisUnavailable):
                self._is_asked_to_end = self._client.report_batch(status)

    def _interrupted(self) -> int:
        num_under_way = self._batch.window.num_under_way
        self._screen.pause()
        if self._own is not None:
            self._leave(f"{num_under_way} jobs end with this run; they will begin again")
        elif self._interruption.wish(num_under_way) is Wish.CANCEL:
            self._cancel("cancelled")
        else:
            self._leave(f"{num_under_way} jobs continue on the workers")
        return self._interruption.exit_code

    def _leave(self, outcome: str) -> None:
        self._tell("left")
        self._screen.say(f"{outcome}. To continue: {self._command}")

    def _cancelled_from_elsewhere(self) -> int:
        self._screen.pause()
        self._cancel("cancelled from elsewhere")
        return 1

    def _cancel(self, what: str) -> None:
        """Cancel the jobs under way. Another signal ends the wait for workers that do not answer."""
        self._batch.cancel()
        num_signals = self._interruption.num_signals
        while not self._batch.window.is_over and self._interruption.num_signals == num_signals:
            self._advance()
        self._tell("cancelled")
        self._screen.say(f"{what}; the same command runs the remaining rows")

    def _end(self) -> int:
        figures, stop_reason = self._run.progress, self._run.stop_reason
        state = "stopped" if stop_reason else "done"
        self._tell(state)
        if stop_reason:
            self._screen.say(f"stopped: {stop_reason}{self._hint}")
        if table := self._files.write_table():
            self._screen.say(table)
        hits = self._prefix_cache_hits()
        self._screen.show_summary(Summary(self._run.status(state), figures.ttft, hits, self._failures()))
        return int(figures.num_failed > 0)

    def _failures(self) -> str:
        """Where the failed rows are, and why most of this start failed; empty if none has."""
        figures = self._run.progress
        if not figures.num_failed:
            return ""
        why = figures.commonest_failure
        return f"in {self._files.errors}" + (f", most of them by {why}" if why else "")

    def _prefix_cache_hits(self) -> int | None:
        """Hits since the start, of all jobs that the workers ran meanwhile."""
        with suppress(RedisUnavailable):
            models = self._batch.window.models
            workers = [one for one in self._client.workers() if one.model in models]
            hits = [one.prefix_cache_hits - self._hits_before.get(one.name, 0) for one in workers]
            return sum(max(0, num) for num in hits) if hits else None
        return None
