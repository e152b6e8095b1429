"""What JSON parsers and validators of others say of an output.

Where they differ from each other the specification decides:
- A number beyond a double is valid JSON; Python reads infinity, which jsonschema-rs takes for no number.
- jsonschema divides doubles for `multipleOf`: 0.3 would be no multiple of 0.1.
- jsonschema takes an empty pattern of names for none; Python's `\\W` and `\\D` match less than ECMAScript's.
- Python's expressions lack `\\u{...}`, `\\p` and `\\c`; there jsonschema-rs is asked alone.
- A reference that leads to itself at the same place ends jsonschema; jsonschema-rs is asked alone, too.
"""

import json
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from typing import Any

import jsonschema_rs
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend, validator_for
from pydantic_core import from_json

_MOST = sys.float_info.max


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
    kind = extend(validator_for(schema, Draft202012Validator), {"multipleOf": _multiple_of})
    theirs = _with_ascii_names(schema)
    checker = kind(theirs, format_checker=kind.FORMAT_CHECKER)
    with suppress(re.error, RecursionError), warnings.catch_warnings(action="ignore"):
        yield from (f"jsonschema: {error.message[:200]}" for error in checker.iter_errors(value))
    if not jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(value):
        yield "jsonschema-rs: is not valid"


def _with_ascii_names(schema: Any) -> Any:
    """A schema whose patterns of names hold in Python what they hold in ECMAScript."""
    if isinstance(schema, list):
        return [_with_ascii_names(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _with_ascii_names(value) for key, value in schema.items()}
    names = found.get("patternProperties", {})
    return found | (
        {"patternProperties": {f"(?a:{key})": one for key, one in names.items()}} if names else {}
    )


def _multiple_of(validator: Any, divisor: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(value, "number") and Fraction(repr(value)) % Fraction(repr(divisor)):
        yield ValidationError(f"{value} is not a multiple of {divisor}")
