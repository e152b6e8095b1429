"""The body of an OpenAI request as the fields of our job. vLLM's additional fields are accepted, too.

Sources: OpenAI's API reference for completions, chat completions and batches; vLLM's SamplingParams.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from llama_herd.counted import counted
from llama_herd.errors import MAX_FIELD_ERRORS, FieldError, InvalidJob
from llama_herd.tasks.openai.allowed_tools import among_some, is_among_some
from llama_herd.tasks.openai.other_fields import NEUTRAL, REFUSED, shown_name
from llama_herd.tasks.openai.turns import job_turns
from llama_herd.tasks.protocol.close_names import close_names, did_you_mean
from llama_herd.tasks.protocol.job import SOURCE_MESSAGE, GenerationJob
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.tasks.protocol.structured_outputs import FORM_FIELDS
from llama_herd.tasks.settings import Settings

Endpoint = Literal["/v1/completions", "/v1/chat/completions"]
ENDPOINTS: tuple[Endpoint, ...] = get_args(Endpoint)
COMPLETIONS, CHAT = ENDPOINTS

#: Named as the field of an error that concerns no single field.
BODY = "body"

#: Names that only chats have, each with our name.
CHAT_NAMES = {"max_completion_tokens": "max_tokens"}
#: Fields of a chat, OpenAI's and vLLM's, that mean the same here; a `chat_template` is a name, no text.
CHAT_SAME = frozenset(
    (
        *("tool_choice", "parallel_tool_calls"),
        *("documents", "chat_template", "chat_template_kwargs"),
    )
)
#: Our own fields of a job, at both endpoints.
JOB_SAME = frozenset(("retries", "retry_backoff_s"))
#: vLLM's field of a completion that means the same here.
COMPLETION_SAME = frozenset(("add_special_tokens",))

#: How much a model is to think, in OpenAI's words.
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

#: Sampling fields with the same name and meaning at both endpoints.
SAME = frozenset(SamplingParams.model_fields) - {"logprobs", "top_logprobs", "stop", "top_k", "top_p"}
#: For a `top_p` of 0, which OpenAI takes: the likeliest token of any vocabulary has more, so it stays alone.
LEAST_TOP_P = 1e-6


class RequestBody:
    """Reads one body: `fields` and `sampling` are those of the job, `errors` names the fields that cannot be.

    A null counts as absent, as at OpenAI.
    """

    def __init__(self, endpoint: Endpoint, body: Mapping[str, Any]) -> None:
        self.fields: dict[str, Any] = {}
        self.sampling: dict[str, Any] = {}
        self.errors: list[FieldError] = []
        self._endpoint = endpoint
        self._body = body
        self._prompts: list[Any] = []
        self._effort_options: dict[str, Any] = {}  # of the template
        self._source, read = ("messages", self._messages) if endpoint == CHAT else ("prompt", self._prompt)
        self._special: dict[str, Callable[[Any], None]] = {
            self._source: read,
            "model": lambda value: self.fields.update(model=value),
            "tools": self._tools,
            "stop": lambda value: self.sampling.update(stop=[value] if isinstance(value, str) else value),
            "top_k": lambda value: self.sampling.update(top_k=0 if value == -1 else value),
            "top_p": self._top_p,
            "logprobs": self._logprobs,
        }
        if endpoint == CHAT:
            self._special["reasoning_effort"] = self._effort
        else:
            self._special |= {"echo": self._echo, "suffix": self._suffix, "best_of": self._best_of}
        for name, value in body.items():
            if value is None:
                continue
            if name in self._special:
                self._special[name](value)
            else:
                self._read_field(name, value)
        tools = self.fields.get("tools", [])
        if is_among_some(self.fields.get("tool_choice")) and isinstance(tools, list):
            self._leave_out(tools)
        options = self.fields.get("chat_template_kwargs", {})
        if self._effort_options and isinstance(options, Mapping):
            self.fields["chat_template_kwargs"] = {**self._effort_options, **options}
        if self.fields.get("echo") and self.sampling.get("logprobs"):  # of the prompt, too
            self.sampling.setdefault("prompt_logprobs", self.sampling.get("top_logprobs", 0))

    def jobs(self, settings: Settings, max_prompts: int) -> list[GenerationJob]:
        """A job for each prompt. Raises InvalidJob; what is wrong with one of several is named `prompt.3`."""
        num = len(self._prompts)  # a chat has none here
        if num < 2:
            return [self.job(settings)]
        if num > max_prompts:
            self._refuse("prompt", f"must be at most {counted(max_prompts, 'prompt')}, got {num:,}")
            raise InvalidJob(self.errors)
        jobs, errors = list[GenerationJob](), list[FieldError]()
        for number, prompt in enumerate(self._prompts):
            try:
                jobs.append(self._job(settings, prompt, {}, {}))
            except InvalidJob as error:
                errors += (
                    FieldError(_numbered_field(one.field, number), one.message) for one in error.fields
                )
            if len(errors) > MAX_FIELD_ERRORS:
                break
        if errors:
            raise InvalidJob(list(dict.fromkeys(errors)))
        return jobs

    def job(
        self, settings: Settings, fields: Mapping[str, Any] = {}, sampling: Mapping[str, Any] = {}
    ) -> GenerationJob:
        """The job. `fields` and `sampling` are defaults for what the body does not set.

        Raises InvalidJob. It names every wrong field as the body does.
        """
        if len(self._prompts) > 1:
            self._refuse("prompt", f"must be exactly one prompt, got {len(self._prompts)}")
        return self._job(settings, self._prompts[0] if self._prompts else None, fields, sampling)

    def _job(
        self, settings: Settings, prompt: Any, fields: Mapping[str, Any], sampling: Mapping[str, Any]
    ) -> GenerationJob:
        errors = list(self.errors)
        given = {**fields, **self.fields, "sampling": {**sampling, **self.sampling}}
        if self._endpoint == COMPLETIONS:
            given["prompt_ids" if isinstance(prompt, list) else "prompt"] = prompt
        try:
            job = GenerationJob.parse(given, settings)
        except InvalidJob as error:
            errors += (self._in_body(one) for one in error.fields)
        if errors:
            raise InvalidJob(list(dict.fromkeys(errors)))
        return job

    def _read_field(self, name: str, value: Any) -> None:
        is_chat = self._endpoint == CHAT
        ours = CHAT_NAMES.get(name, name) if is_chat else name
        if ours in SAME or (is_chat and name == "top_logprobs"):
            if name != ours or ours not in self.sampling:  # of two names the newer one counts
                self.sampling[ours] = value
        elif name in FORM_FIELDS | JOB_SAME or name in (CHAT_SAME if is_chat else COMPLETION_SAME):
            self.fields[name] = value
        elif name not in NEUTRAL:
            why = f": {REFUSED[name]}" if name in REFUSED else self._suggestion(name)
            self._refuse(name, f"not supported{why}")
        elif complaint := NEUTRAL[name].complaint(value):
            self._refuse(name, complaint)

    def _suggestion(self, name: str) -> str:
        """Suggest known fields for an unknown one, as long as the error still names fields."""
        known = (
            *self._special,
            *SAME,
            *FORM_FIELDS,
            *JOB_SAME,
            *((*CHAT_NAMES, *CHAT_SAME) if self._endpoint == CHAT else COMPLETION_SAME),
        )
        return did_you_mean(close_names(name, known) if len(self.errors) < MAX_FIELD_ERRORS else [])

    def _prompt(self, value: Any) -> None:
        """A text, a list of ids, or a list of these."""
        is_list = isinstance(value, list) and any(isinstance(part, str | list) for part in value)
        self._prompts = value if is_list else [value]

    def _echo(self, value: Any) -> None:
        if value is not False:
            self.fields["echo"] = value

    def _suffix(self, value: Any) -> None:
        if value != "":
            self._refuse(
                "suffix", 'only supported as "": a text is continued here, and no gap in it is filled'
            )

    def _best_of(self, value: Any) -> None:
        if isinstance(value, bool) or value != (1 if self._body.get("n") is None else self._body["n"]):
            why = "all outputs that are drawn are given. Fix: a larger n with logprobs"
            self._refuse("best_of", f"must be the same as n: {why}")

    def _messages(self, value: Any) -> None:
        self.fields["messages"] = job_turns(value) if isinstance(value, list) else value

    def _effort(self, value: Any) -> None:
        """How much to think is a matter of the template: some know the effort, others whether to think."""
        if not isinstance(value, str) or value not in EFFORTS:
            self._refuse("reasoning_effort", f"must be one of {', '.join(EFFORTS)}")
            return
        self._effort_options = {"reasoning_effort": value}
        if value == "none":
            self._effort_options["enable_thinking"] = False

    def _tools(self, value: Any) -> None:
        if self._endpoint != CHAT and value != []:
            self._refuse("tools", f"only supported as [] here, and as a list at {CHAT}")
        elif value != []:
            self.fields["tools"] = value

    def _leave_out(self, tools: list[Any]) -> None:
        """Those among which there is no choice: no template is to tell of them."""
        try:
            choice, kept = among_some(self.fields["tool_choice"], tools)
        except ValueError as error:
            self._refuse("tool_choice", str(error))
            self.fields["tool_choice"] = "auto"
        else:
            self.fields |= {"tool_choice": choice, "tools": kept or None}

    def _top_p(self, value: Any) -> None:
        is_zero = value == 0 and not isinstance(value, bool)
        self.sampling["top_p"] = LEAST_TOP_P if is_zero else value

    def _logprobs(self, value: Any) -> None:
        """A chat has a boolean here, and `top_logprobs` beside it; a completion has their number."""
        if self._endpoint == CHAT or isinstance(value, bool) or not isinstance(value, int):
            self.sampling["logprobs"] = value
        else:
            self.sampling |= {"logprobs": True, "top_logprobs": value}

    def _refuse(self, name: str, message: str) -> None:
        self.errors.append(FieldError(shown_name(name), message))

    def _in_body(self, error: FieldError) -> FieldError:
        """An error of a job as one of the body."""
        if error.message == SOURCE_MESSAGE:
            return FieldError(self._source, "is required")
        return FieldError(self._name_in_body(error.field), error.message)

    def _name_in_body(self, field: str) -> str:
        """The name of a job's field in the body."""
        name = field.removeprefix("sampling.").replace("prompt_ids", "prompt")
        if self._endpoint == COMPLETIONS:
            if name == "prompt_logprobs" and self._body.get(name) is None:  # by echo
                return "logprobs"
            return {"sampling": BODY, "top_logprobs": "logprobs"}.get(name, name)
        theirs = {ours: one for one, ours in CHAT_NAMES.items() if self._body.get(one) is not None}
        return {"sampling": BODY, "prompt": BODY, **theirs}.get(name, name)


def _numbered_field(field: str, number: int) -> str:
    """The name of a field of one of several prompts."""
    first, *rest = field.split(".")
    return ".".join((first, str(number), *rest)) if first == "prompt" else field
