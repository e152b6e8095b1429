"""Reads outputs for reasoning, content and calls of tools, as their text is written into a stream."""

import hashlib
import string
from operator import add
from typing import Any, NamedTuple, Self

from llama_herd.model.parsers.output_parser import OutputDelta
from llama_herd.tasks.protocol.events import Token, ToolCall
from llama_herd.worker.engine.sequence import NewParser

#: Mistral's templates want ids of calls to be like this.
_ID_CHARS, _ID_LENGTH = string.ascii_letters + string.digits, 9


class OutputCount(NamedTuple):
    """A measure of an output, as far as it was read, or said by events: characters, and calls."""

    reasoning: int = 0
    content: int = 0
    calls: int = 0

    def plus(self, said: "OutputDelta | OutputParts | Token") -> "OutputCount":
        calls = said.tool_calls if isinstance(said, Token) else said.calls
        return OutputCount(
            self.reasoning + len(said.reasoning or ""),
            self.content + len(said.content or ""),
            self.calls + len(calls or ()),
        )


class OutputParts(NamedTuple):
    """Reasoning, content and tool calls that one event brings of an output."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()

    def __bool__(self) -> bool:
        return any(self)

    @property
    def fields(self) -> dict[str, Any]:
        """An event's fields: `content` stands wherever an output is read."""
        reasoning = {"reasoning": self.reasoning} if self.reasoning else {}
        calls = {"tool_calls": self.calls} if self.calls else {}
        return {**reasoning, "content": self.content, **calls}

    def plus(self, more: Self) -> "OutputParts":
        return OutputParts(*map(add, self, more))


class OutputReader:
    """Reads one output of a job.

        reader = OutputReader(sequence.new_parser, "job", choice=0)
        parts = [*map(reader.write, texts), reader.finish()]

    What is read follows from the text alone. So a worker that takes over a job reads the recorded text first,
    and goes on behind what the recorded events have said.
    """

    def __init__(self, new_parser: NewParser, job_id: str, choice: int) -> None:
        self._new_parser = new_parser
        self._job_id = job_id
        self._choice = choice
        self._is_finished = False
        self._begin()

    def resume(self, text: str, said: OutputCount) -> None:
        """Read the text that is on record, of which events have said so much."""
        self._said = said
        self._unsaid = self.write(text)

    def write(self, text: str) -> OutputParts:
        """Read the next text; return the new reasoning, content and calls in it."""
        self._texts.append(text)
        return self._new_parts(self._parser.write(text))

    def finish(self) -> OutputParts:
        """Return the parts that were withheld until the end of the output; none the second time."""
        if self._is_finished:
            return OutputParts()
        self._is_finished = True
        return self._new_parts(self._parser.finish())

    def rewind(self, num_chars: int) -> None:
        """Forget the last characters of the text: the events that brought them will never be written."""
        text = "".join(self._texts)
        self._begin()
        self.write(text[: len(text) - num_chars])

    def _begin(self) -> None:
        self._parser = self._new_parser()
        self._texts: list[str] = []
        self._read = self._said = OutputCount()
        self._unsaid = OutputParts()
        self._is_finished = False

    def _new_parts(self, delta: OutputDelta) -> OutputParts:
        """Turn what the parser has read into parts, but for what recorded events already say."""
        before, self._read = self._read, self._read.plus(delta)
        unsaid, self._unsaid = self._unsaid, OutputParts()
        calls = tuple(
            ToolCall(
                index=index,
                id=call_id(self._job_id, self._choice, index),
                name=call.name,
                arguments=call.arguments,
            )
            for index, call in enumerate(delta.calls, start=before.calls)
        )
        return unsaid.plus(
            OutputParts(
                delta.reasoning[max(0, self._said.reasoning - before.reasoning) :],
                delta.content[max(0, self._said.content - before.content) :],
                calls[max(0, self._said.calls - before.calls) :],
            )
        )


def call_id(job_id: str, choice: int, index: int) -> str:
    """The id of a call: the same whoever reads the output."""
    digest = hashlib.sha256(f"{job_id}:{choice}:{index}".encode()).digest()
    return "".join(_ID_CHARS[byte % len(_ID_CHARS)] for byte in digest[:_ID_LENGTH])
