"""One job's event stream, as the worker that owns the job writes it."""

import hashlib
from collections import deque
from math import inf
from time import monotonic
from typing import NamedTuple, Self

from llama_herd.tasks.answers import Claimed
from llama_herd.tasks.events import End, Failure, FinishReason, Started, Timings, Token, Usage
from llama_herd.tasks.ledger import Entry
from llama_herd.worker.draw import Drawn

#: Confirmed events are kept this long, so that a Redis which lost its last seconds can be told them again.
KEPT_S = 10.0


class Recorded(NamedTuple):
    """What earlier attempts have written of a job."""

    ids: tuple[int, ...]
    text: str

    @classmethod
    def of(cls, events: list[Started | Token | End]) -> Self:
        tokens = [event for event in events if isinstance(event, Token)]
        return cls(tuple(i for token in tokens for i in token.ids), "".join(token.text for token in tokens))


class _Sent(NamedTuple):
    at_s: float
    entry: Entry
    text_hash: "hashlib._Hash"  # of the text before this event


class Stream:
    """Numbers the events of a job, joins tokens that wait into one event, and can repeat what was sent.

    An event that has been sent keeps its borders for ever: it is repeated as it was or not at all.
    """

    def __init__(self, job_id: str, claimed: Claimed, recorded: Recorded) -> None:
        """Go on where `recorded` ends; `flush_s` is how long tokens may be gathered for one event."""
        self.job_id = job_id
        self.epoch = claimed.epoch
        self.seq = claimed.seq
        self.num_ids = claimed.n
        self.flush_s = 0.0
        self._num_starts = claimed.starts
        self._text_hash = hashlib.sha256(recorded.text.encode())
        self._waiting: list[Drawn] = []
        self._waiting_text = ""
        self._waiting_since_s: float | None = None
        self._sent: deque[_Sent] = deque()

    def add(self, tokens: tuple[Drawn, ...], text: str) -> None:
        """Let tokens wait for the next event."""
        if self._waiting_since_s is None:
            self._waiting_since_s = monotonic()
        self._waiting += tokens
        self._waiting_text += text

    @property
    def due_s(self) -> float:
        """When the waiting tokens are to be sent, on the clock of time.monotonic; the first go at once."""
        if self._waiting_since_s is None:
            return inf
        return self._waiting_since_s + (self.flush_s if self.num_ids else 0.0)

    def start(self, worker: str, model: str, seed: int, num_prompt_tokens: int | None) -> Entry:
        self._num_starts += 1
        started = Started(
            seq=self.seq + 1,
            job=self.job_id,
            epoch=self.epoch,
            attempt=self._num_starts,
            worker=worker,
            model=model,
            seed=seed,
            prompt_tokens=num_prompt_tokens,
        )
        return self._number(started)

    def flush(self) -> list[Entry]:
        """Make one event of the tokens that wait; none when there are none."""
        if not self._waiting and not self._waiting_text:
            return []
        tokens, text = self._waiting, self._waiting_text
        self._waiting, self._waiting_text, self._waiting_since_s = [], "", None
        token = Token(
            seq=self.seq + 1,
            job=self.job_id,
            epoch=self.epoch,
            i=self.num_ids,
            ids=tuple(drawn.token_id for drawn in tokens),
            text=text,
            logprobs=_logprobs(tokens),
            top_logprobs=_top_logprobs(tokens),
        )
        entry = self._number(token)
        self._text_hash = self._text_hash.copy()
        self._text_hash.update(text.encode())
        return [entry]

    def end(
        self,
        finish_reason: FinishReason,
        worker: str,
        num_prompt_tokens: int | None,
        timings: Timings,
        error: Failure | None = None,
    ) -> Entry:
        end = End(
            seq=self.seq + 1,
            job=self.job_id,
            epoch=self.epoch,
            finish_reason=finish_reason,
            n=self.num_ids,
            usage=self._usage(num_prompt_tokens),
            text_sha256=self._text_hash.hexdigest(),
            error=error,
            attempts=self._num_starts,
            worker=worker,
            timings=timings,
        )
        return self._number(end)

    def _usage(self, num_prompt_tokens: int | None) -> Usage | None:
        if num_prompt_tokens is None:
            return None
        return Usage(
            prompt_tokens=num_prompt_tokens,
            completion_tokens=self.num_ids,
            total_tokens=num_prompt_tokens + self.num_ids,
        )

    def rewind(self, seq: int, num_ids: int) -> None:
        """Forget what came after event `seq`: it was refused and never will be written."""
        while self._sent and self._sent[-1].entry.seq > seq:
            self._text_hash = self._sent.pop().text_hash
        self.seq, self.num_ids = seq, num_ids

    def after(self, seq: int) -> list[Entry] | None:
        """The events after `seq`, as they were sent; None when some of them are no longer kept."""
        kept = [sent.entry for sent in self._sent if sent.entry.seq > seq]
        return kept if len(kept) == self.seq - seq else None

    def _number(self, event: Started | Token | End) -> Entry:
        """Give the event its place in the stream and keep it for a while."""
        entry = Entry.of(event, self.num_ids)
        now_s = monotonic()
        while self._sent and self._sent[0].at_s < now_s - KEPT_S:
            self._sent.popleft()
        self._sent.append(_Sent(now_s, entry, self._text_hash))
        self.seq, self.num_ids = event.seq, self.num_ids + entry.num_ids
        return entry


def _logprobs(tokens: list[Drawn]) -> tuple[float, ...] | None:
    if not tokens or tokens[0].logprob is None:
        return None
    return tuple(token.logprob for token in tokens if token.logprob is not None)


def _top_logprobs(tokens: list[Drawn]) -> tuple[tuple[tuple[int, float], ...], ...] | None:
    return tuple(token.top for token in tokens) if tokens and tokens[0].top else None
