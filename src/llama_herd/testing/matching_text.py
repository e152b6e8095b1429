"""A short text that a regular expression matches."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from llama_herd.errors import BadInput

#: How much more often than need be something is repeated for the sake of a text's length.
MOST_MORE = 64


def text_matching(pattern: str, least: int = 0, most: float = inf) -> str:
    """A text with so many characters that an expression is found in.

    Raises BadInput if it is no expression, or no text was found.
    """
    from re import _parser  # type: ignore[attr-defined]  # as the standard library reads expressions

    try:
        parts = _parser.parse(pattern)
        for more in range(min(least, MOST_MORE) + 1):
            text = _Writer(more).text(parts)
            if least <= len(text) <= most and re.search(pattern, text):
                return text
    except (re.error, KeyError, RecursionError):
        pass
    raise BadInput(f"no text was found for the expression {pattern!r}. Fix: write the answer")


@dataclass(frozen=True)
class _Writer:
    """Writes a text for read expressions, in which what may be repeated is so so many times more."""

    more: int

    def text(self, parts: Iterable[Sequence[Any]]) -> str:
        """Raises KeyError for a part that is not known."""
        return "".join(map(self._part, parts))

    def _part(self, part: Sequence[Any]) -> str:
        kind, value = str(part[0]), part[1]
        match kind:
            case "LITERAL":
                return chr(value)
            case "NOT_LITERAL":
                return "b" if value == ord("a") else "a"
            case "ANY":
                return "a"
            case "AT" | "ASSERT" | "ASSERT_NOT":
                return ""
            case "IN":
                return _of_class(value)
            case "BRANCH":
                return self.text(value[1][0])
            case "SUBPATTERN":
                return self.text(value[-1])
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                return self.text(value[2]) * min(int(value[1]), int(value[0]) + self.more)
        raise KeyError(kind)


#: One for each class that expressions name: `\\d`, `\\w`, `\\s`, and their opposites.
_CLASSES = {
    "CATEGORY_DIGIT": "0",
    "CATEGORY_WORD": "a",
    "CATEGORY_SPACE": " ",
    "CATEGORY_NOT_DIGIT": "a",
    "CATEGORY_NOT_WORD": "-",
    "CATEGORY_NOT_SPACE": "a",
}


def _of_class(parts: Sequence[Any]) -> str:
    """A character of a class such as [a-z]."""
    if str(parts[0][0]) == "NEGATE":
        expression = re.compile("[^" + "".join(map(_written, parts[1:])) + "]")
        return next(one for one in "a0-_ bcdefgAB.,;:é" if expression.match(one))
    kind, value = str(parts[0][0]), parts[0][1]
    if kind == "RANGE":
        return chr(value[0])
    return chr(value) if kind == "LITERAL" else _CLASSES[str(value)]


#: How the classes are written.
_WRITTEN = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_NOT_WORD": r"\W",
    "CATEGORY_NOT_SPACE": r"\S",
}


def _written(part: Sequence[Any]) -> str:
    kind, value = str(part[0]), part[1]
    if kind == "RANGE":
        return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
    return re.escape(chr(value)) if kind == "LITERAL" else _WRITTEN[str(value)]
