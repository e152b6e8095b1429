"""A job's conversation as a chat template takes it, and how the outputs of a model's chats are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llama_herd.model.parsers.formats import OutputFormats
from llama_herd.model.parsers.output_parser import OutputParser
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.structured_outputs import OutputForm
from llama_herd.tasks.protocol.tools import tool_names
from llama_herd.worker.engine.detokenizer import ReasoningEnd
from llama_herd.worker.grammars.whole_output import WholeOutput

if TYPE_CHECKING:
    from llama_herd.model.text.chat import Chat

#: The last ids of a prompt that tell how it ends.
TAIL_IDS = 64


def chat_of(job: GenerationJob, now_ms: int | None = None) -> "Chat":
    """The chat of a job with messages: what it leaves out is not there, what it sets to nothing is.

    A model that is to call no tool does not hear of any.

    `now_ms` is the date that templates write; None: the present.
    """
    from llama_herd.model.text.chat import Chat  # with all that renders templates

    return Chat(
        messages=[message.model_dump(exclude_none=True) for message in job.messages or ()],
        tools=None if job.tool_choice == "none" else job.tools,
        documents=job.documents,
        options=job.chat_template_kwargs or {},
        template=job.chat_template,
        now_ms=now_ms,
    )


@dataclass(frozen=True)
class OutputReading:
    """How the outputs of one chat are read."""

    formats: OutputFormats
    tool_names: tuple[str, ...]
    begins_in_reasoning: bool
    is_parallel: bool  # several calls may be read

    def new_parser(self) -> OutputParser:
        """Make a parser that takes one output apart."""
        return OutputParser(
            self.formats,
            self.tool_names,
            begins_in_reasoning=self.begins_in_reasoning,
            is_parallel=self.is_parallel,
        )

    def reasoning_end(self) -> ReasoningEnd | None:
        """Make a finder of the end of one output's reasoning; None: there is no reasoning."""
        form = self.formats.reasoning
        return None if form is None else ReasoningEnd(form, begins_in_reasoning=self.begins_in_reasoning)


class ChatOutputs:
    """The formats of one model's outputs, and what its tokens stand for where outputs are read."""

    def __init__(
        self, formats: OutputFormats, pieces: Sequence[bytes], control_ids: Mapping[str, int]
    ) -> None:
        """Find the formats' marks among the model's control tokens, `control_ids`.

        pieces: the bytes of each id.
        """
        self.formats = formats
        #: Marks that are control tokens of this model.
        self._mark_ids = {mark: control_ids[mark] for mark in formats.marks if mark in control_ids}
        #: The bytes of all ids, marks included, which other outputs do not show.
        self.pieces = pieces
        if self._mark_ids:
            marks = {token_id: mark.encode() for mark, token_id in self._mark_ids.items()}
            self.pieces = tuple(marks.get(token_id, one) for token_id, one in enumerate(pieces))

    def reading(self, job: GenerationJob, prompt_ids: Sequence[int]) -> OutputReading | None:
        """How the outputs of a job are read; None: they are text and nothing else."""
        if job.messages is None:
            return None
        can_call = self.formats.tools is not None and job.tool_choice != "none"
        names = tool_names(job.tools or ()) if can_call else ()
        if self.formats.reasoning is None and not names:
            return None
        begins_in_reasoning = self.formats.begins_in_reasoning(self._tail(prompt_ids))
        is_parallel = job.parallel_tool_calls is not False
        return OutputReading(self.formats, names, begins_in_reasoning, is_parallel)

    def form(self, job: GenerationJob, prompt_ids: Sequence[int]) -> OutputForm | None:
        """Return the form of a job's whole outputs; None: they are free.

        What the job asks for stands behind the reasoning. Raises InvalidJob if it cannot be kept.
        """
        if job.messages is None:
            return job.output_form
        tail = self._tail(prompt_ids)
        return WholeOutput.for_chat(
            replace(self.formats, reasoning=None) if self.formats.ends_reasoning(tail) else self.formats,
            self._mark_ids,
            tools=job.tools or (),
            choice=job.tool_choice or "auto",
            is_parallel=job.parallel_tool_calls is not False,
            answer=job.output_form,
            begins_in_reasoning=self.formats.begins_in_reasoning(tail),
        ).to_form()

    def _tail(self, prompt_ids: Sequence[int]) -> str:
        """Return the text at the end of a prompt."""
        return b"".join(self.pieces[token_id] for token_id in prompt_ids[-TAIL_IDS:]).decode(errors="replace")
