"""A model's vocabulary as llguidance reads it."""

from llguidance import LLTokenizer, TokenizerWrapper

from llama_herd.model.text.tokenizer import Tokenizer

#: Stands before a text that is cut into tokens, so that no codec puts a space there. No token holds it
#: beside other characters.
MARK = "\x02"


def vocabulary_of(tokenizer: Tokenizer) -> LLTokenizer:
    """The pieces of all tokens, how the model cuts texts, and the ids that end a generation, or a grammar."""
    pieces = _Pieces(tokenizer)
    vocabulary = LLTokenizer(TokenizerWrapper(pieces), eos_token=pieces.ends)
    pieces.greedy = vocabulary.greedy_tokenize
    return vocabulary


class _Pieces:
    """A tokenizer as llguidance calls it, for texts that a grammar leaves no choice about."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._num_mark_ids = len(tokenizer.encode(MARK, add_bos=False))
        self.greedy = self._uncut
        # llguidance wants an end: one that cannot be drawn where the model has none.
        given = tokenizer.pieces if tokenizer.eos_ids else (*tokenizer.pieces, b"")
        self.ends = sorted(tokenizer.eos_ids) or [len(tokenizer.pieces)]
        self.eos_token_id = self.ends[0]
        self.bos_token_id = tokenizer.bos_id
        self.special_token_ids = [number for number, piece in enumerate(given) if not piece]
        # llguidance's mark of a special token: no UTF-8 begins so.
        self.tokens = [piece or b"\xff<%d>" % number for number, piece in enumerate(given)]

    def __call__(self, text: bytes) -> list[int]:
        """The ids as the model cuts the text within an output; by longest pieces where it would change it."""
        words = text.decode(errors="replace")
        ids = self._tokenizer.encode(MARK + words, add_bos=False)[self._num_mark_ids :]
        pieces = self._tokenizer.pieces
        return ids if b"".join(pieces[one] for one in ids) == text else self.greedy(words)

    def _uncut(self, text: str) -> list[int]:
        """Encode nothing, until there is a vocabulary: llguidance only tries whether bytes are taken."""
        return []
