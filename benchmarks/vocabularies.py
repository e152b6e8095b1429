"""Made-up vocabularies for files of random weights."""

from collections.abc import Callable
from itertools import chain, islice, product

import gguf
from gguf import TokenType

NUM_BYTES = 256
SPECIAL = ("<unk>", "<s>", "</s>")

#: Writes a vocabulary of so many tokens.
AddVocabulary = Callable[[gguf.GGUFWriter, int], None]


def add_sentence_pieces(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    """SentencePiece with byte fallback, filled up with made-up words."""
    tokens = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(NUM_BYTES))]
    tokens += ["▁", *(f"▁w{number}" for number in range(vocab_size - len(tokens) - 1))]
    num_words = len(tokens) - len(SPECIAL) - NUM_BYTES
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([float(-rank) for rank in range(len(tokens))])
    writer.add_token_types(
        [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
        + [TokenType.BYTE] * NUM_BYTES
        + [TokenType.NORMAL] * num_words
    )
    _add_ends(writer)


def add_byte_pairs(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    """Byte-level BPE: all bytes, filled up with pairs of them, then with threes."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = range(256, 512 - len(printable))  # where GPT-2 has all other bytes
    characters = [chr(code) for code in (*printable, *others)]
    longer = ((a + b, c) for a, b, c in product(characters, repeat=3))
    pairs = [*islice(chain(product(characters, repeat=2), longer), vocab_size - len(SPECIAL) - NUM_BYTES)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([*SPECIAL, *characters, *map("".join, pairs)])
    writer.add_token_merges([*map(" ".join, pairs)])
    writer.add_token_types([TokenType.CONTROL] * len(SPECIAL) + [TokenType.NORMAL] * (NUM_BYTES + len(pairs)))
    _add_ends(writer)


def _add_ends(writer: gguf.GGUFWriter) -> None:
    writer.add_bos_token_id(SPECIAL.index("<s>"))
    writer.add_eos_token_id(SPECIAL.index("</s>"))
    writer.add_add_bos_token(True)
