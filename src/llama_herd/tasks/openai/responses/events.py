"""Events of a job as those of the Responses API: the same events give the same ones, by the same numbers."""

from collections.abc import Iterator
from typing import Any

from llama_herd.tasks.openai.responses.answer import (
    STATUSES,
    ResponseFrame,
    Said,
    call_item,
    message_item,
    reasoning_item,
    reasoning_part,
    scores_of,
    text_part,
)
from llama_herd.tasks.protocol.events import End, Event, Started, Token, ToolCall

#: Of the last event of a stream, by the status of the answer. There is none for one that was cancelled.
_LAST = {"completed": "response.completed", "incomplete": "response.incomplete"}


class ResponseEvents:
    """Turns one job's events, in order, into the events of a stream.

    What the model thinks and says are items that grow. Its calls are told at the end, behind what it said,
    as in the answer that is given whole.
    """

    def __init__(self, frame: ResponseFrame) -> None:
        self._frame = frame
        self._number = 0
        self._has_begun = False
        self._cached_tokens: int | None = None
        self._reasoning = _GrowingItem("reasoning_text", f"rs_{frame.job_id}")
        self._message = _GrowingItem("output_text", f"msg_{frame.job_id}")
        self._num_items = 0
        self._calls: list[ToolCall] = []
        self._scores: list[dict[str, Any]] = []
        self._num_told = 0  # of the scores

    @property
    def num_scores(self) -> int:
        """How many tokens with scores have come so far: its end tells all of them again."""
        return len(self._scores)

    def opening(self) -> Iterator[dict[str, Any]]:
        """The first event, before anything has come."""
        yield self._event("response.created", response=self._frame.response("queued"))

    def from_event(self, event: Event) -> Iterator[dict[str, Any]]:
        """What the next event of the job adds."""
        match event:
            case Started():
                if event.seq == 1:
                    self._cached_tokens = event.cached_tokens
                if not self._has_begun:
                    self._has_begun = True
                    yield self._event("response.in_progress", response=self._frame.response("in_progress"))
            case Token() if not event.choice:
                self._calls += event.tool_calls or ()
                self._scores += scores_of(event, event.pieces)
                yield from self._grow(self._reasoning, event.reasoning or "")
                yield from self._grow(self._message, event.text if event.content is None else event.content)
            case End():
                yield from self._end(event)

    def _grow(self, item: "_GrowingItem", text: str) -> Iterator[dict[str, Any]]:
        if not text:
            return
        if not item.is_open:
            yield from self._open(item)
        item.texts.append(text)
        yield self._event(f"response.{item.kind}.delta", **item.place, delta=text, **self._new_scores(item))

    def _new_scores(self, item: "_GrowingItem") -> dict[str, Any]:
        """Beside a piece of the message: the scores that have come and were not told."""
        if item is not self._message:
            return {}
        told, self._num_told = self._num_told, len(self._scores)
        return {"logprobs": self._scores[told:]}

    def _open(self, item: "_GrowingItem") -> Iterator[dict[str, Any]]:
        if item is self._message:
            yield from self._close(self._reasoning)
        item.place = {"item_id": item.id, "output_index": self._num_items, "content_index": 0}
        self._num_items += 1
        yield self._item_event("added", item, self._item(item, None, "in_progress"))
        yield self._event("response.content_part.added", **item.place, part=self._part(item, ""))

    def _close(self, item: "_GrowingItem", status: str = "completed") -> Iterator[dict[str, Any]]:
        """The events at the end of an item; none if it is not open."""
        if not item.is_open or item.is_closed:
            return
        item.is_closed = True
        text = "".join(item.texts)
        scores = {"logprobs": self._scores} if item is self._message else {}
        yield self._event(f"response.{item.kind}.done", **item.place, text=text, **scores)
        yield self._event("response.content_part.done", **item.place, part=self._part(item, text))
        yield self._item_event("done", item, self._item(item, text, status))

    def _item(self, item: "_GrowingItem", text: str | None, status: str) -> dict[str, Any]:
        """The item as it is now; text: None while it has no part."""
        if item is self._reasoning:
            return reasoning_item(self._frame.job_id, text, status)
        parts = [] if text is None else [self._part(item, text)]
        return message_item(self._frame.job_id, status, parts)

    def _part(self, item: "_GrowingItem", text: str) -> dict[str, Any]:
        if item is self._reasoning:
            return reasoning_part(text)
        return text_part(text, self._scores if item.is_closed else ())

    def _item_event(self, what: str, item: "_GrowingItem", told: dict[str, Any]) -> dict[str, Any]:
        number = item.place["output_index"]
        return self._event(f"response.output_item.{what}", output_index=number, item=told)

    def _end(self, end: End) -> Iterator[dict[str, Any]]:
        """The ends of all items, the calls, and the whole answer."""
        status = STATUSES[end.finish_reason]
        thought, said = ("".join(item.texts) for item in (self._reasoning, self._message))
        items = Said(thought, said, self._calls, self._scores).items(self._frame.job_id, status)
        statuses = {str(one["id"]): str(one["status"]) for one in items}
        if self._message.id in statuses and not self._message.is_open:
            yield from self._open(self._message)
        for item in (self._reasoning, self._message):
            yield from self._close(item, statuses.get(item.id, "completed"))
        for number, call in enumerate(self._calls, start=self._num_items):
            yield from self._call(number, call, items[number])
        whole = self._frame.response(status, items, end, self._cached_tokens)
        yield self._event(_LAST.get(status, "response.failed"), response=whole)

    def _call(self, number: int, call: ToolCall, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """A call, whose arguments come in one piece."""
        place = {"item_id": item["id"], "output_index": number}
        begun = call_item(call, "in_progress", "")
        yield self._event("response.output_item.added", output_index=number, item=begun)
        yield self._event("response.function_call_arguments.delta", **place, delta=call.arguments)
        told = {"name": call.name, "arguments": call.arguments}
        yield self._event("response.function_call_arguments.done", **place, **told)
        yield self._event("response.output_item.done", output_index=number, item=item)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}


class _GrowingItem:
    """An item whose text comes in pieces. place: where it stands, once it is open."""

    def __init__(self, kind: str, id: str) -> None:
        self.kind = kind
        self.id = id
        self.place: dict[str, Any] = {}
        self.texts: list[str] = []
        self.is_closed = False

    @property
    def is_open(self) -> bool:
        """Whether it has been added, though it may have ended since."""
        return bool(self.place)
