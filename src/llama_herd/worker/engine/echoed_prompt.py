"""What a job hears of its prompt."""

from typing import NamedTuple


class EchoedPrompt(NamedTuple):
    """The fields of `Started` that tell of the prompt, but for the pieces."""

    prompt_ids: tuple[int, ...]
    prompt_text: str
    context_tokens: int
