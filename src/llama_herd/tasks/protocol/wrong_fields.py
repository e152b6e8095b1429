"""Complaints about a job's wrong fields, in words for people; never with a text of the job."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from llama_herd.errors import FieldError
from llama_herd.tasks.protocol.chat import ChatMessage
from llama_herd.tasks.protocol.close_names import close_names, did_you_mean
from llama_herd.tasks.protocol.sampling import SamplingParams

#: Names of features to come. A job that uses one is refused, since it would be run without that feature.
RESERVED = frozenset({"adapter"})

_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
#: The parts of a job that have fields of their own.
_PARTS: Mapping[str, type[BaseModel]] = {"sampling": SamplingParams, "messages": ChatMessage}

Location = tuple[int | str, ...]


def field_errors(error: ValidationError, of_job: Iterable[str], source: str = "prompt") -> list[FieldError]:
    """An entry for each wrong field. of_job: names of the job's own fields. source: what the job is about."""
    names = frozenset(of_job)
    found = (
        FieldError(_shown_path(detail["loc"]) or source, _message(detail["loc"], detail, names))
        for detail in error.errors(include_url=False)
    )
    return list(dict.fromkeys(found))


def _shown_path(loc: Location) -> str:
    """A field's name for people; empty for the whole job. Keys come from outside: '?' is no name."""
    whole = ("metadata", "tool_choice", "chat_template_kwargs", "response_format", "structured_outputs")
    if loc and loc[0] in whole:
        return str(loc[0])
    names = [part if isinstance(part, int) or _FIELD_NAME.fullmatch(part) else "?" for part in loc]
    return ".".join(map(str, names))


def _message(loc: Location, detail: Any, of_job: frozenset[str]) -> str:
    """Say what is wrong with a field, with the limit and the wrong number."""
    kind, given, limits = detail["type"], detail["input"], detail.get("ctx", {})
    if set(loc) & RESERVED:
        return "not supported by this version"
    if kind == "extra_forbidden":
        return _unknown_field(loc, of_job)
    if kind == "value_error":
        return str(limits["error"])
    message: str = detail["msg"][0].lower() + detail["msg"][1:]
    if kind == "tuple_type":  # JSON has none
        message = "input should be a valid list"
    if isinstance(given, int | float) and not isinstance(given, bool):
        if isinstance(given, int) and given.bit_length() > 64:  # longer than any field allows
            return f"{message}, got a number of {given.bit_length()} bits"
        return f"{message}, got {given}"
    if kind in ("string_too_long", "string_too_short"):
        return f"{message}, got {len(given)}"
    return message


def _unknown_field(loc: Location, of_job: frozenset[str]) -> str:
    """Say of an unknown field where it belongs, or which field it may have been meant to be."""
    *above, name = map(str, loc)
    of_sampling = SamplingParams.model_fields if "sampling" in of_job else {}
    if not above and name in of_sampling:
        return "unknown field. Fix: put it into sampling"
    if above == ["sampling"] and name in of_job:
        return "unknown field. Fix: put it beside sampling"
    if not above:
        meant = close_names(name, (*of_job, *of_sampling))
        meant = [one if one in of_job else f"sampling.{one}" for one in meant]
    else:
        meant = close_names(name, _PARTS[above[0]].model_fields) if above[0] in _PARTS else []
    return f"unknown field{did_you_mean(meant)}"
