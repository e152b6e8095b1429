"""How the outputs of a model's chats are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llama_herd.model.parsers.output_formats import OutputFormats
from llama_herd.model.parsers.output_parser import OutputParser
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.tools import tool_names
from llama_herd.worker.engine.reasoning_end import ReasoningEnd

#: So many ids are looked at for how a prompt ends.
TAIL_IDS = 64


@dataclass(frozen=True)
class OutputReading:
    """How the outputs of one chat are read."""

    formats: OutputFormats
    tool_names: tuple[str, ...]
    begins_in_reasoning: bool

    def new_parser(self) -> OutputParser:
        """Takes one output apart."""
        return OutputParser(self.formats, self.tool_names, begins_in_reasoning=self.begins_in_reasoning)

    def reasoning_end(self) -> ReasoningEnd | None:
        """Finds the end of one output's reasoning; None: there is none."""
        form = self.formats.reasoning
        return None if form is None else ReasoningEnd(form, begins_in_reasoning=self.begins_in_reasoning)


class ChatOutputs:
    """The formats of one model's outputs, and what its tokens stand for where outputs are read."""

    def __init__(self, formats: OutputFormats, tokenizer: Tokenizer, control_ids: Mapping[str, int]) -> None:
        """`control_ids`: the model's control tokens. Those that end an output are no part of it."""
        self.formats = formats
        #: Marks that are control tokens of this model.
        self.mark_ids = {
            mark: control_ids[mark]
            for mark in formats.marks
            if mark in control_ids and control_ids[mark] not in tokenizer.eos_ids
        }
        #: The bytes of all ids, marks included, which other outputs do not show.
        self.pieces = _with_marks(tokenizer.pieces, self.mark_ids)

    def reading(self, job: GenerationJob, prompt_ids: Sequence[int]) -> OutputReading | None:
        """How the outputs of a job are read; None: they are text and nothing else."""
        if job.messages is None:
            return None
        can_call = self.formats.tools is not None and job.tool_choice != "none"
        names = tool_names(job.tools or ()) if can_call else ()
        if self.formats.reasoning is None and not names:
            return None
        tail = b"".join(self.pieces[token_id] for token_id in prompt_ids[-TAIL_IDS:])
        begins = self.formats.begins_in_reasoning(tail.decode(errors="replace"))
        return OutputReading(self.formats, names, begins)


def _with_marks(pieces: Sequence[bytes], mark_ids: Mapping[str, int]) -> Sequence[bytes]:
    if not mark_ids:
        return pieces
    shown = list(pieces)
    for mark, token_id in mark_ids.items():
        shown[token_id] = mark.encode()
    return tuple(shown)
