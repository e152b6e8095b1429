"""Log-probabilities as OpenAI writes them, with the text and the bytes of each token."""

from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from llama_herd.tasks.openai.request_body import CHAT, Endpoint
from llama_herd.tasks.protocol.events import Pieces

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
    endpoint: Endpoint, scored: HasLogprobs, pieces: Pieces | None, offsets: Offsets | None = None
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
        return _chat_logprobs(rows, pieces)
    return _completion_logprobs(rows, pieces, offsets or Offsets())


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


class OwnToken(NamedTuple):
    """The token that stands in a place."""

    token_id: int
    name: str
    score: float


def top_by_name(top: Top, pieces: Pieces | None, own: OwnToken | None = None) -> dict[str, float]:
    """The likeliest tokens by their names, and the place's own token, though it may not be one of them.

    Of several with one name the own one has it, else the likeliest; the others are called by their ids.
    """
    found = {} if own is None else {own.name: own.score}
    for token_id, score in top:
        if own is None or token_id != own.token_id:
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
    rows: Sequence[tuple[int, float, Top]], pieces: Pieces | None, offsets: Offsets
) -> dict[str, Any]:
    """Parallel lists, as completions have them."""
    own = [token_bytes(token_id, pieces) for token_id, _, _ in rows]
    names = [token_name(piece) for piece in own]
    return {
        "tokens": names,
        "token_logprobs": [score for _, score, _ in rows],
        "top_logprobs": [
            top_by_name(top, pieces, OwnToken(token_id, name, score))
            for (token_id, score, top), name in zip(rows, names, strict=True)
        ],
        "text_offset": [offsets.next(piece) for piece in own],
    }


def _chat_logprobs(rows: Sequence[tuple[int, float, Top]], pieces: Pieces | None) -> dict[str, Any]:
    """One object for each token, as chats have them."""
    content = [
        _token_object(token_id, score, pieces)
        | {"top_logprobs": [_token_object(*pair, pieces) for pair in top]}
        for token_id, score, top in rows
    ]
    return {"content": content, "refusal": None}


def _token_object(token_id: int, score: float, pieces: Pieces | None) -> dict[str, Any]:
    piece = _known_bytes(token_id, pieces)
    return {
        "token": token_text(token_id, pieces),
        "logprob": score,
        "bytes": None if piece is None else list(piece),
    }
