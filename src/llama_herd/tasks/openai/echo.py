"""A prompt in front of its output, as completions with `echo` have it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from typing import Any, Self

from llama_herd.tasks.events import Pieces, Started, Token
from llama_herd.tasks.openai.logprobs import Top, token_text, top_by_text
from llama_herd.tasks.result import Result


@dataclass(frozen=True)
class Echo:
    """A prompt: its text, the texts of its tokens, and how likely each was, but for the first.

    scores, tops: None if nobody asked for them.
    """

    text: str
    tokens: tuple[str, ...]
    scores: Sequence[float] | None
    tops: Sequence[Mapping[str, float]] | None

    @classmethod
    def from_result(cls, result: Result) -> Self | None:
        """Make the echo of a job's result; None if the job did not ask for its prompt."""
        if result.prompt_ids is None:
            return None
        told = (result.prompt_ids, result.prompt_text or "", result.pieces or {})
        return cls._build(*told, result.prompt_logprobs, result.top_prompt_logprobs)

    @classmethod
    def from_events(cls, started: Started, first: Token | None) -> Self:
        """Make the echo of the start that brings the prompt, and the output's first event if there is one."""
        pieces = {**(started.pieces or {}), **((first and first.pieces) or {})}
        told = (started.prompt_ids or (), started.prompt_text or "", pieces)
        if first is None:
            return cls._build(*told, None, None)
        return cls._build(*told, first.prompt_logprobs, first.top_prompt_logprobs)

    @classmethod
    def _build(
        cls,
        ids: Sequence[int],
        text: str,
        pieces: Pieces,
        scores: Sequence[float] | None,
        tops: Sequence[Top] | None,
    ) -> Self:
        told = None if tops is None else [top_by_text(top, pieces) for top in tops]
        return cls(text, _token_texts(ids, text, pieces), scores, told)

    @property
    def num_token_chars(self) -> int:
        """Length of the texts of its tokens."""
        return sum(map(len, self.tokens))

    @property
    def logprobs(self) -> dict[str, Any] | None:
        """The prompt's scores in the form of a completion; the first token has none."""
        if self.scores is None:
            return None
        tops = zip_longest(self.tokens[1:], self.tops or ())
        return {
            "tokens": list(self.tokens),
            "token_logprobs": [None, *self.scores],
            "top_logprobs": [None, *(top for _, top in tops)] if self.tops else None,
            "text_offset": list(accumulate(map(len, self.tokens[:-1]), initial=0)),
        }

    def before(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        """A choice of a completion with the prompt in front of its text and of its scores."""
        logprobs = _joined_logprobs(self.logprobs, choice["logprobs"], self.num_token_chars)
        return {**choice, "text": self.text + choice["text"], "logprobs": logprobs}


def _token_texts(ids: Sequence[int], text: str, pieces: Pieces) -> tuple[str, ...]:
    """The texts of a prompt's tokens, without the space that many vocabularies put in front of a text."""
    texts = [token_text(token_id, pieces) for token_id in ids]
    first = next((place for place, one in enumerate(texts) if one), None)
    if first is not None and _num_spaces("".join(texts)) > _num_spaces(text):
        texts[first] = texts[first].removeprefix(" ")
    return tuple(texts)


def _num_spaces(text: str) -> int:
    """The number of spaces that a text begins with."""
    return len(text) - len(text.lstrip(" "))


def _joined_logprobs(
    prompt: dict[str, Any] | None, output: dict[str, Any] | None, num_chars: int
) -> dict[str, Any] | None:
    """The scores of a prompt and of its output as those of one text. num_chars: length of the prompt."""
    if prompt is None or output is None:
        return prompt or output
    before, after = (one["top_logprobs"] or [None] * len(one["tokens"]) for one in (prompt, output))
    return {
        **{name: prompt[name] + output[name] for name in ("tokens", "token_logprobs")},
        "top_logprobs": [*before, *after] if any(before) or any(after) else None,
        "text_offset": prompt["text_offset"] + [num_chars + offset for offset in output["text_offset"]],
    }
