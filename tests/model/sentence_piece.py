"""A small sentencepiece model, the oracle of the tokenizer's tests, and its form in a GGUF file."""

import io
import random
from functools import cache
from typing import Any

import numpy as np
import sentencepiece
from gguf import TokenType

from tests.model.corpus import words

UNK_ID, BOS_ID, EOS_ID = 0, 1, 2
CONTROL_IDS = {UNK_ID, BOS_ID, EOS_ID}
USER_DEFINED = "<|tool|>"


@cache
def train_sentence_piece() -> sentencepiece.SentencePieceProcessor:
    """A small model with Llama's settings, trained on words of a few languages."""
    rng = random.Random(0)
    spaces = ("", "  ", "    ")
    lines = (words(rng, 12) + rng.choice(spaces) + "o" * rng.randrange(4) for _ in range(3_000))
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines,
        model_writer=model,
        vocab_size=1_000,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        user_defined_symbols=[USER_DEFINED],
        num_threads=1,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def kind_of(piece: sentencepiece.SentencePieceProcessor, token_id: int) -> TokenType:
    if piece.is_byte(token_id):
        return TokenType.BYTE
    if piece.is_unknown(token_id):
        return TokenType.UNKNOWN
    if piece.is_control(token_id):
        return TokenType.CONTROL
    return TokenType.USER_DEFINED if piece.id_to_piece(token_id) == USER_DEFINED else TokenType.NORMAL


def gguf_values(sentence_piece: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    """The metadata that llama.cpp's converter writes for a sentencepiece model."""
    ids = range(sentence_piece.vocab_size())
    scores = [sentence_piece.get_score(token_id) for token_id in ids]
    kinds = [kind_of(sentence_piece, token_id) for token_id in ids]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tuple(sentence_piece.id_to_piece(token_id) for token_id in ids),
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.bos_token_id": BOS_ID,
        "tokenizer.ggml.eos_token_id": EOS_ID,
        "tokenizer.ggml.unknown_token_id": UNK_ID,
    }
