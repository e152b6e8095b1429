"""The engine: one model, one cache, one batch that sequences join and leave at any step."""

from collections.abc import Callable, Sequence as Rows
from typing import NamedTuple

import torch

from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.llama2 import Llama
from llama_herd.tasks.events import Failure, FinishReason
from llama_herd.worker.draw import NO_TOKEN, Drawn
from llama_herd.worker.sampler import sample, sample_each
from llama_herd.worker.scheduler import Row, Scheduler
from llama_herd.worker.sequence import Sequence


class Output(NamedTuple):
    """What the engine has to say about one sequence."""

    sequence: Sequence
    tokens: tuple[Drawn, ...] = ()
    text: str = ""
    has_started: bool = False
    finish_reason: FinishReason | None = None
    error: Failure | None = None

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(token.token_id for token in self.tokens)


NUMERIC_ERROR = Failure(code="numeric_error", message="the model's logits are no numbers", retriable=False)
MEMORY_ERROR = Failure(
    code="out_of_memory", message="the device lacks memory for its next tokens", retriable=True
)

#: Where outputs go: a list a step.
Sink = Callable[[list[Output]], None]


class Engine:
    """Runs sequences to their end; one thread calls it.

        engine = Engine(llama, cache, max_rows=32, prefill_tokens=1024, sink=print)
        engine.submit(sequence)
        while engine.has_work:
            engine.step()

    `sink` gets a list of outputs: those admitted before their prompts are computed, then what the step drew.
    """

    def __init__(
        self,
        llama: Llama,
        cache: Cache,
        *,
        max_rows: int,
        prefill_tokens: int,
        sink: Sink,
    ) -> None:
        self.llama = llama
        self.cache = cache
        self.scheduler = Scheduler(cache.prefixes, max_rows=max_rows, prefill_tokens=prefill_tokens)
        self._sink = sink

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def submit(self, sequence: Sequence) -> None:
        self.scheduler.submit(sequence)

    def step(self) -> None:
        """End what is cancelled or overdue, admit, prefill and decode in one forward, draw, hand on."""
        self._end_aborted()
        self._begin(self.scheduler.admit())
        self._compute(self.scheduler.next_batch())

    def fail_running(self, error: Failure) -> None:
        """End every sequence of the batch with an error; those that wait are untouched."""
        self._hand_on([self._failed(sequence, error) for sequence in list(self.scheduler.running)])

    def _end_aborted(self) -> None:
        ended = []
        for sequence in (*self.scheduler.running, *self.scheduler.waiting):
            if sequence.abort is None and sequence.is_overdue:
                sequence.abort = "deadline"
            if sequence.abort is not None:
                self.scheduler.remove(sequence)
                ended.append(sequence)
        self._hand_on(
            [
                Output(sequence, finish_reason=sequence.abort)
                for sequence in ended
                if sequence.abort != "dropped"
            ]
        )

    def _begin(self, admitted: list[Sequence]) -> None:
        """Fetch what is known of their prompts, in the order of admission, and announce them."""
        for sequence in admitted:
            self.cache.copy_pages(sequence.sources, sequence.pages[: len(sequence.sources)])
        self._hand_on([Output(sequence, has_started=True) for sequence in admitted])

    def _compute(self, rows: Rows[Row]) -> None:
        """Run rows in one forward; in halves where memory lacks, so that only who lacks it alone fails.

        A forward that broke off may be repeated: it writes the same keys and values to the same cells.
        """
        if not rows:
            return
        try:
            drawn = self._draw(rows)
        except torch.OutOfMemoryError:
            drawn = None  # what the forward held is free once the error is gone
        if drawn is not None:
            self._advance(rows, drawn)
        elif len(rows) == 1:
            self._hand_on([self._failed(rows[0].sequence, MEMORY_ERROR)])
        else:
            middle = len(rows) // 2
            self._compute(rows[:middle])
            self._compute(rows[middle:])

    def _draw(self, rows: Rows[Row]) -> list[Drawn]:
        chunks = [
            Chunk(
                pages=row.sequence.pages,
                start=row.sequence.num_cached,
                ids=row.sequence.uncached(row.num_tokens),
                wants_logits=row.is_complete,
            )
            for row in rows
        ]
        tiling = self.llama.tiling
        logits = self.llama.forward(
            Batch.of(chunks, self.cache.device, tiling.span_tokens), self.cache
        )  # (B, V)
        draws = [row.sequence.draw() for row in rows if row.is_complete]
        return sample_each(logits, draws) if tiling.is_fixed else sample(logits, draws)

    def _advance(self, rows: Rows[Row], drawn_tokens: list[Drawn]) -> None:
        drawn = iter(drawn_tokens)
        outputs = []
        for row in rows:
            sequence, is_complete = row.sequence, row.is_complete
            self.scheduler.note_computed(row)
            if is_complete:
                outputs.append(self._output(sequence, next(drawn)))
        self._hand_on(outputs)

    def _output(self, sequence: Sequence, token: Drawn) -> Output:
        if token.token_id == NO_TOKEN:
            return self._failed(sequence, NUMERIC_ERROR)
        text = sequence.append(token.token_id)
        if sequence.finish_reason:
            self.scheduler.remove(sequence)
        return Output(sequence, (token,), text, finish_reason=sequence.finish_reason)

    def _failed(self, sequence: Sequence, error: Failure) -> Output:
        """End one sequence; nothing that it has computed may serve another."""
        self.scheduler.remove(sequence, is_sound=False)
        return Output(sequence, finish_reason="error", error=error)

    def _hand_on(self, outputs: list[Output]) -> None:
        if outputs:
            self._sink(outputs)
