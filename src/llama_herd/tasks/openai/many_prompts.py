"""One answer to several prompts: each prompt is a job of its own."""

from collections.abc import Iterator, Sequence
from typing import Any

from llama_herd.tasks.events import End, Event
from llama_herd.tasks.openai.chunks import Chunks
from llama_herd.tasks.openai.request_body import Endpoint


def job_ids_of(first: str, num: int) -> list[str]:
    """The ids of a request's jobs, by that of the first."""
    return [first, *(f"{first}.{number}" for number in range(1, num))]


def joined_body(bodies: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Answers to prompts as one: outputs are counted on from prompt to prompt, and tokens are added up."""
    choices = [choice for body in bodies for choice in body["choices"]]
    numbered = [{**choice, "index": index} for index, choice in enumerate(choices)]
    return {**bodies[0], "choices": numbered, "usage": _summed_usage([body["usage"] for body in bodies])}


def _summed_usage(usages: Sequence[dict[str, int] | None]) -> dict[str, int] | None:
    """The sums of the tokens; None if one usage is not known."""
    known = [usage for usage in usages if usage is not None]
    if len(known) < len(usages):
        return None
    return {name: sum(usage[name] for usage in known) for name in known[0]}


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
        self._usages: list[dict[str, int] | None] = []

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
                yield {**chunk, "usage": _summed_usage(self._usages)}
