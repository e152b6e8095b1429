"""What a job's output says: an answer as a model would write it, and the shortest one that a job asks for."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from llama_herd.error_code import ErrorCode
from llama_herd.errors import BadInput, GenerationError
from llama_herd.model.parsers.formats import REASONING_FORMATS, TOOL_FORMATS, OutputFormats
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.structured_outputs import OutputForm
from llama_herd.testing.answer import Answer, Call
from llama_herd.testing.instance import instance_of
from llama_herd.testing.matching_text import text_matching

#: What is said where nobody has written what to say.
SENTENCE = "This answer is scripted."

_REASONING, _TOOLS = REASONING_FORMATS["think"], TOOL_FORMATS["hermes"]
#: How outputs of chats are written here, and read by the worker.
FORMATS = OutputFormats(_REASONING, _TOOLS)


def output_of(answer: Answer, job: GenerationJob) -> str:
    """The text of a job's output. Raises GenerationError if the job asks for what only its author knows."""
    calls, text = answer.calls, answer.text
    if text is None and not calls:
        calls = _wanted_calls(job)
        text = "" if calls else _wanted_text(job.output_form)
    parts = [f"{_REASONING.opening}{answer.reasoning}{_REASONING.closing}"] if answer.reasoning else []
    return "".join((*parts, text or "", *map(_written, calls)))


def _written(call: Call) -> str:
    said = json.dumps({"name": call.name, _TOOLS.arguments_key: call.arguments}, ensure_ascii=False)
    return f"{_TOOLS.openings[0]}{_TOOLS.gap}{said}{_TOOLS.gap}{_TOOLS.ending}"


def _wanted_calls(job: GenerationJob) -> tuple[Call, ...]:
    """A call of the first tool, or of the one that is named; none where its answer has come already."""
    choice, messages = job.tool_choice or "auto", job.messages or ()
    has_answer = bool(messages) and messages[-1].role == "tool" and choice == "auto"
    if not job.tools or choice == "none" or has_answer:
        return ()
    functions: list[Mapping[str, Any]] = [one["function"] for one in job.tools if "function" in one]
    if isinstance(choice, Mapping):
        functions = [one for one in functions if one["name"] == choice["function"]["name"]]
    return tuple(Call(one["name"], _instance(one.get("parameters"), "tools")) for one in functions[:1])


def _wanted_text(form: OutputForm | None) -> str:
    """A short text of the form that a job asks for."""
    if form is None:
        return SENTENCE
    match form.kind:
        case "json":
            return json.dumps(_instance(json.loads(form.text), form.field), ensure_ascii=False)
        case "choice":
            return str(json.loads(form.text)[0])
        case "regex":
            with _told_of(form.field):
                return text_matching(form.text)
    problem = f"{form.field}: no text is made of a grammar. Fix: write the answer"
    raise GenerationError(ErrorCode.PREPARATION_ERROR, problem)


def _instance(schema: Any, field: str) -> Any:
    with _told_of(field):
        return instance_of({} if schema is None else schema)


@contextmanager
def _told_of(field: str) -> Iterator[None]:
    """Make what is refused the failure of the job, by the field that asks for it."""
    try:
        yield
    except BadInput as error:
        raise GenerationError(ErrorCode.PREPARATION_ERROR, f"{field}: {error}") from None
