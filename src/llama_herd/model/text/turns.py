"""Turns of a conversation in the form that a template can take."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Self

ChatTurn = Mapping[str, object]
#: What a template makes of turns; None: it refuses them.
Render = Callable[[Sequence[ChatTurn]], str | None]

#: The roles that we know. They are words of our own; all other text of a chat comes from outside.
TRUSTED_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


def _turns(*roles: str) -> tuple[ChatTurn, ...]:
    return tuple({"role": role, "content": "x"} for role in roles)


#: Rendered once at the start: control tokens that a template puts together from parts show up here.
PROBES = (
    _turns("user"),
    _turns("system", "user", "assistant", "user"),
    _turns("developer", "user"),
    _turns("user", "assistant", "tool"),
)


#: Ways in which a turn that only calls tools has no content: transformers', OpenAI's (and that of older
#: transformers), and one more.
ABSENT: ChatTurn = {}
NULL: ChatTurn = {"content": None}
EMPTY: ChatTurn = {"content": ""}
_TOOL_TURN: ChatTurn = {"role": "tool", "content": "x", "name": "x", "tool_call_id": "call12345"}


@dataclass(frozen=True)
class CallForm:
    """The form in which a template wants a turn that calls tools."""

    no_content: ChatTurn
    takes_objects: bool  # arguments as objects, not as JSON strings

    @classmethod
    def from_trials(cls, render: Render) -> Self:
        """The first form that shows the call, else the first that renders: a call may come from elsewhere."""
        forms = [cls(*form) for form in product((ABSENT, NULL, EMPTY), (True, False))]
        for after in (_TOOL_TURN, *_turns("user")):  # some templates refuse the role of a tool
            texts = [(form, _rendered_call(render, form, after)) for form in forms]
            shown = [form for form, text in texts if _needle(0) in text]
            rendered = [form for form, text in texts if text]
            if rendered:
                return [*shown, *rendered][0]
        return cls(ABSENT, takes_objects=True)

    def shaped(self, turn: ChatTurn) -> dict[str, object]:
        """A turn with calls in this form."""
        calls = turn["tool_calls"]
        if not self.takes_objects and isinstance(calls, list | tuple):
            calls = [_with_text(call) for call in calls]
        first = {"role": turn["role"], **self.no_content} if self.no_content else {}
        return {**first, **turn, "tool_calls": calls}


@dataclass(frozen=True)
class Skills:
    """The abilities of a template with forms that not every template knows, as trials show them."""

    takes_parts: bool
    takes_developers: bool
    call_form: CallForm

    @classmethod
    def from_trials(cls, render: Render) -> Self:
        """Find the skills of a template by trying it."""
        conversations = (("system", "user", "assistant", "user"), ("user",))  # some refuse a system
        takes_parts = any(_shows_parts(render, roles) for roles in conversations)
        developer: ChatTurn = {"role": "developer", "content": _needle(0)}
        takes_developers = _needle(0) in (render([developer, *_turns("user")]) or "")
        return cls(takes_parts, takes_developers, CallForm.from_trials(render))


def shaped(turn: ChatTurn, skills: Skills) -> dict[str, object]:
    """A turn as transformers would pass it, changed where the template would otherwise lose its text.

    Content in parts is joined for a template that cannot read parts. A developer's turn becomes the system's
    for a template that leaves developers out. A turn that calls tools takes the template's `call_form`.
    """
    found = {name: value for name, value in turn.items() if value is not None}
    content = found.get("content")
    if not skills.takes_parts and isinstance(content, list | tuple):
        found["content"] = "".join(str(part["text"]) for part in content)
    if not skills.takes_developers and found.get("role") == "developer":
        found["role"] = "system"
    if "reasoning_content" in found:
        found = {"thinking": found["reasoning_content"], **found}  # the name in some templates
    return skills.call_form.shaped(found) if "tool_calls" in found else found


def _rendered_call(render: Render, form: CallForm, after: ChatTurn) -> str:
    """Render a chat with a call in this form; empty if the template refuses it, or writes Python's None.

    after: the turn that follows.
    """
    function = {"name": _needle(0), "arguments": {"x": "x"}}
    call = {"id": "call12345", "type": "function", "function": function}
    turn = form.shaped({"role": "assistant", "tool_calls": [call]})
    text = render([*_turns("user"), turn, after]) or ""
    return "" if "None" in text else text


def _with_text(call: object) -> object:
    """The call with its arguments as a JSON string."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}


def _shows_parts(render: Render, roles: Sequence[str]) -> bool:
    """Whether the template writes the text of each part, and not the part as Python would print it."""
    parts = [[{"type": "text", "text": _needle(number)}] for number in range(len(roles))]
    turns = [{"role": role, "content": content} for role, content in zip(roles, parts, strict=True)]
    text = render(turns) or ""
    whole = not any(quote + "text" + quote in text for quote in "'\"")
    return whole and all(_needle(number) in text for number in range(len(roles)))


def _needle(number: int) -> str:
    return f"needle{number}"
