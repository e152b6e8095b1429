"""In own words: a worker's complaint about a job's fields, in the words of the route it came by."""

import re
from typing import NamedTuple

_SOURCE = re.compile(r"^prompt(_ids)?\b")
_PARAM = re.compile(r"[a-z_]+(\.[a-z0-9_]+)*")
_OURS = "sampling."


class Complaint(NamedTuple):
    """A message, and the field that it begins with, if it does."""

    message: str
    param: str | None


def in_own_words(message: str, source: str) -> Complaint:
    """Put a complaint into a route's words. source: where the request has its prompt, such as `prompt.3`."""
    told = _SOURCE.sub(source, message).replace(_OURS, "")
    found = _PARAM.match(told)
    names_one = found is not None and told[found.end() :].startswith((": ", " and "))
    return Complaint(told, found.group() if found and names_one else None)
