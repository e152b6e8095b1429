"""The JSON of a request: the body of one over HTTP, or a line of a batch, which may have a body within."""

from collections.abc import Iterator, Mapping
from typing import Any

from llama_herd.tasks.protocol.bounded_json import MAX_VALUES, JsonSize, JsonTooLarge, parse_bounded
from llama_herd.tasks.protocol.job import PROMPT_ID_BYTES

#: Fields of a request: more than OpenAI's and vLLM's together.
MAX_FIELDS = 128


def request_size(max_prompt_bytes: int) -> JsonSize:
    """Counts the JSON of a request, up to what one may have."""
    return JsonSize(max_prompt_bytes // PROMPT_ID_BYTES + MAX_VALUES)


def parse_request(raw: bytes, max_prompt_bytes: int) -> dict[str, Any] | None:
    """Parse a request within bounds; None if it is no object. Raises what `parse_bounded` does."""
    size = request_size(max_prompt_bytes)
    found = parse_bounded(raw, size)
    if not isinstance(found, dict):
        return None
    _check_fields(found, size)
    for name in ("body", "sampling"):
        if isinstance(fields := found.get(name), dict):
            _check_fields(fields, size, f" in {name}")
    return found


def _check_fields(fields: Mapping[str, Any], size: JsonSize, place: str = "") -> None:
    """Bound the fields, and the JSON within the JSON: arguments of calls are texts that are parsed, too."""
    if len(fields) > MAX_FIELDS:
        raise JsonTooLarge(f"must have at most {MAX_FIELDS} fields{place}, got {len(fields)}")
    for call in _calls(fields):
        if isinstance(arguments := call.get("arguments"), str):
            size.add(arguments.encode(errors="replace"))


def _calls(fields: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The calls of a chat's turns, and the items of the Responses API, some of which are calls."""
    for message in _dicts(fields.get("messages")):
        for call in _dicts(message.get("tool_calls")):
            yield from _dicts([call.get("function")])
    yield from _dicts(fields.get("input"))


def _dicts(items: object) -> Iterator[dict[str, Any]]:
    return (item for item in items if isinstance(item, dict)) if isinstance(items, list) else iter(())
