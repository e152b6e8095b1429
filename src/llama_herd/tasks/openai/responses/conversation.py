"""The conversation that a request goes on with: what an earlier answer was asked, and what it said."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from llama_herd.tasks.protocol.chat import ChatMessage
from llama_herd.tasks.protocol.job import GenerationJob


class Conversation(NamedTuple):
    """turns: those that an answer was asked, without its instructions. items: what came of it.

    They are the turns of a job and the items of an output, so nothing is wrong with them.
    """

    turns: Sequence[ChatMessage] = ()
    items: Sequence[Mapping[str, Any]] = ()


#: Of a request that goes on from no answer.
NOTHING = Conversation()


def asked_turns(job: GenerationJob) -> Sequence[ChatMessage]:
    """The conversation that the job of an answer was asked, without its instructions."""
    return (job.messages or ())[job.conversation_from or 0 :]
