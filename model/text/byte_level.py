"""Byte-level BPE, the vocabulary of Llama 3: text to ids, and the bytes of each id."""

from gguf import TokenType
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from llama_herd.model.metadata import Metadata
from llama_herd.model.quoted import quoted
from llama_herd.model.text.vocabulary import TOKENS_KEY, Vocabulary

MERGES_KEY = "tokenizer.ggml.merges"
PRE_KEY = "tokenizer.ggml.pre"

#: How Llama 3 cuts text into words before it merges. Source: the `split` pattern of its tokenizer.json.
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_characters() -> dict[str, int]:
    """The byte that each character of a byte-level token stands for.

    Printable bytes stand for themselves, the others got characters from 256 on (GPT-2's `bytes_to_unicode`).
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _byte_characters()


class ByteLevelCodec:
    """Encodes as Llama 3's tokenizer does.

    Control tokens are left out of the engine, so no text can become one.
    """

    def __init__(self, vocabulary: Vocabulary, metadata: Metadata) -> None:
        pre = metadata.text(PRE_KEY)
        if pre != "llama-bpe":
            raise metadata.error(PRE_KEY, f"is {quoted(pre)}, only 'llama-bpe' is supported")
        self.pieces = tuple(map(_piece, vocabulary.tokens, vocabulary.types))
        normal_ids = vocabulary.ids({TokenType.NORMAL})
        user_defined_ids = vocabulary.ids({TokenType.USER_DEFINED})
        if not normal_ids.keys() >= _BYTES.keys():
            raise metadata.error(TOKENS_KEY, "lacks a token for some bytes, all 256 are needed")
        self._engine = Tokenizer(_bpe(normal_ids | user_defined_ids, metadata))
        self._engine.pre_tokenizer = Sequence(
            [Split(Regex(_LLAMA3_WORDS), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        self._engine.add_tokens([AddedToken(token, normalized=False) for token in user_defined_ids])

    def encode(self, text: str) -> list[int]:
        """The ids of a text, none of them a control token's."""
        ids: list[int] = self._engine.encode(text).ids
        return ids


def byte_level_piece(token: str) -> bytes:
    """What a token adds to a text; a token with other characters than bytes have stands for itself."""
    try:
        return bytes([_BYTES[character] for character in token])
    except KeyError:
        return token.encode()


def _piece(token: str, kind: int) -> bytes:
    if kind in (TokenType.CONTROL, TokenType.UNKNOWN):
        return b""
    return token.encode() if kind == TokenType.USER_DEFINED else byte_level_piece(token)


def _bpe(ids: dict[str, int], metadata: Metadata) -> BPE:
    merges = []
    for line in metadata.strings(MERGES_KEY):
        left, _, right = line.partition(" ")
        if not (left in ids and right in ids and left + right in ids):
            raise metadata.error(
                MERGES_KEY, f"joins {quoted(line)}, but its parts or their join are no tokens"
            )
        merges.append((left, right))
    return BPE(vocab=ids, merges=merges, ignore_merges=True)
