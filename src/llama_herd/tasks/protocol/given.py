"""What Python code hands to ours: a value of the wrong kind is named before anything is done with it."""

from collections.abc import Iterable, Mapping
from types import UnionType
from typing import TypeVar

from pydantic import BaseModel

from llama_herd.errors import BadInput

T = TypeVar("T")


def checked_kind(name: str, given: T, kind: type | UnionType, wanted: str) -> T:
    """`given` if it is of a kind. Raises BadInput, which does not repeat it: it may have a prompt."""
    if not isinstance(given, kind):
        raise refusal(name, given, wanted)
    return given


def checked_items(name: str, given: Iterable[T], wanted: str) -> Iterable[T]:
    """`given` if it has items. Raises BadInput, also for a text, mapping or job, which have parts."""
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping | BaseModel):
        raise refusal(name, given, wanted)
    return given


def refusal(name: str, given: object, wanted: str) -> BadInput:
    """The error of an argument that is of a wrong kind."""
    return BadInput(f"{name}: must be {wanted}, got {'None' if given is None else type(given).__name__}")
