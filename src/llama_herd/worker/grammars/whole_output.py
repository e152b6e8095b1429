"""WholeOutput: the form of a whole output, with its reasoning, its tool calls and its answer.

Its grammar is in Lark as llguidance reads it. Free text goes as far as an opening mark. A mark that is a
control token is one token there; another one is the end of a lazy lexeme, which is as short as can be. Free
text at the beginning of an output, or behind its reasoning, is no beginning of what could be reasoning or a
call without a mark.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self

from pydantic import TypeAdapter

from llama_herd.errors import FieldError, InvalidJob
from llama_herd.model.parsers.formats import OutputFormats, ReasoningFormat, ToolFormat
from llama_herd.model.parsers.output_parser import ARGUMENTS
from llama_herd.tasks.protocol.json_values import json_text
from llama_herd.tasks.protocol.structured_outputs import ANY_OBJECT, OutputForm

#: What a tool takes that names no parameters, as at OpenAI.
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}

#: White space that parsers pass over.
_SPACE = r"[ \t\r\n]*"

#: The name of the grammar beside this one that an answer has to follow.
ANSWER = "answer"


@dataclass(frozen=True)
class ToolRule:
    """A tool that may be called, with the schema of its arguments."""

    name: str
    schema: Any
    field: str  # the request field to blame in errors
    must_hold: bool  # else a schema that no grammar can express is ignored

    @classmethod
    def of(cls, function: Mapping[str, Any], field: str, must_call: bool) -> Self:
        """The rule of a tool's function, which stands in this field of the request."""
        schema = function.get("parameters")
        if schema is None:
            schema = NO_ARGUMENTS
        elif schema is True:
            schema = ANY_OBJECT
        must_hold = must_call or function.get("strict") is True
        return cls(function["name"], schema, f"{field}.parameters", must_hold)


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
        field = "tools" if self.answer is None else self.answer.field
        return OutputForm("output", json_text(asdict(self)), field)

    @classmethod
    def read(cls, text: str) -> Self:
        """Read a whole output from the JSON text of its form."""
        return TypeAdapter(cls).validate_python(json.loads(text))


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
        if isinstance(choice, Mapping) and function["name"] != choice["function"]["name"]:
            continue
        rules.append(ToolRule.of(function, f"tools.{number}.function", must_call))
    return rules


