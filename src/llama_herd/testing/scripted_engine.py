"""The engine on a script: the scheduler, slots and pages of any worker, and tokens that are known before."""

import os
import re
import signal
from collections.abc import Callable, Iterable, Sequence as Rows
from dataclasses import dataclass, fields
from math import hypot
from random import Random
from struct import pack
from time import monotonic, sleep
from typing import Any, Self

from llama_herd.errors import GenerationError
from llama_herd.tasks.protocol.events import FinishReason, StopReason
from llama_herd.testing.answer import Answer
from llama_herd.testing.vocabulary import EOS_ID
from llama_herd.worker.engine.engine import Engine
from llama_herd.worker.engine.interface import SampledToken, SequenceInfo
from llama_herd.worker.engine.runner import Read, Reading, Row, TokenReading, VectorReading
from llama_herd.worker.engine.sequence import Sequence

#: Numbers of the vector of a text.
NUM_DIMENSIONS = 64

_WORD = re.compile(r"\w+")

#: How long at most an engine whose rows are all paced hears of nothing else.
POLL_S = 0.01

#: How long a worker that is to die waits for its tokens to be recorded.
RECORDED_S = 10.0

#: Whether so many tokens of a sequence are in its job's stream.
HasRecorded = Callable[[SequenceInfo, int], bool]


class KnownSequence(Sequence):
    """A sequence of which is known what comes of it.

    Those below have slots, as it has: without them Python leaves out the fields that nobody gives.
    """

    @classmethod
    def of(cls, sequence: Sequence, **known: Any) -> Self:
        given = {one.name: getattr(sequence, one.name) for one in fields(Sequence) if one.init}
        return cls(**given, **known)


@dataclass(eq=False, kw_only=True, slots=True)
class RankedSequence(KnownSequence):
    """The sequence of a document."""

    logit: float


@dataclass(eq=False, kw_only=True, slots=True)
class ScriptedSequence(KnownSequence):
    """A sequence whose tokens are known."""

    answer: Answer
    scripted_ids: tuple[int, ...]
    num_replayed: int = 0  # of its ids, which earlier attempts have recorded
    due_s: float = 0.0  # when its next token may come, on the clock of time.monotonic

    def replay(self, ids: Iterable[int], end: tuple[FinishReason, StopReason] | None = None) -> str:
        text = KnownSequence.replay(self, ids, end)  # in a class with slots `super()` means the one without
        self.num_replayed = len(self.ids)
        return text

    @property
    def next_id(self) -> int:
        """What follows; behind the last one nothing but ends, as long as a job ignores them."""
        return self.scripted_ids[len(self.ids)] if len(self.ids) < len(self.scripted_ids) else EOS_ID

    @property
    def has_failed(self) -> bool:
        """Whether it fails now: after so many tokens, or in place of the end of a shorter text."""
        num_tokens = min(self.answer.after_tokens, len(self.scripted_ids) - 1)
        return bool(self.answer.error) and len(self.ids) >= num_tokens

    @property
    def is_deadly(self) -> bool:
        """Whether its worker dies now: it has come so far in this attempt, or each attempt is to die."""
        dies_after = self.answer.dies_after
        return dies_after == len(self.ids) and (not dies_after or self.num_replayed < dies_after)


@dataclass(eq=False)
class ScriptedRunner:
    """Computes nothing: each row has its next token already."""

    has_recorded: HasRecorded
    overlaps: bool = False
    on_layer: Callable[[], None] | None = None

    def begin(self, sequence: Sequence) -> None:
        """Nothing is copied."""

    def launch(self, rows: Rows[Row]) -> Read:
        readings = [self._reading(row) for row in rows]
        return lambda: readings

    def _reading(self, row: Row) -> Reading:
        sequence = row.sequence
        if isinstance(sequence, RankedSequence):
            return VectorReading(row, pack("<f", sequence.logit))
        if sequence.vector is not None:
            return VectorReading(row, scripted_vector(sequence.prompt_ids, sequence.num_dimensions))
        if not isinstance(sequence, ScriptedSequence):
            raise TypeError(f"{sequence.name} has no script")
        if sequence.is_deadly:
            self._die(sequence)
        if sequence.has_failed:
            raise GenerationError(sequence.answer.error, sequence.answer.message)
        params = sequence.params
        scores = [_certain(one, params.prompt_logprobs) for one in row.scored_ids]
        token = SampledToken(sequence.next_id)
        if params.logprobs:
            token = _certain(token.token_id, params.top_logprobs)
        return TokenReading(row, scores, token if row.is_complete else None)

    def _die(self, sequence: ScriptedSequence) -> None:
        """End as by kill -9 once the tokens so far are recorded, so that the next attempt is behind them."""
        until_s = monotonic() + RECORDED_S
        while not self.has_recorded(sequence.info, len(sequence.ids)) and monotonic() < until_s:
            sleep(POLL_S)
        os.kill(os.getpid(), signal.SIGKILL)


class PacedEngine(Engine):
    """Lets a row take part in a step only when its next token is due."""

    def _compute(self, rows: Rows[Row]) -> None:
        now_s = monotonic()
        waits_s = [max(0.0, getattr(row.sequence, "due_s", 0.0) - now_s) for row in rows]
        due = [row for row, wait_s in zip(rows, waits_s, strict=True) if not wait_s]
        if rows and not due:
            sleep(min(POLL_S, *waits_s))
        super()._compute(due)
        for row in due:
            if isinstance(row.sequence, ScriptedSequence) and row.sequence.answer.tokens_per_s:
                row.sequence.due_s = now_s + 1 / row.sequence.answer.tokens_per_s


def scripted_vector(ids: Rows[int], num_dimensions: int | None = None) -> bytes:
    """A vector of length 1 that follows from the ids alone. None: with all of its numbers."""
    drawn = Random(repr(list(ids)))
    numbers = [drawn.gauss(0, 1) for _ in range(NUM_DIMENSIONS)][:num_dimensions]
    return pack(f"<{len(numbers)}f", *(one / hypot(*numbers) for one in numbers))


def scripted_logit(query: str, document: str) -> float:
    """How many words of the query a document has, less those that it lacks."""
    wanted, found = (set(_WORD.findall(text.lower())) for text in (query, document))
    return float(len(wanted & found) - len(wanted - found))


def _certain(token_id: int, num_top: int | None) -> SampledToken:
    """A token that was certain."""
    return SampledToken(token_id, 0.0, ((token_id, 0.0),) if num_top else ())
