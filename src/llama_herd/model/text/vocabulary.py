"""The tokens that a GGUF file lists, and which of them are text."""

from collections import Counter
from dataclasses import dataclass
from typing import Self

from gguf import TokenType

from llama_herd.model.reading.file_errors import quoted
from llama_herd.model.reading.metadata import Metadata
from llama_herd.model.text.end_tokens import CODE_ENDS, end_names

MAX_TOKENS = 1 << 20
#: Llama-2's longest token has 16 characters, Llama-3's 128. Merges are looked for at every cut of a token.
MAX_TOKEN_CHARS = 1_024
#: Most characters of all tokens together; the 262,144 tokens of Gemma have two million.
MAX_CHARS = 8 << 20

TOKENS_KEY = "tokenizer.ggml.tokens"
TYPES_KEY = "tokenizer.ggml.token_type"
BOS_KEY = "tokenizer.ggml.bos_token_id"
#: End of text, of turn and of message: each ends a generation.
EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")


_ADDED = (int(TokenType.CONTROL), int(TokenType.USER_DEFINED))


@dataclass(frozen=True)
class Vocabulary:
    """Each id's token and type; those that begin or end a text are control tokens, whatever the file says."""

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    bos_id: int | None
    eos_ids: frozenset[int]

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> Self:
        """Read and check the metadata of a GGUF file. Raises ModelFileError, which names the key."""
        tokens = _read_tokens(metadata)
        types = _read_types(metadata, len(tokens))
        bos_id = _read_id(metadata, BOS_KEY, tokens) if BOS_KEY in metadata else None
        eos_ids = _read_ends(metadata, tokens, types)
        for token_id in eos_ids if bos_id is None else eos_ids | {bos_id}:
            types[token_id] = TokenType.CONTROL
        return cls(tokens, tuple(types), bos_id, eos_ids)

    def ids(self, kind: TokenType) -> dict[str, int]:
        """The tokens of a type and their ids."""
        wanted = int(kind)  # compares faster
        pairs = enumerate(zip(self.tokens, self.types, strict=True))
        return {token: token_id for token_id, (token, found) in pairs if found == wanted}


def _read_tokens(metadata: Metadata) -> tuple[str, ...]:
    tokens = metadata.strings(TOKENS_KEY)
    if not 1 <= len(tokens) <= MAX_TOKENS:
        raise metadata.error(TOKENS_KEY, f"has {len(tokens)} elements, allowed are 1 to {MAX_TOKENS}")
    if len(set(tokens)) < len(tokens):
        token, count = Counter(tokens).most_common(1)[0]
        raise metadata.error(TOKENS_KEY, f"has the token {quoted(token)} {count} times, allowed is once")
    longest = max(map(len, tokens))
    if longest > MAX_TOKEN_CHARS:
        raise metadata.error(TOKENS_KEY, f"has a token of {longest} characters, limit {MAX_TOKEN_CHARS}")
    num_chars = sum(map(len, tokens))
    if num_chars > MAX_CHARS:
        raise metadata.error(TOKENS_KEY, f"has {num_chars} characters in all, limit {MAX_CHARS}")
    return tokens


def _read_types(metadata: Metadata, num_tokens: int) -> list[int]:
    types: list[int] = metadata.array(TYPES_KEY, "i", num_tokens).tolist()
    unknown = set(types) - set(TokenType)
    if unknown:
        raise metadata.error(TYPES_KEY, f"holds {min(unknown)}, known are 1 to {max(TokenType):d}")
    return types


def _read_ends(metadata: Metadata, tokens: tuple[str, ...], types: list[int]) -> frozenset[int]:
    """Ends by the keys of the file, and added tokens that are ends by their names."""
    known = [key for key in (*EOS_KEYS, *CODE_ENDS) if key in metadata]
    added = {tokens[token_id]: token_id for token_id, kind in enumerate(types) if kind in _ADDED}
    named = (added[name] for name in end_names(added, known))
    return frozenset((*(_read_id(metadata, key, tokens) for key in known), *named))


def _read_id(metadata: Metadata, key: str, tokens: tuple[str, ...]) -> int:
    return metadata.integer(key, 0, len(tokens) - 1)
