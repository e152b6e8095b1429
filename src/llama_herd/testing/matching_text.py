"""A short text that a regular expression matches."""

import re
from collections.abc import Sequence
from typing import Any

from llama_herd.errors import BadInput


def text_matching(pattern: str) -> str:
    """A short text that an expression matches as a whole. Raises BadInput if it is none, or finds none."""
    from re import _parser  # type: ignore[attr-defined]  # as the standard library reads expressions

    try:
        text = "".join(map(_matching, _parser.parse(pattern)))
        if re.search(pattern, text):
            return text
    except (re.error, KeyError):
        pass
    raise BadInput(f"no text was found that the expression {pattern!r} matches. Fix: write the answer")


def _matching(part: Sequence[Any]) -> str:
    """A text for one part of a read expression. Raises KeyError for one that is not known."""
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
            return "".join(map(_matching, value[1][0]))
        case "SUBPATTERN":
            return "".join(map(_matching, value[-1]))
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return "".join(map(_matching, value[2])) * int(value[0])
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
