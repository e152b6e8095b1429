"""WholeOutput: the form of a whole output, with its reasoning, its tool calls and its answer."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from llama_herd.errors import FieldError, InvalidJob
from llama_herd.model.parsers.formats import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    OutputFormats,
    ReasoningFormat,
    ToolFormat,
)
from llama_herd.tasks.protocol.chat import json_text
from llama_herd.tasks.protocol.structured_outputs import ANY_OBJECT, OutputForm

#: What a tool takes that names no parameters, as at OpenAI.
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class ToolRule:
    """A tool that may be called, with the schema of its arguments."""

    name: str
    schema: Any
    field: str  # the request field to blame in errors
    must_hold: bool  # else a schema that no grammar can express is ignored


@dataclass(frozen=True)
class WholeOutput:
    """The parts that the grammar of a whole output is built from.

    It goes as JSON to the judge, the helper process that makes grammars of forms.
    """

    reasoning: ReasoningFormat | None  # format of the expected reasoning; None: none is expected
    begins_in_reasoning: bool
    format: ToolFormat | None  # format of tool calls; None: calls are not allowed
    tools: tuple[ToolRule, ...]
    must_call: bool
    is_parallel: bool  # several calls may follow each other
    answer: OutputForm | None  # form of an answer that is not a call
    mark_ids: Mapping[str, int]  # token ids of those marks that are control tokens

    @classmethod
    def for_chat(
        cls,
        formats: OutputFormats,
        mark_ids: Mapping[str, int],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        choice: str | Mapping[str, Any] = "auto",
        is_parallel: bool = True,
        answer: OutputForm | None = None,
        begins_in_reasoning: bool = False,
    ) -> Self:
        """Make the form of a chat's outputs, by the chat's tools in OpenAI's form and its `tool_choice`.

        Pass `formats` without reasoning if the chat has none. Raises InvalidJob if calls, or strict
        arguments, are required of a model whose call format has no grammar.
        """
        form = formats.tools
        must_call = choice not in ("auto", "none")
        rules = tuple(_rules(tools, choice, must_call)) if choice != "none" else ()
        if form is None or form.is_free:
            _check_nothing_must_hold(rules, must_call)
            rules = ()
        return cls(
            formats.reasoning,
            begins_in_reasoning,
            form if rules else None,
            rules,
            must_call,
            is_parallel,
            None if must_call else answer,
            mark_ids,
        )

    def to_form(self) -> OutputForm | None:
        """The form from which `Grammars` makes constraints; None: the output is free."""
        if self.format is None and (self.answer is None or self.reasoning is None):
            return self.answer
        fields = asdict(self) | {
            "reasoning": None if self.reasoning is None else self.reasoning.name,
            "format": None if self.format is None else self.format.name,
        }
        field = "tools" if self.answer is None else self.answer.field
        return OutputForm("output", json_text(fields), field)

    @classmethod
    def read(cls, text: str) -> Self:
        """Read a whole output from the JSON text of its form."""
        fields = json.loads(text)
        return cls(
            **fields
            | {
                "reasoning": REASONING_FORMATS.get(fields["reasoning"]),
                "format": TOOL_FORMATS.get(fields["format"]),
                "tools": tuple(ToolRule(**rule) for rule in fields["tools"]),
                "answer": None if fields["answer"] is None else OutputForm(*fields["answer"]),
            }
        )


def _check_nothing_must_hold(rules: Sequence[ToolRule], must_call: bool) -> None:
    """Raise InvalidJob if calls, or strict arguments, are required: only a grammar enforces them."""
    strict = [one.field.replace("parameters", "strict") for one in rules if one.must_hold]
    if field := "tool_choice" if must_call else next(iter(strict), ""):
        problem = "cannot be enforced: this worker knows no grammar of the calls that this model writes"
        fix = "use auto" if must_call else "leave it out"
        raise InvalidJob([FieldError(field, f"{problem}. Fix: {fix}, or set HERD_TOOL_PARSER")])


def _rules(
    tools: Sequence[Mapping[str, Any]], choice: str | Mapping[str, Any], must_call: bool
) -> list[ToolRule]:
    """The rules of those tools that may be called."""
    rules = []
    for number, tool in enumerate(tools):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, Mapping):
            continue  # in a form of the template's own: never read as a call
        name, schema = function["name"], function.get("parameters")
        if isinstance(choice, Mapping) and name != choice["function"]["name"]:
            continue
        must_hold = must_call or function.get("strict") is True
        if schema is None:
            schema = NO_ARGUMENTS
        elif schema is True:
            schema = ANY_OBJECT
        rules.append(ToolRule(name, schema, f"tools.{number}.function.parameters", must_hold))
    return rules
