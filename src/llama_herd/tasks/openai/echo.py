"""A prompt in front of its output, as completions with `echo` have it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Self

from llama_herd.tasks.openai.logprobs import Offsets, OwnToken, Top, token_bytes, token_name, top_by_name
from llama_herd.tasks.protocol.events import Pieces, Started, Token
from llama_herd.tasks.protocol.result import Result


@dataclass(frozen=True)
class Echo:
    """A prompt: its text, and its scores in the form of a completion; None if nobody asked for them."""

    text: str
    logprobs: dict[str, Any] | None

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
        if scores is None:
            return cls(text, None)
        own, offsets = _prompt_bytes(ids, text, pieces), Offsets()
        names = [token_name(piece) for piece in own]
        rows = zip(map(OwnToken, ids[1:], names[1:], scores), tops or repeat(()), strict=False)
        logprobs = {
            "tokens": names,
            "token_logprobs": [None, *scores],  # the first token has no score
            "top_logprobs": [None, *(top_by_name(top, pieces, one) for one, top in rows)],
            "text_offset": [offsets.next(piece) for piece in own],
        }
        return cls(text, logprobs)

    def before(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        """A choice of a completion with the prompt in front of its text and of its scores."""
        logprobs = _joined_logprobs(self.logprobs, choice["logprobs"], len(self.text))
        return {**choice, "text": self.text + choice["text"], "logprobs": logprobs}


def _prompt_bytes(ids: Sequence[int], text: str, pieces: Pieces) -> list[bytes]:
    """What a prompt's tokens stand for, without the space that many vocabularies put in front of a text."""
    found = [token_bytes(token_id, pieces) for token_id in ids]
    first = next((place for place, one in enumerate(found) if one), None)
    if first is not None and _num_spaces(b"".join(found)) > _num_spaces(text.encode()):
        found[first] = found[first].removeprefix(b" ")
    return found


def _num_spaces(text: bytes) -> int:
    """The number of spaces that a text begins with."""
    return len(text) - len(text.lstrip(b" "))


def _joined_logprobs(
    prompt: dict[str, Any] | None, output: dict[str, Any] | None, num_chars: int
) -> dict[str, Any] | None:
    """The scores of a prompt and of its output as those of one text. num_chars: length of the prompt."""
    if prompt is None or output is None:
        return prompt or output
    return {
        **{name: prompt[name] + output[name] for name in ("tokens", "token_logprobs", "top_logprobs")},
        "text_offset": prompt["text_offset"] + [num_chars + offset for offset in output["text_offset"]],
    }
