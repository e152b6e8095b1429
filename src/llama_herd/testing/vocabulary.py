"""Vocabulary: a tokenizer without a model, whose ids say by themselves what they stand for."""

import re
from collections.abc import Iterable, Sequence
from string import ascii_letters, digits
from typing import overload

from llama_herd.tasks.protocol.sampling import MAX_INT

#: A word of up to four letters with the space before it, or a part of a longer one; else any character.
_PIECE = re.compile(r" ?[A-Za-z0-9]{1,4}|[\s\S]")

_ALPHABET = " " + ascii_letters + digits
_DIGIT_OF = {letter: digit for digit, letter in enumerate(_ALPHABET, start=1)}

#: Ids below are the bytes; this one ends an output, and the others are words, as numbers in this alphabet.
EOS_ID = 256
_FIRST_WORD_ID = EOS_ID


class Pieces(Sequence[bytes]):
    """The bytes that each id stands for."""

    def __len__(self) -> int:
        return MAX_INT + 1

    @overload
    def __getitem__(self, token_id: int) -> bytes: ...
    @overload
    def __getitem__(self, token_id: slice) -> Sequence[bytes]: ...
    def __getitem__(self, token_id: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(token_id, slice):
            return [self[one] for one in range(*token_id.indices(len(self)))]
        if token_id < EOS_ID:
            return bytes([token_id])
        number, letters = token_id - _FIRST_WORD_ID, ""
        while number:
            number, digit = divmod(number - 1, len(_ALPHABET))
            letters = _ALPHABET[digit] + letters
        return letters.encode()


class Vocabulary:
    """Cuts text into words and parts of words, the same everywhere: nothing is learnt or loaded.

        vocabulary = Vocabulary()
        vocabulary.text_of(vocabulary.encode("Once upon a time"))  # the same text, in four ids

    It takes the ids of any model, so that a job may bring `prompt_ids`, but reads another text in them.
    """

    bos_id = None
    eos_ids = frozenset({EOS_ID})
    first_ids = ()
    pieces = Pieces()
    vocab_size = len(pieces)

    def encode(self, text: str, *, add_bos: bool | None = None) -> list[int]:
        """The ids of a text; nothing is added to it."""
        return [token_id for piece in _PIECE.findall(text) for token_id in _ids_of(piece)]

    def text_of(self, ids: Iterable[int]) -> str:
        return b"".join(self.pieces[token_id] for token_id in ids).decode(errors="replace")


def _ids_of(piece: str) -> Iterable[int]:
    """The one id of a word, or those of the bytes of another character."""
    if not piece.strip(" ").isalnum() or not piece.isascii():
        return piece.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
    number = 0
    for letter in piece:
        number = number * len(_ALPHABET) + _DIGIT_OF[letter]
    return [_FIRST_WORD_ID + number]
