"""A job's conversation as a chat template takes it."""

from llama_herd.model.text.chat import Chat
from llama_herd.tasks.protocol.job import GenerationJob


def chat_of(job: GenerationJob, now_ms: int | None = None) -> Chat:
    """The chat of a job with messages: what it leaves out is not there, what it sets to nothing is.

    A model that is to call no tool does not hear of any.

    `now_ms` is the date that templates write; None: the present.
    """
    return Chat(
        messages=[message.model_dump(exclude_none=True) for message in job.messages or ()],
        tools=None if job.tool_choice == "none" else job.tools,
        documents=job.documents,
        options=job.chat_template_kwargs or {},
        template=job.chat_template,
        now_ms=now_ms,
    )