@dataclass(frozen=True)
class OutputGrammar:
    """A grammar in Lark: reasoning, then calls of tools among free text, or an answer."""

    output: WholeOutput
    tools: Sequence[tuple[str, str]]  # names, and grammars of their arguments
    answer: str | None  # the grammar of what is no call; None: any text
    mark_ids: Mapping[str, int]

    @cached_property
    def _mark(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self.mark_ids)) or r"(?!)")

    def rules(self) -> Iterator[str]:
        yield "ANY: /(?s:.*)/"
        yield r"PAUSE: /[ \n]{1,4}/"  # between reasoning and what follows
        if self.output.reasoning is None:
            yield "start: rest"
        else:
            yield from self._reasoning(self.output.reasoning, self.output.begins_in_reasoning)
        yield from self._rest("rest", ())
        if self.output.format is not None:
            yield from self._calls(self.output.format)

    def _reasoning(self, form: ReasoningFormat, is_begun: bool) -> Iterator[str]:
        opening = "" if is_begun else self._text(form.opening)
        marks = " | ".join(map(self._text, form.answer_marks[:1]))
        after = f"PAUSE? ({marks})? PAUSE? rest" if marks else "PAUSE? rest"
        yield f"thoughts: {opening} {self._up_to('thoughts_end', form.closing)[0]} {after}"
        yield self._up_to("thoughts_end", form.closing)[1]
        if is_begun:
            yield "start: thoughts"
        else:
            yield "start: thoughts | other"
            text = () if form.opening in self.mark_ids else (exactly(form.opening),)
            yield from self._rest("other", text)

    def _rest(self, name: str, heads: Sequence[str]) -> Iterator[str]:
        """Calls and an answer, which does not begin as one of these expressions says."""
        form = self.output.format
        if form is None or self.output.must_call or self.answer is not None:
            answer = self.answer if self.answer is not None else "ANY"
            choices = [*(["calls"] if form else []), *([] if form and self.output.must_call else [answer])]
            yield f"{name}: {' | '.join(choices)}"
            return
        if form.begins_open:
            heads = [*heads, *(_open_call(form, tool) for tool, _ in self.tools)]
        open_calls = " | calls" if form.begins_open else ""
        yield self._free(f"{name.upper()}_FREE", heads)
        use, rules = self._up_to_call(f"{name}_trigger", form, f"{name.upper()}_FREE")
        yield from rules
        yield f"{name}: {name.upper()}_FREE | {use} behind{open_calls}"

    def _calls(self, form: ToolFormat) -> Iterator[str]:
        """The rules for calls. `calls`: nothing but calls. `behind`: what follows a mark in free text."""
        first = "" if form.begins_open else self._text(form.openings[0])
        again = self._text(form.openings[0] if form.reopening is None else form.reopening)
        last = self._text(form.last_ending)
        separator = self._text(form.separator)
        repeats = self.output.is_parallel and form.shape != "list"  # a list holds several
        further = f"({separator} {again} call)*" if repeats else ""
        yield f"calls: {first} call {further} {last}"
        if form.begins_open and form.reopening == "":
            yield f"behind: call {further} {last}"
        else:
            use, rules = self._up_to_call("trigger", form, "ANY")
            go_on = f"(ANY | {use} behind)"
            yield from rules
            yield f"behind: call {further if last else ''} {last} {go_on if self.output.is_parallel else ''}"
            if form.no_call:
                yield f"    | {self._text(form.no_call)} /\\n/ {go_on}"
        yield from self._call(form)

    def _call(self, form: ToolFormat) -> Iterator[str]:
        names = " | ".join(f"call_{number}" for number in range(len(self.tools)))
        gap, ending = self._text(form.gap), self._text(form.ending)
        if form.shape == "list":
            more = '(", " one)*' if self.output.is_parallel else ""
            yield f'call: " "? "[" one {more} "]" {ending}'
            yield f"one: {names}"
        else:
            yield f"call: {gap} ({names}) {gap} {ending}"
        for number, (name, arguments) in enumerate(self.tools):
            head = self._head(form, name)
            tail = "" if form.shape == "named" else '"}"'
            yield f"call_{number}: {head} {arguments} {tail}"

    def _head(self, form: ToolFormat, name: str) -> str:
        """The part of a rule for a call up to its arguments. Without a mark before it models vary in it."""
        if form.shape == "named":
            return self._text(name + form.between)
        if form.begins_open:
            keys = "|".join(ARGUMENTS)
            return rf'/\{{ ?"name" ?: ?"{re.escape(name)}" ?, ?"({keys})" ?: ?/'
        return self._text(f'{{"name": {json.dumps(name)}, "{form.arguments_key}": ')

    def _free(self, name: str, heads: Sequence[str]) -> str:
        """A lexeme of any text that begins with none of these, white space aside."""
        return f"{name}: ANY & ~/(?s:{_SPACE}({'|'.join(heads)}).*)/" if heads else f"{name}: ANY"

    def _up_to_call(self, name: str, form: ToolFormat, free: str) -> tuple[str, list[str]]:
        """Free text and one of the marks that open calls.

        Those that are control tokens do not come in free text; of these the first one is enough.
        """
        texts = [one for one in form.openings if not self._mark.search(one)]
        if texts == [form.openings[0]] or not texts:
            use, rule = self._up_to(name, form.openings[0], free)
            return use, [rule]
        marks = " | ".join(map(_quoted, texts))
        found = f"{name}_text[lazy]: {free} ({marks})"
        if form.openings[0] in texts:
            return f"{name}_text", [found]
        use, rule = self._up_to(name, form.openings[0], free)
        return f"({use} | {name}_text)", [rule, found]

    def _up_to(self, name: str, mark: str, free: str = "ANY") -> tuple[str, str]:
        """A rule's part for free text and the mark that ends it, and the further rule that this needs."""
        found = self._mark.match(mark)
        if found:
            return f"{name} {self._text(mark)}", f"{name}: {free}"
        head = self._mark.search(mark)
        text, rest = (mark, "") if head is None else (mark[: head.start()], mark[head.start() :])
        return f"{name} {self._text(rest)}", f"{name}[lazy]: {free} {_quoted(text)}"

    def _text(self, text: str) -> str:
        """A text in a rule, its control tokens as such."""
        parts, at = [], 0
        for found in self._mark.finditer(text):
            parts += [text[at : found.start()], found[0]]
            at = found.end()
        parts.append(text[at:])
        return " ".join(
            f"<[{self.mark_ids[part]}]>" if part in self.mark_ids else _quoted(part) for part in parts if part
        )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _open_call(form: ToolFormat, name: str) -> str:
    """What a text begins with that a parser may read as a call without a mark: rather too much."""
    if form.shape == "named":
        return rf"{exactly(name)}(\n|{_SPACE}\{{)"
    member = f'"{_in_json("name")}"{_SPACE}:{_SPACE}"{_in_json(name)}"'
    return rf"\[?{_SPACE}\{{.*{member}"


def exactly(text: str) -> str:
    """An expression that only this text matches."""
    return "".join(one if one.isalnum() and one.isascii() else f"\\x{{{ord(one):x}}}" for one in text)


def _in_json(name: str) -> str:
    """An expression for a name as JSON may spell it."""
    return "".join(rf"({exactly(one)}|\\u(?i:{ord(one):04x}))" for one in name)
