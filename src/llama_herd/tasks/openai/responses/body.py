"""The body of a request to the Responses API, as that of a chat.

Source: OpenAI's API reference for responses.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from llama_herd.errors import MAX_FIELD_ERRORS, FieldError, InvalidJob
from llama_herd.tasks.openai.allowed_tools import ALLOWED
from llama_herd.tasks.openai.other_fields import NEUTRAL, Neutral, shown_name
from llama_herd.tasks.openai.request_body import CHAT, CHAT_SAME, JOB_SAME, SAME, RequestBody
from llama_herd.tasks.openai.responses.conversation import NOTHING, Conversation
from llama_herd.tasks.openai.responses.input_items import BEFORE, Turns
from llama_herd.tasks.protocol.close_names import close_names, did_you_mean
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.settings import Settings

RESPONSES: Literal["/v1/responses"] = "/v1/responses"

#: Fields that a chat has, too, with the same meaning.
CHAT_FIELDS = (
    SAME.difference(("n", "max_tokens", "prompt_logprobs"))
    .union(JOB_SAME, CHAT_SAME, ("model", "stop", "structured_outputs", "top_k", "top_p"))
    .difference(("tool_choice",))
)
#: Fields that change nothing, or may have one value.
OWN_NEUTRAL: Mapping[str, Neutral] = {
    **{
        name: NEUTRAL[name]
        for name in (
            *("user", "safety_identifier", "service_tier"),
            *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
        )
    },
    "background": Neutral("only the gateway's own route has it", (False,)),
    "stream": NEUTRAL["stream"],
    "max_tool_calls": Neutral("no tool is called here; a model may ask for calls"),
    "store": Neutral(
        "an answer is kept as a job, for as long as these are; with false none goes on from it", (True, False)
    ),
    "truncation": Neutral("nothing is left out of a conversation", ("disabled",)),
}
#: Names the answer that a request goes on from.
PREVIOUS = "previous_response_id"
#: Fields that the gateway's own route reads by itself.
_OF_ROUTE = (PREVIOUS, "priority", "stream_options")
#: Fields that are refused, with the fix.
OWN_REFUSED: Mapping[str, str] = {
    "access_programs": "there are none. Fix: leave it out",
    "context_management": "nothing is left out of a conversation. Fix: fewer items in `input`",
    "conversation": f"only answers are kept here. Fix: {PREVIOUS}, or all items so far in `input`",
    "image": "a model reads and writes texts. Fix: leave it out",
    "moderation": "no text is judged here. Fix: leave it out",
    PREVIOUS: "only the gateway's own route has it. Fix: all items so far in `input`",
    "max_completion_tokens": "a chat's name. Fix: max_output_tokens",
    "max_tokens": "a chat's name. Fix: max_output_tokens",
    "messages": "a chat's name. Fix: input",
    "n": "there is one output. Fix: several requests",
    "reasoning_effort": "a chat's name. Fix: reasoning.effort",
    "response_format": "a chat's name. Fix: text.format",
    "prompt": "nothing here keeps prompts. Fix: the text itself in `input` or `instructions`",
}
#: Parts of `reasoning` beside its effort.
REASONING: Mapping[str, Neutral] = {
    "context": Neutral("it is a matter of the template which thoughts are told again"),
    "generate_summary": Neutral("thoughts are given whole"),
    "mode": Neutral("there is one", ("standard",)),
    "summary": Neutral("thoughts are given whole"),
}
#: What `include` may ask for that is not there anyway.
SCORES = "message.output_text.logprobs"
#: Fields of a tool that say nothing of it to a model.
TOOL_IGNORED = ("allowed_callers", "defer_loading", "output_schema")

#: Names of fields that no chat has.
NAMES = (
    *("background", "include", "input", "instructions", "max_output_tokens", "reasoning", "text"),
    *("effort", "format", "starting_after", *REASONING),
)
#: Our names of what they name otherwise. `text.format` is a form by itself, without one inside it.
_THEIRS = {
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
}


class ResponseBody:
    """Reads one body: `errors` names the fields that cannot be. A null counts as absent.

    before: the conversation that it goes on with. fields: those of the job that no chat has.
    """

    def __init__(self, body: Mapping[str, Any], before: Conversation = NOTHING) -> None:
        self.errors: list[FieldError] = []
        self.fields: dict[str, Any] = {}
        self._before = before
        self._chat: dict[str, Any] = {}
        self._turns: list[Any] = []
        self._places: list[str] = []  # the field that each turn came from
        self._special: dict[str, Callable[[Any], None]] = {
            "instructions": self._instructions,
            "input": self._input,
            "max_output_tokens": lambda value: self._chat.update(max_tokens=value),
            "metadata": lambda value: self.fields.update(metadata=value),
            "text": self._text,
            "reasoning": self._reasoning,
            "include": self._include,
            "top_logprobs": self._top_logprobs,
            "tools": self._tools,
            "tool_choice": self._tool_choice,
        }
        for name, value in sorted(body.items(), key=lambda one: one[0] != "instructions"):
            if value is not None:
                self._read(name, value)
        if before.turns and body.get("input") is None:
            self._refuse("input", "is required")
        if self._turns:
            self._chat["messages"] = self._turns

    def keep(self) -> None:
        """Let later answers go on from this one, without its instructions."""
        self.fields["conversation_from"] = self._places.count("instructions")

    def jobs(self, settings: Settings, _max_prompts: int) -> list[GenerationJob]:
        """The one job, as a body of several prompts has some. Raises InvalidJob."""
        return [self.job(settings)]

    def job(
        self, settings: Settings, fields: Mapping[str, Any] = {}, sampling: Mapping[str, Any] = {}
    ) -> GenerationJob:
        """The job. `fields` and `sampling` are defaults for what the body does not set. Raises InvalidJob."""
        errors = list(self.errors)
        try:
            chat = RequestBody(CHAT, self._chat)
            job = chat.job(settings, {**fields, **self.fields}, sampling)
        except InvalidJob as error:
            is_told = any(one.field.split(".")[0] == "input" for one in errors)
            found = map(self._in_body, error.fields)
            errors += (one for one in found if not (is_told and one.field == "input"))
        if errors:
            raise InvalidJob(list(dict.fromkeys(errors)))
        return job

    def _read(self, name: str, value: Any) -> None:
        if name in self._special:
            self._special[name](value)
        elif name in CHAT_FIELDS:
            self._chat[name] = value
        elif name in OWN_NEUTRAL:
            self._check_neutral(name, OWN_NEUTRAL[name], value)
        elif name in OWN_REFUSED:
            self._refuse(name, f"not supported: {OWN_REFUSED[name]}")
        else:
            own = (*_OF_ROUTE, *self._special, *OWN_NEUTRAL)
            known = (*own, *CHAT_FIELDS) if len(self.errors) < MAX_FIELD_ERRORS else ()
            self._refuse(name, f"not supported{did_you_mean(close_names(name, known))}")

    def _check_neutral(self, name: str, neutral: Neutral, value: Any) -> None:
        if complaint := neutral.complaint(value):
            self._refuse(name, f"{complaint}: {neutral.why}")

    def _instructions(self, value: Any) -> None:
        if not isinstance(value, str):
            self._refuse("instructions", "must be a text")
            return
        self._add({"role": "system", "content": value}, "instructions")

    def _input(self, value: Any) -> None:
        is_text = isinstance(value, str)
        items = [{"role": "user", "content": value}] if is_text else value
        if not isinstance(items, list) or not items:
            self._refuse("input", "must be a text, or a list of items that is not empty")
            return
        turns = Turns(self._before, items)
        self.errors += turns.errors
        for turn, place in zip(turns.turns, turns.places, strict=True):
            self._add(turn, PREVIOUS if place == BEFORE else "input" if is_text else f"input.{place}")

    def _add(self, turn: Any, place: str) -> None:
        self._turns.append(turn)
        self._places.append(place)

    def _text(self, value: Any) -> None:
        for name, one in self._parts("text", value, ("format", "verbosity")):
            self._chat["response_format" if name == "format" else name] = _nested_form(one)

    def _reasoning(self, value: Any) -> None:
        for name, one in self._parts("reasoning", value, ("effort", *REASONING)):
            if name == "effort":
                self._chat["reasoning_effort"] = one
            else:
                self._check_neutral(f"reasoning.{name}", REASONING[name], one)

    def _include(self, value: Any) -> None:
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            self._refuse("include", "must be a list of texts")
        elif SCORES in value:
            self._chat["logprobs"] = True

    def _top_logprobs(self, value: Any) -> None:
        self._chat["top_logprobs"] = value
        if value != 0:
            self._chat["logprobs"] = True

    def _tools(self, value: Any) -> None:
        self._chat["tools"] = list(map(_nested_tool, value)) if isinstance(value, list) else value

    def _tool_choice(self, value: Any) -> None:
        if isinstance(value, Mapping) and value.get("type") == ALLOWED:
            rest = {name: one for name, one in value.items() if name != "type"}
            if isinstance(tools := rest.get("tools"), list):
                rest["tools"] = list(map(_nested_tool, tools))
            value = {"type": ALLOWED, ALLOWED: rest}
        self._chat["tool_choice"] = _nested_tool(value)

    def _parts(self, name: str, value: Any, known: tuple[str, ...]) -> list[tuple[str, Any]]:
        """The parts of an object that has no others than these."""
        if not isinstance(value, Mapping):
            self._refuse(name, "must be an object")
            return []
        for unknown in value.keys() - set(known):
            self._refuse(f"{name}.{shown_name(unknown)}", "not supported")
        return [(part, value[part]) for part in known if value.get(part) is not None]

    def _refuse(self, name: str, message: str) -> None:
        shown = name if all(part.isidentifier() for part in name.split(".")) else "?"
        self.errors.append(FieldError(shown, message))

    def _in_body(self, error: FieldError) -> FieldError:
        """An error of the chat as one of the body, in whose tools no function is inside."""
        field, message = self._field_of(error.field), re.sub(r"\bfunction\.(?=[a-z])", "", error.message)
        if self._before.turns and error.field == "messages":
            message += f", with the conversation of {PREVIOUS}. Fix: fewer or shorter items in `input`"
        return FieldError(field, message)

    def _field_of(self, field: str) -> str:
        """The name in the body of a chat's field."""
        first, *rest = field.split(".")
        if first == "messages":
            if not rest or not rest[0].isdigit():
                return "input"
            place, *rest = self._places[int(rest[0])], *rest[1:]
            return place if place in ("input", "instructions", PREVIOUS) else ".".join((place, *rest))
        return ".".join((_THEIRS.get(first, first), *rest))


def in_their_words(message: str) -> str:
    """What a worker says of a job's field, with the names of the body."""
    told = re.sub(r"^(prompt|prompt_ids|messages)\b", "input", message).replace("sampling.", "")
    told = re.sub(r"\bresponse_format(\.json_schema)?\b", "text.format", told)
    return re.sub(r"\bmax_tokens\b", "max_output_tokens", told)


def _nested_form(form: Any) -> Any:
    """A form of an output as a chat has it: a schema with its name in an object of its own."""
    if not isinstance(form, Mapping) or form.get("type") != "json_schema":
        return form
    inner = {name: one for name, one in form.items() if name != "type" and one is not None}
    return {"type": "json_schema", "json_schema": inner}


def _nested_tool(tool: Any) -> Any:
    """A tool, or a choice of one, as a chat has it: its name in an object of its own."""
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        return tool
    ignored = ("type", *TOOL_IGNORED)
    return {"type": "function", "function": {k: v for k, v in tool.items() if k not in ignored}}
