"""Base of a job's parts: no unknown fields, no conversions, and no more work than the limits allow."""

from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any

from annotated_types import GroupedMetadata, MaxLen
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, FailFast, Strict, model_validator

from llama_herd.errors import MAX_FIELD_ERRORS


class StrictModel(BaseModel):
    """A part of a job. Looks at no more unknown fields than an error can name, plus one."""

    #: Errors never repeat the input.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_many_unknown(cls, value: Any) -> Any:
        known = cls.model_fields
        if not isinstance(value, Mapping) or len(value) <= len(known) + MAX_FIELD_ERRORS:
            return value
        unknown = islice((name for name in value if name not in known), MAX_FIELD_ERRORS + 1)
        return {name: value[name] for name in (*(name for name in known if name in value), *unknown)}


def check_length(value: Any, limit: int) -> Any:
    """`value` itself. Raises ValueError if it is a list or mapping with more items, before it reads any."""
    if isinstance(value, Sized) and not isinstance(value, str | bytes) and len(value) > limit:
        raise ValueError(f"must have at most {limit} items, got {len(value)}")
    return value


def check_text(text: str) -> str:
    """The text itself. Raises ValueError if it is none that UTF-8 can write, or has a NUL."""
    if "\0" in text:
        raise ValueError("must not contain a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be well-formed text") from None
    return text


def _check_some(value: Any) -> Any:
    if not value:
        raise ValueError("must not be empty")
    return value


#: Part of the type of a text or a list: there is something in it.
NotEmpty = AfterValidator(_check_some)


def at_most(limit: int) -> BeforeValidator:
    """`check_length` as part of a field's type."""
    return BeforeValidator(lambda value: check_length(value, limit))


@dataclass(frozen=True, slots=True)
class MaxItems(GroupedMetadata):
    """Part of a list's type: at most `limit` items, of which none is read after a wrong one."""

    limit: int

    def __iter__(self) -> Iterator[object]:
        yield from (Strict(False), FailFast(), MaxLen(self.limit), at_most(self.limit))
