"""One answer to several prompts: each prompt is a job of its own."""

from collections.abc import Iterator, Sequence
from typing import Any

from llama_herd.tasks.openai.chunks import Chunks
from llama_herd.tasks.openai.json_pieces import compact_json, json_pieces
from llama_herd.tasks.openai.request_body import Endpoint
from llama_herd.tasks.openai.response import choices_of, response_frame, summed_usage
from llama_herd.tasks.protocol.events import End, Event
from llama_herd.tasks.protocol.result import Result


def job_ids_of(first: str, num: int) -> list[str]:
    """The ids of a request's jobs, by that of the first."""
    return [first, *(f"{first}.{number}" for number in range(1, num))]


class JoinedAnswer:
    """The whole answer to a request: outputs are counted on from prompt to prompt, and tokens are added up.

    Each result is written as it is added, so that no more than one of them is held.
    """

    def __init__(self, endpoint: Endpoint, job_id: str, model: str | None) -> None:
        self._head = (endpoint, job_id, model)
        self._fields: dict[str, Any] = {}
        self._choices: list[bytes] = []
        self._usages: list[dict[str, Any] | None] = []

    @property
    def num_bytes(self) -> int:
        """The bytes of all outputs so far."""
        return sum(map(len, self._choices))

    def add(self, result: Result) -> None:
        """Write the outputs for the next prompt."""
        for choice in choices_of(self._head[0], result):
            numbered = {**choice, "index": len(self._choices)}
            self._choices.append("".join(json_pieces(numbered)).encode())
        frame = response_frame(*self._head, result)
        self._usages.append(frame.pop("usage"))
        self._fields = self._fields or frame

    def pieces(self) -> list[bytes]:
        """The answer as JSON."""
        fields = {**self._fields, "usage": summed_usage(self._usages)}
        between = [part for choice in self._choices for part in (b",", choice)]
        return [f'{compact_json(fields)[:-1]},"choices":['.encode(), *between[1:], b"]}"]


class ManyChunks:
    """Turns the events of a request's jobs, those of each in order, into the chunks of one stream."""

    def __init__(
        self, endpoint: Endpoint, job_ids: Sequence[str], model: str | None, n: int, *, has_usage: bool
    ) -> None:
        """n: outputs of each prompt."""
        self._chunks = {
            job_id: Chunks(endpoint, job_ids[0], model, first=number * n, has_usage=has_usage)
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
