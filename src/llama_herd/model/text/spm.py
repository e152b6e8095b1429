"""SentencePiece BPE, the vocabulary of Llama 2: text to ids, and the bytes of each id."""

import re
from collections.abc import Sequence

from gguf import TokenType
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE

from llama_herd.model.reading.metadata import Metadata
from llama_herd.model.text.vocabulary import SILENT, TOKENS_KEY, Vocabulary

SCORES_KEY = "tokenizer.ggml.scores"
SPACE = "\u2581"  # ▁, what stands for a space in a token

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class SpmCodec:
    """Encodes as sentencepiece does with Llama's settings: no normalisation, byte fallback.

    Control tokens are left out of the engine, so no text can become one.
    """

    adds_bos = True  # unless a file says otherwise

    def __init__(self, vocabulary: Vocabulary, metadata: Metadata) -> None:
        kinds = zip(vocabulary.tokens, vocabulary.types, strict=True)
        self.pieces = tuple(b"" if kind in SILENT else spm_piece(token) for token, kind in kinds)
        self._prefix = SPACE if metadata.flag("tokenizer.ggml.add_space_prefix", True) else ""
        normal_ids = vocabulary.ids(TokenType.NORMAL)
        # For the engine as they stand in a text: converters write their spaces as spaces.
        user_defined = vocabulary.ids(TokenType.USER_DEFINED).items()
        user_defined_ids = {token.replace(" ", SPACE): token_id for token, token_id in user_defined}
        byte_ids = _byte_ids(vocabulary, metadata)
        num_tokens = len(vocabulary.tokens)
        scores = [0.0] * num_tokens
        if SCORES_KEY in metadata:
            scores = metadata.array(SCORES_KEY, "f", num_tokens).tolist()
        merges = recover_merges(normal_ids, scores)
        self._engine = Tokenizer(
            BPE(vocab=normal_ids | user_defined_ids | byte_ids, merges=merges, byte_fallback=True)
        )
        self._engine.add_tokens([AddedToken(token, normalized=False) for token in user_defined_ids])

    def encode(self, text: str) -> list[int]:
        """The ids of a text, none of them a control token's."""
        # No normalizer of the engine: it would prefix the text after a user-defined token, too.
        spaced = text.replace(" ", SPACE)
        ids: list[int] = self._engine.encode(self._prefix + spaced if text else "").ids
        return ids


def recover_merges(ids: dict[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """All pairs of tokens whose join is a token, best score first: GGUF files hold scores only.

    sentencepiece joins the neighbours of the best score first; BPE with merges in this order does the same.
    `ids` come in their order, which is that of equal scores.
    """
    merges: list[tuple[str, str]] = []
    for token in sorted(ids, key=lambda token: -scores[ids[token]]):
        pairs = [
            (left, right)
            for cut in range(1, len(token))
            if (left := token[:cut]) in ids and (right := token[cut:]) in ids
        ]
        if len(pairs) > 1:
            pairs.sort(key=lambda pair: ids[pair[0]])
        merges += pairs
    return merges


def spm_piece(token: str) -> bytes:
    """The bytes that a token adds to a text."""
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(SPACE, " ").encode()


def _byte_ids(vocabulary: Vocabulary, metadata: Metadata) -> dict[str, int]:
    """The byte tokens. With all 256 any text can be encoded, and none needs the unknown token."""
    byte_ids = vocabulary.ids(TokenType.BYTE)
    missing = {f"<0x{byte:02X}>" for byte in range(256)} - byte_ids.keys()
    if missing or len(byte_ids) > 256:
        raise metadata.error(TOKENS_KEY, f"holds {len(byte_ids)} byte tokens, <0x00> to <0xFF> are needed")
    return byte_ids
