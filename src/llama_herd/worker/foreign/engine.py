"""ForeignEngine: a server computes, and this thread keeps a request to it for each running sequence."""

import asyncio
import threading
from asyncio import Task, TimerHandle
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Any

import structlog

from llama_herd.error_code import ErrorCode
from llama_herd.errors import GenerationError
from llama_herd.tasks.protocol.events import Failure
from llama_herd.worker.engine.figures import EngineStats
from llama_herd.worker.engine.interface import (
    Abort,
    Admitted,
    Finished,
    Lost,
    NewTokens,
    PromptScores,
    SampledToken,
    SequenceInfo,
    Sink,
    StepOutput,
)
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.engine.wait_queue import WaitQueue
from llama_herd.worker.foreign.backend import (
    MOST_TOGETHER,
    Backend,
    Generated,
    JobRefused,
    ServerBusy,
    ServerFault,
)
from llama_herd.worker.foreign.figures import ForeignFigures
from llama_herd.worker.foreign.http import ConnectionLost, ServerAway
from llama_herd.worker.foreign.watch import ServerWatch
from llama_herd.worker.grammars.served_forms import ServedConstraint

log = structlog.get_logger(__name__)

#: How long a stopping worker waits for this thread.
STOP_S = 2.0
#: The tokens of a server's step come within so long: together they cost less on all of their way.
HAND_ON_S = 0.01
#: How soon a request is made again that the server had no room for.
BUSY_S = 0.5
#: How long the request of an output that has ended may take to its own end, which tells of cached tokens.
LINGER_S = 1.0

BEGUN_ELSEWHERE = Failure(
    code=ErrorCode.GRAMMAR_MISMATCH,
    message="a worker of another engine has begun the answer, and this server cannot go on within a form",
)


class RowEnded(Exception):
    """A row has ended here, and its server goes on."""


@dataclass(eq=False, slots=True)
class ForeignRow:
    """A sequence that has not ended, and the request that continues it."""

    sequence: Sequence
    is_admitted: bool = False
    request: Task[None] | None = None
    asked_s: float = 0.0  # when that was made
    deadline: TimerHandle | None = None
    drawn_s: float | None = None  # when its last tokens came
    held: list[SampledToken] = field(default_factory=list)  # of an answer that is published whole
    text: str = ""


