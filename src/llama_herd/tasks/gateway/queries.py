"""What the queries of a request ask for. Each raises Problem for what cannot be meant."""

from typing import Literal, cast

from llama_herd.tasks.gateway.call import Call
from llama_herd.tasks.gateway.problem import bad_request


def after_of(call: Call) -> str:
    """The id after which a page is to begin."""
    return call.query_params.get("after", "")[:64]


def limit_of(call: Call, default: int, most: int) -> int:
    """The number of entries that a page may hold."""
    text = call.query_params.get("limit", str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= most):
        raise bad_request(f"must be a number from 1 to {most:,}", param="limit")
    return int(text)


def order_of(call: Call) -> Literal["asc", "desc"]:
    """Whether the oldest or the newest entries of a list come first."""
    order = call.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise bad_request("must be asc or desc", param="order")
    return cast(Literal["asc", "desc"], order)


def seconds_of(call: Call, name: str) -> float | None:
    """A time in seconds, which whoever takes it holds to its bounds; None: it is not asked for."""
    try:
        return float(call.query_params[name]) if name in call.query_params else None
    except ValueError:
        raise bad_request("must be a number of seconds", param=name) from None


def notes_of(call: Call) -> dict[str, str] | None:
    """The notes that jobs are to have, `metadata=name=value` each; None: any."""
    notes = dict[str, str]()
    for text in call.query_params.getlist("metadata"):
        name, sign, value = text.partition("=")
        if not sign:
            raise bad_request("must be name=value", param="metadata")
        notes[name] = value
    return notes or None
