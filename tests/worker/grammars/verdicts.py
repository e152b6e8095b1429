"""What JSON parsers and validators of others say of an output.

Where they differ from each other the specification decides:
- A number beyond a double is valid JSON; Python reads infinity, which jsonschema-rs takes for no number.
- jsonschema divides doubles for `multipleOf`: 0.3 would be no multiple of 0.1.
- jsonschema takes an empty pattern of names for none.
- In patterns of names Python's `\\W` and `\\D` match less than ECMAScript's, and its `$` matches before a
  last line break, too. ECMAScript's `\\s` is all that Unicode calls a space separator, and U+FEFF; Python's
  is something else. `.` matches more ends of lines in Python and in Rust. So both get words of their own.
- Python's expressions lack `\\u{...}`, `\\p` and `\\c`; there jsonschema-rs is asked alone.
"""

import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from functools import cache
from typing import Any

import jsonschema_rs
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend, validator_for
from pydantic_core import from_json

_MOST = sys.float_info.max
#: ECMAScript's white space, and what others' expressions lack words for or read otherwise.
_SPACE = r"\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_RUSTS = {".": r"[^\n\r\u2028\u2029]"}
_PYTHONS = {**_RUSTS, "$": r"\Z", r"\s": f"[{_SPACE}]", r"\S": f"[^{_SPACE}]"}
#: A class, an escape, or one of these.
_PIECE = re.compile(r"\[(?:\\.|[^\]\\])*\]|\\.|[$.]")


def problem(schema: Any, text: str) -> str:
    """What is wrong with an output that ended by itself; empty: nothing."""
    try:
        is_read_alike = json.loads(text) == from_json(text)
        last = json.loads(text, parse_float=_finite)
        first = json.loads(text, parse_float=_finite, object_pairs_hook=_first_of_each)
    except ValueError as error:
        return f"is not JSON: {error}"
    if not is_read_alike:
        return "is read otherwise by another parser"
    return next((one for value in (last, first) for one in _complaints(schema, value)), "")


def _finite(text: str) -> float:
    return max(-_MOST, min(_MOST, float(text)))


def _first_of_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object as parsers read it that take the first of equal names."""
    return dict(reversed(pairs))


def _complaints(schema: Any, value: Any) -> Iterator[str]:
    kind = _exact(validator_for(schema, Draft202012Validator))
    checker = kind(_with_names(schema, _for_python), format_checker=kind.FORMAT_CHECKER)
    with suppress(re.error), warnings.catch_warnings(action="ignore"):
        yield from (f"jsonschema: {error.message[:200]}" for error in checker.iter_errors(value))
    theirs = _with_names(schema, _for_rust)
    if not jsonschema_rs.validator_for(theirs, validate_formats=True).is_valid(value):
        yield "jsonschema-rs: is not valid"


def _with_names(schema: Any, told: Callable[[str], str]) -> Any:
    """A schema whose patterns of names are told in other words."""
    if isinstance(schema, list):
        return [_with_names(one, told) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _with_names(value, told) for key, value in schema.items()}
    match found.get("propertyNames"):
        case {"pattern": str(pattern)}:
            found["propertyNames"] = {"pattern": told(pattern)}
    names = found.get("patternProperties", {})
    return found | ({"patternProperties": {told(key): one for key, one in names.items()}} if names else {})


def _for_rust(pattern: str) -> str:
    return _PIECE.sub(lambda found: _RUSTS.get(found[0], found[0]), pattern)


def _for_python(pattern: str) -> str:
    def told(found: re.Match[str]) -> str:
        piece = found[0]
        return piece.replace(r"\s", _SPACE) if piece.startswith("[") else _PYTHONS.get(piece, piece)

    return f"(?a:{_PIECE.sub(told, pattern)})"


@cache
def _exact(kind: Any) -> Any:
    """A kind of validator that divides exactly."""
    return extend(kind, {"multipleOf": _multiple_of})


def _multiple_of(validator: Any, divisor: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(value, "number") and Fraction(repr(value)) % Fraction(repr(divisor)):
        yield ValidationError(f"{value} is not a multiple of {divisor}")