class ForeignEngine(threading.Thread):
    """Has sequences continued by a server, as many at a time as there are slots; the others wait.

    What a server that died had in hand is told as lost: it is prepared anew, from what is on record, once the
    server is back. Meanwhile nothing is admitted.
    """

    def __init__(self, backend: Backend, watch: ServerWatch, max_rows: int, sink: Sink) -> None:
        """The watch knows whether the server is there."""
        super().__init__(name="engine", daemon=True)
        self._backend, self._watch, self._sink = backend, watch, sink
        self._max_rows = max_rows
        self._loop = asyncio.new_event_loop()
        self._rows: dict[SequenceInfo, ForeignRow] = {}
        self._waiting = WaitQueue()
        self._num_running = self._num_decoding = 0  # rows, and those of them that have had tokens
        self._requests: set[Task[None]] = set()
        self._outputs: list[StepOutput] = []
        self._figures = ForeignFigures()
        self._moved_s = monotonic()
        self._token_s = 0.0  # what one of the last tokens took; of an output's first ones, with its prompt
        self._has_to_stop = asyncio.Event()
        self._fault: BaseException | None = None

    @property
    def stats(self) -> EngineStats:
        """The engine's figures at this moment."""
        return replace(
            self._figures.stats,
            num_running=self._num_running,
            num_waiting=len(self._waiting),
            has_work=bool(self._rows),
            kv_cache_usage=self._watch.kv_cache_usage,
            away_since_s=self._watch.away_since_s,
        )

    @property
    def num_waiting(self) -> int:
        """Sequences that the server has not been asked for."""
        return len(self._waiting)

    def is_stalled(self, stall_s: float) -> bool:
        """Whether outputs that had tokens get no more from a server that is there, for `stall_s`.

        It may take longer by what as many tokens took of late as come together. How long a prompt takes
        nobody can see, nor how far an answer is that comes whole.
        """
        may_move = self._num_decoding > 0 and self._watch.away_since_s is None
        together_s = MOST_TOGETHER * min(self._token_s, stall_s)
        return may_move and monotonic() - self._moved_s > stall_s + together_s

    def submit(self, *sequences: Sequence) -> None:
        self._call(self._submit, sequences)

    def confirm(self, infos: Iterable[SequenceInfo]) -> None:
        """Note that the start of these sequences is on record: now the server may be asked."""
        self._call(self._confirm, tuple(infos))

    def abort(self, infos: Iterable[SequenceInfo], reason: Abort) -> None:
        """End sequences at once, and close their connections: so the server frees their rows."""
        self._call(self._abort, tuple(infos), reason)

    def count_anew(self) -> None:
        self._call(self._figures.forget)

    def stop(self) -> None:
        """Close all connections; what runs stays as it is on record."""
        self._call(self._has_to_stop.set)
        self.join(STOP_S)

    def run(self) -> None:
        self._loop.set_exception_handler(self._note_fault)
        try:
            self._loop.run_until_complete(self._main())
        except RuntimeError:
            if self._fault is None:
                raise
        if self._fault is not None:
            raise self._fault  # as of any other thread: the worker ends, and others take its jobs

    async def _main(self) -> None:
        watching = asyncio.ensure_future(self._watch.run(self._admit))
        watching.add_done_callback(self._check_ended)
        await self._has_to_stop.wait()
        running = [watching, *self._requests]
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._hand_on()

    def _call(self, act: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it all that could be told
            self._loop.call_soon_threadsafe(act, *args)

    def _note_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the thread by an error that nobody has expected."""
        self._fault = context.get("exception") or RuntimeError(context["message"])
        loop.stop()

    def _check_ended(self, task: Task[None]) -> None:
        """A task that ends by an error ends the thread."""
        self._requests.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._note_fault(self._loop, {"exception": error})

    def _submit(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            self._rows[sequence.info] = row = ForeignRow(sequence)
            self._waiting.join(sequence)
            self._set_deadline(row)
        self._admit()

    def _set_deadline(self, row: ForeignRow) -> None:
        if row.deadline is not None:
            row.deadline.cancel()
        if (deadline_s := row.sequence.deadline_s) is not None:
            row.deadline = self._loop.call_at(deadline_s, self._abort, (row.sequence.info,), "deadline")

    def _admit(self) -> None:
        """Let sequences in while there are slots, and ask for those whose start is on record."""
        while self._watch.is_there and self._num_running < self._max_rows and len(self._waiting):
            entry = next(self._waiting.in_order())
            self._waiting.admit(entry)
            row = self._rows[entry.sequence.info]
            row.is_admitted = True
            self._num_running += 1
            self._begin(row)

    def _begin(self, row: ForeignRow) -> None:
        sequence = row.sequence
        if not sequence.has_begun:
            sequence.has_begun = True
            sequence.note_admitted()
            self._set_deadline(row)
            self._figures.note_admitted(sequence)
            self._tell(Admitted(sequence.info, num_cached=None))
        if sequence.is_confirmed:
            self._request(row)

    def _confirm(self, infos: Iterable[SequenceInfo]) -> None:
        for info in infos:
            if (row := self._rows.get(info)) is not None and not row.sequence.is_confirmed:
                row.sequence.is_confirmed = True
                if row.is_admitted:
                    self._request(row)

    def _request(self, row: ForeignRow) -> None:
        """Ask the server to go on with a row. Of a form it would begin anew behind what is on record."""
        if row.sequence.constraint is not None and row.sequence.ids:
            self._fail(row, BEGUN_ELSEWHERE)
            return
        row.asked_s = monotonic()
        row.request = self._loop.create_task(self._generate(row))
        self._requests.add(row.request)
        row.request.add_done_callback(self._check_ended)

    async def _generate(self, row: ForeignRow) -> None:
        """Have a sequence continued to its end, and act on what comes in its place."""
        sequence = row.sequence
        try:
            take, gap_s = partial(self._take, row), self._figures.recent_gap_s
            generated = await self._backend.generate(sequence, take, gap_s)
            self._figures.note_cached(len(sequence.prompt_ids), generated.num_cached)
            self._end(row, generated)
        except RowEnded:
            pass
        except ServerAway as error:
            self._watch.note_away(error)
            self._wait_again(row, 0.0)
        except ServerBusy:
            self._wait_again(row, BUSY_S)
        except JobRefused as error:
            message = f"{self._backend.name} refuses it: {error}"
            self._fail(row, Failure(code=ErrorCode.INVALID_JOB, message=message))
        except GenerationError as error:
            self._fail(row, Failure.from_error(error))
        except ConnectionLost as error:
            self._lose(row, str(error))
        except Exception as error:
            await self._judge(row, error)

    def _take(self, row: ForeignRow, tokens: list[SampledToken]) -> None:
        """Take new tokens of a row, as far as they are part of its output."""
        sequence, taken, text = row.sequence, 0, ""
        if sequence.info not in self._rows:
            raise RowEnded
        if sequence.params.max_tokens:
            for token in tokens:
                text += sequence.append(token.token_id)
                taken += 1
                if sequence.finish_reason is not None:
                    break
        self._note_tokens(row, taken)
        self._publish(row, tokens[:taken], text)

    def _note_tokens(self, row: ForeignRow, num: int) -> None:
        self._moved_s = now_s = monotonic()
        if num:
            self._token_s = (now_s - (row.drawn_s or row.asked_s)) / num
            self._figures.note_tokens(num, None if row.drawn_s is None else now_s - row.drawn_s)
            self._num_decoding += row.drawn_s is None and row.sequence.constraint is None
            row.drawn_s = now_s

    def _publish(self, row: ForeignRow, tokens: list[SampledToken], text: str) -> None:
        """Tell what a row has new; of an answer that is published whole, nothing before its end."""
        sequence = row.sequence
        if isinstance(sequence.constraint, ServedConstraint):
            row.held += tokens
            row.text += text
            if sequence.finish_reason is None:
                return
            tokens, text = row.held, row.text
            if sequence.finish_reason == "stop" and sequence.stop_reason is None:  # else a stop cuts it
                sequence.constraint.check_whole(text)
        if sequence.prompt_scores:
            self._tell(PromptScores(sequence.info, tuple(sequence.prompt_scores)))
            sequence.prompt_scores = []
        if tokens or text:
            self._tell(NewTokens(sequence.info, tuple(tokens), text))
        if sequence.finish_reason is not None:
            self._tell(Finished(sequence.info, sequence.finish_reason, sequence.stop_reason))
            self._remove(row)

    def _end(self, row: ForeignRow, generated: Generated) -> None:
        """End a row whose server has ended it, unless it has ended by our own rules."""
        sequence = row.sequence
        if sequence.info not in self._rows:
            return
        text = ""
        if not sequence.params.max_tokens:
            sequence.end_without_output()
        else:
            reason = generated.finish_reason
            text = sequence.end_here(reason, "context" if reason == "length" else None)
        self._publish(row, [], text)

    async def _judge(self, row: ForeignRow, error: Exception) -> None:
        """Fail a row whose server failed; if the server is not well, it is lost instead."""
        try:
            await self._backend.check_health()
        except ServerAway:
            self._lose(row, str(error))
            return
        if isinstance(error, ServerFault):
            message = f"{self._backend.name} failed: {error}"
        else:
            log.exception("row failed", **row.sequence.line)
            message = f"{type(error).__name__} while the server's answer was read"
        self._fail(row, Failure(code=ErrorCode.MODEL_ERROR, message=message))

    def _lose(self, row: ForeignRow, reason: str) -> None:
        """Tell that the server has lost a row: it was in its hands."""
        if row.sequence.info not in self._rows:
            return
        log.warning("the server has lost a row", **row.sequence.line, reason=reason)
        self._watch.suspect()
        self._tell(Lost(row.sequence.info))
        self._remove(row)

    def _fail(self, row: ForeignRow, error: Failure) -> None:
        if row.sequence.info in self._rows:
            self._tell(Finished(row.sequence.info, "error", error=error))
            self._remove(row)

    def _wait_again(self, row: ForeignRow, pause_s: float) -> None:
        """Give a row's slot back: the server has nothing of it in hand."""
        if row.sequence.info not in self._rows:
            return
        self._leave(row)
        self._waiting.join(row.sequence)
        self._loop.call_later(pause_s, self._admit)

    def _abort(self, infos: Iterable[SequenceInfo], reason: Abort) -> None:
        for info in infos:
            row = self._rows.get(info)
            if row is None:
                continue
            if row.request is not None:
                row.request.cancel()
            if reason != "dropped":
                self._tell(Finished(info, reason))
            self._remove(row)

    def _remove(self, row: ForeignRow) -> None:
        """Forget a row. A request that the server has ended, too, may still come to its end."""
        del self._rows[row.sequence.info]
        if row.deadline is not None:
            row.deadline.cancel()
        if row.is_admitted:
            self._leave(row)
            self._loop.call_soon(self._admit)
        else:
            self._waiting.leave(row.sequence)

    def _leave(self, row: ForeignRow) -> None:
        row.is_admitted = False
        self._num_running -= 1
        self._num_decoding -= row.drawn_s is not None and row.sequence.constraint is None
        row.drawn_s = None
        if row.request is not None:
            self._loop.call_later(LINGER_S, row.request.cancel)
            row.request = None

    def _tell(self, output: StepOutput) -> None:
        """Hand an output on soon, together with what other rows have of the same step."""
        if not self._outputs:
            self._loop.call_later(HAND_ON_S, self._hand_on)
        self._outputs.append(output)

    def _hand_on(self) -> None:
        outputs, self._outputs = self._outputs, []
        if outputs:
            self._sink(outputs)
        self._moved_s = monotonic()  # it may have waited for Redis
