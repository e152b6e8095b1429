"""The prompt that a job gets back with its `started` event, if it asks for `echo`."""

from typing import NamedTuple


class EchoedPrompt(NamedTuple):
    """The fields of `Started` that tell of the prompt, but for the pieces."""

    prompt_ids: tuple[int, ...]
    prompt_text: str
    context_tokens: int
