"""The grammar of a whole output, in Lark as llguidance reads it.

Free text goes as far as an opening mark. A mark that is a control token is one token there; another one is
the end of a lazy lexeme, which is as short as can be. Free text at the beginning of an output, or behind its
reasoning, is no beginning of what could be reasoning or a call without a mark.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from llama_herd.model.parsers.formats import ReasoningFormat, ToolFormat
from llama_herd.model.parsers.output_parser import ARGUMENTS

#: Any text.
_ANY = "/(?s:.*)/"
#: White space that parsers pass over.
_SPACE = r"[ \t\r\n]*"
#: White space between reasoning and what follows.
_PAUSE = r"PAUSE: /[ \n]{1,4}/"

#: The name of the grammar beside this one that an answer has to follow.
ANSWER = "answer"


def output_grammar(
    reasoning: ReasoningFormat | None,
    form: ToolFormat | None,
    tools: Sequence[tuple[str, str]],
    *,
    begins_in_reasoning: bool = False,
    must_call: bool = False,
    is_parallel: bool = True,
    answer: str | None = None,
    mark_ids: Mapping[str, int],
) -> str:
    """A grammar in Lark: reasoning, then calls of tools among free text, or an answer.

    tools: names, and grammars of their arguments. answer: the grammar of what is no call; None: any text.
    """
    return "\n".join(
        _Writer(mark_ids, form, tools, must_call, is_parallel, answer).rules(reasoning, begins_in_reasoning)
    )


class _Writer:
    def __init__(
        self,
        mark_ids: Mapping[str, int],
        form: ToolFormat | None,
        tools: Sequence[tuple[str, str]],
        must_call: bool,
        is_parallel: bool,
        answer: str | None,
    ) -> None:
        self._mark_ids = mark_ids
        self._mark = re.compile("|".join(map(re.escape, mark_ids)) or r"(?!)")
        self._form = form
        self._tools = tools
        self._must_call = must_call
        self._is_parallel = is_parallel
        self._answer = answer

    def rules(self, reasoning: ReasoningFormat | None, begins_in_reasoning: bool) -> Iterator[str]:
        yield f"ANY: {_ANY}"
        yield _PAUSE
        if reasoning is None:
            yield "start: rest"
            yield from self._rest("rest", ())
        else:
            yield from self._reasoning(reasoning, begins_in_reasoning)
            yield from self._rest("rest", ())
        if self._form is not None:
            yield from self._calls(self._form)

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
            text = () if form.opening in self._mark_ids else (_exactly(form.opening),)
            yield from self._rest("other", text)

    def _rest(self, name: str, heads: Sequence[str]) -> Iterator[str]:
        """Calls and an answer, which does not begin as one of these expressions says."""
        form = self._form
        if form is None or self._must_call or self._answer is not None:
            answer = self._answer if self._answer is not None else "ANY"
            choices = [*(["calls"] if form else []), *([] if form and self._must_call else [answer])]
            yield f"{name}: {' | '.join(choices)}"
            return
        if form.begins_open:
            heads = [*heads, *(_open_call(form, tool) for tool, _ in self._tools)]
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
        repeats = self._is_parallel and form.shape != "list"  # a list holds several
        further = f"({separator} {again} call)*" if repeats else ""
        yield f"calls: {first} call {further} {last}"
        if form.begins_open and form.reopening == "":
            yield f"behind: call {further} {last}"
        else:
            use, rules = self._up_to_call("trigger", form, "ANY")
            go_on = f"(ANY | {use} behind)"
            yield from rules
            yield f"behind: call {further if last else ''} {last} {go_on if self._is_parallel else ''}"
            if form.no_call:
                yield f"    | {self._text(form.no_call)} /\\n/ {go_on}"
        yield from self._call(form)

    def _call(self, form: ToolFormat) -> Iterator[str]:
        names = " | ".join(f"call_{number}" for number in range(len(self._tools)))
        gap, ending = self._text(form.gap), self._text(form.ending)
        if form.shape == "list":
            more = '(", " one)*' if self._is_parallel else ""
            yield f'call: " "? "[" one {more} "]" {ending}'
            yield f"one: {names}"
        else:
            yield f"call: {gap} ({names}) {gap} {ending}"
        for number, (name, arguments) in enumerate(self._tools):
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
        found = (
            f"{name}_text[lazy]: {free} ({' | '.join(json.dumps(one, ensure_ascii=False) for one in texts)})"
        )
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
        return f"{name} {self._text(rest)}", f"{name}[lazy]: {free} {json.dumps(text, ensure_ascii=False)}"

    def _text(self, text: str) -> str:
        """A text in a rule, its control tokens as such."""
        parts, at = [], 0
        for found in self._mark.finditer(text):
            parts += [text[at : found.start()], found[0]]
            at = found.end()
        parts.append(text[at:])
        return " ".join(
            f"<[{self._mark_ids[part]}]>" if part in self._mark_ids else json.dumps(part, ensure_ascii=False)
            for part in parts
            if part
        )


def _open_call(form: ToolFormat, name: str) -> str:
    """What a text begins with that a parser may read as a call without a mark: rather too much."""
    if form.shape == "named":
        return rf"{_exactly(name)}(\n|{_SPACE}\{{)"
    member = f'"{_in_json("name")}"{_SPACE}:{_SPACE}"{_in_json(name)}"'
    return rf"\[?{_SPACE}\{{.*{member}"


def _exactly(text: str) -> str:
    """An expression for a text."""
    return "".join(one if one.isalnum() and one.isascii() else f"\\x{{{ord(one):x}}}" for one in text)


def _in_json(name: str) -> str:
    """An expression for a name as JSON may spell it."""
    return "".join(rf"({_exactly(one)}|\\u(?i:{ord(one):04x}))" for one in name)
