"""One job's event stream, as its owner writes it."""

import hashlib
from base64 import b64encode
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any, NamedTuple

from llama_herd.ops.logs import JobLine
from llama_herd.tasks.ledger.answers import Claimed
from llama_herd.tasks.ledger.held_jobs import EmitEntry
from llama_herd.tasks.protocol.events import (
    End,
    Failure,
    FinishReason,
    Pieces,
    Started,
    StopReason,
    Timings,
    Token,
    Usage,
    finite,
    parse_event,
    token_json,
    vectors_json,
)
from llama_herd.worker.engine.interface import NewTokens, NewVector, PromptScores, SampledToken
from llama_herd.worker.engine.sequence import NewParser
from llama_herd.worker.jobs.output_reader import OutputCount, OutputParts, OutputReader
from llama_herd.worker.jobs.recorded_outputs import RecordedOutputs
from llama_herd.worker.loading.sequence_maker import EchoedPrompt

#: Sent events are kept this long, so that they can be sent again to a Redis that lost its last seconds.
KEPT_S = 10.0

#: Vectors of more characters than this go into several events.
MAX_VECTOR_CHARS = 524_288

#: A job that lets its tokens be gathered for so long is taken to have nobody who watches: its first token is
#: gathered like the others.
UNWATCHED_S = 0.5


class EventAuthor(NamedTuple):
    """The writer of events: a worker, with its model, the bytes of the model's ids, and the tenant.

    num_dimensions: of a whole vector of the model; 0: it makes none. weights_digest: of the model; empty: not
    known.
    """

    worker: str
    model: str
    tenant: str = "default"
    pieces: Sequence[bytes] = ()
    num_dimensions: int = 0
    weights_digest: str = ""

    def line(self, job_id: str, attempt: int | None, trace_id: str | None) -> dict[str, object]:
        """Return the fields that each line of this worker's log has about a job."""
        return JobLine(job_id, attempt, self.worker, self.model, self.tenant, trace_id)._asdict()


@dataclass(slots=True)
class _Output:
    """One output in the stream: how far it is written, and what it has gathered for its next event."""

    num_ids: int = 0  # in its events
    reader: OutputReader | None = None  # None: outputs of this job are not read
    tokens: list[SampledToken] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    stop_reason: StopReason = None
    prompt_scores: tuple[SampledToken, ...] | None = None

    def forget(self) -> None:
        """Begin to gather for another event."""
        self.tokens, self.text = [], ""
        self.finish_reason = self.stop_reason = self.prompt_scores = None

    @property
    def is_scored(self) -> bool:
        has_scores = bool(self.tokens) and self.tokens[0].logprob is not None
        return has_scores or self.prompt_scores is not None

    @property
    def ending(self) -> dict[str, Any]:
        """The fields of an event in which one of several outputs ends."""
        if self.finish_reason is None:
            return {}
        stop = {} if self.stop_reason is None else {"stop_reason": self.stop_reason}
        return {"finish_reason": self.finish_reason, **stop}

    def read(self) -> OutputParts | None:
        """Read the gathered text as reasoning, content and calls; None: outputs of this job are not read."""
        if self.reader is None:
            return None
        parts = self.reader.write(self.text)
        return parts.plus(self.reader.finish()) if self.finish_reason else parts


class _SentEvent(NamedTuple):
    """What is kept of an event: enough to send it again, or to forget it."""

    at_s: float
    entry: EmitEntry
    text_hash: "hashlib._Hash"  # of the text before this event


@dataclass(slots=True)
class EventPace:
    """The pace of one job's events: a step's tokens go at once, unless an event has gone shortly before.

    The times at which events may go are the same for all jobs of a worker, so that those of many jobs go in
    one call.
    """

    #: How long tokens may be gathered for one event. 0: each step's go at once.
    gather_s: float = 0.0
    #: When the next event may go, on the clock of time.monotonic.
    due_s: float = -inf

    def begin(self, now_s: float) -> None:
        """An attempt starts: somebody who watches gets its first token at once."""
        if self.gather_s >= UNWATCHED_S:
            self.due_s = _tick_after(now_s + self.gather_s, UNWATCHED_S)

    def sent(self, now_s: float, lag_s: float = 0.0) -> None:
        """An event has gone. `lag_s`: gather for so long at least, unless each step is asked for."""
        if self.gather_s:
            gather_s = max(self.gather_s, lag_s)
            tick_s = min(gather_s, UNWATCHED_S)
            self.due_s = _tick_after(now_s + gather_s - tick_s, tick_s)


