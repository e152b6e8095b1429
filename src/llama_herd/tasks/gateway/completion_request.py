"""A request for completions or a chat, read and checked: a job for each prompt, and how it is answered."""

import re
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from starlette.datastructures import Headers

from llama_herd.errors import FieldError
from llama_herd.tasks.gateway.identity import Caller
from llama_herd.tasks.gateway.request_headers import (
    KEY_HEADER,
    idempotency_key_of,
    keeps_jobs_of,
    traceparent_of,
)
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.openai.answer_size import check_answer_size
from llama_herd.tasks.openai.other_fields import shown_name
from llama_herd.tasks.openai.request_body import CHAT, Endpoint, RequestBody
from llama_herd.tasks.openai.responses.body import ResponseBody
from llama_herd.tasks.settings import MODEL_PATTERN

#: Nobody watches an answer that is not streamed: its events may be few.
UNWATCHED_MS = 500

#: Longer outputs for one prompt are written aside: they take more than some milliseconds.
LONG_BYTES = 262_144

#: Fields of a body that say how it is answered, and when.
OWN_FIELDS = ("stream", "stream_options", "priority")
#: Of the name of a model elsewhere.
MAX_MODEL_CHARS = 256
#: Fields of `stream_options`. The second may only be false; the third is vLLM's.
STREAM_OPTIONS = ("include_usage", "include_obfuscation", "continuous_usage_stats")


class CompletionRequest:
    """A request, read and checked. Raises InvalidJob with every wrong field, and Problem.

    jobs: one for each prompt. key: its idempotency key. keeps_jobs: whether the jobs go on if the client
    goes away. num_bytes: of the answer, at its longest. has_usage: whether a stream ends with its tokens.
    has_counts: whether each of its chunks has those so far.
    """

    own_fields: ClassVar[tuple[str, ...]] = OWN_FIELDS
    stream_options: ClassVar[tuple[str, ...]] = STREAM_OPTIONS

    def __init__(
        self,
        endpoint: Endpoint,
        body: Mapping[str, Any],
        headers: Headers,
        settings: GatewaySettings,
        caller: Caller,
    ) -> None:
        self.endpoint = endpoint
        errors: list[FieldError] = []
        rest = {name: value for name, value in body.items() if name not in self.own_fields}
        if not isinstance(body.get("stream"), bool | None):
            errors.append(FieldError("stream", "must be true or false"))
        self.is_stream = body.get("stream") is True
        options = _stream_options(body, self.is_stream, self.stream_options, errors)
        self.has_usage = options.get("include_usage") is True
        self.has_counts = self.has_usage and options.get("continuous_usage_stats") is True
        foreign = foreign_model(rest)
        found = self._read({**rest, "model": None} if foreign else rest)
        found.errors += errors
        if body.get("priority") is not None:
            found.fields["priority"] = body["priority"]
        # Under a key the same job may be asked for as a stream.
        if not self.is_stream and KEY_HEADER not in headers:
            found.fields["flush_ms"] = UNWATCHED_MS
        self.jobs = found.jobs(settings, settings.gateway_max_prompts)
        caller.check_priority(self.jobs[0].priority)
        self.key = idempotency_key_of(headers)
        if self.key and len(self.jobs) > 1:  # a list that begins with the same prompts is another request
            own = {"metadata": {"prompts": str(len(self.jobs))}}
            self.jobs[0] = self.jobs[0].model_copy(update=own)
        self.keeps_jobs = keeps_jobs_of(headers, "stay" if self.key else settings.gateway_on_disconnect)
        self.names_model = bool(foreign or self.jobs[0].model)
        self.model = foreign or self.jobs[0].model or settings.default_model
        self.traceparent = traceparent_of(headers)
        self.num_bytes = check_answer_size(endpoint, self.jobs)

    def _read(self, body: Mapping[str, Any]) -> RequestBody | ResponseBody:
        """The body's other fields as those of jobs."""
        return RequestBody(self.endpoint, body)

    @property
    def is_long(self) -> bool:
        """Whether the outputs for one prompt may take long to write."""
        return self.num_bytes > LONG_BYTES * len(self.jobs)

    def source(self, number: int) -> str:
        """The place of a job's prompt in the body."""
        if self.endpoint == CHAT:
            return "messages"
        return "prompt" if len(self.jobs) == 1 else f"prompt.{number}"


def foreign_model(body: Mapping[str, Any]) -> str:
    """The name of a model that none can have here, as those of a hub; else empty. No job is made for it."""
    name = body.get("model")
    if not isinstance(name, str) or len(name) > MAX_MODEL_CHARS or not name.isprintable():
        return ""
    return "" if re.fullmatch(MODEL_PATTERN, name) else name


def _stream_options(
    body: Mapping[str, Any], is_stream: bool, known: Collection[str], errors: list[FieldError]
) -> Mapping[str, bool | None]:
    options = body.get("stream_options")
    if options is None:
        return {}
    if not is_stream:
        errors.append(FieldError("stream_options", "only with stream=true"))
    if not isinstance(options, dict) or not all(isinstance(value, bool | None) for value in options.values()):
        errors.append(FieldError("stream_options", "must be an object of true and false"))
        return {}
    if unknown := [name for name in options if name not in known]:
        errors.append(FieldError(f"stream_options.{shown_name(unknown[0])}", "not supported"))
    if options.get("include_obfuscation"):
        errors.append(FieldError("stream_options.include_obfuscation", "only supported as false"))
    return options
