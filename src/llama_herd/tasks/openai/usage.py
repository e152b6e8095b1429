"""The tokens of an answer as OpenAI counts them."""

from collections.abc import Sequence
from typing import Any

from llama_herd.tasks.protocol.events import Usage

DETAILS = "prompt_tokens_details"


def usage_object(usage: Usage | None, cached_tokens: int | None) -> dict[str, Any] | None:
    """The tokens of one job; without details if its worker did not count those from the prefix cache."""
    if usage is None:
        return None
    details = {} if cached_tokens is None else {DETAILS: {"cached_tokens": cached_tokens}}
    return {**usage.model_dump(), **details}


def summed_usage(usages: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """The sums over several jobs; None if one usage is not known, and without details if one has none."""
    known = [usage for usage in usages if usage is not None]
    if len(known) < len(usages):
        return None
    total = Usage(**{name: sum(usage[name] for usage in known) for name in Usage.model_fields})
    cached = [usage[DETAILS]["cached_tokens"] for usage in known if DETAILS in usage]
    return usage_object(total, sum(cached) if len(cached) == len(known) else None)