class EventLog:
    """Numbers the events of a job, joins gathered tokens or vectors into one, and can repeat sent events.

    A sent event never changes: it is repeated exactly as it was or not at all.
    """

    def __init__(self, job_id: str, claimed: Claimed, recorded: RecordedOutputs, author: EventAuthor) -> None:
        """Continue where `recorded` ends."""
        self.job_id = job_id
        self.epoch = claimed.epoch
        self.seq = claimed.seq
        self.num_ids = claimed.n
        self._num_recorded = claimed.n
        self.num_choices = 1
        self.num_texts: int | None = None  # that become vectors; None: the job is a generation
        self.prompt: EchoedPrompt | None = None  # what the job's first start is to tell
        self.pace = EventPace()
        self.author = author
        self._claimed_ms, self._claimed_s = claimed.now_ms, monotonic()
        self._num_attempts = claimed.attempts
        self._num_retries = claimed.retries
        self._has_started = False
        self._recorded = recorded
        begun = {choice: _Output(len(ids)) for choice, ids in recorded.ids.items()}
        self._outputs = defaultdict(_Output, begun)
        self._gathering: dict[int, _Output] = {}  # those with something for their next event
        self._vectors: dict[int, str] = {}  # in Base64, for the next event
        self._text_hash = recorded.text_hash.copy()
        self._sent: deque[_SentEvent] = deque()

    def read_outputs(self, new_parser: NewParser) -> None:
        """Say in events what of the outputs is reasoning, content and calls, as such a parser reads them."""
        for choice in range(self.num_choices):
            reader = self._outputs[choice].reader = OutputReader(new_parser, self.job_id, choice)
            text = self._recorded.texts.get(choice, "")
            reader.resume(text, self._recorded.said.get(choice, OutputCount()))

    def add(self, found: NewTokens | PromptScores | NewVector) -> None:
        """Gather what is found of an output, or of a text, for the next event."""
        choice = found.sequence.choice
        match found:
            case NewTokens():
                output = self._next(choice)
                output.tokens += found.tokens
                output.text += found.text
            case PromptScores():
                self._next(choice).prompt_scores = found.scores
            case NewVector():
                self._vectors[choice] = b64encode(found.vector).decode()

    def end_output(self, choice: int, finish_reason: FinishReason, stop_reason: StopReason) -> None:
        """Note that an output has ended. If there are several, an event says so, also one without tokens."""
        if self.num_choices > 1 or choice in self._gathering:
            output = self._next(choice)
            output.finish_reason, output.stop_reason = finish_reason, stop_reason

    def _next(self, choice: int) -> _Output:
        """An output that has something for its next event."""
        output = self._gathering[choice] = self._outputs[choice]
        return output

    @property
    def num_new_ids(self) -> int:
        """Tokens that this attempt has added."""
        return self.num_ids - self._num_recorded

    @property
    def num_drawn_tokens(self) -> int:
        return self.num_ids if self.num_texts is None else 0

    @property
    def attempt(self) -> int:
        """Number of the attempt that writes now, or is about to start."""
        return self._num_attempts + (not self._has_started)

    @property
    def is_continued(self) -> bool:
        """Whether an earlier attempt has started the job."""
        return self.attempt > 1

    @property
    def due_s(self) -> float:
        """When what is gathered is due, on the clock of time.monotonic; never if there are none."""
        return self.pace.due_s if self._gathering or self._vectors else inf

    def start(self, seed: int, num_prompt_tokens: int | None, num_cached: int | None = 0) -> EmitEntry:
        """Make the event that an attempt starts; the first one tells of the prompt, if asked to."""
        self._num_attempts += 1
        self._has_started = True
        self.pace.begin(monotonic())
        started = Started(
            seq=self.seq + 1,
            job=self.job_id,
            epoch=self.epoch,
            attempt=self._num_attempts,
            retries=self._num_retries,
            at_ms=self._claimed_ms + round(1000 * (monotonic() - self._claimed_s)),
            worker=self.author.worker,
            model=self.author.model,
            weights_digest=self.author.weights_digest or None,
            seed=seed,
            n=self.num_choices,
            texts=self.num_texts,
            dimensions=self.num_texts and (self.author.num_dimensions or None),
            prompt_tokens=num_prompt_tokens,
            cached_tokens=num_cached,
        )
        if self.prompt is not None and not self.is_continued:
            pieces = self._known(self.prompt.prompt_ids)
            started = started.model_copy(update={**self.prompt._asdict(), "pieces": pieces})
        return self._keep(EmitEntry.from_event(started, self.num_ids))

    def flush(self, lag_s: float = 0.0) -> list[EmitEntry]:
        """The events of what is gathered: one for each output; the next are due `lag_s` later at least."""
        gathering, self._gathering = self._gathering, {}
        vectors, self._vectors = self._vectors, {}
        self.pace.sent(monotonic(), lag_s)
        tokens = [self._tokens(choice, gathering[choice]) for choice in sorted(gathering)]
        return tokens + [self._event_of(some) for some in _lots(vectors)]

    def _event_of(self, vectors: Mapping[int, str]) -> EmitEntry:
        seq = self.seq + 1
        event = vectors_json(seq, self.job_id, self.epoch, vectors)
        entry = EmitEntry(self.job_id, self.epoch, seq, self.num_ids, len(vectors), "vectors", event)
        return self._keep(entry)

    def finish(self) -> list[EmitEntry]:
        """The last events before `end`: what is gathered, and what was withheld of outputs that are read."""
        entries = self.flush()
        for choice, output in sorted(self._outputs.items()):
            if output.reader is not None and (withheld := output.reader.finish()):
                entries.append(self._tokens(choice, output, withheld))
        return entries

    def _tokens(self, choice: int, output: _Output, parts: OutputParts | None = None) -> EmitEntry:
        """An event of what an output has gathered; with `parts` that were withheld, of these alone."""
        parts = parts or output.read()
        ids = [drawn.token_id for drawn in output.tokens]
        fields = {"i": output.num_ids, "ids": ids, "text": output.text}
        if self.num_choices > 1:
            fields |= {"choice": choice} | output.ending
        if parts is not None:
            fields |= parts.fields
        if output.is_scored:
            fields |= self._scores(output)
        seq = self.seq + 1
        event = token_json(seq, self.job_id, self.epoch, fields)
        entry = EmitEntry(self.job_id, self.epoch, seq, self.num_ids, len(ids), "token", event)
        self._keep(entry)
        self._text_hash = self._text_hash.copy()
        self._text_hash.update(output.text.encode())
        output.num_ids += len(ids)
        output.forget()
        return entry

    def _scores(self, output: _Output) -> dict[str, Any]:
        """An event's fields that are scores, and the bytes of all ids beside these, as text."""
        prompt_scores = output.prompt_scores
        scored = [token for token in output.tokens if token.logprob is not None]
        scored += prompt_scores or ()
        ids = {token_id for token in scored for token_id in (token.token_id, *(one for one, _ in token.top))}
        scores = {
            "logprobs": _logprobs(output.tokens),
            "top_logprobs": _top_logprobs(output.tokens),
            "prompt_logprobs": None if prompt_scores is None else _logprobs(prompt_scores) or (),
            "top_prompt_logprobs": _top_logprobs(prompt_scores),
            "pieces": self._known(ids) or None,
        }
        return {name: value for name, value in scores.items() if value is not None}

    def _known(self, ids: Iterable[int]) -> Pieces:
        """Return the bytes that each of these ids stands for, as text in latin-1."""
        known = self.author.pieces
        return {one: known[one].decode("latin-1") for one in sorted(set(ids)) if one < len(known)}

    def end(
        self,
        finish_reason: FinishReason,
        num_prompt_tokens: int | None,
        timings: Timings,
        error: Failure | None = None,
        stop_reason: StopReason = None,
    ) -> EmitEntry:
        """Make the final event."""
        usage = None
        if num_prompt_tokens is not None:
            num_drawn = self.num_drawn_tokens
            total = num_prompt_tokens + num_drawn
            usage = Usage(prompt_tokens=num_prompt_tokens, completion_tokens=num_drawn, total_tokens=total)
        end = End(
            seq=self.seq + 1,
            job=self.job_id,
            epoch=self.epoch,
            finish_reason=finish_reason,
            stop_reason=stop_reason if self.num_choices == 1 else None,
            n=self.num_ids,
            usage=usage,
            text_sha256=self._text_hash.hexdigest(),
            error=error,
            attempts=self._num_attempts,
            worker=self.author.worker,
            timings=timings,
        )
        return self._keep(EmitEntry.from_event(end, self.num_ids))

    def rewind(self, seq: int, num_ids: int) -> None:
        """Forget the events after `seq`: they were refused and will never be written.

        Only an end may follow, and before it what `finish` brings.
        """
        chars = Counter[int]()
        while self._sent and self._sent[-1].entry.seq > seq:
            _, entry, self._text_hash = self._sent.pop()
            event = parse_event(entry.event)
            if isinstance(event, Started):
                self._num_attempts, self._has_started = event.attempt - 1, False
            if isinstance(event, Token):
                choice = event.choice or 0
                self._outputs[choice].num_ids -= entry.num_ids
                chars[choice] += len(event.text)
        for choice, output in self._outputs.items():
            output.forget()
            if output.reader is not None and choice in chars:  # others may have ended, and said all
                output.reader.rewind(chars[choice])
        self.seq, self.num_ids = seq, num_ids
        self._gathering.clear()
        self._vectors.clear()

    def after(self, seq: int, num_ids: int) -> list[EmitEntry] | None:
        """The events after `seq`, exactly as sent; None if some of them are no longer kept.

        None also if they do not continue after `num_ids` tokens: then the record is not that of this stream.
        """
        kept = [sent.entry for sent in self._sent if sent.entry.seq > seq]
        follows = not kept or kept[0].i == num_ids
        return kept if follows and len(kept) == self.seq - seq else None

    def _keep(self, entry: EmitEntry) -> EmitEntry:
        """Count an event as sent, and keep it for a while. Returns it."""
        now_s = monotonic()
        while self._sent and self._sent[0].at_s < now_s - KEPT_S:
            self._sent.popleft()
        self._sent.append(_SentEvent(now_s, entry, self._text_hash))
        self.seq, self.num_ids = entry.seq, self.num_ids + entry.num_ids
        return entry


def _tick_after(time_s: float, tick_s: float) -> float:
    """The next tick. One that is all but now is the one that has just been."""
    return ((time_s + 0.01 * tick_s) // tick_s + 1) * tick_s


def _lots(vectors: Mapping[int, str]) -> Iterator[dict[int, str]]:
    """The vectors in parts that are no longer than an event may be."""
    lot, num_chars = dict[int, str](), 0
    for number, vector in vectors.items():
        if lot and num_chars + len(vector) > MAX_VECTOR_CHARS:
            yield lot
            lot, num_chars = {}, 0
        lot[number] = vector
        num_chars += len(vector)
    if lot:
        yield lot


def _logprobs(tokens: Sequence[SampledToken] | None) -> tuple[float, ...] | None:
    if not tokens or tokens[0].logprob is None:
        return None
    return tuple(finite(token.logprob) for token in tokens)


def _top_logprobs(tokens: Sequence[SampledToken] | None) -> tuple[tuple[tuple[int, float], ...], ...] | None:
    if not tokens or not tokens[0].top:
        return None
    return tuple(tuple((one, finite(score)) for one, score in token.top) for token in tokens)
