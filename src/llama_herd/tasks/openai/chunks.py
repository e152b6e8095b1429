"""Events of jobs as the chunks of an OpenAI stream."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import time
from typing import Any

from llama_herd.tasks.openai.logprobs import Echo, Offsets, logprobs_of
from llama_herd.tasks.openai.request_body import CHAT, Endpoint
from llama_herd.tasks.openai.response import (
    answer_id,
    call_object,
    fingerprint_of,
    finish_reason_of,
    summed_usage,
    usage_object,
)
from llama_herd.tasks.protocol.events import (
    GOOD_ENDS,
    End,
    Event,
    FinishReason,
    Started,
    StopReason,
    Token,
    Usage,
)


@dataclass(eq=False)
class Chunks:
    """Turns one job's events, in order, into chunks.

    In a chat the roles of all outputs come first, and in their order: OpenAI's client numbers outputs as they
    begin. Each output ends with its `finish_reason`. With `has_usage` the last chunk has no outputs, but the
    tokens of the whole job; with `has_counts` each other one has, as vLLM has it, those of the prompt and of
    its own output so far. first: number of the job's first output.
    """

    endpoint: Endpoint
    job_id: str
    model: str | None
    first: int = 0
    has_usage: bool = False
    has_counts: bool = False
    _has_begun: bool = field(init=False, default=False)
    _ended: set[int] = field(init=False, default_factory=set)
    _calling: set[int] = field(init=False, default_factory=set)  # outputs that have called a tool
    _prompt_tokens: int | None = field(init=False, default=None)
    _num_tokens: Counter[int] = field(init=False, default_factory=Counter)  # of each output
    _cached_tokens: int | None = field(init=False, default=None)
    _num_choices: int = field(init=False, default=1)
    _offsets: dict[int, Offsets] = field(init=False, default_factory=dict)
    #: The start whose prompt is still to be written, in front of the outputs.
    _prompt: Started | None = field(init=False, default=None)
    _held: list[Token] = field(init=False, default_factory=list)  # events to be written after the prompt

    def __post_init__(self) -> None:
        self._head = {
            "id": answer_id(self.endpoint, self.job_id),
            "object": "chat.completion.chunk" if self.endpoint == CHAT else "text_completion",
            "created": int(time()),
            "model": self.model,
            "system_fingerprint": fingerprint_of(()),
        }
        self._tail: dict[str, Any] = {"usage": None} if self.has_usage else {}

    def from_event(self, event: Event) -> Iterator[dict[str, Any]]:
        """The chunks of the next event. An end that is an error has none."""
        match event:
            case Started():
                if event.seq == 1:  # later attempts find in the cache what this one has computed
                    self._cached_tokens = event.cached_tokens
                if event.weights_digest is not None:
                    self._head["system_fingerprint"] = fingerprint_of([event.weights_digest])
                self._num_choices = event.n
                self._prompt_tokens = event.prompt_tokens
                if event.prompt_ids is not None:
                    self._prompt = event
            case Token() if self._prompt is not None and event.choice:
                self._held.append(event)  # the first output has the scores of the prompt
            case Token():
                yield from self._echo(event)
                yield from self._tokens(event)
            case End() if event.finish_reason in GOOD_ENDS:
                yield from self._echo(None)
                yield from self._end(event)

    def _echo(self, token: Token | None) -> Iterator[dict[str, Any]]:
        """The prompt in front of each output, and what was held until it came."""
        if self._prompt is None:
            return
        echo, self._prompt = Echo.from_events(self._prompt, token), None
        for index in range(self._num_choices):
            self._offsets[index] = Offsets(len(echo.text))
            yield self._chunk(index, {"content": echo.text}, echo.logprobs)
        held, self._held = self._held, []
        for one in held:
            yield from self._tokens(one)

    def _tokens(self, event: Token) -> Iterator[dict[str, Any]]:
        index, words = event.choice or 0, self._words(event)
        self._num_tokens[index] += len(event.ids)
        if event.tool_calls:
            self._calling.add(index)
        ends = self._ends(index, event.finish_reason, event.stop_reason) if event.finish_reason else {}
        if words or ends or event.logprobs is not None:
            yield from self._begin()
            offsets = self._offsets.setdefault(index, Offsets())
            scores = logprobs_of(self.endpoint, event, event.pieces, offsets)
            yield self._chunk(index, words, scores, **ends)

    def _end(self, end: End) -> Iterator[dict[str, Any]]:
        for index in range(self._num_choices):
            if index not in self._ended:
                yield from self._begin()
                yield self._chunk(index, {}, **self._ends(index, end.finish_reason, end.stop_reason))
        if self.has_usage:
            yield {**self._head, "choices": [], "usage": usage_object(end.usage, self._cached_tokens)}

    def _begin(self) -> Iterator[dict[str, Any]]:
        """The first chunks of a chat's outputs: they say who speaks."""
        if self.endpoint == CHAT and not self._has_begun:
            self._has_begun = True
            for index in range(self._num_choices):
                yield self._chunk(index, {"role": "assistant", "content": "", "refusal": None})

    def _ends(self, index: int, reason: FinishReason, stop_reason: StopReason) -> dict[str, Any]:
        """The fields of a chunk that ends an output."""
        self._ended.add(index)
        told = finish_reason_of(reason, has_calls=index in self._calling)
        return {"finish_reason": told, "stop_reason": stop_reason if reason == "stop" else None}

    def _words(self, event: Token) -> dict[str, Any]:
        """The fields that an event adds to its output; empty if it adds none."""
        is_read = self.endpoint == CHAT and event.content is not None
        calls = [{"index": call.index, **call_object(call)} for call in event.tool_calls or ()]
        words = {
            "reasoning_content": event.reasoning,
            "content": event.content if is_read else event.text,
            "tool_calls": calls,
        }
        return {name: value for name, value in words.items() if value}

    def _chunk(
        self, index: int, words: dict[str, Any], scores: dict[str, Any] | None = None, **ends: Any
    ) -> dict[str, Any]:
        said = {"delta": words} if self.endpoint == CHAT else {"text": words.get("content", "")}
        choice = {"index": self.first + index, **said, "logprobs": scores, "finish_reason": None, **ends}
        tail = {"usage": self._count(index)} if self.has_counts else self._tail
        return {**self._head, "choices": [choice], **tail}

    def _count(self, index: int) -> dict[str, Any] | None:
        """The tokens of the prompt, and of an output so far; None if a worker did not count the prompt's."""
        prompt, output = self._prompt_tokens, self._num_tokens[index]
        if prompt is None:
            return None
        total = prompt + output
        return usage_object(Usage(prompt_tokens=prompt, completion_tokens=output, total_tokens=total), None)


class ManyChunks:
    """Turns the events of a request's jobs, those of each in order, into the chunks of one stream."""

    def __init__(
        self,
        endpoint: Endpoint,
        job_ids: Sequence[str],
        model: str | None,
        n: int,
        *,
        has_usage: bool,
        has_counts: bool = False,
    ) -> None:
        """n: outputs of each prompt."""
        self._chunks = {
            job_id: Chunks(endpoint, job_ids[0], model, number * n, has_usage, has_counts)
            for number, job_id in enumerate(job_ids)
        }
        self._num_left = len(job_ids)
        self._usages: list[dict[str, Any] | None] = []

    @property
    def is_over(self) -> bool:
        """Whether all jobs have ended."""
        return not self._num_left

    def from_event(self, event: Event) -> Iterator[dict[str, Any]]:
        """The chunks of the next event. The tokens of all jobs come last, if they were asked for."""
        self._num_left -= isinstance(event, End)
        for chunk in self._chunks[event.job].from_event(event):
            if chunk["choices"]:
                yield chunk
                continue
            self._usages.append(chunk["usage"])
            if self.is_over:
                yield {**chunk, "usage": summed_usage(self._usages)}
