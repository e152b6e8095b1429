"""Log-probabilities as OpenAI writes them, and prompts in front of their outputs, as `echo` has them."""

from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Self

from llama_herd.tasks.openai.request_body import CHAT, Endpoint
from llama_herd.tasks.protocol.events import Pieces, Started, Token
from llama_herd.tasks.protocol.result import Output, Result

#: What a token is called if no worker has said what it stands for.
_TOKEN = "token_id:{}"

Top = Sequence[tuple[int, float]]


class Offsets:
    """Where the tokens of a text begin, in characters. One within a character begins where that does."""

    def __init__(self, num_chars: int = 0) -> None:
        """num_chars: length of the text before the first token."""
        self._num_chars = num_chars
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def next(self, piece: bytes) -> int:
        """Where the token after those so far begins. piece: its bytes."""
        begin = self._num_chars
        self._num_chars += len(self._decoder.decode(piece))
        return begin


def logprobs_of(
    endpoint: Endpoint, scored: Output | Token, pieces: Pieces | None, offsets: Offsets | None = None
) -> dict[str, Any] | None:
    """The scores in the form of the endpoint; None if there are none.

    offsets: those of the output's tokens before these, for a completion.
    """
    if scored.logprobs is None:
        return None
    tops = scored.top_logprobs or ((),) * len(scored.ids)
    # The lists may differ in length, since others may have written into the job's stream.
    rows = list(zip(scored.ids, scored.logprobs, tops, strict=False))
    if endpoint == CHAT:
        content = [
            _token_object(token_id, score, pieces)
            | {"top_logprobs": [_token_object(*pair, pieces) for pair in top]}
            for token_id, score, top in rows
        ]
        return {"content": content, "refusal": None}
    own = [token_bytes(token_id, pieces) for token_id, _, _ in rows]
    return _completion_logprobs(own, rows, pieces, offsets or Offsets())


def token_text(token_id: int, pieces: Pieces | None) -> str:
    """The text of one token. Bytes that are not whole characters become U+FFFD."""
    piece = _known_bytes(token_id, pieces)
    return _TOKEN.format(token_id) if piece is None else piece.decode(errors="replace")


def token_bytes(token_id: int, pieces: Pieces | None) -> bytes:
    """What one token stands for, or its name if nobody knows."""
    piece = _known_bytes(token_id, pieces)
    return _TOKEN.format(token_id).encode() if piece is None else piece


def token_name(piece: bytes) -> str:
    """What a token is called in a completion: its text, or as at OpenAI `bytes:` and what is no character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + piece.decode(errors="backslashreplace")


def top_by_name(
    top: Top, pieces: Pieces | None, own: tuple[int, str, float] | None = None
) -> dict[str, float]:
    """The likeliest tokens by their names, and the place's own token, though it may not be one of them.

    Of several with one name the own one has it, else the likeliest; the others are called by their ids.
    own: its id, its name and its score.
    """
    own_id, found = (None, {}) if own is None else (own[0], {own[1]: own[2]})
    for token_id, score in top:
        if token_id != own_id:
            name = token_name(token_bytes(token_id, pieces))
            found[_TOKEN.format(token_id) if name in found else name] = score
    return found


def _known_bytes(token_id: int, pieces: Pieces | None) -> bytes | None:
    """None if nobody knows them, or if no worker has written what there is."""
    piece = (pieces or {}).get(token_id)
    if piece is None:
        return None
    try:
        return piece.encode("latin-1")
    except UnicodeEncodeError:
        return None


def _completion_logprobs(
    own: Sequence[bytes],
    rows: Sequence[tuple[int, float | None, Top]],
    pieces: Pieces | None,
    offsets: Offsets,
) -> dict[str, Any]:
    """Parallel lists, as completions have them. own: what the tokens stand for."""
    names = [token_name(piece) for piece in own]
    return {
        "tokens": names,
        "token_logprobs": [score for _, score, _ in rows],
        "top_logprobs": [
            None if score is None else top_by_name(top, pieces, (token_id, name, score))
            for (token_id, score, top), name in zip(rows, names, strict=False)
        ],
        "text_offset": [offsets.next(piece) for piece in own],
    }


def _token_object(token_id: int, score: float, pieces: Pieces | None) -> dict[str, Any]:
    piece = _known_bytes(token_id, pieces)
    return {
        "token": token_text(token_id, pieces),
        "logprob": score,
        "bytes": None if piece is None else list(piece),
    }


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
        # The first token has no score.
        rows = list(zip(ids, (None, *scores), chain(((),), tops or repeat(())), strict=False))
        return cls(text, _completion_logprobs(_prompt_bytes(ids, text, pieces), rows, pieces, Offsets()))

    def before(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        """A choice of a completion with the prompt in front of its text and of its scores."""
        prompt, output = self.logprobs, choice["logprobs"]
        if output:
            behind = [len(self.text) + offset for offset in output["text_offset"]]
            output = {**output, "text_offset": behind}
        logprobs = prompt or output
        if prompt and output:
            logprobs = {name: prompt[name] + output[name] for name in output}
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
