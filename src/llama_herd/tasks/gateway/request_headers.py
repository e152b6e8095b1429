"""Headers of a request that say how it is answered: each is read here, by one rule for all routes."""

from starlette.datastructures import Headers, QueryParams

from llama_herd.errors import BadInput
from llama_herd.tasks.client.arguments import checked_after
from llama_herd.tasks.client.submission import MAX_KEY_CHARS
from llama_herd.tasks.gateway.problem import bad_request
from llama_herd.tasks.protocol.message import TRACEPARENT, known_traceparent

#: Names the request, so that the same one again finds the same jobs, or the same batch.
KEY_HEADER = "Idempotency-Key"
#: Says what becomes of the jobs if the client goes away.
GONE_HEADER = "X-On-Disconnect"
#: The id of the last event that a client has seen, or its number, and the query that says the same.
LAST_ID_HEADER, AFTER_QUERY = "Last-Event-ID", "after"


def idempotency_key_of(headers: Headers) -> str | None:
    """The name that the client has given to its request. Raises Problem if it can be none."""
    key = _single(headers, KEY_HEADER)
    if key is not None and not 1 <= len(key) <= MAX_KEY_CHARS:
        message = f"must be 1 to {MAX_KEY_CHARS} characters long, got {len(key)}. Fix: leave it out"
        raise bad_request(message, param=KEY_HEADER)
    return key


def keeps_jobs_of(headers: Headers, default: str) -> bool:
    """Whether jobs go on without their client; default: `cancel` or `stay`. Raises Problem."""
    said = (_single(headers, GONE_HEADER) or default).lower()
    if said not in ("cancel", "stay"):
        raise bad_request("must be cancel or stay", param=GONE_HEADER)
    return said == "stay"


def last_seen_of(headers: Headers, query: QueryParams) -> str:
    """The number or the cursor of the last event that the client has seen. Raises Problem."""
    header = _single(headers, LAST_ID_HEADER)
    text = header or query.get(AFTER_QUERY) or "0"
    try:
        checked_after(text)
    except BadInput:
        message = "must be the number of an event, or its id in a stream of events"
        raise bad_request(message, param=LAST_ID_HEADER if header else AFTER_QUERY) from None
    return text


def traceparent_of(headers: Headers) -> str | None:
    """The W3C's header of the trace that a request belongs to; None if there is none of that form."""
    given = headers.getlist(TRACEPARENT)
    return known_traceparent(given[0]) if len(given) == 1 else None


def _single(headers: Headers, name: str) -> str | None:
    """The value of a header that may be given once. Raises Problem."""
    given = headers.getlist(name)
    if len(given) > 1:
        raise bad_request(f"must be given once, got {len(given)}", param=name)
    return given[0] if given else None
