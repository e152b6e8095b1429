"""Values of every type that kombu's JSON can carry, as it has them registered, at any depth."""

from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any

from celery.app.task import Context
from hypothesis import strategies as st
from kombu.utils import json as kombu_json

#: Kombu's own types, and bytes, which it writes in two ways.
TYPES = [*kombu_json._encoders, bytes]

#: All that Celery may have in a request, besides what names the job and its message.
HEADERS = sorted(
    name for name in vars(Context) if not name.startswith("_") and name not in ("id", "task", "properties")
)

_MORE: dict[type, st.SearchStrategy[Any]] = {
    datetime: st.datetimes(timezones=st.just(UTC)),
    time: st.times(timezones=st.just(UTC)),
}


def of_type(kind: type) -> st.SearchStrategy[Any]:
    """Values of one type; times with a zone and without one; no NaN, since it differs from itself."""
    values: st.SearchStrategy[Any] = st.from_type(kind)
    found = values.filter(lambda value: not (isinstance(value, Decimal) and value.is_nan()))
    return found | _MORE[kind] if kind in _MORE else found


#: One value that JSON alone could not carry.
typed = st.sampled_from(TYPES).flatmap(of_type)

#: The same inside lists and objects, beside what JSON has itself.
nested = st.recursive(
    typed | st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
