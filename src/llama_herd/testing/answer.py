"""Answer: what a scripted job says, how fast, and how it ends."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from numbers import Real
from typing import Any, NamedTuple, Self

from llama_herd.error_code import ErrorCode, known_code
from llama_herd.errors import BadInput
from llama_herd.tasks.client.arguments import MAX_COUNT, checked_text
from llama_herd.tasks.protocol.given import checked_items, checked_kind
from llama_herd.tasks.settings import shortened

_FAILURE = "this failure is scripted"
_CALLS = "calls, each with a name and arguments"


class Call(NamedTuple):
    """A call of a tool."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer. Made by hand it has a text; without one, and without calls, it is what the job asks for.

        Answer.of("Paris is the capital.", tokens_per_s=20)
        Answer.of("Paris is the capital.", dies_after=2)
        Answer.failing("out_of_memory", after_tokens=3)
        Answer.calling("weather", city="Paris")
        Answer()  # an instance of the job's schema, a call of its tool, else a sentence

    tokens_per_s: its pace; 0: as fast as can be. dies_after: the worker dies by kill -9 once so many tokens
    are recorded, and the next attempt goes on behind them; with 0 each attempt dies, until the job is
    poisoned. Raises BadInput for what cannot be.
    """

    text: str | None = None
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    tokens_per_s: float = 0.0
    error: str = ""  # the code of its failure; empty: it does not fail
    message: str = _FAILURE
    after_tokens: int = 0  # how many come before the failure; 0: the job is never started
    dies_after: int | None = None

    def __post_init__(self) -> None:
        for name in ("text", "reasoning", "message"):
            if name != "text" or self.text is not None:
                checked_text(name, getattr(self, name))
        if not isinstance(self.error, str) or (self.error and known_code(self.error) is None):
            raise BadInput(f"error: no code is {shortened(self.error)}. The codes are {', '.join(ErrorCode)}")
        _check_number("tokens_per_s", self.tokens_per_s, Real)
        _check_number("after_tokens", self.after_tokens, int)
        if self.dies_after is not None:
            _check_number("dies_after", self.dies_after, int)
        for one in checked_items("calls", self.calls, _CALLS):
            name, arguments = checked_kind("calls", one, Call, _CALLS)
            checked_text("name of a call", name)
            _json_of("calls", checked_kind("calls", arguments, Mapping, _CALLS))

    @classmethod
    def of(cls, text: str | Mapping[str, Any] | list[Any], **fields: Any) -> Self:
        """An answer with this text, or with this value as JSON. Raises BadInput."""
        return cls(text=text if isinstance(text, str) else _json_of("text", text), **fields)

    @classmethod
    def calling(cls, name: str, /, **arguments: Any) -> Self:
        """An answer that calls a tool."""
        return cls(calls=(Call(name, arguments),))

    @classmethod
    def failing(
        cls,
        code: str,
        message: str = _FAILURE,
        *,
        text: str | None = None,
        after_tokens: int = 0,
    ) -> Self:
        """An error with this code, at once or after so many tokens of a text, at its end at the latest."""
        return cls(text=text, error=code, message=message, after_tokens=after_tokens)

    def plus(self, **fields: Any) -> Self:
        """The same answer with other fields."""
        return replace(self, **fields)

    def to_dict(self) -> dict[str, Any]:
        """For `from_dict` in another process."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Read what `to_dict` made, or a file. Raises BadInput, or TypeError for other fields."""
        given = checked_kind("fields", fields, Mapping, "the fields of an Answer").get("calls", ())
        try:
            calls = tuple(
                Call(**one) if isinstance(one, Mapping) else Call(*one)
                for one in checked_items("calls", given, _CALLS)
            )
        except TypeError as error:
            raise BadInput(f"calls: must be {_CALLS}: {error}") from None
        return cls(**{**fields, "calls": calls})


def _check_number(name: str, given: Any, kind: type) -> None:
    """Raise BadInput for what is no number of this kind, or too low or high a one."""
    is_number = isinstance(given, kind) and not isinstance(given, bool)
    if not (is_number and 0 <= given <= MAX_COUNT):
        raise BadInput(f"{name}: must be 0 or more, got {shortened(given)}")


def _json_of(name: str, value: object) -> str:
    """A value as JSON. Raises BadInput."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"{name}: must be what JSON can say: {error}") from None
