"""The body of an OpenAI request as the fields of our job. vLLM's additional fields are accepted, too.

Sources: OpenAI's API reference for completions, chat completions and batches; vLLM's SamplingParams.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from llama_herd.errors import MAX_FIELD_ERRORS, FieldError, InvalidJob
from llama_herd.tasks.close_names import close_names, did_you_mean
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.sampling import SamplingParams
from llama_herd.tasks.settings import Settings
from llama_herd.tasks.structured_outputs import FORM_FIELDS

Endpoint = Literal["/v1/completions", "/v1/chat/completions"]
ENDPOINTS: tuple[Endpoint, ...] = get_args(Endpoint)
COMPLETIONS, CHAT = ENDPOINTS

#: Named as the field of an error that concerns no single field.
BODY = "body"

#: Fields that are ignored, each with the values that may be ignored; None: any value.
NEUTRAL: Mapping[str, tuple[Any, ...] | None] = {
    "user": None,
    "metadata": None,
    "service_tier": None,
    "safety_identifier": None,
    "prompt_cache_key": None,
    "parallel_tool_calls": None,
    "stream": (False,),
    "store": (False,),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "modalities": (["text"],),
}

#: Names that only chats have, each with our name.
CHAT_NAMES = {"max_completion_tokens": "max_tokens"}
#: Fields of a chat, OpenAI's and vLLM's, that mean the same here; a `chat_template` is a name, no text.
CHAT_SAME = frozenset(
    (
        *("tool_choice", "parallel_tool_calls"),
        *("documents", "chat_template", "chat_template_kwargs"),
    )
)

#: Sampling fields with the same name and meaning at both endpoints.
SAME = frozenset(SamplingParams.model_fields) - {"logprobs", "top_logprobs", "stop", "top_k"}


class RequestBody:
    """Reads one body: `fields` and `sampling` are those of the job, `errors` names the fields that cannot be.

    A null counts as absent, as at OpenAI.
    """

    def __init__(self, endpoint: Endpoint, body: Mapping[str, Any]) -> None:
        self.fields: dict[str, Any] = {}
        self.sampling: dict[str, Any] = {}
        self.errors: list[FieldError] = []
        self._endpoint = endpoint
        source, read = ("messages", self._messages) if endpoint == CHAT else ("prompt", self._prompt)
        self._special: dict[str, Callable[[Any], None]] = {
            source: read,
            "model": lambda value: self.fields.update(model=value),
            "tools": self._tools,
            "stop": self._stop,
            "top_k": lambda value: self.sampling.update(top_k=0 if value == -1 else value),
            "logprobs": self._logprobs,
        }
        for name, value in body.items():
            if value is None:
                continue
            if name in self._special:
                self._special[name](value)
            else:
                self._take(name, value)

    def job(
        self, settings: Settings, fields: Mapping[str, Any] = {}, sampling: Mapping[str, Any] = {}
    ) -> GenerationJob:
        """The job. `fields` and `sampling` are defaults for what the body does not set.

        Raises InvalidJob. It names every wrong field as the body does.
        """
        errors = list(self.errors)
        given = {**fields, **self.fields, "sampling": {**sampling, **self.sampling}}
        try:
            job = GenerationJob.parse(given, settings)
        except InvalidJob as error:
            errors += (FieldError(_name_in_body(field), message) for field, message in error.fields)
        if errors:
            raise InvalidJob(list(dict.fromkeys(errors)))
        return job

    def _take(self, name: str, value: Any) -> None:
        is_chat = self._endpoint == CHAT
        ours = CHAT_NAMES.get(name, name) if is_chat else name
        if ours in SAME or (is_chat and name == "top_logprobs"):
            self.sampling[ours] = value
        elif name in FORM_FIELDS or (is_chat and name in CHAT_SAME):
            self.fields[name] = value
        elif name not in NEUTRAL:
            self._refuse(name, f"not supported{self._meant(name)}")
        elif (neutral := NEUTRAL[name]) is not None and value not in neutral:
            self._refuse(name, f"only supported as {' or '.join(map(json.dumps, neutral))}")

    def _meant(self, name: str) -> str:
        """What an unknown field may have been meant to be; of no more of them than an error names."""
        known = (
            *self._special,
            *SAME,
            *FORM_FIELDS,
            *((*CHAT_NAMES, *CHAT_SAME) if self._endpoint == CHAT else ()),
        )
        return did_you_mean(close_names(name, known) if len(self.errors) < MAX_FIELD_ERRORS else [])

    def _prompt(self, value: Any) -> None:
        """A text, a list of ids, or a list with exactly one of these: a request is one job."""
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
            value = value[0]
        if isinstance(value, list) and any(isinstance(part, str | list) for part in value):
            self._refuse("prompt", f"must be exactly one prompt, got {len(value)}")
        else:
            self.fields["prompt_ids" if isinstance(value, list) else "prompt"] = value

    def _messages(self, value: Any) -> None:
        self.fields["messages"] = [_message(turn) for turn in value] if isinstance(value, list) else value

    def _tools(self, value: Any) -> None:
        if self._endpoint != CHAT and value != []:
            self._refuse("tools", f"only supported as [] here, and as a list at {CHAT}")
        elif value != []:
            self.fields["tools"] = value

    def _stop(self, value: Any) -> None:
        self.sampling["stop"] = [value] if isinstance(value, str) else value

    def _logprobs(self, value: Any) -> None:
        """A chat has a boolean here, and `top_logprobs` beside it; a completion has their number."""
        if self._endpoint == CHAT or isinstance(value, bool) or not isinstance(value, int):
            self.sampling["logprobs"] = value
        else:
            self.sampling |= {"logprobs": True, "top_logprobs": value}

    def _refuse(self, name: str, message: str) -> None:
        self.errors.append(FieldError(name if name.isidentifier() else "?", message))


def _name_in_body(field: str) -> str:
    name = field.removeprefix("sampling.").replace("prompt_ids", "prompt")
    return BODY if name == "sampling" else name


def _message(turn: Any) -> Any:
    """A turn in our form: no nulls, arguments of calls as templates take them, one name for reasoning."""
    if not isinstance(turn, Mapping):
        return turn
    found = {name: value for name, value in turn.items() if value is not None}
    if "reasoning" in found:  # vLLM's name; its answers, too, may be sent back as they came
        found.setdefault("reasoning_content", found.pop("reasoning"))
    if isinstance(calls := found.get("tool_calls"), list):
        found["tool_calls"] = [_call(call) for call in calls]
    return found


def _call(call: Any) -> Any:
    """A call whose arguments are an object, which OpenAI writes as the text of one."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call
