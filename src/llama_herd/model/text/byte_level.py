"""Byte-level BPE, the vocabulary of Llama 3 and many others: text to ids, and the bytes of each id."""

from difflib import get_close_matches

from gguf import TokenType
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from llama_herd.model.reading.metadata import Metadata, quoted
from llama_herd.model.text.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from llama_herd.model.text.vocabulary import MERGES_KEY, SILENT, TOKENS_KEY, Vocabulary

PRE_KEY = "tokenizer.ggml.pre"
#: Most characters of an unknown name that is compared with the known ones.
MAX_NAME_CHARS = 64
#: What helps without a name that is known: old files have none, and a folder needs none.
PRE_HELP = "Take a newer GGUF file of the same model, or its Hugging Face folder."

_USER_DEFINED = int(TokenType.USER_DEFINED)


def _byte_characters() -> dict[str, int]:
    """The byte that each character of a byte-level token stands for.

    Printable bytes stand for themselves, the others got characters from 256 on (GPT-2's `bytes_to_unicode`).
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _byte_characters()
#: For str.translate: characters that stand for bytes become these bytes, and all others below U+0100 become
#: one that Latin-1 lacks.
_LATIN_1 = dict.fromkeys(range(0x100), 0x100) | {ord(character): byte for character, byte in _BYTES.items()}
#: Without these no text can be written; some families leave out bytes that hardly any text has.
_PLAIN_CHARACTERS = frozenset(character for character, byte in _BYTES.items() if 0x20 <= byte < 0x7F)


class ByteLevelCodec:
    """Encodes as the tokenizer of the family does that the file names.

    Control tokens are left out of the engine, so no text can become one. Bytes that the vocabulary lacks are
    left out of a text, as those tokenizers do.
    """

    def __init__(self, vocabulary: Vocabulary, metadata: Metadata) -> None:
        family = read_pre_tokenizer(metadata)
        normal_ids = vocabulary.ids(TokenType.NORMAL)
        user_defined_ids = vocabulary.ids(TokenType.USER_DEFINED)
        if not normal_ids.keys() >= _PLAIN_CHARACTERS:
            raise metadata.error(TOKENS_KEY, "lacks a token for some bytes of plain text")
        self.adds_bos = family.adds_bos
        self.pieces = tuple(map(_piece, vocabulary.tokens, vocabulary.types))
        self._engine = Tokenizer(_bpe(normal_ids | user_defined_ids, metadata, vocabulary, family))
        if family.composes:
            self._engine.normalizer = NFC()
        cuts = [Split(Regex(pattern), "isolated") for pattern in family.patterns]
        self._engine.pre_tokenizer = Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])
        self._engine.add_tokens([AddedToken(token, normalized=False) for token in user_defined_ids])

    def encode(self, text: str) -> list[int]:
        """The ids of a text, none of them a control token's."""
        ids: list[int] = self._engine.encode(text).ids
        return ids


def read_pre_tokenizer(metadata: Metadata) -> PreTokenizer:
    """The family that a file names. Raises ModelFileError, which names what is near and what would help."""
    if PRE_KEY not in metadata:
        raise metadata.error(PRE_KEY, "is missing, so how a text is cut into words is not known", PRE_HELP)
    name = metadata.text(PRE_KEY)
    if name not in PRE_TOKENIZERS:
        near = " or ".join(map(repr, get_close_matches(name[:MAX_NAME_CHARS], PRE_TOKENIZERS)))
        problem = f"is {quoted(name)}, not a family known here{near and f' (like {near})'}"
        raise metadata.error(PRE_KEY, problem, PRE_HELP)
    return PRE_TOKENIZERS[name]


def byte_level_piece(token: str) -> bytes:
    """The bytes that a token adds to a text; one with characters that stand for no byte is itself."""
    try:
        return token.translate(_LATIN_1).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()


def _piece(token: str, kind: int) -> bytes:
    if kind in SILENT:
        return b""
    return token.encode() if kind == _USER_DEFINED else byte_level_piece(token)


def _bpe(ids: dict[str, int], metadata: Metadata, vocabulary: Vocabulary, family: PreTokenizer) -> BPE:
    merges = [
        (left, right) for left, _, right in (line.partition(" ") for line in metadata.strings(MERGES_KEY))
    ]
    try:
        return BPE(ids, merges, ignore_merges=family.takes_whole_words)
    except Exception:  # the library raises nothing narrower, and looks at merges faster than we do
        usable = _merges_of_text(merges, ids, metadata, frozenset(vocabulary.tokens))
    return BPE(ids, usable, ignore_merges=family.takes_whole_words)


def _merges_of_text(
    merges: list[tuple[str, str]], ids: dict[str, int], metadata: Metadata, tokens: frozenset[str]
) -> list[tuple[str, str]]:
    """The merges but those of tokens that no text becomes. Raises ModelFileError where one is of no token."""
    usable = []
    for left, right in merges:
        if left in ids and right in ids and left + right in ids:
            usable.append((left, right))
        elif not {left, right, left + right} <= tokens:
            problem = f"joins {quoted(left)} and {quoted(right)}, but its parts or their join are no tokens"
            raise metadata.error(MERGES_KEY, problem)
    return usable
