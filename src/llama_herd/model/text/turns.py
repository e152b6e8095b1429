"""Turns of a conversation in the form that a template can take."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

Turn = Mapping[str, object]

#: Words of ours, unlike all else in a chat.
TRUSTED_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


def _turns(*roles: str) -> tuple[Turn, ...]:
    return tuple({"role": role, "content": "x"} for role in roles)


#: Rendered once at the start: control tokens that a template puts together from parts show up here.
PROBES = (
    _turns("user"),
    _turns("system", "user", "assistant", "user"),
    _turns("developer", "user"),
    _turns("user", "assistant", "tool"),
)


@dataclass(frozen=True)
class Skills:
    """What a template was seen to do with forms that not every template knows."""

    takes_parts: bool
    takes_developers: bool

    @classmethod
    def of(cls, render: Callable[[Sequence[Turn]], str | None]) -> Self:
        """Try a template; `render` gives None for what it refuses."""
        lone = ("user",)
        all_roles = ("system", "user", "assistant", "user")
        takes_parts = any(_shows_parts(render, roles) for roles in (all_roles, lone))
        developer: Turn = {"role": "developer", "content": _needle(0)}
        takes_developers = _needle(0) in (render([developer, *_turns("user")]) or "")
        return cls(takes_parts, takes_developers)


def shaped(turn: Turn, skills: Skills) -> dict[str, object]:
    """A turn as transformers would hand it over, or as a template takes it that would lose its text.

    A template that cannot read content in parts gets one text, and one that leaves out developers gets what
    they say from the system.
    """
    found = {name: value for name, value in turn.items() if value is not None}
    content = found.get("content")
    if not skills.takes_parts and isinstance(content, list | tuple):
        found["content"] = "".join(str(part["text"]) for part in content)
    if not skills.takes_developers and found.get("role") == "developer":
        found["role"] = "system"
    if "reasoning_content" in found:
        found = {"thinking": found["reasoning_content"], **found}
    return found


def _shows_parts(render: Callable[[Sequence[Turn]], str | None], roles: Sequence[str]) -> bool:
    """Whether each turn's text is written, and none of what stands around it."""
    parts = [[{"type": "text", "text": _needle(number)}] for number in range(len(roles))]
    turns = [{"role": role, "content": content} for role, content in zip(roles, parts, strict=True)]
    text = render(turns) or ""
    whole = not any(quote + "text" + quote in text for quote in "'\"")
    return whole and all(_needle(number) in text for number in range(len(roles)))


def _needle(number: int) -> str:
    return f"needle{number}"
