"""Log-probabilities as OpenAI writes them, with the text and the bytes of each token."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Protocol

from llama_herd.tasks.events import Pieces
from llama_herd.tasks.openai.request_body import CHAT, Endpoint

#: What a token is called if no worker has said what it stands for.
_TOKEN = "token_id:{}"

Top = Sequence[tuple[int, float]]


class HasLogprobs(Protocol):
    """Ids with their scores: an output, or one event of it."""

    @property
    def ids(self) -> tuple[int, ...]: ...
    @property
    def logprobs(self) -> tuple[float, ...] | None: ...
    @property
    def top_logprobs(self) -> tuple[tuple[tuple[int, float], ...], ...] | None: ...


def logprobs_of(
    endpoint: Endpoint, scored: HasLogprobs, pieces: Pieces | None, num_chars: int = 0
) -> dict[str, Any] | None:
    """The scores in the form of the endpoint; None if there are none.

    num_chars: length of the output's tokens before these, for a completion's offsets.
    """
    if scored.logprobs is None:
        return None
    found = _chat_logprobs if endpoint == CHAT else _completion_logprobs
    tops = scored.top_logprobs or ((),) * len(scored.ids)
    # The lists may differ in length, since others may have written into the job's stream.
    rows = list(zip(scored.ids, scored.logprobs, tops, strict=False))
    return found(rows, pieces or {}, num_chars)


def num_token_chars(ids: Iterable[int], pieces: Pieces | None) -> int:
    """Length of the texts of these tokens."""
    return sum(len(token_text(token_id, pieces)) for token_id in ids)


def token_text(token_id: int, pieces: Pieces | None) -> str:
    """The text of one token. Bytes that are not whole characters become U+FFFD."""
    piece = _token_bytes(token_id, pieces)
    return _TOKEN.format(token_id) if piece is None else piece.decode(errors="replace")


def top_by_text(top: Top, pieces: Pieces | None) -> dict[str, float]:
    """The likeliest tokens by their texts; of several with one text the likeliest counts."""
    return {token_text(token_id, pieces): score for token_id, score in reversed(top)}


def _token_bytes(token_id: int, pieces: Pieces | None) -> bytes | None:
    """None if nobody knows them, or if no worker has written what there is."""
    piece = (pieces or {}).get(token_id)
    if piece is None:
        return None
    try:
        return piece.encode("latin-1")
    except UnicodeEncodeError:
        return None


def _completion_logprobs(
    rows: Sequence[tuple[int, float, Top]], pieces: Pieces, num_chars: int
) -> dict[str, Any]:
    """Parallel lists, as completions have them."""
    tokens = [token_text(token_id, pieces) for token_id, _, _ in rows]
    offsets = list(accumulate(map(len, tokens[:-1]), initial=num_chars)) if tokens else []
    return {
        "tokens": tokens,
        "token_logprobs": [score for _, score, _ in rows],
        "top_logprobs": [top_by_text(top, pieces) for *_, top in rows]
        if any(top for *_, top in rows)
        else None,
        "text_offset": offsets,
    }


def _chat_logprobs(rows: Sequence[tuple[int, float, Top]], pieces: Pieces, _: int) -> dict[str, Any]:
    """One object for each token, as chats have them."""
    content = [
        _token_object(token_id, score, pieces)
        | {"top_logprobs": [_token_object(*pair, pieces) for pair in top]}
        for token_id, score, top in rows
    ]
    return {"content": content, "refusal": None}


def _token_object(token_id: int, score: float, pieces: Pieces) -> dict[str, Any]:
    piece = _token_bytes(token_id, pieces)
    return {
        "token": token_text(token_id, pieces),
        "logprob": score,
        "bytes": None if piece is None else list(piece),
    }
